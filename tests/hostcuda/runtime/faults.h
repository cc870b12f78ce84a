// What went wrong in a run: the first fault counts, and the thread that caused it never goes on.
#ifndef KV_HOST_FAULTS_H
#define KV_HOST_FAULTS_H

#include "engine.h"

namespace kv_host {

// As faults.py names them, in this order.
enum class FaultKind {
  kNone,
  kOutOfBounds,
  kUseAfterFree,
  kConstWrite,
  kMisaligned,
  kUninitialised,
  kRace,
  kBarrierDivergence,
  kBarrierAfterExit,
  kWarpDivergence,
  kLaneOutsideMask,
  kDeadlock,
  kTrap,
  kUndefined,
  kCrash,
  kEndless,
  kNotDeterministic,
};

struct Fault {
  FaultKind kind;
  int launch;         // which of the run's, or -1
  unsigned block[3];
  int thread;         // in its block, or -1
  int argument;       // whose memory it is about, or -1
  const char* file;   // of the place, where the call told it; else null and
  int line;
  uintptr_t code;     // address of the instruction, or 0
  uintptr_t other_code;
  const char* other_file;
  int other_line;
  char text[512];     // "{argument}" and "{other}" stand for the argument's name and the other place
};
extern Fault fault;

// Notes the fault of the current thread, or of `thread`. The first one of a run is kept.
Fault& note_fault(FaultKind kind, const Thread* thread, const char* format, ...) __attribute__((format(printf, 3, 4)));

// Ends the run; never returns into the thread.
[[noreturn]] void abandon();

// During a run, an instruction that the processor refuses becomes a fault.
void catch_signals();
void release_signals();

}  // namespace kv_host

#endif  // KV_HOST_FAULTS_H
