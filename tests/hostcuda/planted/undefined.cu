// What compiles, and means nothing in C++: host and device would differ.
constexpr kv_u32 kThreads = 32;

extern "C" __global__ void __launch_bounds__(kThreads) kv_shifts_too_far(kv_u32* to, kv_u32 by) {
  to[threadIdx.x] = 1u << (by + threadIdx.x);  // fault: shifts_too_far
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_divides_by_zero(kv_u32* to, kv_u32 by) {
  to[threadIdx.x] = threadIdx.x / by;  // fault: divides_by_zero
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_indexes_past_an_array(kv_u32* to, kv_u32 by) {
  kv_u32 four[4] = {1, 2, 3, 4};
  for (kv_u32 i = 0; i < 4; ++i) four[i] += to[i];
  to[threadIdx.x] = four[threadIdx.x + by];  // fault: indexes_past_an_array
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_loads_across(kv_u32* to, kv_u32 by) {
  if (threadIdx.x == 0) to[0] = (kv_u32)*(const kv_u64*)(to + by);  // fault: loads_across
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_needs_a_large_stack(kv_u32* to, kv_u32 by) {
  kv_u32 large[100000];
  for (kv_u32 i = 0; i < 100000; ++i) large[i] = i * by;
  to[threadIdx.x] = large[to[threadIdx.x] + threadIdx.x];
}
