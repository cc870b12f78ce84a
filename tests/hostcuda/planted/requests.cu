// What warps ask of memory, well and badly.
constexpr kv_u32 kThreads = 64;

extern "C" __global__ void __launch_bounds__(kThreads) kv_copies_by_16(const kv_u8* from, kv_u8* to) {
  const kv_u32 at = 16 * (blockIdx.x * kThreads + threadIdx.x);
  kv_store16(to + at, kv_load16(from + at));
}

// A stride of 64 bytes between lanes: of each sector half is used.
extern "C" __global__ void __launch_bounds__(kThreads) kv_copies_by_stride(const kv_u8* from, kv_u8* to) {
  const kv_u32 vectors = gridDim.x * kThreads;
  const kv_u32 mine = blockIdx.x * kThreads + threadIdx.x;
  const kv_u32 at = 16 * (mine % (vectors / 4) * 4 + mine / (vectors / 4));
  kv_store16(to + at, kv_load16(from + at));
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_broadcasts(const kv_u8* from, kv_u8* to) {
  to[blockIdx.x * kThreads + threadIdx.x] = from[0];
}
