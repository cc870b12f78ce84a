// Each function of device.cuh over arrays, an element a thread.
constexpr kv_u32 kThreads = 256;

__device__ __forceinline__ kv_u32 my_item() { return blockIdx.x * kThreads + threadIdx.x; }

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_narrows(const kv_u32* bits, kv_u8* e4m3, kv_u16* bf16, kv_u32 count) {
  if (my_item() >= count) return;
  const float value = kv_bits_float(bits[my_item()]);
  e4m3[my_item()] = kv_float_to_e4m3(value);
  bf16[my_item()] = kv_float_to_bf16(value);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_widens(const kv_u16* codes, kv_u32* from_e4m3, kv_u32* from_bf16, kv_u32 count) {
  if (my_item() >= count) return;
  from_e4m3[my_item()] = kv_float_bits(kv_e4m3_to_float((kv_u8)(codes[my_item()] & 0xFFu)));
  from_bf16[my_item()] = kv_float_bits(kv_bf16_to_float(codes[my_item()]));
}

// Of each 32 numbers: sum and least.
extern "C" __global__ void __launch_bounds__(kThreads)
    kv_reduces(const kv_u32* numbers, kv_u64* sums, kv_u32* least) {
  const kv_u32 number = numbers[my_item()];
  sums[my_item()] = kv_warp_sum((kv_u64)number << 20);
  least[my_item()] = kv_warp_min(number);
}

// One word a thread: each ordered operation once.
extern "C" __global__ void __launch_bounds__(kThreads) kv_orders(kv_u64* words, kv_u64* seen) {
  kv_u64* const word = words + my_item();
  kv_u64* const mine = seen + 5 * my_item();
  mine[0] = kv_load_acquire(word);
  mine[1] = kv_cas_acq_rel(word, mine[0], mine[0] + 1);
  mine[2] = kv_cas_acq_rel(word, mine[0], 0);
  mine[3] = kv_add_release(word, 0 - (kv_u64)3);
  mine[4] = kv_load_relaxed(word);
}

// Arithmetic that flushes what is below the least normal number.
extern "C" __global__ void __launch_bounds__(kThreads)
    kv_computes(const float* a, const float* b, float* results, kv_u32 count) {
  if (my_item() >= count) return;
  const float x = a[my_item()], y = b[my_item()];
  float* const mine = results + 8 * my_item();
  mine[0] = __fadd_rn(x, y);
  mine[1] = __fsub_rn(x, y);
  mine[2] = __fmul_rn(x, y);
  mine[3] = __fdiv_rn(x, y);
  mine[4] = fmaxf(x, y);
  mine[5] = fminf(x, y);
  mine[6] = fabsf(x);
  mine[7] = __fmaf_rn(x, y, x);
}
