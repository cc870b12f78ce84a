// A stack a CUDA thread. The first entry is by ucontext; from then on setjmp and longjmp, which cost no system call.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>

#include "engine.h"

namespace kv_host {

constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kGuardBytes = 4096;

struct Fiber {
  char* memory;  // [guard, stack)
  ucontext_t context;
  jmp_buf place;
  bool entered = false;
};

namespace {

jmp_buf scheduler_place;
std::vector<Fiber*> idle_fibers;

// A fiber serves one thread after the other.
void fiber_main() {
  for (;;) {
    Thread* const thread = engine.current;
    thread->block->launch->entry(thread->block->launch->values);
    thread->status = Status::kDone;
    leave_fiber();
  }
}

Fiber* new_fiber() {
  Fiber* const fiber = new Fiber;
  void* const memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  mprotect(memory, kGuardBytes, PROT_NONE);
  fiber->memory = (char*)memory;
  return fiber;
}

void enter(Fiber* fiber) {
  if (fiber->entered) _longjmp(fiber->place, 1);
  fiber->entered = true;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->memory + kGuardBytes;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
  setcontext(&fiber->context);
}

}  // namespace

void resume(Thread* thread) {
  if (thread->fiber == nullptr) {
    if (idle_fibers.empty()) idle_fibers.push_back(new_fiber());
    thread->fiber = idle_fibers.back();
    idle_fibers.pop_back();
  }
  engine.current = thread;
  thread->status = Status::kRunning;
  if (_setjmp(scheduler_place) == 0) enter(thread->fiber);
  engine.current = nullptr;
}

void leave_fiber() {
  if (_setjmp(engine.current->fiber->place) == 0) _longjmp(scheduler_place, 1);
}

void leave_fiber_for_good() { _longjmp(scheduler_place, 1); }

void release_fiber(Thread* thread) {
  idle_fibers.push_back(thread->fiber);
  thread->fiber = nullptr;
}

// Its stack holds nothing that anybody misses: kernels have no destructors.
void drop_fiber(Thread* thread) {
  thread->fiber->entered = false;
  release_fiber(thread);
}

bool on_own_stack(const Thread* thread, uintptr_t address) {
  const uintptr_t begin = (uintptr_t)thread->fiber->memory;
  return address >= begin && address < begin + kGuardBytes + kStackBytes;
}

}  // namespace kv_host
