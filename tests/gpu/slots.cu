// A writer that takes slots anew, and a look at their generations; specs in programs.py. Behind words.cu.

// One lane fires an event; all learn whether it was applied.
__device__ __forceinline__ bool fires(kv_u64* word, kv_u32 machine, kv_u32 event, const kv_i64* arguments) {
  kv_u32 code = kv_refusal::kApplied;
  __syncwarp();  // what all lanes wrote comes before the release of lane 0's compare-and-swap
  if (kv_lane() == 0) {
    code = kv_words::change(word, [=](kv_u64 now, kv_u64* next) {
      return kv_events::fire(machine, event, now, arguments, 1, next);
    });
  }
  __syncwarp();
  return __shfl_sync(kWholeWarp, code, 0) == kv_refusal::kApplied;
}

enum Turn { kTaken, kHeld, kLost };

// A warp's turn with the slot of its block: evicts it, takes it, fills it with the pattern of its new generation, seals
// it. Arguments are those of the kernels.
__device__ __forceinline__ Turn take_anew(
    kv_u32 machine,
    const kv_u32* events,
    const kv_i64* arguments,
    const kv_i64* seal_arguments,
    kv_u32 width,
    kv_u64* words,
    kv_u8* arena,
    kv_u32 bytes) {
  const kv_u32 slot = blockIdx.x;
  kv_u64* const word = words + slot;
  kv_u8* const page = arena + (kv_u64)slot * bytes;
  if (!fires(word, machine, events[0], arguments)) return kHeld;  // pinned
  if (!fires(word, machine, events[1], arguments)) return kLost;  // retired
  kv_u32 generation = 0;
  if (kv_lane() == 0) generation = (kv_u32)kv_events::generation_of(machine, kv_load_relaxed(word));
  generation = __shfl_sync(kWholeWarp, generation, 0);
  const kv_u32 value = generation * 0x9E3779B1u + slot;
  for (kv_u32 at = kv_lane(); at < bytes / 16; at += kWarpLanes)
    kv_store16_relaxed(page + 16ULL * at, make_uint4(value, value, value, value));
  kv_i64 given[8];
  for (kv_u32 k = 0; k < 8; ++k) given[k] = k < width ? seal_arguments[k] : 0;
  given[0] = generation;
  return fires(word, machine, events[2], given) ? kTaken : kLost;
}

extern "C" __global__ void __launch_bounds__(32) kv_rewrite(
    kv_u32 machine,
    const kv_u32* events,
    const kv_i64* arguments,
    const kv_i64* seal_arguments,
    kv_u32 width,
    kv_u64* words,
    kv_u8* arena,
    kv_u32 bytes,
    kv_u32 rounds,
    kv_u32* taken) {
  kv_u32 count = 0;
  for (kv_u32 round = 0; round < rounds; ++round) {
    const Turn turn = take_anew(machine, events, arguments, seal_arguments, width, words, arena, bytes);
    if (turn == kLost) break;
    if (turn == kTaken) ++count;
  }
  if (kv_lane() == 0) taken[blockIdx.x] = count;
}

// The same until it is told to stop. `signals`: [0] warps that have begun, [1] not 0: stop, [2] the reader saw all begin.
extern "C" __global__ void __launch_bounds__(32) kv_churn(
    kv_u32 machine,
    const kv_u32* events,
    const kv_i64* arguments,
    const kv_i64* seal_arguments,
    kv_u32 width,
    kv_u64* words,
    kv_u8* arena,
    kv_u32 bytes,
    kv_u32 rounds,
    kv_u32 pause,
    kv_u32* signals,
    kv_u32* taken,
    kv_u32* held,
    kv_u32* stopped) {
  if (kv_lane() == 0) atomicAdd(signals, 1u);
  kv_u32 is_told = 0, taken_here = 0, held_here = 0;
  for (kv_u32 round = 0; round < rounds; ++round) {
    // The slot is left alone meanwhile, for readers to find it.
    kv_u32 now = 0;
    for (kv_u32 k = 0; k <= pause && now == 0; ++k)
      if (kv_lane() == 0) now = kv_load4_relaxed(signals + 1);
    is_told = __shfl_sync(kWholeWarp, now, 0);
    if (is_told != 0) break;
    const Turn turn = take_anew(machine, events, arguments, seal_arguments, width, words, arena, bytes);
    if (turn == kLost) break;
    if (turn == kTaken) ++taken_here;
    if (turn == kHeld) ++held_here;
  }
  if (kv_lane() != 0) return;
  taken[blockIdx.x] += taken_here;
  held[blockIdx.x] += held_here;
  stopped[blockIdx.x] = is_told;
}

// One thread: waits until so many warps have begun, or not for ever.
extern "C" __global__ void __launch_bounds__(32) kv_await(kv_u32* signals, kv_u32 warps, kv_u32 tries) {
  if (threadIdx.x != 0) return;
  kv_u32 begun = kv_load4_relaxed(signals);
  for (kv_u32 n = 0; n < tries && begun < warps; ++n) begun = kv_load4_relaxed(signals);
  signals[2] = begun >= warps ? 1u : 0u;
}

extern "C" __global__ void __launch_bounds__(32) kv_stop(kv_u32* signals) {
  if (threadIdx.x == 0) atomicAdd(signals + 1, 1u);
}

extern "C" __global__ void __launch_bounds__(32) kv_publish(
    kv_u32 machine,
    kv_u32 event,
    const kv_i64* arguments,
    kv_u64* word,
    kv_u8* page,
    kv_u32 value) {
  kv_store16(page + 16ULL * kv_lane(), make_uint4(value, value, value, value));
  fires(word, machine, event, arguments);
}

extern "C" __global__ void __launch_bounds__(256) kv_peek(
    kv_u32 machine,
    const kv_u64* words,
    const kv_i32* ids,
    kv_u32 count,
    kv_u32* expected,
    kv_i64* arguments) {
  const kv_u32 at = blockIdx.x * 256u + threadIdx.x;
  if (at >= count) return;
  const kv_i64 generation = kv_events::generation_of(machine, kv_load_relaxed(words + ids[at]));
  expected[at] = (kv_u32)generation;
  arguments[at] = generation;
}
