// Bytes of slots from and to contiguous memory: gather, scatter, window_gather, indexer_gather, scrub.
//
// A warp has a strip: up to kStripBytes that lie in one piece on both sides. It looks at the slot's word, copies 16 bytes
// a lane at a time, and looks again, without waiting for any other warp. What a strip read and must not keep it clears:
// in the output there are right bytes, zeros, or what was there before, and never bytes of another owner.
// Specs, plans and references: kernels/copies.py.

constexpr kv_u32 kThreads = 256;
constexpr kv_u32 kStripBytes = 8192;  // kernels/copies.py: STRIP_BYTES
constexpr kv_u32 kInFlight = 4;       // vectors that a lane loads before it stores the first

static_assert(kStripBytes % (kWarpLanes * 16 * kInFlight) == 0, "a full strip is whole rounds of a warp");

// Number of this warp in the launch.
__device__ __forceinline__ kv_u32 my_strip() { return blockIdx.x * (kThreads / kWarpLanes) + kv_warp(); }

// All lanes: kApplied if the strip may be touched.
__device__ __forceinline__ kv_u32 look(const KvCheck& check, kv_u32 entry, kv_i32 slot, kv_u32 slots) {
  kv_u32 code = kv_refusal::kApplied;
  if (kv_lane() == 0) code = kv_look(check, entry, slot, slots);
  __syncwarp();  // the lanes' reads come after lane 0's acquire
  return __shfl_sync(kWholeWarp, code, 0);
}

// All lanes: kApplied if what they read was right.
__device__ __forceinline__ kv_u32 look_again(const KvCheck& check, kv_u32 entry, kv_i32 slot) {
  kv_u32 code = kv_refusal::kApplied;
  __syncwarp();  // the lanes' reads come before lane 0's second look
  if (kv_lane() == 0) code = kv_look_again(check, entry, slot);
  return __shfl_sync(kWholeWarp, code, 0);
}

template <bool kToSlots>
__device__ __forceinline__ kv_vec16 load16(const kv_u8* from, kv_u32 at) {
  return kToSlots ? kv_load16(from + 16ULL * at) : kv_load16_relaxed(from + 16ULL * at);
}

template <bool kToSlots>
__device__ __forceinline__ void store16(kv_u8* to, kv_u32 at, kv_vec16 value) {
  if (kToSlots) {
    kv_store16_relaxed(to + 16ULL * at, value);
  } else {
    kv_store16(to + 16ULL * at, value);
  }
}

// Copies `bytes` bytes, a multiple of 16 between multiples of 16. Slots are on one side of it, so others may be writing
// what is read, and, with kToSlots, reading what is written.
template <bool kToSlots>
__device__ __forceinline__ void copy16(kv_u8* to, const kv_u8* from, kv_u32 bytes) {
  const kv_u32 end = bytes / 16;
  kv_u32 at = kv_lane();
  for (; at + (kInFlight - 1) * kWarpLanes < end; at += kInFlight * kWarpLanes) {
    kv_vec16 held[kInFlight];
#pragma unroll
    for (kv_u32 k = 0; k < kInFlight; ++k) held[k] = load16<kToSlots>(from, at + k * kWarpLanes);
#pragma unroll
    for (kv_u32 k = 0; k < kInFlight; ++k) store16<kToSlots>(to, at + k * kWarpLanes, held[k]);
  }
  for (; at < end; at += kWarpLanes) store16<kToSlots>(to, at, load16<kToSlots>(from, at));
}

// The same for multiples of 4: rows of scales.
__device__ __forceinline__ void copy4(kv_u8* to, const kv_u8* from, kv_u32 bytes) {
  for (kv_u32 at = kv_lane(); at < bytes / 4; at += kWarpLanes)
    ((kv_u32*)to)[at] = kv_load4_relaxed((const kv_u32*)from + at);
}

template <bool kToSlots>
__device__ __forceinline__ void fill16(kv_u8* to, kv_u32 bytes, kv_u32 pattern) {
  const kv_vec16 value = make_uint4(pattern, pattern, pattern, pattern);
  for (kv_u32 at = kv_lane(); at < bytes / 16; at += kWarpLanes) store16<kToSlots>(to, at, value);
}

__device__ __forceinline__ void clear4(kv_u8* to, kv_u32 bytes) {
  for (kv_u32 at = kv_lane(); at < bytes / 4; at += kWarpLanes) ((kv_u32*)to)[at] = 0;
}

// Where a strip of an item of `bytes` bytes begins, and how long it is.
struct Strip {
  kv_u32 item;
  kv_u32 begin;
  kv_u32 bytes;
};

__device__ __forceinline__ Strip strip_of(kv_u32 bytes) {
  const kv_u32 per_item = (bytes - 1) / kStripBytes + 1;
  const kv_u32 item = my_strip() / per_item;
  const kv_u32 begin = (my_strip() - item * per_item) * kStripBytes;
  return {item, begin, min(kStripBytes, bytes - begin)};
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_gather(
    const kv_u8* arena,     // of slot 0; slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to read
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 bytes,           // of each slot, from `arena` on
    kv_u8* out,             // [most, bytes]
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const Strip strip = strip_of(bytes);
  if (strip.item >= kv_in_use(live, most)) return;
  const kv_i32 slot = ids[strip.item];
  if (look(check, strip.item, slot, slots) != kv_refusal::kApplied) return;
  kv_u8* const to = out + (kv_u64)strip.item * bytes + strip.begin;
  copy16<false>(to, arena + (kv_u64)slot * stride + strip.begin, strip.bytes);
  if (look_again(check, strip.item, slot) != kv_refusal::kApplied) fill16<false>(to, strip.bytes, 0);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_scatter(
    kv_u8* arena,           // of slot 0; slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to write, each at most once
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 bytes,           // of each slot, from `arena` on
    const kv_u8* data,      // [most, bytes]
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const Strip strip = strip_of(bytes);
  if (strip.item >= kv_in_use(live, most)) return;
  const kv_i32 slot = ids[strip.item];
  if (look(check, strip.item, slot, slots) != kv_refusal::kApplied) return;
  kv_u8* const to = arena + (kv_u64)slot * stride + strip.begin;
  copy16<true>(to, data + (kv_u64)strip.item * bytes + strip.begin, strip.bytes);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_scrub(
    kv_u8* arena,           // of slot 0; slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,      // [most] slots to fill, each at most once
    const kv_i64* live,     // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 bytes,           // of each slot, from `arena` on
    kv_u32 pattern,         // for every 4 bytes: 0 clears
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const Strip strip = strip_of(bytes);
  if (strip.item >= kv_in_use(live, most)) return;
  const kv_i32 slot = ids[strip.item];
  if (look(check, strip.item, slot, slots) != kv_refusal::kApplied) return;
  fill16<true>(arena + (kv_u64)slot * stride + strip.begin, strip.bytes, pattern);
}

// Position p of a request lies in block p / block_rows, at entry block % width of its row of the table, in row
// p % block_rows of that slot. Rows lie in pages of page_rows, without gaps in a page. An item is what one page has of
// one request's window.
extern "C" __global__ void __launch_bounds__(kThreads) kv_window_gather(
    const kv_u8* arena,       // row 0 of slot 0; slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* table,      // [most, width] slots; entries without a block name none
    kv_u32 width,
    kv_u32 block_rows,        // rows of a slot
    kv_u32 page_rows,         // divides block_rows
    kv_u64 page_stride,
    kv_u32 row_bytes,         // a multiple of 4
    const kv_i64* positions,  // [most] of the last row; negative: none
    kv_u32 rows,              // of the window
    const kv_i64* live,       // requests in use, or null: `most`
    kv_u32 most,
    kv_u8* out,               // [most, rows, row_bytes] oldest first, from row 0 on
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,   // [most, width]
    kv_u8* refusals) {        // [most, width]
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const kv_u32 strip_rows = max(1u, kStripBytes / row_bytes);
  const kv_u32 strips = (page_rows - 1) / strip_rows + 1;            // of a page
  const kv_u32 pages = rows == 1 ? 1u : (rows - 2) / page_rows + 2;  // that a window may touch
  const kv_u32 request = my_strip() / (pages * strips);
  if (request >= kv_in_use(live, most)) return;
  const kv_i64 position = positions[request];
  if (position < 0) return;
  const kv_u64 end = (kv_u64)position + 1;
  const kv_u64 first = end > rows ? end - rows : 0;
  const kv_u32 piece = my_strip() - request * (pages * strips);
  const kv_u64 page = first / page_rows + piece / strips;
  const kv_u64 page_begin = page * page_rows + piece % strips * strip_rows;  // the strip's share of the page
  const kv_u64 begin = max(first, page_begin);
  const kv_u64 stop = min(end, min(page_begin + strip_rows, (page + 1) * page_rows));
  if (begin >= stop) return;
  const kv_u32 block_pages = block_rows / page_rows;
  const kv_u32 entry = request * width + (kv_u32)(page / block_pages % width);
  const kv_i32 slot = table[entry];
  if (look(check, entry, slot, slots) != kv_refusal::kApplied) return;
  const kv_u8* const from = arena + (kv_u64)slot * stride + page % block_pages * page_stride +
                            (begin - page * page_rows) * row_bytes;
  kv_u8* const to = out + ((kv_u64)request * rows + (begin - first)) * row_bytes;
  const kv_u32 bytes = (kv_u32)(stop - begin) * row_bytes;
  const bool wide = row_bytes % 16 == 0;
  if (wide) {
    copy16<false>(to, from, bytes);
  } else {
    copy4(to, from, bytes);
  }
  if (look_again(check, entry, slot) == kv_refusal::kApplied) return;
  if (wide) {
    fill16<false>(to, bytes, 0);
  } else {
    clear4(to, bytes);
  }
}

// One entry a slot of indexer keys, of a list that may be of many requests. An item is one entry.
extern "C" __global__ void __launch_bounds__(kThreads) kv_indexer_gather(
    const kv_u8* keys,        // keys of slot 0; those of slot i are `stride` bytes * i further on
    const kv_u8* scales,      // likewise; null where keys have no scales
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,        // [most] slots to read
    const kv_u32* starts,     // [most + 1] entry i gives its first rows to rows [starts[i], starts[i + 1]) of the output
    kv_u32 slot_rows,         // rows of a slot
    kv_u32 key_bytes,         // of a row: a multiple of 16
    kv_u32 scale_bytes,       // of a row: a multiple of 4
    const kv_i64* live,       // entries in use, or null: `most`
    kv_u32 most,
    kv_u8* out_keys,          // [rows, key_bytes]
    kv_u8* out_scales,        // [rows, scale_bytes]
    kv_u32 out_rows,
    const kv_u32* versions,   // [most] of the entries that the keys are to route to
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  const KvCheck check = {machine, side, words, expected, refusals, versions};
  const kv_u32 strip_rows = max(1u, kStripBytes / key_bytes);
  const kv_u32 strips = (slot_rows - 1) / strip_rows + 1;
  const kv_u32 entry = my_strip() / strips;
  if (entry >= kv_in_use(live, most)) return;
  const kv_u32 start = starts[entry];
  const kv_u32 stop = min(starts[entry + 1], out_rows);
  const kv_u32 begin = (my_strip() - entry * strips) * strip_rows;  // first row of the strip in its slot
  if (stop <= start || begin >= stop - start) return;
  const kv_u32 rows = min(min(stop - start, slot_rows) - min(begin, slot_rows), strip_rows);
  if (rows == 0) return;
  const kv_i32 slot = ids[entry];
  if (look(check, entry, slot, slots) != kv_refusal::kApplied) return;
  const kv_u64 at = (kv_u64)slot * stride;
  kv_u8* const to_keys = out_keys + (kv_u64)(start + begin) * key_bytes;
  kv_u8* const to_scales = out_scales + (kv_u64)(start + begin) * scale_bytes;
  copy16<false>(to_keys, keys + at + (kv_u64)begin * key_bytes, rows * key_bytes);
  if (scales != nullptr) copy4(to_scales, scales + at + (kv_u64)begin * scale_bytes, rows * scale_bytes);
  if (look_again(check, entry, slot) == kv_refusal::kApplied) return;
  fill16<false>(to_keys, rows * key_bytes, 0);
  if (scales != nullptr) clear4(to_scales, rows * scale_bytes);
}
