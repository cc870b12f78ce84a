// Rows that a cache keeps as FP8: gathered out of pages as bfloat16, and quantised into pages. Plans, references, bytes
// and floors in kernels/fp8.py. A warp has one row at a time, a lane eight neighbouring elements of it.

constexpr kv_u32 kThreads = 256;
constexpr kv_u32 kWarps = kThreads / kWarpLanes;
constexpr kv_u32 kRowsOfWarp = 8;             // neighbours that a warp gathers
constexpr kv_u32 kRowsOfBlock = kWarpLanes;  // kernels/fp8.py: INSERTED_AT_ONCE

constexpr kv_u32 kV4CodeUnits = kV4Codes / 8;  // of eight elements
static_assert(kV4Elements / 8 == 2 * kWarpLanes, "a lane has two units");

// The 656-byte row of DeepSeek-V3.2: codes, scales, then the part with positions.
constexpr kv_u32 kV32Codes = 512;
constexpr kv_u32 kV32Rope = 64;
constexpr kv_u32 kV32Elements = kV32Codes + kV32Rope;
constexpr kv_u32 kV32Group = 128;
constexpr kv_u32 kV32Scales = kV32Codes / kV32Group;
constexpr kv_u32 kV32RopeOffset = kV32Codes + 4 * kV32Scales;
constexpr kv_u32 kV32Bytes = kV32RopeOffset + 2 * kV32Rope;
constexpr kv_u32 kV32RopeUnits = kV32Rope / 8;
static_assert(kV32Bytes == 656 && kV32Bytes % 16 == 0 && kV32RopeOffset % 16 == 0, "rows lie behind one another");
static_assert(kV32Codes / 8 == 2 * kWarpLanes, "a lane has two units of codes");

// Plain rows: a page is all its rows of codes, then all its scales.
constexpr kv_u32 kUnitsPerLane = 4;  // a row has at most 1024 elements

// -- Gather -----------------------------------------------------------------------------------------------------------

// What a block reads, in shared memory: the first rows of one slot's page.
struct PageRows {
  kv_i32 slot;
  kv_u32 rows;     // 0 if there is no such entry, or if it is refused
  kv_u32 refusal;  // of the second look
};

// One thread looks, and says so to all.
__device__ __forceinline__ void kv_begin_reading(
    const KvCheck& check,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 page_rows,
    PageRows* reading) {
  const kv_u32 entry = blockIdx.x;
  if (threadIdx.x == 0) {
    kv_u32 readable = 0;
    reading->slot = 0;
    if (entry < kv_in_use(live, most)) {
      reading->slot = ids[entry];
      const kv_u32 wanted = rows[entry];
      if (kv_look_and_bound(check, entry, reading->slot, slots, wanted <= page_rows)) readable = wanted;
    }
    reading->rows = readable;
  }
  __syncthreads();  // reads of all come after that thread's acquire
}

// Whether what was read was right; else the rows that were written, `row_bytes` each, are cleared.
__device__ __forceinline__ void kv_end_reading(
    const KvCheck& check, kv_u32 page_rows, kv_u32 row_bytes, kv_u16* out, PageRows* reading) {
  if (reading->rows == 0) return;
  __syncthreads();  // reads of all come before that thread's second look
  if (threadIdx.x == 0) reading->refusal = kv_look_again(check, blockIdx.x, reading->slot);
  __syncthreads();
  if (reading->refusal == kv_refusal::kApplied) return;
  kv_u8* const rows = (kv_u8*)out + (kv_u64)blockIdx.x * page_rows * row_bytes;
  const kv_vec16 zero = make_uint4(0, 0, 0, 0);
  const kv_u32 end = reading->rows * row_bytes / 16;
  for (kv_u32 at = threadIdx.x; at < end; at += kThreads) kv_store16(rows + 16ULL * at, zero);
}

// The row of this warp at its `turn`th: it has some that are neighbours, whose scales lie in few sectors, then some of
// those that all warps have next.
__device__ __forceinline__ kv_u32 my_row(kv_u32 turn) {
  return (turn / kRowsOfWarp * kWarps + kv_warp()) * kRowsOfWarp + turn % kRowsOfWarp;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_gather_dequantise_v4(
    const kv_u8* arena,     // of slot 0's page; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to read
    const kv_u32* rows,     // [most] how many of the page's rows, from the first on
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 page_rows,
    kv_u16* out,            // [most, page_rows, 512] bfloat16
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ PageRows reading;
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  kv_begin_reading(check, slots, ids, rows, live, most, page_rows, &reading);
  const kv_u8* page = arena + (kv_u64)reading.slot * stride;
  const kv_u64* all_scales = (const kv_u64*)(page + (kv_u64)page_rows * kV4DataBytes);
  const kv_u32 lane = kv_lane();
  kv_u64 next_scales = 0;  // of the row as many lanes further on
  for (kv_u32 turn = 0, row; (row = my_row(turn)) < reading.rows; turn++) {
    const kv_u8* data = page + (kv_u64)row * kV4DataBytes;
    if (turn % kRowsOfWarp == 0 && lane < kRowsOfWarp && row + lane < reading.rows)
      next_scales = kv_load_relaxed(all_scales + row + lane);
    const kv_u64 scales = __shfl_sync(kWholeWarp, next_scales, turn % kRowsOfWarp);
    kv_u16* target = out + ((kv_u64)blockIdx.x * page_rows + row) * kV4Elements;
    for (kv_u32 unit = lane; unit < kV4Elements / 8; unit += kWarpLanes) {
      kv_vec16 halves;
      if (unit < kV4CodeUnits) {
        const kv_u32 scale = (kv_u32)(scales >> (unit * 8 / kV4Group * 8)) & 0xFFu;
        const kv_u64 codes = kv_load_relaxed((const kv_u64*)(data + unit * 8));
        halves = kv_to_bf16(kv_dequantised(codes, kv_from_ue8m0(scale)));
      } else {
        halves = kv_load16_relaxed(data + kV4Codes + (unit - kV4CodeUnits) * 16);
      }
      kv_store16(target + unit * 8, halves);
    }
  }
  kv_end_reading(check, page_rows, 2 * kV4Elements, out, &reading);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_gather_dequantise_v32(
    const kv_u8* arena,     // of slot 0's page; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to read
    const kv_u32* rows,     // [most] how many of the page's rows, from the first on
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 page_rows,
    kv_u16* out,            // [most, page_rows, 576] bfloat16
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ PageRows reading;
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  kv_begin_reading(check, slots, ids, rows, live, most, page_rows, &reading);
  const kv_u8* page = arena + (kv_u64)reading.slot * stride;
  const kv_u32 lane = kv_lane();
  for (kv_u32 turn = 0, row; (row = my_row(turn)) < reading.rows; turn++) {
    const kv_u8* data = page + (kv_u64)row * kV32Bytes;
    float scales = 0.0f;
    if (lane < kV32Scales) scales = kv_bits_float(kv_load4_relaxed((const kv_u32*)(data + kV32Codes + 4 * lane)));
    kv_u16* target = out + ((kv_u64)blockIdx.x * page_rows + row) * kV32Elements;
    for (kv_u32 unit = lane; unit < kV32Codes / 8; unit += kWarpLanes) {
      const float scale = __shfl_sync(kWholeWarp, scales, unit * 8 / kV32Group);
      const kv_u64 codes = kv_load_relaxed((const kv_u64*)(data + unit * 8));
      kv_store16(target + unit * 8, kv_to_bf16(kv_dequantised(codes, scale)));
    }
    if (lane < kV32RopeUnits)
      kv_store16(target + kV32Codes + lane * 8, kv_load16_relaxed(data + kV32RopeOffset + lane * 16));
  }
  kv_end_reading(check, page_rows, 2 * kV32Elements, out, &reading);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_gather_dequantise_rows(
    const kv_u8* arena,     // of slot 0's page; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to read
    const kv_u32* rows,     // [most] how many of the page's rows, from the first on
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 page_rows,
    kv_u32 width,           // elements of a row, a multiple of 8 up to 1024
    kv_u16* out,            // [most, page_rows, width] bfloat16
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ PageRows reading;
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  kv_begin_reading(check, slots, ids, rows, live, most, page_rows, &reading);
  const kv_u8* page = arena + (kv_u64)reading.slot * stride;
  const kv_u32* scales = (const kv_u32*)(page + (kv_u64)page_rows * width);
  const kv_u32 lane = kv_lane();
  float next_scales = 0.0f;  // of the row as many lanes further on
  for (kv_u32 turn = 0, row; (row = my_row(turn)) < reading.rows; turn++) {
    const kv_u8* data = page + (kv_u64)row * width;
    if (turn % kRowsOfWarp == 0 && lane < kRowsOfWarp && row + lane < reading.rows)
      next_scales = kv_bits_float(kv_load4_relaxed(scales + row + lane));
    const float scale = __shfl_sync(kWholeWarp, next_scales, turn % kRowsOfWarp);
    kv_u16* target = out + ((kv_u64)blockIdx.x * page_rows + row) * width;
    for (kv_u32 unit = lane; unit < width / 8; unit += kWarpLanes) {
      const kv_u64 codes = kv_load_relaxed((const kv_u64*)(data + unit * 8));
      kv_store16(target + unit * 8, kv_to_bf16(kv_dequantised(codes, scale)));
    }
  }
  kv_end_reading(check, page_rows, 2 * width, out, &reading);
}

// -- Insert -----------------------------------------------------------------------------------------------------------

// Where the rows of a block go, in shared memory.
struct Rows {
  kv_u64 page[kRowsOfBlock];  // address; 0 if there is no such entry, or if it is refused
  kv_u32 row[kRowsOfBlock];
};

// A lane of the first warp looks at each entry, and says so to all.
__device__ __forceinline__ void kv_begin_writing(
    const KvCheck& check,
    kv_u8* arena,
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 page_rows,
    Rows* found) {
  if (kv_warp() == 0) {
    const kv_u32 entry = blockIdx.x * kRowsOfBlock + kv_lane();
    kv_u64 page = 0;
    kv_u32 row = 0;
    if (entry < kv_in_use(live, most)) {
      const kv_i32 slot = ids[entry];
      row = rows[entry];
      if (kv_look_and_bound(check, entry, slot, slots, row < page_rows)) page = (kv_u64)(arena + (kv_u64)slot * stride);
    }
    found->page[kv_lane()] = page;
    found->row[kv_lane()] = row;
  }
  __syncthreads();  // writes of all come after those lanes' acquires
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_quantise_insert_v4(
    kv_u8* arena,           // of slot 0's page; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to write
    const kv_u32* rows,     // [most] row of the page; no row of a slot twice
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 page_rows,
    float least_peak,       // a smaller peak of a group counts as this
    const kv_u16* values,   // [most, 512] bfloat16
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ Rows found;
  __shared__ kv_u64 scales[kRowsOfBlock];
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  kv_begin_writing(check, arena, stride, slots, ids, rows, live, most, page_rows, &found);
  const kv_u32 lane = kv_lane();
  for (kv_u32 n = kv_warp() * kRowsOfBlock / kWarps; n < (kv_warp() + 1) * kRowsOfBlock / kWarps; n++) {
    if (found.page[n] == 0) continue;
    const kv_u16* source = values + ((kv_u64)blockIdx.x * kRowsOfBlock + n) * kV4Elements;
    kv_u8* data = (kv_u8*)found.page[n] + (kv_u64)found.row[n] * kV4DataBytes;
    kv_u64 row_scales = 0;
    for (kv_u32 unit = lane; unit < kV4Elements / 8; unit += kWarpLanes) {
      const kv_vec16 halves = kv_load16(source + unit * 8);
      const kv_eight numbers = kv_from_bf16(halves);
      // Groups of 8 units lie in groups of 8 lanes; the last one, of the part with positions, is not used.
      const kv_u32 scale = kv_ue8m0(kv_scale(kv_greatest(kv_peak(numbers), kV4Group / 8), least_peak));
      if (unit < kV4CodeUnits) {
        *(kv_u64*)(data + unit * 8) = kv_quantised(numbers, kv_from_ue8m0(scale));
      } else {
        kv_store16(data + kV4Codes + (unit - kV4CodeUnits) * 16, halves);
      }
      for (kv_u32 group = 0; group < kWarpLanes * 8 / kV4Group; group++) {
        const kv_u32 place = unit / kWarpLanes * 4 + group;
        const kv_u64 one = __shfl_sync(kWholeWarp, scale, group * (kV4Group / 8));
        if (place < kV4Codes / kV4Group) row_scales |= one << (8 * place);
      }
    }
    if (lane == 0) scales[n] = row_scales;
  }
  __syncthreads();
  if (kv_warp() == 0 && found.page[lane] != 0)
    ((kv_u64*)((kv_u8*)found.page[lane] + (kv_u64)page_rows * kV4DataBytes))[found.row[lane]] = scales[lane];
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_quantise_insert_v32(
    kv_u8* arena,           // of slot 0's page; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to write
    const kv_u32* rows,     // [most] row of the page; no row of a slot twice
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 page_rows,
    float least_peak,       // a smaller peak of a group counts as this
    const kv_u16* values,   // [most, 576] bfloat16
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ Rows found;
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  kv_begin_writing(check, arena, stride, slots, ids, rows, live, most, page_rows, &found);
  const kv_u32 lane = kv_lane();
  for (kv_u32 n = kv_warp() * kRowsOfBlock / kWarps; n < (kv_warp() + 1) * kRowsOfBlock / kWarps; n++) {
    if (found.page[n] == 0) continue;
    const kv_u16* source = values + ((kv_u64)blockIdx.x * kRowsOfBlock + n) * kV32Elements;
    kv_u8* data = (kv_u8*)found.page[n] + (kv_u64)found.row[n] * kV32Bytes;
    float scale_of_lane = 0.0f;  // a lane for each scale of the row
    for (kv_u32 unit = lane; unit < kV32Codes / 8; unit += kWarpLanes) {
      const kv_eight numbers = kv_from_bf16(kv_load16(source + unit * 8));
      const float scale = kv_scale(kv_greatest(kv_peak(numbers), kV32Group / 8), least_peak);
      *(kv_u64*)(data + unit * 8) = kv_quantised(numbers, scale);
      const kv_u32 first = unit / kWarpLanes * (kWarpLanes * 8 / kV32Group);
      for (kv_u32 group = 0; group < kWarpLanes * 8 / kV32Group; group++) {
        const float one = __shfl_sync(kWholeWarp, scale, group * (kV32Group / 8));
        if (lane == first + group) scale_of_lane = one;
      }
    }
    if (lane < kV32Scales) *(float*)(data + kV32Codes + 4 * lane) = scale_of_lane;
    if (lane < kV32RopeUnits) kv_store16(data + kV32RopeOffset + lane * 16, kv_load16(source + kV32Codes + lane * 8));
  }
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_quantise_insert_rows(
    kv_u8* arena,           // of slot 0's page; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to write
    const kv_u32* rows,     // [most] row of the page; no row of a slot twice
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 page_rows,
    kv_u32 width,           // elements of a row, a multiple of 8 up to 1024
    kv_u32 power_of_two,    // 1: scales are rounded up to powers of two
    float least_peak,       // a smaller peak of a group counts as this
    const kv_u16* values,   // [most, width] bfloat16
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ Rows found;
  __shared__ float scales[kRowsOfBlock];
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  kv_begin_writing(check, arena, stride, slots, ids, rows, live, most, page_rows, &found);
  const kv_u32 lane = kv_lane();
  const kv_u32 units = width / 8;
  for (kv_u32 n = kv_warp() * kRowsOfBlock / kWarps; n < (kv_warp() + 1) * kRowsOfBlock / kWarps; n++) {
    if (found.page[n] == 0) continue;
    const kv_u16* source = values + ((kv_u64)blockIdx.x * kRowsOfBlock + n) * width;
    kv_u8* data = (kv_u8*)found.page[n] + (kv_u64)found.row[n] * width;
    kv_eight kept[kUnitsPerLane];
    kv_u32 peak = 0;
#pragma unroll
    for (kv_u32 i = 0; i < kUnitsPerLane; i++) {
      const kv_u32 unit = lane + i * kWarpLanes;
      if (unit >= units) continue;
      kept[i] = kv_from_bf16(kv_load16(source + unit * 8));
      peak = kv_greater(peak, kv_peak(kept[i]));
    }
    float scale = kv_scale(kv_greatest(peak, kWarpLanes), least_peak);
    if (power_of_two != 0) scale = kv_from_ue8m0(kv_ue8m0(scale));
#pragma unroll
    for (kv_u32 i = 0; i < kUnitsPerLane; i++) {
      const kv_u32 unit = lane + i * kWarpLanes;
      if (unit < units) *(kv_u64*)(data + unit * 8) = kv_quantised(kept[i], scale);
    }
    if (lane == 0) scales[n] = scale;
  }
  __syncthreads();
  if (kv_warp() == 0 && found.page[lane] != 0)
    ((float*)((kv_u8*)found.page[lane] + (kv_u64)page_rows * width))[found.row[lane]] = scales[lane];
}
