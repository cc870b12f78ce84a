// Two threads at one place, and nothing that orders them.
constexpr kv_u32 kThreads = 64;

// Sums 64 numbers; sound if kBarrier.
template <bool kBarrier>
__device__ __forceinline__ void sum_up(kv_u32* sums, const kv_u32* from, kv_u32* to) {
  sums[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  for (kv_u32 half = kThreads / 2; half != 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];  // fault: tree_without_barrier
    if (kBarrier) __syncthreads();
  }
  if (threadIdx.x == 0) *to = sums[0];
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_tree(const kv_u32* from, kv_u32* to) {
  __shared__ kv_u32 sums[kThreads];
  sum_up<true>(sums, from, to);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_tree_without_barrier(const kv_u32* from, kv_u32* to) {
  __shared__ kv_u32 sums[kThreads];
  sum_up<false>(sums, from, to);
}

// Each warp turns its part of a row round.
extern "C" __global__ void __launch_bounds__(kThreads) kv_backwards(const kv_u32* from, kv_u32* to) {
  __shared__ kv_u32 row[kThreads];
  row[threadIdx.x] = from[threadIdx.x];
  __syncwarp();
  to[threadIdx.x] = row[threadIdx.x ^ 31u];
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_backwards_without_syncwarp(const kv_u32* from, kv_u32* to) {
  __shared__ kv_u32 row[kThreads];
  row[threadIdx.x] = from[threadIdx.x];
  const kv_u32 all = __ballot_sync(kWholeWarp, 1);  // meets, and orders nothing
  to[threadIdx.x] = row[threadIdx.x ^ 31u] & all;   // fault: backwards_without_syncwarp
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_half_a_syncwarp(const kv_u32* from, kv_u32* to) {
  __shared__ kv_u32 row[kThreads];
  row[threadIdx.x] = from[threadIdx.x];
  if (kv_lane() < 16) {
    __syncwarp(0xFFFFu);
  } else {
    __syncwarp(0xFFFF0000u);
  }
  to[threadIdx.x] = row[threadIdx.x ^ 31u];  // fault: half_a_syncwarp
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_overwrites_what_others_read(const kv_u32* from, kv_u32* to) {
  __shared__ kv_u32 first;
  if (threadIdx.x == 0) first = from[0];
  __syncthreads();
  to[threadIdx.x] = first;
  if (threadIdx.x == 40) first = from[1];  // fault: overwrites_what_others_read
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_counts_by_atomics(const kv_u32* from, kv_u32* to) {
  atomicAdd(to, from[threadIdx.x]);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_counts_between_blocks(const kv_u32* from, kv_u32* to) {
  if (threadIdx.x == 0) *to += from[0];  // fault: counts_between_blocks
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_reads_an_atomic(const kv_u32* from, kv_u32* to) {
  if (threadIdx.x == 0) atomicAdd(to, from[0]);
  if (threadIdx.x == 1) to[1] = *to;  // fault: reads_an_atomic
}
