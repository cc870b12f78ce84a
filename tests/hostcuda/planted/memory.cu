// Accesses that no kernel may make. Each marked line is the one that the checker must name.
constexpr kv_u32 kThreads = 32;

__device__ const kv_u32 kTable[4] = {3, 1, 4, 1};
__device__ kv_u32 kept_between_launches;

extern "C" __global__ void __launch_bounds__(kThreads) kv_copies(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x < count) to[threadIdx.x] = from[threadIdx.x];  // sound, and a fault where a buffer was freed
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_off_by_one(const kv_u32* from, kv_u32* to, kv_u32 count) {
  for (kv_u32 at = threadIdx.x; at <= count; at += kThreads)
    to[at] = from[at];  // fault: off_by_one
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_before_begin(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x >= count) return;
  *(to + threadIdx.x - 1) = from[threadIdx.x];  // fault: before_begin
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_null(const kv_u32* from, kv_u32* to, kv_u32 count) {
  kv_u32* const nowhere = count == 0 ? to : (kv_u32*)(kv_u64)(from[0] & 0u);
  if (threadIdx.x == 3) nowhere[1] = count;  // fault: null
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_const_write(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x >= count) return;
  to[threadIdx.x] = from[threadIdx.x];
  ((kv_u32*)from)[threadIdx.x] = 0;  // fault: const_write
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_misaligned(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x != 0 || count < 8) return;
  kv_store16(to, kv_load16(from + 1));  // fault: misaligned
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_unwritten_output(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x >= count) return;
  to[threadIdx.x] += from[threadIdx.x];  // fault: unwritten_output
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_unwritten_scratch(const kv_u32* from, kv_u32* to, kv_u32 count) {
  __shared__ kv_u32 scratch[kThreads];
  if (threadIdx.x < count / 2) scratch[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < count)
    to[threadIdx.x] = scratch[threadIdx.x];  // fault: unwritten_scratch
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_scratch_overrun(const kv_u32* from, kv_u32* to, kv_u32 count) {
  kv_u32* const scratch = (kv_u32*)kv_host::dynamic_shared();
  scratch[threadIdx.x + 1] = from[threadIdx.x % count];  // fault: scratch_overrun
  __syncthreads();
  to[threadIdx.x % count] = scratch[1];
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_reads_a_table(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x < count) to[threadIdx.x] = kTable[from[threadIdx.x] % 4];  // sound
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_keeps_a_variable(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x >= count) return;
  to[threadIdx.x] = from[threadIdx.x] + kept_between_launches;
  kept_between_launches = count;  // fault: keeps_a_variable
}
