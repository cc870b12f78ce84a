// What kernels may use beyond plain CUDA C: 16-byte access, ordered atomics, bits of floats, bfloat16, e4m3, a warp's
// reductions.
//
// Comes after kvfsm_base.cuh. Where a device has an instruction of its own, the host half (KV_HOST, tests/hostcuda)
// stands beside it; everything else here is one text for both. CUDA's own names (threadIdx, __syncthreads,
// __shfl_down_sync, atomicAdd, __fmul_rn, fmaxf, ...) are kernels' to use directly; arithmetic on floats is always
// spelled __fadd_rn, __fsub_rn, __fmul_rn, __fdiv_rn or __fmaf_rn, so that no compiler contracts it. Floats below
// 2^-126 count as zero, as CuPy compiles with -ftz=true.
#ifndef KVFSM_DEVICE_CUH
#define KVFSM_DEVICE_CUH

typedef uint4 kv_vec16;  // .x .y .z .w, lowest address first

static_assert(sizeof(kv_vec16) == 16, "the dialect names widths");

constexpr kv_u32 kWarpLanes = 32;
constexpr kv_u32 kWholeWarp = 0xFFFFFFFFu;  // mask of all lanes

// -- Bytes ------------------------------------------------------------------------------------------------------------

// 16 bytes at once; `address` must be a multiple of 16. Plain: orders nothing, and races with who writes them.
__device__ __forceinline__ kv_vec16 kv_load16(const void* address) {
#ifdef KV_HOST
  return kv_host::load16(address);
#else
  return *(const uint4*)address;
#endif
}

__device__ __forceinline__ void kv_store16(void* address, kv_vec16 value) {
#ifdef KV_HOST
  kv_host::store16(address, value);
#else
  *(uint4*)address = value;
#endif
}

// As kv_load16, and no race with a thread that writes these bytes meanwhile. Part of what is read may then be old and
// part new; who reads finds that out afterwards, by a word that the writer changes first.
__device__ __forceinline__ kv_vec16 kv_load16_relaxed(const void* address) {
#ifdef KV_HOST
  return kv_host::load16_relaxed(address);
#else
  kv_vec16 value;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
#endif
}

// The other side of that: bytes which launches without pins may be reading meanwhile.
__device__ __forceinline__ void kv_store16_relaxed(void* address, kv_vec16 value) {
#ifdef KV_HOST
  kv_host::store16_relaxed(address, value);
#else
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
#endif
}

__device__ __forceinline__ kv_u32 kv_load4_relaxed(const kv_u32* address) {
#ifdef KV_HOST
  return kv_host::load(address, __ATOMIC_RELAXED);
#else
  kv_u32 value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
#endif
}

// Single bytes that several threads read and write without any order among them.
__device__ __forceinline__ kv_u8 kv_load1_relaxed(const kv_u8* address) {
#ifdef KV_HOST
  return kv_host::load(address, __ATOMIC_RELAXED);
#else
  kv_u32 value;
  asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return (kv_u8)value;
#endif
}

__device__ __forceinline__ void kv_store1_relaxed(kv_u8* address, kv_u8 value) {
#ifdef KV_HOST
  kv_host::store(address, value, __ATOMIC_RELAXED);
#else
  asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" : : "l"(address), "r"((kv_u32)value) : "memory");
#endif
}

// -- Ordered atomics --------------------------------------------------------------------------------------------------
//
// At the scope of the device, on words in global memory. CUDA's own atomicCAS, atomicAdd, ... are relaxed: they order
// nothing around them, so words that guard other bytes go through these. Each use says which write it pairs with. Every
// function that changes a word returns the word as it was before.

// Sees what the thread that wrote the word with release had written before.
__device__ __forceinline__ kv_u64 kv_load_acquire(const kv_u64* word) {
#ifdef KV_HOST
  return kv_host::load(word, __ATOMIC_ACQUIRE);
#else
  kv_u64 value;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#endif
}

// A first look, to be confirmed by a compare-and-swap.
__device__ __forceinline__ kv_u64 kv_load_relaxed(const kv_u64* word) {
#ifdef KV_HOST
  return kv_host::load(word, __ATOMIC_RELAXED);
#else
  kv_u64 value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#endif
}

// Puts `wanted` where `expected` still is; done if and only if it returns `expected`. Acquires and releases when done;
// acquires at least when not.
__device__ __forceinline__ kv_u64 kv_cas_acq_rel(kv_u64* word, kv_u64 expected, kv_u64 wanted) {
#ifdef KV_HOST
  return kv_host::cas(word, expected, wanted, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
#else
  kv_u64 before;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(word), "l"(expected), "l"(wanted)
               : "memory");
  return before;
#endif
}

// Adds modulo 2^64, and publishes what this thread read and wrote before. To subtract n, add 0 - n.
__device__ __forceinline__ kv_u64 kv_add_release(kv_u64* word, kv_u64 amount) {
#ifdef KV_HOST
  return kv_host::add(word, amount, __ATOMIC_RELEASE);
#else
  kv_u64 before;
  asm volatile("atom.release.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(word), "l"(amount) : "memory");
  return before;
#endif
}

// -- Bits of floats ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ kv_u32 kv_float_bits(float value) {
#ifdef KV_HOST
  return kv_host::bits<kv_u32>(value);
#else
  return __float_as_uint(value);
#endif
}

__device__ __forceinline__ float kv_bits_float(kv_u32 bits) {
#ifdef KV_HOST
  return kv_host::bits<float>(bits);
#else
  return __uint_as_float(bits);
#endif
}

// bfloat16 is the upper half of a float, so this is exact.
__device__ __forceinline__ float kv_bf16_to_float(kv_u16 code) { return kv_bits_float((kv_u32)code << 16); }

// To nearest, ties to even; past the greatest bfloat16 comes infinity. Every NaN becomes 0x7FFF.
__device__ __forceinline__ kv_u16 kv_float_to_bf16(float value) {
  const kv_u32 bits = kv_float_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (kv_u16)0x7FFF;
  const kv_u32 lowest_kept = (bits >> 16) & 1u;
  return (kv_u16)((bits + 0x7FFFu + lowest_kept) >> 16);
}

// Bits of a number that a kernel writes: one NaN for all, as which one arithmetic gives differs between machines.
__device__ __forceinline__ kv_u32 kv_canonical_bits(float value) {
  const kv_u32 bits = kv_float_bits(value);
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : bits;
}

// -- FP8 e4m3 ---------------------------------------------------------------------------------------------------------
//
// Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7F is NaN, 448 the greatest, 2^-9 the least above
// zero (OCP 8-bit floating point, "E4M3").

// To nearest, ties to even, saturating at +-448, infinities too; every NaN becomes 0x7F. Equal to the instruction that
// kv_float_to_e4m3 uses where there is one, for all floats.
__device__ __forceinline__ kv_u8 kv_float_to_e4m3_soft(float value) {
  const kv_u32 bits = kv_float_bits(value);
  const kv_u32 sign = (bits >> 24) & 0x80u;
  const kv_u32 magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return (kv_u8)0x7F;
  // 464 lies halfway between 448 and the 480 that there isn't; from there on the result saturates.
  if (magnitude >= 0x43E80000u) return (kv_u8)(sign | 0x7Eu);
  if (magnitude < 0x3C800000u) {
    // Below 2^-6 results are multiples of 2^-9. That is the distance of floats around 2^14, so adding 2^14 rounds.
    const float rounded = __fadd_rn(kv_bits_float(magnitude), 16384.0f);
    return (kv_u8)(sign | (kv_float_bits(rounded) - 0x46800000u));
  }
  // Keep 3 of 23 bits of mantissa; a carry goes up into the exponent, whose bias becomes 7.
  const kv_u32 lowest_kept = (magnitude >> 20) & 1u;
  const kv_u32 kept = (magnitude + 0x7FFFFu + lowest_kept) >> 20;
  return (kv_u8)(sign | (kept - ((127u - 7u) << 3)));
}

__device__ __forceinline__ kv_u8 kv_float_to_e4m3(float value) {
#if !defined(KV_HOST) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  kv_u16 pair;  // of which the second operand is the lower half
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return (kv_u8)(pair & 0xFFu);
#else
  return kv_float_to_e4m3_soft(value);
#endif
}

// Exact; NaN comes without a sign.
__device__ __forceinline__ float kv_e4m3_to_float(kv_u8 code) {
  const kv_u32 sign = (kv_u32)(code & 0x80u) << 24;
  const kv_u32 magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return kv_bits_float(0x7FC00000u);
  if (magnitude < 8u) {
    // Below 2^-6 there is no leading one: put one there, and take its value away again.
    const float with_one = kv_bits_float((magnitude << 20) + ((127u - 6u) << 23));
    return kv_bits_float(sign | kv_float_bits(__fsub_rn(with_one, 0.015625f)));
  }
  return kv_bits_float(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

// -- A warp -----------------------------------------------------------------------------------------------------------

// Blocks are one-dimensional.
__device__ __forceinline__ kv_u32 kv_lane() { return threadIdx.x & (kWarpLanes - 1u); }
__device__ __forceinline__ kv_u32 kv_warp() { return threadIdx.x / kWarpLanes; }

// Over all 32 lanes, which must all call; every lane gets the result.
__device__ __forceinline__ kv_u64 kv_warp_sum(kv_u64 value) {
  for (kv_u32 distance = kWarpLanes / 2; distance != 0; distance /= 2)
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  return value;
}

__device__ __forceinline__ kv_u32 kv_warp_min(kv_u32 value) {
  for (kv_u32 distance = kWarpLanes / 2; distance != 0; distance /= 2) {
    const kv_u32 other = __shfl_xor_sync(kWholeWarp, value, distance);
    value = other < value ? other : value;
  }
  return value;
}

#endif  // KVFSM_DEVICE_CUH
