// What kernels find out about slots, prefixes and captured launches: page_checksum, verified_prefix, check_topology.
//
// A block has a page, a request or a row, alone: nobody waits for another block, and nothing needs clearing beforehand.
// Specs, plans and references: kernels/checks.py and topology_check.py.

constexpr kv_u32 kThreads = 256;
constexpr kv_u32 kWarps = kThreads / kWarpLanes;
constexpr kv_u32 kNobody = 0xFFFFFFFFu;

// -- page_checksum ----------------------------------------------------------------------------------------------------
//
// Sum over pairs of 4-byte numbers of (first + key) * (second + key), modulo 2^64: the universal hash NH (Black et al.,
// "UMAC", 1999), with keys that are multiples of the position instead of random ones. So a number that changes changes
// the sum, unless the other of its pair meets the one value in 2^32 that makes its factor zero, and rows that change
// places change it, for their keys differ. It finds what broke; it does not resist who wants to deceive.

constexpr kv_u32 kKey0 = 0x9E3779B1u, kKey1 = 0x85EBCA77u, kKey2 = 0xC2B2AE3Du, kKey3 = 0x27D4EB2Fu;  // odd; of xxHash
constexpr kv_u32 kFrom0 = 0x7F4A7C15u, kFrom1 = 0x94D049BBu, kFrom2 = 0xBF58476Du, kFrom3 = 0x133111EBu;

// Of the 16 bytes at position `at`, counted in 16 bytes.
__device__ __forceinline__ kv_u64 checked16(kv_vec16 value, kv_u32 at) {
  const kv_u32 a = value.x + (at * kKey0 + kFrom0), b = value.y + (at * kKey1 + kFrom1);
  const kv_u32 c = value.z + (at * kKey2 + kFrom2), d = value.w + (at * kKey3 + kFrom3);
  return (kv_u64)a * b + (kv_u64)c * d;
}

// Spreads a sum over all bits, and tells pages of different lengths apart (the finaliser of splitmix64).
__device__ __forceinline__ kv_u64 spread(kv_u64 sum, kv_u32 bytes) {
  kv_u64 mixed = sum + bytes * 0x9E3779B97F4A7C15ULL;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
  return mixed ^ (mixed >> 31);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_page_checksum(
    const kv_u8* arena,       // page of slot 0; that of slot i is `stride` bytes * i further on
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,        // [most] slots
    const kv_i64* live,       // entries in use, or null: `most`
    kv_u32 most,
    kv_u32 bytes,             // of a page
    kv_u64* sums,             // [most]
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ kv_u64 parts[kWarps];
  __shared__ kv_u32 looked;
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const kv_u32 entry = blockIdx.x;
  if (entry >= kv_in_use(live, most)) return;
  const kv_i32 slot = ids[entry];
  if (threadIdx.x == 0) looked = kv_look(check, entry, slot, slots);
  __syncthreads();  // all reads come after thread 0's acquire
  if (looked != kv_refusal::kApplied) return;

  const kv_u8* const page = arena + (kv_u64)slot * stride;
  const kv_u32 end = bytes / 16;
  kv_u64 sum = 0;
  kv_u32 at = threadIdx.x;
  for (; at + 3 * kThreads < end; at += 4 * kThreads) {
    kv_vec16 held[4];
#pragma unroll
    for (kv_u32 k = 0; k < 4; ++k) held[k] = kv_load16_relaxed(page + 16ULL * (at + k * kThreads));
#pragma unroll
    for (kv_u32 k = 0; k < 4; ++k) sum += checked16(held[k], at + k * kThreads);
  }
  for (; at < end; at += kThreads) sum += checked16(kv_load16_relaxed(page + 16ULL * at), at);

  sum = kv_warp_sum(sum);
  if (kv_lane() == 0) parts[kv_warp()] = sum;
  __syncthreads();  // parts are there, and all reads come before thread 0's second look
  if (threadIdx.x != 0 || kv_look_again(check, entry, slot) != kv_refusal::kApplied) return;
  for (kv_u32 k = 1; k < (blockDim.x + kWarpLanes - 1) / kWarpLanes; ++k) sum += parts[k];
  sums[entry] = spread(sum, bytes);
}

// -- verified_prefix --------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(kThreads) kv_verified_prefix(
    const kv_u32* offsets,    // [most + 1] request r has blocks [offsets[r], offsets[r + 1])
    const kv_i32* ids,        // [blocks] slots
    kv_u32 slots,
    kv_u32 blocks,
    const kv_u64* sums,       // [blocks] as found, or null: nothing is compared
    const kv_u64* wanted,     // [blocks] as published
    const kv_i64* live,       // requests in use, or null: `most`
    kv_u32 most,
    kv_u32* verified,         // [most] leading blocks that verify
    kv_u8* reasons,           // [most] why the next one does not; kApplied where there is none
    kv_u32 machine,
    const kv_u64* words,
    const kv_u32* expected) { // [blocks]
  __shared__ kv_u32 firsts[kWarps];
  const kv_u32 request = blockIdx.x;
  if (request >= kv_in_use(live, most)) return;
  const kv_u32 begin = min(offsets[request], blocks);
  const kv_u32 end = max(begin, min(offsets[request + 1], blocks));
  for (kv_u32 chunk = begin; chunk < end; chunk += kThreads) {
    const kv_u32 at = chunk + threadIdx.x;
    kv_u8 code = kv_refusal::kApplied;
    if (at < end) {
      const kv_i32 slot = ids[at];
      if (slot < 0 || (kv_u32)slot >= slots) {
        code = kv_call::kNoSlot;
      } else {
        // Pairs with the release by which the slot was sealed; a pin taken before keeps the answer true afterwards.
        code = kv_events::read(machine, kv_load_acquire(words + slot), (kv_i64)expected[at]);
        if (code == kv_refusal::kApplied && sums != nullptr && sums[at] != wanted[at]) code = kv_refusal::kFailed;
      }
    }
    kv_u32 first = kv_warp_min(code == kv_refusal::kApplied ? kNobody : at);
    if (kv_lane() == 0) firsts[kv_warp()] = first;
    __syncthreads();
    for (kv_u32 k = 0; k < kWarps; ++k) first = min(first, firsts[k]);
    if (first != kNobody) {  // the same for all threads
      if (at == first) {
        verified[request] = first - begin;
        reasons[request] = code;
      }
      return;
    }
    __syncthreads();  // all have read before the next chunk writes
  }
  if (threadIdx.x == 0) {
    verified[request] = end - begin;
    reasons[request] = kv_refusal::kApplied;
  }
}

// -- check_topology ---------------------------------------------------------------------------------------------------

namespace kv_violation {
enum What : kv_u32 {
  kNumber = 1,   // number `column` of the signature is `found`, and was `wanted` when the graph was captured
  kEpoch = 2,    // the pool's epoch is `found`, and was `wanted`
  kLive = 3,     // `found` live rows, of at most `wanted`
  kEntry = 4,    // entry `column` of live row `row` is `found`: no slot, and not the guard
  kMissing = 5,  // entry `column` of live row `row` is the guard, and the row has tokens there
  kScratch = 6,  // entry `column` of live row `row` is scratch
  kPadding = 7,  // entry `column` of padding row `row` is `found`, not scratch `wanted`
  kWord = 8,     // slot `found` at entry `column` of live row `row` answers `code`
  kPosition = 9, // the last token of live row `row` is at `found`, before the first
};
}  // namespace kv_violation

// Where violations go: a ring in device memory that the host empties when it likes.
struct Ring {
  kv_u32* records;            // [capacity, 8] what, row, column, code, found (2), wanted (2)
  kv_u64* cursor;             // violations so far
  const kv_u64* consumed;     // of those, how many the host has taken
  kv_u32 capacity;
};

// Every violation is counted; those that find no room are not written, so that none is overwritten unread.
__device__ __forceinline__ void record(
    const Ring& ring, kv_u32 what, kv_u32 row, kv_u32 column, kv_u32 code, kv_i64 found, kv_i64 wanted) {
  const kv_u64 ticket = atomicAdd(ring.cursor, 1ULL);  // relaxed: the host reads after the launch has ended
  if (ticket - *ring.consumed >= ring.capacity) return;
  kv_u32* const at = ring.records + ticket % ring.capacity * 8;
  kv_store16(at, make_uint4(what, row, column, code));
  kv_store16(at + 4, make_uint4((kv_u32)found, (kv_u32)((kv_u64)found >> 32), (kv_u32)wanted,
                                (kv_u32)((kv_u64)wanted >> 32)));
}

// A row is refused for its first violation: those of the signature come before those of entries.
__device__ __forceinline__ void refuse_row(kv_u32* first, kv_u32 rank, kv_u32 code) {
  atomicMin(first, rank << 8 | code);  // relaxed: read after a barrier
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_check_topology(
    const kv_i64* captured,   // [numbers] of the signature, as they were
    const kv_i64* present,    // [numbers] as they are
    kv_u32 numbers,
    const kv_i64* epoch,      // of the pool
    kv_i64 captured_epoch,
    const kv_i32* table,      // [rows, width] slots
    kv_u32 width,
    kv_u32 slots,
    kv_u32 span,              // tokens that an entry covers
    kv_u32 is_ring,           // 1: block b is at entry b % width, and old ones slide out; 0: block b is entry b
    kv_i32 guard,             // names no slot
    kv_i32 scratch,           // slot for writes that are nobody's
    const kv_i64* live,       // [1] rows in use; those after them are padding
    const kv_i64* positions,  // [rows] of each live row's last token
    kv_u32 rows,
    kv_u8* refused,           // [rows] 0, or why the launches that follow must leave the row alone
    kv_u32 is_first,          // 0: rows that `refused` has a code for already keep it
    kv_u32* records,
    kv_u64* cursor,
    const kv_u64* consumed,
    kv_u32 capacity,
    kv_u32 machine,
    const kv_u64* words,      // [slots], or null
    const kv_u32* expected) { // [rows, width] generations, or null: any
  __shared__ kv_u32 first;
  const Ring ring = {records, cursor, consumed, capacity};
  const kv_u32 row = blockIdx.x;
  if (threadIdx.x == 0) first = kNobody;
  __syncthreads();

  // The signature decides for all rows; the first one tells.
  for (kv_u32 at = threadIdx.x; at < numbers; at += kThreads) {
    if (captured[at] == present[at]) continue;
    if (row == 0) record(ring, kv_violation::kNumber, 0, at, kv_refusal::kLayout, present[at], captured[at]);
    refuse_row(&first, 0, kv_refusal::kLayout);
  }
  const kv_i64 count = *live;
  if (threadIdx.x == 0) {
    if (*epoch != captured_epoch) {
      if (row == 0) record(ring, kv_violation::kEpoch, 0, 0, kv_refusal::kEpoch, *epoch, captured_epoch);
      refuse_row(&first, 1, kv_refusal::kEpoch);
    }
    if (count < 0 || count > (kv_i64)rows) {
      if (row == 0) record(ring, kv_violation::kLive, 0, 0, kv_refusal::kIllegal, count, rows);
      refuse_row(&first, 2, kv_refusal::kIllegal);
    }
  }

  const bool is_live = (kv_i64)row < count;
  const kv_i64 position = is_live ? positions[row] : 0;
  if (threadIdx.x == 0 && position < 0) {
    record(ring, kv_violation::kPosition, row, 0, kv_refusal::kIllegal, position, 0);
    refuse_row(&first, 2, kv_refusal::kIllegal);
  }
  const kv_i64 last = position < 0 ? 0 : position / span;  // block of the last token
  for (kv_u32 column = threadIdx.x; column < width; column += kThreads) {
    const kv_i32 slot = table[(kv_u64)row * width + column];
    kv_u32 what = 0;
    kv_u32 code = kv_call::kNoSlot;
    kv_i64 wanted = guard;
    if (!is_live) {
      if (slot != scratch && slot != guard) what = kv_violation::kPadding, wanted = scratch;
    } else if (slot == guard) {
      const bool is_used = is_ring ? column == last % width : column <= last;
      if (is_used) what = kv_violation::kMissing;
    } else if (slot < 0 || (kv_u32)slot >= slots) {
      what = kv_violation::kEntry;
    } else if (slot == scratch) {
      what = kv_violation::kScratch;
    } else if (words != nullptr) {
      // Pairs with the release of whoever changed the word. Its own slots a row is at work on, others' it reads.
      const kv_u64 word = kv_load_acquire(words + slot);
      const kv_i64 generation = kv_events::generation_of(machine, word);
      wanted = expected == nullptr ? generation : (kv_i64)expected[(kv_u64)row * width + column];
      code = kv_events::read(machine, word, wanted);
      if (code != kv_refusal::kApplied && code != kv_refusal::kBusy) what = kv_violation::kWord;
    }
    if (what == 0) continue;
    record(ring, what, row, column, code, slot, wanted);
    refuse_row(&first, 3 + column, code);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const kv_u8 code = first == kNobody ? (kv_u8)kv_refusal::kApplied : (kv_u8)(first & 0xFFu);
  if (is_first || refused[row] == kv_refusal::kApplied) refused[row] = code;
}
