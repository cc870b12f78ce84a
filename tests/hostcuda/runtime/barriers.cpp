// __syncthreads and its kin: the last thread to arrive lets all go on. Stricter than the hardware: all threads of the
// block must come, to the same line, and none may have returned.
#include "faults.h"
#include "order.h"
#include "schedules.h"

namespace kv_host {

namespace {

void open_barrier(Block* block) {
  uint64_t answer = 0;
  switch (block->barrier_kind) {
    case Barrier::kPlain: break;
    case Barrier::kOr: answer = block->barrier_true != 0; break;
    case Barrier::kAnd: answer = block->barrier_true == block->arrived; break;
    case Barrier::kCount: answer = block->barrier_true; break;
  }
  block->arrived = 0;
  block->barrier_true = 0;
  ++block->phase;
  if (engine.orders) share_knowledge(block);
  if (engine.schedule->watches()) {
    std::vector<Thread*> all;
    for (Thread& thread : block->threads) all.push_back(&thread);
    engine.schedule->meets(all);
  }
  for (Thread& thread : block->threads) {
    if (thread.status != Status::kAtBarrier) continue;
    thread.answer = answer;
    make_ready(&thread);
  }
}

[[noreturn]] void refuse(FaultKind kind, Thread* thread, Place place, const char* text) {
  Fault& noted = note_fault(kind, thread, "%s", text);
  noted.file = place.file, noted.line = place.line;
  noted.other_file = thread->block->barrier_place.file, noted.other_line = thread->block->barrier_place.line;
  abandon();
}

}  // namespace

int barrier(const char* file, int line, Barrier kind, int predicate) {
  Thread* const thread = engine.current;
  Block* const block = thread->block;
  const Place place = {file, line};
  if (block->alive != block->threads.size())
    refuse(FaultKind::kBarrierAfterExit, thread, place,
           "waits at a barrier after another thread of its block returned");
  if (block->arrived != 0 && !(block->barrier_place == place && block->barrier_kind == kind))
    refuse(FaultKind::kBarrierDivergence, thread, place,
           "waits at a barrier while others of its block wait at {other}");
  block->barrier_place = place;
  block->barrier_kind = kind;
  block->barrier_true += predicate != 0;
  thread->status = Status::kAtBarrier;
  thread->waits_at = place;
  if (++block->arrived == block->alive) open_barrier(block);
  leave_fiber();
  return (int)thread->answer;
}

void barrier_lost(Block* block) {
  if (block->arrived == 0) return;
  for (Thread& thread : block->threads) {
    if (thread.status != Status::kAtBarrier) continue;
    Fault& noted = note_fault(FaultKind::kBarrierAfterExit, &thread,
                              "waits at a barrier, and another thread of its block returned");
    noted.file = thread.waits_at.file, noted.line = thread.waits_at.line;
    return;
  }
}

}  // namespace kv_host
