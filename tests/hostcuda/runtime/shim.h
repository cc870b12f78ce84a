// The vocabulary of CUDA C that a kernel source needs, as C++17 for the host. Comes before the source's own text.
//
// What is not here is not in the dialect and fails to compile: fences, __activemask, shuffles of a part of a warp,
// texture and constant memory, printf. What these functions do when a kernel calls them is said in engine.h's parts;
// threads.cpp implements the same interface with real threads.
#ifndef KV_HOST_SHIM_H
#define KV_HOST_SHIM_H

#define KV_HOST 1

#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// One section a module: the engine gives each CUDA block its own contents of it.
#define __shared__ static __attribute__((section("kvshared")))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace kv_host {

// -- What the engine implements ---------------------------------------------------------------------------------------

// A thread never changes its own, so a compiler may ask once: hence `const`.
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_shape() __attribute__((const));
dim3 grid_shape() __attribute__((const));
void* dynamic_shared() __attribute__((const));

enum class Barrier { kPlain, kOr, kAnd, kCount };
enum class WarpOp { kFrom, kUp, kDown, kXor, kBallot, kSync };

int barrier(const char* file, int line, Barrier kind, int predicate);
uint64_t warp(const char* file, int line, WarpOp op, uint32_t mask, uint64_t bits, int argument);
[[noreturn]] void trap(const char* file, int line);
// Another thread may go on here: it stands before every atomic.
void switch_point();

// -- Memory -----------------------------------------------------------------------------------------------------------

inline __attribute__((always_inline)) void before_atomic() {
#if !defined(__SANITIZE_THREAD__) || defined(KV_HOST_THREADS)  // else the hook that sees the access is one
  switch_point();
#endif
}

typedef unsigned Native16 __attribute__((vector_size(16), may_alias));

inline __attribute__((always_inline)) uint4 load16(const void* address) {
  union {
    Native16 native;
    uint4 value;
  } both;
  both.native = *(const Native16*)address;
  return both.value;
}

inline __attribute__((always_inline)) void store16(void* address, uint4 value) {
  union {
    Native16 native;
    uint4 value;
  } both;
  both.value = value;
  *(Native16*)address = both.native;
}

template <class T>
inline __attribute__((always_inline)) T load(const T* word, int order) {
  before_atomic();
  return __atomic_load_n(word, order);
}

template <class T>
inline __attribute__((always_inline)) void store(T* word, T value, int order) {
  before_atomic();
  __atomic_store_n(word, value, order);
}

template <class T>
inline __attribute__((always_inline)) T cas(T* word, T expected, T wanted, int done, int not_done) {
  before_atomic();
  __atomic_compare_exchange_n(word, &expected, wanted, false, done, not_done);
  return expected;
}

template <class T>
inline __attribute__((always_inline)) T add(T* word, T amount, int order) {
  before_atomic();
  return __atomic_fetch_add(word, amount, order);
}

// 16 bytes that others may write meanwhile. Checked modules ask the engine, which then sees one access of 16 bytes that
// is no race with other atomics; ThreadSanitizer knows no atomics as wide.
uint4 checked_load16_relaxed(const void* address);

inline __attribute__((always_inline)) uint4 load16_relaxed(const void* address) {
#if defined(KV_HOST_THREADS)
  const unsigned* const words = (const unsigned*)address;
  return {__atomic_load_n(words, __ATOMIC_RELAXED), __atomic_load_n(words + 1, __ATOMIC_RELAXED),
          __atomic_load_n(words + 2, __ATOMIC_RELAXED), __atomic_load_n(words + 3, __ATOMIC_RELAXED)};
#elif defined(__SANITIZE_THREAD__)
  return checked_load16_relaxed(address);
#else
  before_atomic();
  return load16(address);
#endif
}

void checked_store16_relaxed(void* address, uint4 value);

inline __attribute__((always_inline)) void store16_relaxed(void* address, uint4 value) {
#if defined(KV_HOST_THREADS)
  unsigned* const words = (unsigned*)address;
  __atomic_store_n(words, value.x, __ATOMIC_RELAXED);
  __atomic_store_n(words + 1, value.y, __ATOMIC_RELAXED);
  __atomic_store_n(words + 2, value.z, __ATOMIC_RELAXED);
  __atomic_store_n(words + 3, value.w, __ATOMIC_RELAXED);
#elif defined(__SANITIZE_THREAD__)
  checked_store16_relaxed(address, value);
#else
  before_atomic();
  store16(address, value);
#endif
}

template <class To, class From>
inline __attribute__((always_inline)) To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "bits keep their number");
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// -- Warps ------------------------------------------------------------------------------------------------------------

template <class T>
inline __attribute__((always_inline)) T shuffle(const char* file, int line, WarpOp op, uint32_t mask, T value,
                                                int argument) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange values of 4 or 8 bytes");
  uint64_t carried = 0;
  std::memcpy(&carried, &value, sizeof value);
  carried = warp(file, line, op, mask, carried, argument);
  std::memcpy(&value, &carried, sizeof value);
  return value;
}

// Of __syncwarp() and __syncwarp(mask).
inline uint32_t mask_of(uint32_t mask = 0xFFFFFFFFu) { return mask; }

// -- Floats -----------------------------------------------------------------------------------------------------------

// CuPy compiles with -ftz=true. Additions and multiplications flush by the processor's mode during a launch; these
// don't compute, so they flush by hand.
inline float flushed(float value) {
  const uint32_t pattern = bits<uint32_t>(value);
  return pattern & 0x7F800000u ? value : bits<float>(pattern & 0x80000000u);
}

// Of a NaN and a number the number; plus zero is more than minus zero (PTX ISA, "max").
inline float greater(float a, float b) {
  a = flushed(a), b = flushed(b);
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return bits<float>(bits<uint32_t>(a) & bits<uint32_t>(b));
  return a > b ? a : b;
}

inline float lesser(float a, float b) {
  a = flushed(a), b = flushed(b);
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return bits<float>(bits<uint32_t>(a) | bits<uint32_t>(b));
  return a < b ? a : b;
}

inline float magnitude(float value) { return bits<float>(bits<uint32_t>(flushed(value)) & 0x7FFFFFFFu); }

}  // namespace kv_host

#define threadIdx (kv_host::thread_index())
#define blockIdx (kv_host::block_index())
#define blockDim (kv_host::block_shape())
#define gridDim (kv_host::grid_shape())

#define __syncthreads() ((void)kv_host::barrier(__FILE__, __LINE__, kv_host::Barrier::kPlain, 0))
#define __syncthreads_or(p) kv_host::barrier(__FILE__, __LINE__, kv_host::Barrier::kOr, (p) != 0)
#define __syncthreads_and(p) kv_host::barrier(__FILE__, __LINE__, kv_host::Barrier::kAnd, (p) != 0)
#define __syncthreads_count(p) kv_host::barrier(__FILE__, __LINE__, kv_host::Barrier::kCount, (p) != 0)

#define KV_HOST_SHUFFLE(op, m, v, a) kv_host::shuffle(__FILE__, __LINE__, kv_host::WarpOp::op, m, v, (int)(a))
#define __shfl_sync(m, v, lane) KV_HOST_SHUFFLE(kFrom, m, v, lane)
#define __shfl_up_sync(m, v, by) KV_HOST_SHUFFLE(kUp, m, v, by)
#define __shfl_down_sync(m, v, by) KV_HOST_SHUFFLE(kDown, m, v, by)
#define __shfl_xor_sync(m, v, by) KV_HOST_SHUFFLE(kXor, m, v, by)

#define KV_HOST_WARP(op, m, p) kv_host::warp(__FILE__, __LINE__, kv_host::WarpOp::op, m, p, 0)
#define __ballot_sync(m, p) ((unsigned)KV_HOST_WARP(kBallot, m, (p) != 0))
#define __any_sync(m, p) (__ballot_sync(m, p) != 0u)
#define __all_sync(m, p) (__ballot_sync(m, !(p)) == 0u)
#define __syncwarp(...) ((void)KV_HOST_WARP(kSync, kv_host::mask_of(__VA_ARGS__), 0))

#define __trap() kv_host::trap(__FILE__, __LINE__)

// CUDA's own atomics are relaxed.
#define KV_HOST_ATOMICS(T)                                                                                \
  inline __attribute__((always_inline)) T atomicAdd(T* word, T value) {                                   \
    return kv_host::add(word, value, __ATOMIC_RELAXED);                                                   \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicCAS(T* word, T expected, T wanted) {                      \
    return kv_host::cas(word, expected, wanted, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                      \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicOr(T* word, T value) {                                    \
    kv_host::before_atomic();                                                                             \
    return __atomic_fetch_or(word, value, __ATOMIC_RELAXED);                                              \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicAnd(T* word, T value) {                                   \
    kv_host::before_atomic();                                                                             \
    return __atomic_fetch_and(word, value, __ATOMIC_RELAXED);                                             \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicXor(T* word, T value) {                                   \
    kv_host::before_atomic();                                                                             \
    return __atomic_fetch_xor(word, value, __ATOMIC_RELAXED);                                             \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicExch(T* word, T value) {                                  \
    kv_host::before_atomic();                                                                             \
    return __atomic_exchange_n(word, value, __ATOMIC_RELAXED);                                            \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicMin(T* word, T value) {                                   \
    kv_host::before_atomic();                                                                             \
    T before = __atomic_load_n(word, __ATOMIC_RELAXED);                                                   \
    while (value < before &&                                                                              \
           !__atomic_compare_exchange_n(word, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) \
      ;                                                                                                   \
    return before;                                                                                        \
  }                                                                                                       \
  inline __attribute__((always_inline)) T atomicMax(T* word, T value) {                                   \
    kv_host::before_atomic();                                                                             \
    T before = __atomic_load_n(word, __ATOMIC_RELAXED);                                                   \
    while (before < value &&                                                                              \
           !__atomic_compare_exchange_n(word, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) \
      ;                                                                                                   \
    return before;                                                                                        \
  }
KV_HOST_ATOMICS(int)
KV_HOST_ATOMICS(unsigned)
KV_HOST_ATOMICS(unsigned long long)
#undef KV_HOST_ATOMICS

// Built with -ffp-contract=off, so nothing is fused.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __int2float_rn(int a) { return (float)a; }
inline float __uint2float_rn(unsigned a) { return (float)a; }
// As the device does: NaN gives 0, and what is out of range the nearest number in it.
inline int __float2int_rn(float a) {
  if (a != a) return 0;
  if (a >= 2147483648.0f) return 2147483647;
  if (a < -2147483648.0f) return -2147483647 - 1;
  return (int)std::nearbyint(a);
}
#define fmaxf kv_host::greater
#define fminf kv_host::lesser
#define fabsf kv_host::magnitude
using std::isinf;
using std::isnan;

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
inline int __clz(int bits) { return bits != 0 ? __builtin_clz((unsigned)bits) : 32; }
inline int __clzll(long long bits) { return bits != 0 ? __builtin_clzll((unsigned long long)bits) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}

#endif  // KV_HOST_SHIM_H
