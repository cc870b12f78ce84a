// Rows that a cache keeps as FP8: gathered out of pages as bfloat16, and quantised into pages. Plans, references, bytes
// and floors in kernels/fp8.py. A warp has one row at a time, a lane eight neighbouring elements of it.

constexpr kv_u32 kThreads = 256;
constexpr kv_u32 kWarps = kThreads / kWarpLanes;

// The 584-byte row of DeepSeek-V4. A page is all its data rows, then all its scale rows.
constexpr kv_u32 kV4Codes = 448;
constexpr kv_u32 kV4Rope = 64;
constexpr kv_u32 kV4Elements = kV4Codes + kV4Rope;
constexpr kv_u32 kV4DataBytes = kV4Codes + 2 * kV4Rope;
constexpr kv_u32 kV4ScaleBytes = 8;
constexpr kv_u32 kV4Group = 64;
constexpr kv_u32 kV4CodeUnits = kV4Codes / 8;
static_assert(kV4DataBytes + kV4ScaleBytes == 584 && kV4DataBytes % 16 == 0, "as FlashMLA lays it out");
static_assert(kV4Elements / 8 == 2 * kWarpLanes, "a lane has two units");
static_assert(kV4Codes / kV4Group < kV4ScaleBytes, "7 scales and a byte of padding");

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

// What a block reads: the first rows of one slot's page.
struct PageRows {
  kv_i32 slot;
  kv_u32 rows;  // 0 if there is no such entry, or if it is refused
};

// One thread looks, and says so to all.
__device__ __forceinline__ PageRows kv_begin_reading(
    const KvCheck& check,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 page_rows) {
  __shared__ PageRows shared;
  const kv_u32 entry = blockIdx.x;
  if (threadIdx.x == 0) {
    PageRows reading = {0, 0};
    if (entry < kv_in_use(live, most)) {
      reading.slot = ids[entry];
      const kv_u32 wanted = rows[entry];
      if (kv_look_and_bound(check, entry, reading.slot, slots, wanted <= page_rows)) reading.rows = wanted;
    }
    shared = reading;
  }
  __syncthreads();  // reads of all come after that thread's acquire
  return shared;
}

// Whether what was read was right; else the rows that were written, `row_bytes` each, are cleared.
__device__ __forceinline__ void kv_end_reading(
    const KvCheck& check, const PageRows& reading, kv_u32 page_rows, kv_u32 row_bytes, kv_u16* out) {
  __shared__ kv_u32 shared;
  __syncthreads();  // reads of all come before that thread's second look
  if (threadIdx.x == 0 && reading.rows != 0) shared = kv_look_again(check, blockIdx.x, reading.slot);
  __syncthreads();
  if (reading.rows == 0 || shared == kv_refusal::kApplied) return;
  kv_u8* const rows = (kv_u8*)out + (kv_u64)blockIdx.x * page_rows * row_bytes;
  const kv_vec16 zero = make_uint4(0, 0, 0, 0);
  for (kv_u32 at = threadIdx.x; at < reading.rows * row_bytes / 16; at += kThreads) kv_store16(rows + 16ULL * at, zero);
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
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const PageRows reading = kv_begin_reading(check, slots, ids, rows, live, most, page_rows);
  const kv_u8* page = arena + (kv_u64)reading.slot * stride;
  const kv_u64* all_scales = (const kv_u64*)(page + (kv_u64)page_rows * kV4DataBytes);
  const kv_u32 lane = kv_lane();
  for (kv_u32 row = kv_warp(); row < reading.rows; row += kWarps) {
    const kv_u8* data = page + (kv_u64)row * kV4DataBytes;
    kv_u64 scales = 0;
    if (lane == 0) scales = kv_load_relaxed(all_scales + row);
    scales = __shfl_sync(kWholeWarp, scales, 0);
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
  kv_end_reading(check, reading, page_rows, 2 * kV4Elements, out);
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
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const PageRows reading = kv_begin_reading(check, slots, ids, rows, live, most, page_rows);
  const kv_u8* page = arena + (kv_u64)reading.slot * stride;
  const kv_u32 lane = kv_lane();
  for (kv_u32 row = kv_warp(); row < reading.rows; row += kWarps) {
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
  kv_end_reading(check, reading, page_rows, 2 * kV32Elements, out);
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
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const PageRows reading = kv_begin_reading(check, slots, ids, rows, live, most, page_rows);
  const kv_u8* page = arena + (kv_u64)reading.slot * stride;
  const kv_u32* scales = (const kv_u32*)(page + (kv_u64)page_rows * width);
  const kv_u32 lane = kv_lane();
  for (kv_u32 row = kv_warp(); row < reading.rows; row += kWarps) {
    const kv_u8* data = page + (kv_u64)row * width;
    float scale = 0.0f;
    if (lane == 0) scale = kv_bits_float(kv_load4_relaxed(scales + row));
    scale = __shfl_sync(kWholeWarp, scale, 0);
    kv_u16* target = out + ((kv_u64)blockIdx.x * page_rows + row) * width;
    for (kv_u32 unit = lane; unit < width / 8; unit += kWarpLanes) {
      const kv_u64 codes = kv_load_relaxed((const kv_u64*)(data + unit * 8));
      kv_store16(target + unit * 8, kv_to_bf16(kv_dequantised(codes, scale)));
    }
  }
  kv_end_reading(check, reading, page_rows, 2 * width, out);
}

// -- Insert -----------------------------------------------------------------------------------------------------------

// Where a warp's row goes.
struct PageRow {
  kv_u8* page;  // null if there is no such entry, or if it is refused
  kv_u32 row;
};

// Number of this warp in the launch.
__device__ __forceinline__ kv_u32 my_entry() { return blockIdx.x * kWarps + kv_warp(); }

// One lane looks, and says so to the others.
__device__ __forceinline__ PageRow kv_begin_writing(
    const KvCheck& check,
    kv_u8* arena,
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,
    const kv_u32* rows,
    const kv_i64* live,
    kv_u32 most,
    kv_u32 page_rows) {
  const kv_u32 entry = my_entry();
  kv_u64 page = 0;
  kv_u32 row = 0;
  if (kv_lane() == 0 && entry < kv_in_use(live, most)) {
    const kv_i32 slot = ids[entry];
    row = rows[entry];
    if (kv_look_and_bound(check, entry, slot, slots, row < page_rows)) page = (kv_u64)(arena + (kv_u64)slot * stride);
  }
  __syncwarp();  // the lanes' writes come after lane 0's acquire
  return {(kv_u8*)__shfl_sync(kWholeWarp, page, 0), __shfl_sync(kWholeWarp, row, 0)};
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
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const PageRow writing = kv_begin_writing(check, arena, stride, slots, ids, rows, live, most, page_rows);
  if (writing.page == nullptr) return;
  const kv_u32 lane = kv_lane();
  const kv_u16* source = values + (kv_u64)my_entry() * kV4Elements;
  kv_u8* data = writing.page + (kv_u64)writing.row * kV4DataBytes;
  kv_u64 scales = 0;
  for (kv_u32 unit = lane; unit < kV4Elements / 8; unit += kWarpLanes) {
    const kv_vec16 halves = kv_load16(source + unit * 8);
    const kv_eight values8 = kv_from_bf16(halves);
    // Groups of 8 units lie in groups of 8 lanes; the last one, of the part with positions, is not used.
    const kv_u32 scale = kv_ue8m0(kv_scale(kv_greatest(kv_peak(values8), kV4Group / 8), least_peak));
    if (unit < kV4CodeUnits) {
      *(kv_u64*)(data + unit * 8) = kv_quantised(values8, kv_from_ue8m0(scale));
    } else {
      kv_store16(data + kV4Codes + (unit - kV4CodeUnits) * 16, halves);
    }
    for (kv_u32 group = 0; group < kWarpLanes * 8 / kV4Group; group++) {
      const kv_u32 place = unit / kWarpLanes * 4 + group;
      const kv_u64 one = __shfl_sync(kWholeWarp, scale, group * (kV4Group / 8));
      if (place < kV4Codes / kV4Group) scales |= one << (8 * place);
    }
  }
  if (lane == 0) ((kv_u64*)(writing.page + (kv_u64)page_rows * kV4DataBytes))[writing.row] = scales;
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
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const PageRow writing = kv_begin_writing(check, arena, stride, slots, ids, rows, live, most, page_rows);
  if (writing.page == nullptr) return;
  const kv_u32 lane = kv_lane();
  const kv_u16* source = values + (kv_u64)my_entry() * kV32Elements;
  kv_u8* data = writing.page + (kv_u64)writing.row * kV32Bytes;
  for (kv_u32 unit = lane; unit < kV32Codes / 8; unit += kWarpLanes) {
    const kv_eight values8 = kv_from_bf16(kv_load16(source + unit * 8));
    const float scale = kv_scale(kv_greatest(kv_peak(values8), kV32Group / 8), least_peak);
    *(kv_u64*)(data + unit * 8) = kv_quantised(values8, scale);
    if (unit % (kV32Group / 8) == 0) *(float*)(data + kV32Codes + unit / (kV32Group / 8) * 4) = scale;
  }
  if (lane < kV32RopeUnits) kv_store16(data + kV32RopeOffset + lane * 16, kv_load16(source + kV32Codes + lane * 8));
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
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const PageRow writing = kv_begin_writing(check, arena, stride, slots, ids, rows, live, most, page_rows);
  if (writing.page == nullptr) return;
  const kv_u32 lane = kv_lane();
  const kv_u32 units = width / 8;
  const kv_u16* source = values + (kv_u64)my_entry() * width;
  kv_eight kept[kUnitsPerLane];
  kv_u32 peak = 0;
#pragma unroll
  for (kv_u32 i = 0; i < kUnitsPerLane; i++) {
    const kv_u32 unit = lane + i * kWarpLanes;
    if (unit < units) {
      kept[i] = kv_from_bf16(kv_load16(source + unit * 8));
      peak = kv_greater(peak, kv_peak(kept[i]));
    }
  }
  float scale = kv_scale(kv_greatest(peak, kWarpLanes), least_peak);
  if (power_of_two != 0) scale = kv_from_ue8m0(kv_ue8m0(scale));
#pragma unroll
  for (kv_u32 i = 0; i < kUnitsPerLane; i++) {
    const kv_u32 unit = lane + i * kWarpLanes;
    if (unit < units) *(kv_u64*)(writing.page + (kv_u64)writing.row * width + unit * 8) = kv_quantised(kept[i], scale);
  }
  if (lane == 0) ((float*)(writing.page + (kv_u64)page_rows * width))[writing.row] = scale;
}
