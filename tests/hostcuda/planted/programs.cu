// Threads that run programs, which tests make up: each two operations {kind, word, value}, between which all may meet;
// then they tell what they have seen.
constexpr kv_u32 kThreads = 32;
constexpr kv_u32 kOperations = 2;

extern "C" __global__ void __launch_bounds__(kThreads)
    kv_runs_a_program(const kv_u32* program, kv_u32 meeting, kv_u32* words, kv_u32* results) {
  const kv_u32* operation = program + 3 * kOperations * threadIdx.x;
  kv_u32 seen = 0;
  for (kv_u32 i = 0; i < kOperations; ++i, operation += 3) {
    kv_u32* const word = words + operation[1];
    switch (operation[0]) {
      case 0: seen = 16 * seen + *word; break;
      case 1: *word = seen + operation[2]; break;
      case 2: seen = 16 * seen + atomicAdd(word, operation[2]); break;
      default: seen = 16 * seen + atomicCAS(word, operation[2] % 2, operation[2]); break;
    }
    if (i + 1 == kOperations) continue;
    if (meeting == 1) __syncthreads();
    if (meeting == 2) seen += 256 * __shfl_xor_sync(kWholeWarp, seen, 1);
  }
  results[threadIdx.x] = seen;
}
