// Rows compressed to entries: pooled by the softmax of their gates, normed, turned by their position; as float32, or as
// FP8 in pages. Meaning, order of sums, plans, references and bytes in kernels/compress.py. A block has one entry, or
// a warp has one key; a thread has four neighbouring channels.

constexpr kv_u32 kThreads = 128;
constexpr kv_u32 kKeysOfBlock = kThreads / kWarpLanes;  // kernels/compress.py: KEYS_AT_ONCE
constexpr kv_u32 kRowsAtOnce = 8;  // kernels/compress.py: ROWS_AT_ONCE
constexpr kv_u32 kChannels = 4;    // kernels/compress.py: CHANNELS

constexpr kv_u32 kV4GroupThreads = kV4Group / kChannels;
static_assert(kThreads * kChannels == kV4Elements, "a block has an entry of DeepSeek-V4");

constexpr kv_u32 kKeyElements = 128;
static_assert(kWarpLanes * kChannels == kKeyElements, "a warp has a key");

// Where the window before an entry's own lies.
enum Origin : kv_u8 {
  kNothing = 0,
  kRows = 1,
  kCarry = 2,
};

// Rows, which of them become entries, and how: what all kernels here begin with, as the arguments of the same names.
struct Windows {
  const float* kv;            // [row_count, row_stride], like gate
  const float* gate;
  kv_u32 row_count;
  kv_u32 row_stride;          // floats from a row to the next
  const float* carry_kv;      // [carry_count, carry_stride], like carry_gate; null if no rows are carried over
  const float* carry_gate;
  kv_u32 carry_count;
  kv_u32 carry_stride;
  const float* bias;          // [ratio, width], where width is elements, or twice as many with overlaps
  const float* weight;        // [elements]
  const float* rotary;        // [position_count, rope] cosines, then sines
  kv_u32 position_count;
  const kv_u32* current;      // [most] first row of an entry's window
  const kv_u32* positions;    // [most]
  const kv_u8* origin;        // [most] Origin
  const kv_u32* previous;     // [most] first row of the window before, there
  const kv_i64* live;         // entries in use, or null: `most`
  kv_u32 most;
  kv_u32 elements;            // of an entry
  kv_u32 ratio;               // rows of a window
  kv_u32 overlaps;            // 1: windows are pooled with the one before
  kv_u32 rope;                // channels at the end that are turned
  float epsilon;              // added to the mean square
  kv_u32 rows_folded;         // 1: gates of the rows hold the bias already
  kv_u32 carry_folded;        // 1: gates of the carried rows do
};

// Of the arguments that are in scope; C has no other way to say them once.
#define KV_WINDOWS                                                                                              \
  {kv, gate, row_count, row_stride, carry_kv, carry_gate, carry_count, carry_stride, bias, weight, rotary,      \
   position_count, current, positions, origin, previous, live, most, elements, ratio, overlaps, rope, epsilon, \
   rows_folded, carry_folded}

// What one entry is made of.
struct Entry {
  kv_u32 is_there;  // 0: there is none, or it is refused
  kv_u32 current;
  kv_u32 previous;
  kv_u32 origin;
  kv_u32 position;
};

struct Four {
  float at[kChannels];
};

__device__ __forceinline__ Four load_four(const float* from) {
  const kv_vec16 bits = kv_load16(from);
  return {{kv_bits_float(bits.x), kv_bits_float(bits.y), kv_bits_float(bits.z), kv_bits_float(bits.w)}};
}

__device__ __forceinline__ float minus_infinity() { return kv_bits_float(0xFF800000u); }

// e to a power of at most 0; kernels/floats.py: exp.
__device__ __forceinline__ float exp_of(float x) {
  if (!(x >= -87.0f)) return x != x ? x : 0.0f;
  const float power = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.4426950408889634f), 12582912.0f), 12582912.0f);
  const float rest =
      __fsub_rn(__fsub_rn(x, __fmul_rn(power, 0.693359375f)), __fmul_rn(power, -2.1219444005469057e-4f));
  float result = 0.0013814599f;
  result = __fadd_rn(__fmul_rn(result, rest), 0.008368717f);
  result = __fadd_rn(__fmul_rn(result, rest), 0.04166839f);
  result = __fadd_rn(__fmul_rn(result, rest), 0.16666521f);
  result = __fadd_rn(__fmul_rn(result, rest), 0.49999994f);
  result = __fadd_rn(__fmul_rn(result, rest), 1.0f);
  result = __fadd_rn(__fmul_rn(result, rest), 1.0f);
  return __fmul_rn(result, kv_bits_float((kv_u32)((kv_i32)power + 127) << 23));
}

// One thread reads an entry's numbers; false where its rows or its position are not there.
__device__ __forceinline__ bool read_entry(const Windows& w, kv_u32 n, Entry* entry) {
  entry->current = w.current[n];
  entry->position = w.positions[n];
  entry->origin = w.origin[n];
  entry->previous = w.previous[n];
  const kv_u64 there = entry->origin == kCarry ? w.carry_count : w.row_count;
  return (kv_u64)entry->current + w.ratio <= w.row_count && entry->position < w.position_count &&
         entry->origin <= (w.overlaps != 0 ? kCarry : kNothing) &&
         (entry->origin == kNothing || (kv_u64)entry->previous + w.ratio <= there);
}

// This thread's channels of the entry.
__device__ __forceinline__ Four pooled(const Windows& w, const Entry& entry, kv_u32 channel) {
  const kv_u32 width = w.elements << w.overlaps;
  const kv_u32 own = w.elements * w.overlaps + channel;
  const kv_u32 rows = w.ratio << w.overlaps;
  const kv_u32 first = w.overlaps != 0 && entry.origin == kNothing ? w.ratio : 0;
  Four peak, weights, sums;
  for (kv_u32 i = 0; i < kChannels; i++) peak.at[i] = minus_infinity(), weights.at[i] = sums.at[i] = 0.0f;
  for (kv_u32 eight = 0; eight < rows; eight += kRowsAtOnce) {
    Four kv[kRowsAtOnce], gate[kRowsAtOnce];
#pragma unroll
    for (kv_u32 j = 0; j < kRowsAtOnce; j++) {
      const kv_u32 row = eight + j;
      if (row < first || row >= rows) continue;
      const kv_u32 place = row < w.ratio ? row : row - w.ratio;
      const bool is_own = w.overlaps == 0 || row >= w.ratio;
      const bool is_carried = !is_own && entry.origin == kCarry;
      const kv_u64 at = is_carried ? (kv_u64)(entry.previous + place) * w.carry_stride + channel
                        : is_own   ? (kv_u64)(entry.current + place) * w.row_stride + own
                                   : (kv_u64)(entry.previous + place) * w.row_stride + channel;
      kv[j] = load_four((is_carried ? w.carry_kv : w.kv) + at);
      gate[j] = load_four((is_carried ? w.carry_gate : w.gate) + at);
      if ((is_carried ? w.carry_folded : w.rows_folded) != 0) continue;
      const Four bias = load_four(w.bias + place * width + (is_own ? own : channel));
      for (kv_u32 i = 0; i < kChannels; i++) gate[j].at[i] = __fadd_rn(gate[j].at[i], bias.at[i]);
    }
    const Four before = peak;
#pragma unroll
    for (kv_u32 j = 0; j < kRowsAtOnce; j++) {
      if (eight + j < first || eight + j >= rows) continue;
      for (kv_u32 i = 0; i < kChannels; i++) peak.at[i] = gate[j].at[i] > peak.at[i] ? gate[j].at[i] : peak.at[i];
    }
    Four base;
    for (kv_u32 i = 0; i < kChannels; i++) {
      base.at[i] = peak.at[i] == minus_infinity() ? 0.0f : peak.at[i];
      if (eight == 0) continue;
      const float shrink = exp_of(__fsub_rn(before.at[i], base.at[i]));
      weights.at[i] = __fmul_rn(weights.at[i], shrink);
      sums.at[i] = __fmul_rn(sums.at[i], shrink);
    }
#pragma unroll
    for (kv_u32 j = 0; j < kRowsAtOnce; j++) {
      if (eight + j < first || eight + j >= rows) continue;
      for (kv_u32 i = 0; i < kChannels; i++) {
        const float weight = exp_of(__fsub_rn(gate[j].at[i], base.at[i]));
        weights.at[i] = __fadd_rn(weights.at[i], weight);
        sums.at[i] = __fadd_rn(sums.at[i], __fmul_rn(weight, kv[j].at[i]));
      }
    }
  }
  Four result;
  for (kv_u32 i = 0; i < kChannels; i++) result.at[i] = __fdiv_rn(sums.at[i], weights.at[i]);
  return result;
}

// Divides by the root mean square over the whole block, and scales. Threads without channels bring nothing to the sum.
// `warps` is shared memory, a number for each warp; null where an entry has one warp, which then waits for no other.
__device__ __forceinline__ Four normed(const Windows& w, kv_u32 channel, const Four& values, float* warps) {
  const bool has_channels = channel < w.elements;
  float square = 0.0f;
  if (has_channels) {
    square = __fmul_rn(values.at[0], values.at[0]);
    for (kv_u32 i = 1; i < kChannels; i++) square = __fadd_rn(square, __fmul_rn(values.at[i], values.at[i]));
  }
  for (kv_u32 distance = kWarpLanes / 2; distance != 0; distance /= 2)
    square = __fadd_rn(square, __shfl_xor_sync(kWholeWarp, square, distance));
  float total = square;
  if (warps != nullptr) {
    if (kv_lane() == 0) warps[kv_warp()] = square;
    __syncthreads();
    total = warps[0];
    for (kv_u32 warp = 1; warp * kWarpLanes * kChannels < w.elements; warp++) total = __fadd_rn(total, warps[warp]);
  }
  if (!has_channels) return values;
  const float mean = __fadd_rn(__fdiv_rn(total, (float)w.elements), w.epsilon);
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(mean));
  const Four weight = load_four(w.weight + channel);
  Four result;
  for (kv_u32 i = 0; i < kChannels; i++) result.at[i] = __fmul_rn(__fmul_rn(values.at[i], factor), weight.at[i]);
  return result;
}

// Turns neighbouring pairs among the last `rope` channels.
__device__ __forceinline__ Four turned(const Windows& w, kv_u32 channel, kv_u32 position, const Four& values) {
  const kv_u32 plain = w.elements - w.rope;
  if (channel < plain || channel >= w.elements) return values;
  const float* cosines = w.rotary + (kv_u64)position * w.rope + (channel - plain) / 2;
  const float* sines = cosines + w.rope / 2;
  Four result;
  for (kv_u32 i = 0; i < kChannels; i += 2) {
    const float cosine = cosines[i / 2], sine = sines[i / 2];
    result.at[i] = __fsub_rn(__fmul_rn(values.at[i], cosine), __fmul_rn(values.at[i + 1], sine));
    result.at[i + 1] = __fadd_rn(__fmul_rn(values.at[i + 1], cosine), __fmul_rn(values.at[i], sine));
  }
  return result;
}

// The whole of it; all threads that have the entry must call.
__device__ __forceinline__ Four compressed(const Windows& w, const Entry& entry, kv_u32 channel, float* warps) {
  Four values = {{0.0f, 0.0f, 0.0f, 0.0f}};
  if (channel < w.elements) values = pooled(w, entry, channel);
  return turned(w, channel, entry.position, normed(w, channel, values, warps));
}

__device__ __forceinline__ kv_u32 codes_of(const Four& values, float scale) {
  kv_u32 codes = 0;
  for (kv_u32 i = 0; i < kChannels; i++)
    codes |= (kv_u32)kv_float_to_e4m3(__fdiv_rn(values.at[i], scale)) << (8 * i);
  return codes;
}

__device__ __forceinline__ kv_u32 peak_of(const Four& values) {
  kv_u32 peak = 0;
  for (kv_u32 i = 0; i < kChannels; i++) peak = kv_greater(peak, kv_magnitude(values.at[i]));
  return peak;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_compress(
    const float* kv,
    const float* gate,
    kv_u32 row_count,
    kv_u32 row_stride,
    const float* carry_kv,
    const float* carry_gate,
    kv_u32 carry_count,
    kv_u32 carry_stride,
    const float* bias,
    const float* weight,
    const float* rotary,
    kv_u32 position_count,
    const kv_u32* current,
    const kv_u32* positions,
    const kv_u8* origin,
    const kv_u32* previous,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 elements,
    kv_u32 ratio,
    kv_u32 overlaps,
    kv_u32 rope,
    float epsilon,
    kv_u32 rows_folded,
    kv_u32 carry_folded,
    float* out,         // [most, elements]
    kv_u8* refusals) {  // [most]
  __shared__ Entry entry;
  __shared__ float warps[kThreads / kWarpLanes];
  const Windows w = KV_WINDOWS;
  const kv_u32 n = blockIdx.x;
  if (threadIdx.x == 0) {
    Entry found = {0, 0, 0, 0, 0};
    if (n < kv_in_use(w.live, w.most) && kv_load1_relaxed(refusals + n) == 0) {
      found.is_there = read_entry(w, n, &found);
      if (found.is_there == 0) kv_store1_relaxed(refusals + n, kv_call::kBadArgument);
    }
    entry = found;
  }
  __syncthreads();
  if (entry.is_there == 0) return;
  const kv_u32 channel = threadIdx.x * kChannels;
  const Four values = compressed(w, entry, channel, warps);
  if (channel >= elements) return;
  kv_store16(out + (kv_u64)n * elements + channel,
             make_uint4(kv_canonical_bits(values.at[0]), kv_canonical_bits(values.at[1]),
                        kv_canonical_bits(values.at[2]), kv_canonical_bits(values.at[3])));
}

struct Target {
  Entry entry;
  kv_u8* page;  // null: nothing is to be written
  kv_u32 row;
};

// Reads the entry and looks at its slot, by one thread. No page if there is no such entry, or if it is refused.
__device__ __forceinline__ Target find_target(
    const Windows& w,
    const KvCheck& check,
    kv_u32 n,
    kv_u8* arena,
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    kv_u32 page_rows) {
  Target target = {{0, 0, 0, 0, 0}, nullptr, 0};
  if (n >= kv_in_use(w.live, w.most)) return target;
  if (kv_is_checked(check) && kv_load1_relaxed(check.refusals + n) != 0) return target;
  const kv_i32 slot = ids[n];
  target.row = rows[n];
  if (!read_entry(w, n, &target.entry)) {
    if (kv_is_checked(check)) kv_refuse(check, n, kv_call::kBadArgument);
    return target;
  }
  if (kv_look_and_bound(check, n, slot, slots, target.row < page_rows)) target.page = arena + (kv_u64)slot * stride;
  return target;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_compress_v4(
    const float* kv,
    const float* gate,
    kv_u32 row_count,
    kv_u32 row_stride,
    const float* carry_kv,
    const float* carry_gate,
    kv_u32 carry_count,
    kv_u32 carry_stride,
    const float* bias,
    const float* weight,
    const float* rotary,
    kv_u32 position_count,
    const kv_u32* current,
    const kv_u32* positions,
    const kv_u8* origin,
    const kv_u32* previous,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 elements,
    kv_u32 ratio,
    kv_u32 overlaps,
    kv_u32 rope,
    float epsilon,
    kv_u32 rows_folded,
    kv_u32 carry_folded,
    kv_u8* arena,
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    kv_u32 page_rows,
    float least_peak,
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ Target target;
  __shared__ float warps[kThreads / kWarpLanes];
  __shared__ kv_u32 exponents[kV4ScaleBytes];
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const Windows w = KV_WINDOWS;
  if (threadIdx.x == 0)
    target = find_target(w, check, blockIdx.x, arena, stride, slots, ids, rows, page_rows);
  __syncthreads();  // writes of all come after that thread's acquire
  if (target.page == nullptr) return;
  const kv_u32 channel = threadIdx.x * kChannels;
  const Four values = compressed(w, target.entry, channel, warps);
  kv_u8* const data = target.page + (kv_u64)target.row * kV4DataBytes;
  const kv_u32 exponent = kv_ue8m0(kv_scale(kv_greatest(peak_of(values), kV4GroupThreads), least_peak));
  if (channel < kV4Codes) {
    *(kv_u32*)(data + channel) = codes_of(values, kv_from_ue8m0(exponent));
  } else {
    kv_u64 halves = 0;
    for (kv_u32 i = 0; i < kChannels; i++) halves |= (kv_u64)kv_float_to_bf16(values.at[i]) << (16 * i);
    *(kv_u64*)(data + kV4Codes + (channel - kV4Codes) * 2) = halves;
  }
  if (threadIdx.x % kV4GroupThreads == 0) exponents[threadIdx.x / kV4GroupThreads] = channel < kV4Codes ? exponent : 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  kv_u64 scales = 0;
  for (kv_u32 i = 0; i < kV4ScaleBytes; i++) scales |= (kv_u64)exponents[i] << (8 * i);
  ((kv_u64*)(target.page + (kv_u64)page_rows * kV4DataBytes))[target.row] = scales;
}

// 4 blocks of a multiprocessor: for more of them the assembler would spill, on sm_100 and later.
extern "C" __global__ void __launch_bounds__(kThreads, 4) kv_compress_index_key(
    const float* kv,
    const float* gate,
    kv_u32 row_count,
    kv_u32 row_stride,
    const float* carry_kv,
    const float* carry_gate,
    kv_u32 carry_count,
    kv_u32 carry_stride,
    const float* bias,
    const float* weight,
    const float* rotary,
    kv_u32 position_count,
    const kv_u32* current,
    const kv_u32* positions,
    const kv_u8* origin,
    const kv_u32* previous,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 elements,
    kv_u32 ratio,
    kv_u32 overlaps,
    kv_u32 rope,
    float epsilon,
    kv_u32 rows_folded,
    kv_u32 carry_folded,
    kv_u8* arena,
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    kv_u32 page_rows,
    float least_peak,
    kv_u32 power_of_two,
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ Target targets[kKeysOfBlock];
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const Windows w = KV_WINDOWS;
  if (threadIdx.x < kKeysOfBlock) {
    const kv_u32 n = blockIdx.x * kKeysOfBlock + threadIdx.x;
    targets[threadIdx.x] = find_target(w, check, n, arena, stride, slots, ids, rows, page_rows);
  }
  __syncthreads();  // writes of all come after those threads' acquires
  const Target& target = targets[kv_warp()];
  if (target.page == nullptr) return;
  const kv_u32 channel = kv_lane() * kChannels;
  const Four values = compressed(w, target.entry, channel, nullptr);
  float scale = kv_scale(kv_greatest(peak_of(values), kWarpLanes), least_peak);
  if (power_of_two != 0) scale = kv_from_ue8m0(kv_ue8m0(scale));
  *(kv_u32*)(target.page + (kv_u64)target.row * kKeyElements + channel) = codes_of(values, scale);
  if (kv_lane() == 0) ((float*)(target.page + (kv_u64)page_rows * kKeyElements))[target.row] = scale;
}
