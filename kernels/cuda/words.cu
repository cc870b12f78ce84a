// Kernels over state words, and over nothing else: no byte of an object is read here.
//
// Words lie in device memory, and the host changes them by launches and copies in stream order alone, so the scope of
// the device is enough for every atomic. What an event does is in generated/events.cuh; this file brings it to words
// that other threads change at the same time.
namespace kv_words {

// Each failed try means that another thread's change succeeded, so somebody gets on; the bound keeps any one thread
// from spinning for ever.
constexpr kv_u32 kTries = 65536;

constexpr kv_u32 kNobody = 0xFFFFFFFFu;  // no reference of a request is refused

// Changes a word as `transition(seen, &next)` says of it, in one step. Returns the transition's code, or kContended.
//
// Acquires: a pin sees the bytes as they were when somebody published them, by a release of this same function (seal,
// load_done, land) or of kv_put_words. Releases: who takes the slot away afterwards (evict, compress_begin), again by
// this function, comes after all that this thread read and wrote while it had the slot.
template <class Transition>
__device__ __forceinline__ kv_u8 change(kv_u64* word, Transition transition) {
  kv_u64 seen = kv_load_acquire(word);
  for (kv_u32 tries = 0; tries < kTries; ++tries) {
    kv_u64 next;
    const kv_u8 code = transition(seen, &next);
    if (code != kv_refusal::kApplied || next == seen) return code;
    const kv_u64 found = kv_cas_acq_rel(word, seen, next);
    if (found == seen) return kv_refusal::kApplied;
    seen = found;
  }
  return kv_call::kContended;
}

// Place of a reference in `words`: machine m has [first[m], first[m + 1]). Returns kApplied, or why there is none.
__device__ __forceinline__ kv_u8 find(const kv_u32* first, kv_u32 machine, kv_u32 slot, kv_u32* place) {
  *place = 0;
  if (machine >= kv_events::kMachineCount) return kv_call::kBadArgument;
  const kv_u32 begin = first[machine], end = first[machine + 1];
  if (slot >= end - begin) return kv_call::kNoSlot;
  *place = begin + slot;
  return kv_refusal::kApplied;
}

// Of this thread in its launch. Launch plans keep arrays below 2^31 elements, so that it doesn't wrap.
__device__ __forceinline__ kv_u32 thread_place() { return blockIdx.x * blockDim.x + threadIdx.x; }

}  // namespace kv_words

// The second bounds below allow 64 registers a thread: without them the assembler spills to fit into 32.

// A block a request: pins all of its references, or none.
extern "C" __global__ void __launch_bounds__(128, 8) kv_validate_pin(
    kv_u64* words,            // [slots of all machines] read and changed
    const kv_u32* first,      // [machines + 1] machine m has words [first[m], first[m + 1])
    const kv_u32* starts,     // [requests + 1] request r has references [starts[r], starts[r + 1])
    const kv_u32* count,      // [1] requests that there are, of the grid
    kv_u32 references,        // length of the arrays of references
    const kv_u8* machines,    // [references]
    const kv_u32* slots,      // [references] numbered in their machine
    const kv_i64* arguments,  // [width, references] of the machine's pin
    kv_u8* leases,            // [references] written: 0 a pin is held, else why not
    kv_u8* verdicts) {        // [requests] written: 0, or the code of the first reference that was refused
  __shared__ kv_u32 first_refused;
  const kv_u32 request = blockIdx.x;
  if (request >= *count) return;
  const kv_u32 begin = starts[request], end = starts[request + 1];
  if (begin > end || end > references) {
    if (threadIdx.x == 0) verdicts[request] = kv_call::kBadArgument;
    return;
  }
  if (threadIdx.x == 0) first_refused = kv_words::kNobody;
  __syncthreads();

  // Each thread writes down in `leases` what it pinned. It goes on after a refusal, so that all references have a code.
  for (kv_u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const kv_u32 machine = machines[i];
    kv_u32 place;
    kv_u8 code = kv_words::find(first, machine, slots[i], &place);
    if (code == kv_refusal::kApplied) {
      code = kv_words::change(words + place, [=](kv_u64 word, kv_u64* next) {
        return kv_events::on_validate_pin(machine, word, arguments + i, references, next);
      });
    }
    leases[i] = code;
    if (code != kv_refusal::kApplied) atomicMin(&first_refused, i);
  }
  __syncthreads();

  const kv_u32 refused = first_refused;
  if (threadIdx.x == 0) {
    verdicts[request] = refused == kv_words::kNobody ? (kv_u8)kv_refusal::kApplied : leases[refused];
  }
  if (refused == kv_words::kNobody) return;

  // Undo from what this thread wrote down, never from the word: that may have become such as can be pinned meanwhile.
  // The pin is there, so taking it away can't fail, whatever else has changed in the word.
  for (kv_u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
    if (leases[i] != kv_refusal::kApplied) continue;
    const kv_u32 machine = machines[i];
    const kv_u64 pins = kv_events::pins_bits(machine);
    const kv_u64 one = pins & (0 - pins);
    // Pairs with the acquire of who takes the slot away once nobody holds it.
    kv_add_release(words + first[machine] + slots[i], 0 - one);
    leases[i] = kv_call::kReleased;
  }
}

// A thread a reference: gives back the pin that it holds, if it holds one.
extern "C" __global__ void __launch_bounds__(256) kv_unpin(
    kv_u64* words,            // [slots of all machines] read and changed
    const kv_u32* first,      // [machines + 1] as for kv_validate_pin, like all that follow
    const kv_u32* count,      // [1] references that there are, of `references`
    kv_u32 references,        // length of the arrays of references
    const kv_u8* machines,    // [references]
    const kv_u32* slots,      // [references]
    const kv_i64* arguments,  // [width, references] of the machine's unpin, which are the first of its pin
    kv_u8* leases) {          // [references] read and written: 0 a pin is held, else why not
  const kv_u32 i = kv_words::thread_place();
  if (i >= references || i >= *count) return;
  if (leases[i] != kv_refusal::kApplied) return;
  const kv_u32 machine = machines[i];
  kv_u32 place;
  kv_u8 code = kv_words::find(first, machine, slots[i], &place);
  if (code == kv_refusal::kApplied) {
    code = kv_words::change(words + place, [=](kv_u64 word, kv_u64* next) {
      return kv_events::on_unpin(machine, word, arguments + i, references, next);
    });
    if (code == kv_call::kContended) return;  // the pin is still there, and another launch may give it back
    if (code == kv_refusal::kApplied) code = kv_call::kReleased;
  }
  leases[i] = code;
}

// A thread a reference: looks once more, in the launch before the use or in its stream, and changes nothing.
extern "C" __global__ void __launch_bounds__(256) kv_revalidate(
    const kv_u64* words,      // [slots of all machines] read
    const kv_u32* first,      // [machines + 1]
    const kv_u32* count,      // [1] references that there are, of `references`
    kv_u32 references,        // length of the arrays of references
    const kv_u8* machines,    // [references]
    const kv_u32* slots,      // [references]
    const kv_i64* arguments,  // [width, references] of the machine's event for this kernel
    kv_u8* refusals) {        // [references] written
  const kv_u32 i = kv_words::thread_place();
  if (i >= references || i >= *count) return;
  const kv_u32 machine = machines[i];
  kv_u32 place;
  kv_u8 code = kv_words::find(first, machine, slots[i], &place);
  if (code == kv_refusal::kApplied) {
    // Pairs with the release of who landed the layer (kv_apply_event) or copied the word here (kv_put_words).
    const kv_u64 word = kv_load_acquire(words + place);
    kv_u64 same;
    code = kv_events::on_revalidate(machine, word, arguments + i, references, &same);
  }
  refusals[i] = code;
}

// A thread a firing: one event of one machine on many slots. Slots may repeat; each firing is applied once or refused.
extern "C" __global__ void __launch_bounds__(256, 4) kv_apply_event(
    kv_u64* words,            // [slot_count] of that machine, read and changed
    kv_u32 slot_count,
    kv_u32 machine,
    kv_u32 event,
    const kv_u32* count,      // [1] firings that there are, of `firings`
    kv_u32 firings,           // length of the arrays of firings
    const kv_u32* slots,      // [firings]
    const kv_i64* arguments,  // [width, firings]; null for an event without arguments
    kv_u8* refusals) {        // [firings] written
  const kv_u32 i = kv_words::thread_place();
  if (i >= firings || i >= *count) return;
  if (slots[i] >= slot_count) {
    refusals[i] = kv_call::kNoSlot;
    return;
  }
  refusals[i] = kv_words::change(words + slots[i], [=](kv_u64 word, kv_u64* next) {
    return kv_events::fire(machine, event, word, arguments + i, firings, next);
  });
}

// A thread a word: the host's word in place of the device's, but for the pins, which are of launches and stay.
// Refused as pinned where there are some that could not be given back from the new word.
extern "C" __global__ void __launch_bounds__(256) kv_put_words(
    kv_u64* words,         // [slot_count] of that machine, read and changed
    kv_u32 slot_count,
    kv_u32 machine,
    const kv_u32* count,   // [1] values that there are, of `values_max`
    kv_u32 values_max,     // length of the arrays of values
    const kv_u32* slots,   // [values_max] each at most once
    const kv_u64* values,  // [values_max] words of the host
    kv_u8* refusals) {     // [values_max] written
  const kv_u32 i = kv_words::thread_place();
  if (i >= values_max || i >= *count) return;
  kv_u8 code = kv_call::kNoSlot;
  if (slots[i] < slot_count) {
    const kv_u64 value = values[i], pins = kv_events::pins_bits(machine);
    code = kv_words::change(words + slots[i], [=](kv_u64 word, kv_u64* next) {
      const kv_u64 kept = word & pins;
      const kv_u64 wanted = (value & ~pins) | kept;
      *next = wanted;
      if (kept == 0) return (kv_u8)kv_refusal::kApplied;
      const kv_i64 generation = kv_events::generation_of(machine, word);
      kv_u64 without;
      const kv_u8 given_back = kv_events::on_unpin(machine, wanted, &generation, 0, &without);
      return (kv_u8)(given_back == kv_refusal::kApplied ? kv_refusal::kApplied : kv_refusal::kPinned);
    });
  }
  refusals[i] = code;
}
