// One kernel that uses everything: shuffles, static and dynamic shared memory, barriers, 16-byte access, atomics.
constexpr kv_u32 kThreads = 64;

// Of each row of 64 numbers: their sum, how many are odd, and the row backwards; how many rows there were.
extern "C" __global__ void __launch_bounds__(kThreads)
    kv_sound(const kv_u32* rows, kv_u32 row_count, kv_u32* sums, kv_u32* odd, kv_u32* backwards, kv_u64* done) {
  __shared__ kv_u32 partial[kThreads / kWarpLanes];
  kv_u32* const row = (kv_u32*)kv_host::dynamic_shared();
  if (blockIdx.x >= row_count) return;
  const kv_u32 value = rows[blockIdx.x * kThreads + threadIdx.x];
  row[threadIdx.x] = value;
  const kv_u32 sum = (kv_u32)kv_warp_sum(value);
  if (kv_lane() == 0) partial[kv_warp()] = sum;
  const int count = __syncthreads_count((value & 1u) != 0);
  if (threadIdx.x < kThreads / 4) {
    kv_vec16 four;
    const kv_u32 last = kThreads - 1 - 4 * threadIdx.x;
    four.x = row[last], four.y = row[last - 1], four.z = row[last - 2], four.w = row[last - 3];
    kv_store16(backwards + blockIdx.x * kThreads + 4 * threadIdx.x, four);
  }
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = partial[0] + partial[1];
    odd[blockIdx.x] = (kv_u32)count;
    kv_add_release(done, 1);
  }
}
