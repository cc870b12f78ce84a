// CUDA's own functions, as kernels call them, an item a thread.
constexpr kv_u32 kThreads = 64;

extern "C" __global__ void __launch_bounds__(kThreads) kv_bits(const kv_u64* numbers, kv_u64* results) {
  const kv_u64 number = numbers[threadIdx.x];
  const kv_u32 low = (kv_u32)number;
  kv_u64* const mine = results + 9 * threadIdx.x;
  mine[0] = (kv_u64)__popc(low);
  mine[1] = (kv_u64)__popcll(number);
  mine[2] = (kv_u64)__ffs((int)low);
  mine[3] = (kv_u64)__ffsll((long long)number);
  mine[4] = (kv_u64)__clz((int)low);
  mine[5] = (kv_u64)__clzll((long long)number);
  mine[6] = __umulhi(low, 0x9E3779B9u);
  mine[7] = __umul64hi(number, 0x9E3779B97F4A7C15ULL);
  mine[8] = (kv_u64)min(low, 1000u) << 32 | max(low, 1000u);
}

extern "C" __global__ void __launch_bounds__(kThreads) kv_converts(const float* numbers, kv_i32* results) {
  kv_i32* const mine = results + 2 * threadIdx.x;
  mine[0] = __float2int_rn(numbers[threadIdx.x]);
  mine[1] = (kv_i32)__int2float_rn(mine[0] / 2);
}

// What lanes get from each other. The second warp has a lane less in its mask.
extern "C" __global__ void __launch_bounds__(kThreads) kv_exchanges(const kv_u32* numbers, kv_u32* results) {
  const kv_u32 mask = threadIdx.x < 32 ? kWholeWarp : 0x7FFFFFFFu;
  if (threadIdx.x == 63) return;
  const kv_u32 number = numbers[threadIdx.x];
  kv_u32* const mine = results + 9 * threadIdx.x;
  mine[0] = __shfl_sync(mask, number, 5);
  mine[1] = __shfl_sync(mask, number, kv_lane() + 1);
  mine[2] = __shfl_up_sync(mask, number, 3);
  mine[3] = __shfl_down_sync(mask, number, 3);
  mine[4] = __shfl_xor_sync(mask, number, 1);
  mine[5] = __ballot_sync(mask, number & 1u);
  mine[6] = __any_sync(mask, number == 7) ? 1 : 0;
  mine[7] = __all_sync(mask, number < 100) ? 1 : 0;
  const kv_u64 wide = __shfl_sync(mask, (kv_u64)number << 40, 2);
  mine[8] = (kv_u32)wide + (kv_u32)(wide >> 40);
}

// Barriers that also count.
extern "C" __global__ void __launch_bounds__(kThreads) kv_votes(const kv_u32* numbers, kv_u32* results) {
  const kv_u32 number = numbers[threadIdx.x];
  kv_u32* const mine = results + 3 * threadIdx.x;
  mine[0] = (kv_u32)__syncthreads_count(number > 50);
  mine[1] = (kv_u32)__syncthreads_or(number == 7) != 0 ? 1 : 0;
  mine[2] = (kv_u32)__syncthreads_and(number < 100) != 0 ? 1 : 0;
}

// All threads change the same eight words.
extern "C" __global__ void __launch_bounds__(kThreads) kv_changes(kv_u32* words, kv_u64* long_words) {
  const kv_u32 mine = blockIdx.x * kThreads + threadIdx.x;
  atomicAdd(words, mine);
  atomicOr(words + 1, 1u << (mine % 32));
  atomicAnd(words + 2, ~(1u << (mine % 16)));
  atomicXor(words + 3, mine);
  atomicMin(words + 4, 1000 - mine);
  atomicMax(words + 5, mine);
  kv_u32 seen = 0;
  for (kv_u32 wanted = 1; seen != wanted; wanted = seen + 1) {
    const kv_u32 before = atomicCAS(words + 6, seen, wanted);
    if (before == seen) break;
    seen = before;
  }
  atomicAdd(long_words, (kv_u64)atomicExch(words + 7, mine + 1));
}
