// A page behind a word, { generation : 32 | pins : 16 | state : 16 }: readers pin it, an evictor takes it for new
// bytes. The right protocol, and others that leave something out. One thread each: all but thread 0 of a block return
// at once.
constexpr kv_u32 kThreads = 32;
constexpr kv_u64 kReady = 1, kEvicting = 2, kOnePin = 1ULL << 16, kOneGeneration = 1ULL << 32;

__device__ __forceinline__ kv_u64 pins_of(kv_u64 word) { return (word >> 16) & 0xFFFF; }

__device__ __forceinline__ bool may_read(kv_u64 word, kv_u32 generation) {
  return word >> 32 == generation && (word & 0xFFFF) == kReady;
}

__device__ __forceinline__ bool pin(kv_u64* word, kv_u32 generation) {
  kv_u64 seen = kv_load_relaxed(word);
  while (may_read(seen, generation)) {
    const kv_u64 before = kv_cas_acq_rel(word, seen, seen + kOnePin);  // the CAS of pin
    if (before == seen) return true;
    seen = before;
  }
  return false;
}

__device__ __forceinline__ void unpin(kv_u64* word) {
  kv_add_release(word, 0 - kOnePin);  // the release of unpin
}

// out[3 * reader]: 1 and the page's two words if it was read in that generation, else 0.
extern "C" __global__ void __launch_bounds__(kThreads) kv_reader(kv_u64* word, const kv_u64* page, kv_u32 generation,
                                                                 kv_u64* out) {
  if (threadIdx.x != 0) return;
  kv_u64* const mine = out + 3 * blockIdx.x;
  const bool is_mine = pin(word, generation);
  mine[0] = is_mine;
  if (!is_mine) return;
  mine[1] = page[0];
  mine[2] = page[1];
  unpin(word);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_reader_without_pin(kv_u64* word, const kv_u64* page,
                                                                             kv_u32 generation, kv_u64* out) {
  if (threadIdx.x != 0) return;
  kv_u64* const mine = out + 3 * blockIdx.x;
  mine[0] = may_read(kv_load_acquire(word), generation);
  if (!mine[0]) return;
  mine[1] = page[0];
  mine[2] = page[1];
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_reader_unpins_early(kv_u64* word, const kv_u64* page,
                                                                              kv_u32 generation, kv_u64* out) {
  if (threadIdx.x != 0) return;
  kv_u64* const mine = out + 3 * blockIdx.x;
  mine[0] = pin(word, generation);
  if (!mine[0]) return;
  unpin(word);
  mine[1] = page[0];
  mine[2] = page[1];
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_reader_by_store(kv_u64* word, const kv_u64* page,
                                                                          kv_u32 generation, kv_u64* out) {
  if (threadIdx.x != 0) return;
  kv_u64* const mine = out + 3 * blockIdx.x;
  const kv_u64 seen = kv_load_relaxed(word);
  mine[0] = may_read(seen, generation);
  if (!mine[0]) return;
  kv_host::store(word, seen + kOnePin, __ATOMIC_RELEASE);  // what came between is overwritten
  mine[1] = page[0];
  mine[2] = page[1];
  unpin(word);
}

// Writes 2 twice where 1 was twice, if nobody has a pin.
extern "C" __global__ void __launch_bounds__(kThreads) kv_evictor(kv_u64* word, kv_u64* page) {
  if (threadIdx.x != 0) return;
  const kv_u64 seen = kv_load_relaxed(word);
  if ((seen & 0xFFFF) != kReady || pins_of(seen) != 0) return;
  if (kv_cas_acq_rel(word, seen, seen - kReady + kEvicting) != seen) return;  // the CAS of take
  page[0] = 2;
  page[1] = 2;
  kv_host::store(word, seen + kOneGeneration, __ATOMIC_RELEASE);  // the release of publish
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_evictor_ignores_pins(kv_u64* word, kv_u64* page) {
  if (threadIdx.x != 0) return;
  const kv_u64 seen = kv_load_relaxed(word);
  if ((seen & 0xFFFF) != kReady) return;
  if (kv_cas_acq_rel(word, seen, seen - kReady + kEvicting) != seen) return;
  page[0] = 2;
  page[1] = 2;
  kv_add_release(word, kOneGeneration + kReady - kEvicting);
}

// Takes and gives back a word of another block's kernel, for ever if the other never lets go.
extern "C" __global__ void __launch_bounds__(kThreads) kv_waits_for_the_word(kv_u64* word) {
  if (threadIdx.x != 0) return;
  while (kv_load_acquire(word) != 0)
    ;
}
