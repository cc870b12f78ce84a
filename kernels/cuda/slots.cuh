// Whether a kernel may touch a slot; meaning and reference in kernels/slots.py. Comes after generated/refusal.cuh.
#ifndef KVFSM_SLOTS_CUH
#define KVFSM_SLOTS_CUH

// `rule` is SlotRule.packed: first bit and number of bits of the state, the same of the generation, a bit a state.
__device__ __forceinline__ kv_u8 kv_slot_refusal(
    kv_u64 rule,
    const kv_u64* words,  // [slot_count]
    kv_u32 slot_count,
    kv_u32 slot,
    kv_u32 expected) {
  if (slot >= slot_count) return kv_call::kNoSlot;
  // Pairs with the release by which the slot's writer published its bytes when it changed the word.
  const kv_u64 word = kv_load_acquire(words + slot);
  const kv_u64 state = (word >> (rule & 0xFFu)) & ((1ULL << ((rule >> 8) & 0xFFu)) - 1ULL);
  const kv_u64 generation = (word >> ((rule >> 16) & 0xFFu)) & ((1ULL << ((rule >> 24) & 0xFFu)) - 1ULL);
  if (generation != expected) return kv_refusal::kStale;
  if (state >= 32u || ((rule >> (32u + state)) & 1ULL) == 0) return kv_refusal::kIllegal;
  return kv_refusal::kApplied;
}

#endif  // KVFSM_SLOTS_CUH
