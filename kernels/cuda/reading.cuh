// Which slots a launch may touch: what their words answer, before the bytes are touched and after they are read.
//
// A launch without pins reads bytes that another stream may rewrite. It sees that: whoever takes a slot anew changes its
// generation first and its bytes afterwards (see kv_look_again). Python: kernels/reading.py.
#ifndef KVFSM_READING_CUH
#define KVFSM_READING_CUH

namespace kv_reading {
enum Side : kv_u32 {
  kReader = 0,  // reads sealed bytes
  kWriter = 1,  // is at work on the bytes, reads and writes them
};
}  // namespace kv_reading

// Entries in use: from device memory where a captured launch may see another number at each replay.
__device__ __forceinline__ kv_u32 kv_in_use(const kv_i64* live, kv_u32 most) {
  if (live == nullptr) return most;
  const kv_i64 count = *live;
  return count < 0 ? 0u : count < (kv_i64)most ? (kv_u32)count : most;
}

// The words beside some bytes, entry by entry. Without refusals nothing is checked but that there is such a slot.
struct KvCheck {
  kv_u32 machine;             // kv_events::Machine
  kv_u32 side;                // kv_reading::Side
  kv_u64* words;              // [slots]
  const kv_u32* expected;     // [entries] generations
  kv_u8* refusals;            // [entries] 0, or why the entry was refused; read and written. Null: no check
  const kv_u32* versions;     // [entries] of the entries that an indexer's keys route to; null for other slots
};

// Words don't tell: a pool without slots has none, and its entries are refused all the same.
__device__ __forceinline__ bool kv_is_checked(const KvCheck& check) { return check.refusals != nullptr; }

// What a word answers to this launch; kApplied if it may go on.
__device__ __forceinline__ kv_u8 kv_answer(const KvCheck& check, kv_u64 word, kv_u32 entry) {
  kv_u8 code = kv_events::read(check.machine, word, (kv_i64)check.expected[entry]);
  if (check.side == kv_reading::kWriter) {
    if (code == kv_refusal::kBusy || code == kv_refusal::kPending) {
      code = kv_refusal::kApplied;
    } else if (code == kv_refusal::kApplied) {
      code = kv_refusal::kIllegal;  // sealed bytes never change
    }
  }
  if (code != kv_refusal::kApplied || check.versions == nullptr) return code;
  const kv_i64 version = kv_get(word, kv_indexer_state::kVersionShift, kv_indexer_state::kVersionMask);
  return version == (kv_i64)check.versions[entry] ? kv_refusal::kApplied : kv_refusal::kVersion;
}

// Every warp of an entry may refuse it, each for a reason that was true; one of them stays.
__device__ __forceinline__ void kv_refuse(const KvCheck& check, kv_u32 entry, kv_u8 code) {
  kv_store1_relaxed(check.refusals + entry, code);
}

// One thread's look before the bytes: kApplied, or why they are not to be touched. Acquires: what the writer published
// with the release by which it sealed the slot is there to be read.
__device__ __forceinline__ kv_u8 kv_look(const KvCheck& check, kv_u32 entry, kv_i32 slot, kv_u32 slots) {
  const bool is_slot = slot >= 0 && (kv_u32)slot < slots;
  if (!kv_is_checked(check)) return is_slot ? (kv_u8)kv_refusal::kApplied : (kv_u8)kv_call::kNoSlot;
  kv_u8 code = kv_load1_relaxed(check.refusals + entry);
  if (code != kv_refusal::kApplied) return code;
  code = is_slot ? kv_answer(check, kv_load_acquire(check.words + slot), entry) : (kv_u8)kv_call::kNoSlot;
  if (code != kv_refusal::kApplied) kv_refuse(check, entry, code);
  return code;
}

// The same thread's look after all reads, its own and those that came to it through a barrier. An acquire would not do:
// reads before it may still come after it. Adding zero with release keeps them before. Pairs with the acquiring change
// of the word by whoever takes the slot anew: either this thread sees that change, or the change comes after this and
// the new bytes after the change, so that none of them was read.
__device__ __forceinline__ kv_u8 kv_look_again(const KvCheck& check, kv_u32 entry, kv_i32 slot) {
  if (!kv_is_checked(check)) return kv_refusal::kApplied;
  const kv_u8 code = kv_answer(check, kv_add_release(check.words + slot, 0), entry);
  if (code != kv_refusal::kApplied) kv_refuse(check, entry, code);
  return code;
}

#endif  // KVFSM_READING_CUH
