// FP8 by arithmetic and by the instruction; spec in programs.py.

extern "C" __global__ void __launch_bounds__(256) kv_e4m3_differences(
    kv_u32 first,
    kv_u32 per_thread,
    kv_u64* differing,
    kv_u32* example) {
  const kv_u32 begin = first + (blockIdx.x * 256u + threadIdx.x) * per_thread;
  for (kv_u32 k = 0; k < per_thread; ++k) {
    const float value = kv_bits_float(begin + k);
    if (kv_float_to_e4m3(value) == kv_float_to_e4m3_soft(value)) continue;
    atomicAdd(differing, 1ULL);       // relaxed: read when the launch has ended
    atomicMin(example, begin + k);
  }
}
