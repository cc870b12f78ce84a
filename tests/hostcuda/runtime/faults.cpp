// Faults that the engine finds, and those that the processor reports.
#include "faults.h"

#include <signal.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include <ucontext.h>

namespace kv_host {

Fault fault;

Fault& note_fault(FaultKind kind, const Thread* thread, const char* format, ...) {
  static Fault later;
  Fault& noted = engine.failed ? later : fault;
  engine.failed = true;
  noted = Fault{};
  noted.kind = kind;
  noted.launch = noted.thread = noted.argument = -1;
  if (thread != nullptr) {
    const uint3 block = thread->block->coordinates();
    noted.launch = (int)thread->block->launch_index;
    noted.block[0] = block.x, noted.block[1] = block.y, noted.block[2] = block.z;
    noted.thread = (int)thread->index;
  }
  va_list values;
  va_start(values, format);
  vsnprintf(noted.text, sizeof noted.text, format, values);
  va_end(values);
  return noted;
}

void abandon() { leave_fiber_for_good(); }

void trap(const char* file, int line) {
  Fault& noted = note_fault(FaultKind::kTrap, engine.current, "calls __trap");
  noted.file = file, noted.line = line;
  abandon();
}

namespace {

const int kSignals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
struct sigaction before[4];
stack_t stack_before;

uintptr_t instruction(void* context) {
#if defined(__x86_64__)
  return (uintptr_t)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return (uintptr_t)((ucontext_t*)context)->uc_mcontext.pc;
#else
  (void)context;
  return 0;
#endif
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (engine.current == nullptr) {  // not a kernel's doing
    release_signals();
    raise(signal);
    return;
  }
  Fault& noted =
      signal == SIGILL
          ? note_fault(FaultKind::kUndefined, engine.current,
                       "does what C++ leaves undefined: a shift, an index, a division")
          : note_fault(FaultKind::kCrash, engine.current, "stops the processor (signal %d, address %p)", signal,
                       info->si_addr);
  noted.code = instruction(context) + 1;  // as if it were where a call returns to
  abandon();
}

}  // namespace

void catch_signals() {
  static char* const stack = (char*)malloc(64 * 1024);  // the fiber's own may be what overflowed
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = 64 * 1024;
  sigaltstack(&alternative, &stack_before);
  struct sigaction ours = {};
  ours.sa_sigaction = on_signal;
  // The handler leaves by longjmp, which unblocks nothing.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &ours, &before[i]);
}

void release_signals() {
  for (int i = 0; i < 4; ++i) sigaction(kSignals[i], &before[i], nullptr);
  sigaltstack(&stack_before, nullptr);
}

}  // namespace kv_host
