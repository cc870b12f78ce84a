// Types and the access to state words that every generated header and kernel starts from.
//
// One dialect without #include, for three readers: NVRTC, nvcc, and g++ with the CUDA words defined away
// (-D__device__= -D__forceinline__=inline). Order of a translation unit: this file, refusal.cuh, then machines.
// Numbers in transition functions are signed and 64 bits wide, as in the spec's expressions.
#ifndef KVFSM_BASE_CUH
#define KVFSM_BASE_CUH

typedef unsigned char kv_u8;
typedef unsigned short kv_u16;
typedef unsigned int kv_u32;
typedef unsigned long long kv_u64;
typedef int kv_i32;
typedef long long kv_i64;

static_assert(sizeof(kv_u8) == 1 && sizeof(kv_u16) == 2 && sizeof(kv_u32) == 4, "the dialect names widths");
static_assert(sizeof(kv_i32) == 4 && sizeof(float) == 4, "the dialect names widths");
static_assert(sizeof(kv_u64) == 8 && sizeof(kv_i64) == 8, "a state word is 64 bits");

// What a kernel answers where no event decides; above all codes of kv_refusal, with which they share a byte.
namespace kv_call {
enum Code : kv_u8 {
  kReleased = 252,  // no pin is held any more: it was given back
  kContended = 253,  // others changed the word at every try; nothing was done, and the caller may try again
  kBadArgument = 254,  // an argument that its field can't hold, or numbers that no machine or array has
  kNoSlot = 255,  // there is no such slot
};
}  // namespace kv_call

// The field of `word` in bits [shift, shift + width of mask); `mask` lies at the low end.
__device__ __forceinline__ kv_i64 kv_get(kv_u64 word, int shift, kv_u64 mask) {
  return (kv_i64)((word >> shift) & mask);
}

// `word` with that field set to `value`, which must fit: 0 <= value <= mask.
__device__ __forceinline__ kv_u64 kv_put(kv_u64 word, int shift, kv_u64 mask, kv_i64 value) {
  return (word & ~(mask << shift)) | ((kv_u64)value << shift);
}

#endif  // KVFSM_BASE_CUH
