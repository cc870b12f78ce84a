// One thread of a block acquires what another block published, and tells the others, soundly or not.
constexpr kv_u32 kThreads = 32;

extern "C" __global__ void __launch_bounds__(kThreads) kv_publishes(kv_u64* flag, kv_u64* data) {
  if (threadIdx.x != 0) return;
  data[0] = 7;
  kv_host::store(flag, (kv_u64)1, __ATOMIC_RELEASE);
}

// A change of the flag by a third party, which keeps what its first writer published.
extern "C" __global__ void __launch_bounds__(kThreads) kv_adds(kv_u64* flag) {
  if (threadIdx.x == 0) atomicAdd(flag, 2ULL);
}

// A store does not keep it.
extern "C" __global__ void __launch_bounds__(kThreads) kv_overwrites(kv_u64* flag) {
  if (threadIdx.x == 0 && kv_load_relaxed(flag) == 1) kv_host::store(flag, (kv_u64)3, __ATOMIC_RELAXED);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_by_barrier(const kv_u64* flag, const kv_u64* data, kv_u64* out) {
  __shared__ kv_u32 is_there;
  if (threadIdx.x == 0) is_there = kv_load_acquire(flag) & 1u;
  __syncthreads();
  if (is_there) out[threadIdx.x] = data[0];
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_by_syncwarp(const kv_u64* flag, const kv_u64* data, kv_u64* out) {
  kv_u32 is_there = 0;
  if (threadIdx.x == 0) is_there = kv_load_acquire(flag) & 1u;
  __syncwarp();
  if (__shfl_sync(kWholeWarp, is_there, 0)) out[threadIdx.x] = data[0];
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_by_shuffle_alone(const kv_u64* flag, const kv_u64* data, kv_u64* out) {
  kv_u32 is_there = 0;
  if (threadIdx.x == 0) is_there = kv_load_acquire(flag) & 1u;
  if (__shfl_sync(kWholeWarp, is_there, 0)) out[threadIdx.x] = data[0];  // fault: by_shuffle_alone
}
