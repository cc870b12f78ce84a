// A bug each, for the tools of compute-sanitizer to find; specs in programs.py.

extern "C" __global__ void __launch_bounds__(64) kv_past_the_end(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x <= count) to[threadIdx.x] = from[0];  // memcheck: one too many
}

extern "C" __global__ void __launch_bounds__(64) kv_unwritten(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x < count) to[threadIdx.x] += from[threadIdx.x];  // initcheck: there is nothing to add to
}

extern "C" __global__ void __launch_bounds__(64) kv_unordered(const kv_u32* from, kv_u32* to, kv_u32 count) {
  __shared__ kv_u32 row[64];
  row[threadIdx.x] = 0;
  __syncthreads();
  row[threadIdx.x] = from[threadIdx.x % count];  // racecheck: another warp may read that already
  if (threadIdx.x < count) to[threadIdx.x] = row[63 - threadIdx.x];
}

// The others go on and end, which on a device counts as coming to the barrier, so nobody waits for ever.
extern "C" __global__ void __launch_bounds__(64) kv_divergent(const kv_u32* from, kv_u32* to, kv_u32 count) {
  if (threadIdx.x < count) __syncthreads();  // synccheck: part of a warp comes here
  ((kv_u8*)to)[threadIdx.x] = (kv_u8)from[0];
}
