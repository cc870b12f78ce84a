// Threads that don't meet as they should, at barriers of a block and in operations of a warp.
constexpr kv_u32 kThreads = 64;

extern "C" __global__ void __launch_bounds__(kThreads) kv_divergent_barrier(kv_u32* to) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();  // fault: divergent_barrier
  }
  to[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_left_before_barrier(kv_u32* to) {
  if (threadIdx.x == 7) return;
  __syncthreads();  // fault: left_before_barrier
  to[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_left_others_waiting(kv_u32* to) {
  if (threadIdx.x == 63) return;
  __syncthreads();  // fault: left_others_waiting
  to[threadIdx.x] = 1;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_divergent_warp(kv_u32* to) {
  kv_u32 sum = 0;
  if (threadIdx.x % 2 == 0) {
    sum = __shfl_xor_sync(kWholeWarp, threadIdx.x, 2);
  } else {
    sum = __shfl_xor_sync(kWholeWarp, threadIdx.x, 4);  // fault: divergent_warp
  }
  to[threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_outside_mask(kv_u32* to) {
  to[threadIdx.x] = __ballot_sync(0xFFFFu, 1);  // fault: outside_mask
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_absent_lanes(kv_u32* to) {
  if (threadIdx.x % 32 < 16) to[threadIdx.x] = __ballot_sync(kWholeWarp, 1);  // fault: absent_lanes
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_from_outside(kv_u32* to) {
  // Sound; lanes 4 to 7 get anything.
  if (threadIdx.x % 32 < 8) to[threadIdx.x] = __shfl_down_sync(0xFFu, threadIdx.x, 4);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_traps(kv_u32* to) {
  if (threadIdx.x == 5) __trap();  // fault: traps
  to[threadIdx.x] = 1;
}
