// An actor of a protocol over one slot, on top of kv_words::change: one thread that does what its script says.
// actors.py puts the machine's name in place of KIND.
namespace kv_actors {
enum Deed : kv_u32 {
  kNothing = 0,
  kRead = 1,   // both words of the payload go to `seen`
  kWrite = 2,  // the value goes to both words of the payload
};
constexpr kv_u32 kNoEvent = 0xFFFFFFFFu;
}  // namespace kv_actors

// Fires the events of a script one after the other, each followed by its deed, until one is refused.
extern "C" __global__ void __launch_bounds__(32) kv_actor(
    kv_u64* word,              // [1] read and changed
    kv_u32 steps,
    const kv_u32* events,      // [steps] kNoEvent: only the deed
    const kv_i64* arguments,   // [width, steps]
    const kv_u32* deeds,       // [steps]
    const kv_u64* values,      // [steps] to write
    kv_u64* payload,           // [2] read and written
    kv_u8* refusals,           // [steps] written, up to the first refusal
    kv_u64* seen) {            // [2] written
  if (threadIdx.x != 0) return;
  for (kv_u32 step = 0; step < steps; ++step) {
    const kv_u32 event = events[step];
    if (event != kv_actors::kNoEvent) {
      const kv_u8 code = kv_words::change(word, [=](kv_u64 now, kv_u64* next) {
        return kv_events::KIND::fire(event, now, arguments + step, steps, next);
      });
      refusals[step] = code;
      if (code != kv_refusal::kApplied) return;
    }
    if (deeds[step] == kv_actors::kRead) {
      seen[0] = payload[0];
      seen[1] = payload[1];
    } else if (deeds[step] == kv_actors::kWrite) {
      payload[0] = values[step];
      payload[1] = values[step];
    }
  }
}
