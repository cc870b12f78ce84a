// Groups of numbers as FP8 codes with one scale, and the row of DeepSeek-V4 that is made of them; meaning and reference
// in kernels/fp8_rows.py. Comes after reading.cuh.
#ifndef KVFSM_ROWS_CUH
#define KVFSM_ROWS_CUH

constexpr float kE4m3Max = 448.0f;

// The 584-byte row of DeepSeek-V4. A page is all its data rows, then all its scale rows.
constexpr kv_u32 kV4Codes = 448;
constexpr kv_u32 kV4Rope = 64;
constexpr kv_u32 kV4Elements = kV4Codes + kV4Rope;
constexpr kv_u32 kV4DataBytes = kV4Codes + 2 * kV4Rope;
constexpr kv_u32 kV4ScaleBytes = 8;
constexpr kv_u32 kV4Group = 64;
static_assert(kV4DataBytes + kV4ScaleBytes == 584 && kV4DataBytes % 16 == 0, "as FlashMLA lays it out");
static_assert(kV4Codes % kV4Group == 0 && kV4Codes / kV4Group < kV4ScaleBytes, "7 scales and a byte of padding");

// Whether the slot may be touched, and the caller's numbers are within bounds; if not, why is written.
__device__ __forceinline__ bool kv_look_and_bound(
    const KvCheck& check, kv_u32 entry, kv_i32 slot, kv_u32 slots, bool is_within) {
  if (kv_look(check, entry, slot, slots) != kv_refusal::kApplied) return false;
  if (!is_within && kv_is_checked(check)) kv_refuse(check, entry, kv_call::kBadArgument);
  return is_within;
}

// -- Scales -----------------------------------------------------------------------------------------------------------

// Bits of the magnitude of a number; neither NaN nor an infinity is one. As integers they order as the numbers do.
__device__ __forceinline__ kv_u32 kv_magnitude(float value) {
  const kv_u32 bits = kv_float_bits(value) & 0x7FFFFFFFu;
  return bits < 0x7F800000u ? bits : 0u;
}

__device__ __forceinline__ kv_u32 kv_greater(kv_u32 one, kv_u32 other) { return one > other ? one : other; }

// The greatest of `lanes` neighbouring lanes, a power of two; all lanes of the warp must call.
__device__ __forceinline__ kv_u32 kv_greatest(kv_u32 value, kv_u32 lanes) {
  for (kv_u32 distance = lanes / 2; distance != 0; distance /= 2)
    value = kv_greater(value, __shfl_xor_sync(kWholeWarp, value, distance));
  return value;
}

// The scale of a group with this peak. `least_peak` is at least 448 * 2^-126, so the scale is never flushed to zero.
__device__ __forceinline__ float kv_scale(kv_u32 peak, float least_peak) {
  return __fdiv_rn(fmaxf(kv_bits_float(peak), least_peak), kE4m3Max);
}

// Exponent, with bias 127, of the least power of two that is no less than `scale`: a ue8m0 code.
__device__ __forceinline__ kv_u32 kv_ue8m0(float scale) {
  const kv_u32 bits = kv_float_bits(scale);
  return (bits >> 23) + ((bits & 0x7FFFFFu) != 0u);
}

// 255 is NaN. 0 would be 2^-127, which counts as zero here.
__device__ __forceinline__ float kv_from_ue8m0(kv_u32 code) {
  return kv_bits_float(code == 255u ? 0x7FC00000u : code << 23);
}

// -- Eight numbers at a time ------------------------------------------------------------------------------------------

// Neighbouring elements, lowest first; a lane's share of a row.
struct kv_eight {
  float at[8];
};

__device__ __forceinline__ kv_eight kv_from_bf16(kv_vec16 halves) {
  kv_eight values;
  const kv_u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
  for (int i = 0; i < 4; i++) {
    values.at[2 * i] = kv_bf16_to_float((kv_u16)(words[i] & 0xFFFFu));
    values.at[2 * i + 1] = kv_bf16_to_float((kv_u16)(words[i] >> 16));
  }
  return values;
}

__device__ __forceinline__ kv_vec16 kv_to_bf16(const kv_eight& values) {
  kv_u32 words[4];
  for (int i = 0; i < 4; i++)
    words[i] = (kv_u32)kv_float_to_bf16(values.at[2 * i]) | (kv_u32)kv_float_to_bf16(values.at[2 * i + 1]) << 16;
  kv_vec16 halves;
  halves.x = words[0];
  halves.y = words[1];
  halves.z = words[2];
  halves.w = words[3];
  return halves;
}

__device__ __forceinline__ kv_u32 kv_peak(const kv_eight& values) {
  kv_u32 peak = 0;
  for (int i = 0; i < 8; i++) peak = kv_greater(peak, kv_magnitude(values.at[i]));
  return peak;
}

// Eight codes, the first in the lowest byte.
__device__ __forceinline__ kv_u64 kv_quantised(const kv_eight& values, float scale) {
  kv_u64 codes = 0;
  for (int i = 0; i < 8; i++) codes |= (kv_u64)kv_float_to_e4m3(__fdiv_rn(values.at[i], scale)) << (8 * i);
  return codes;
}

__device__ __forceinline__ kv_eight kv_dequantised(kv_u64 codes, float scale) {
  kv_eight values;
  for (int i = 0; i < 8; i++) values.at[i] = __fmul_rn(kv_e4m3_to_float((kv_u8)(codes >> (8 * i))), scale);
  return values;
}

#endif  // KVFSM_ROWS_CUH
