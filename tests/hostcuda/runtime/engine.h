// What the parts of the host execution share: launches, blocks, threads, and the one engine that runs them.
//
// One OS thread runs everything. Each CUDA thread is a fiber; it runs until it waits, ends, or stands at a switch
// point, and then a schedule says who is next. So a run is a list of choices, and the same choices give the same run.
//
//   fibers.cpp     stacks, and going from one to another
//   faults.cpp     what went wrong, and leaving the fiber that did it
//   barriers.cpp   __syncthreads
//   warps.cpp      shuffles, ballots, __syncwarp
//   schedules.h    who is next
//   engine.cpp     blocks come and go until all are done
//   explorer.cpp   every schedule, and one again
//   causality.cpp  which steps of an execution could have come in another order
//   memory.cpp     shadow memory: bounds, initialised bytes, races
//   order.cpp      what acquire and release order
//   traffic.cpp    sectors of warps' requests
//   hooks.cpp      every access of an instrumented module comes in here
#ifndef KV_HOST_ENGINE_H
#define KV_HOST_ENGINE_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shim.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace kv_host {

constexpr unsigned kLanes = 32;
constexpr unsigned char kPoison = 0xA5;  // bytes that nobody has written

struct Fiber;
struct Block;
struct Shadow;
struct Knowledge;

// Memory that one argument of a launch points to.
struct Span {
  uintptr_t begin, end;
  Shadow* shadow;
  int argument;
  int writable;
  int contended;  // some launch of the run may write there
};

struct Launch {
  void (*entry)(void** values);
  void** values;
  unsigned grid[3];
  unsigned threads;  // of a block, in x
  unsigned long dynamic_bytes;
  char* shared_begin;
  char* shared_end;
  const Span* spans;
  unsigned span_count;
};

enum class Status { kReady, kRunning, kAtBarrier, kInWarp, kDone };

struct Place {
  const char* file = nullptr;
  int line = 0;
  bool operator==(const Place& other) const { return line == other.line && file == other.file; }
};

struct Thread {
  Block* block;
  unsigned index;  // in its block
  uint32_t id;     // among all threads of the run, in the order in which their blocks started
  Status status = Status::kReady;
  Fiber* fiber = nullptr;
  uint64_t answer = 0;  // of the barrier or warp operation that it waited for
  Place waits_at;
  uintptr_t stands_at = 0;  // the instruction of the switch point that it stands at, or 0
  // By lane of its warp: up to which clock that lane's accesses are ordered before what this thread does now. A lane's
  // own clock stands at its own place.
  uint32_t seen[kLanes] = {};
  std::shared_ptr<Knowledge> knows;  // by acquiring; null: nothing

  unsigned lane() const { return index % kLanes; }
  unsigned warp() const { return index / kLanes; }
};

struct WarpMeeting {
  uint32_t mask, arrived;
  Place place;
  WarpOp op;
  uint64_t bits[kLanes];
  int argument[kLanes];
};

struct Warp {
  uint32_t alive = 0;
  std::vector<WarpMeeting> meetings;  // one a mask
};

// The static shared memory of one module, and whose block's contents are in it at the moment.
struct SharedSection {
  char* begin;
  size_t bytes;
  Block* holder;
};

struct Block {
  const Launch* launch;
  unsigned launch_index;
  unsigned index;  // in the grid, x fastest
  uint32_t first_id;
  unsigned alive;

  unsigned arrived = 0;  // at the barrier
  Place barrier_place;
  Barrier barrier_kind = Barrier::kPlain;
  unsigned barrier_true = 0;  // predicates that held
  uint32_t phase = 0;         // barriers passed

  std::vector<Thread> threads;
  std::vector<Warp> warps;
  SharedSection* section;
  std::vector<char> shared;  // its contents while another block holds the section
  std::unique_ptr<uint4[]> dynamic;
  Shadow* shared_shadow = nullptr;
  Shadow* dynamic_shadow = nullptr;

  uint3 coordinates() const;
};

// Threads that may run, first in first out unless a schedule takes another.
class ReadyThreads {
 public:
  void add(Thread* thread);
  size_t count() const { return items_.size() - head_; }
  Thread* at(size_t position) const { return items_[head_ + position]; }
  Thread* take(size_t position);
  void clear() { items_.clear(), head_ = 0; }

 private:
  std::vector<Thread*> items_;
  size_t head_ = 0;
};

class Schedule;

// Of one run, and of one execution of a search; more are taken for a thread that never ends.
constexpr uint64_t kStepsMax = 1'000'000'000;
constexpr uint64_t kSearchedStepsMax = 20'000;

struct Engine {
  Schedule* schedule = nullptr;
  Thread* current = nullptr;
  ReadyThreads ready;
  uint32_t next_id = 1;       // 0 is no thread
  uint32_t first_id_of_run = 1;
  bool failed = false;
  bool checked = false;       // the run's modules are instrumented; then also:
  bool races = true;          //   two accesses that nothing orders are a fault
  bool traffic = true;        //   requests of warps are counted
  bool keeps_writes = true;   //   what the run writes counts as initialised afterwards
  bool orders = false;        //   acquire and release order accesses
  uint64_t steps_max = kStepsMax;
};
extern Engine engine;

// Starts all blocks of the launches as the schedule says, at most `resident` at a time, and returns when all are done
// or one failed. Whether it went well; else `fault` says what happened.
bool run(const Launch* launches, unsigned count, Schedule& schedule, size_t resident);

void make_ready(Thread* thread);

// fibers.cpp
void resume(Thread* thread);     // returns when it waits, is done, or has failed
void leave_fiber();              // back to who resumed the current thread
[[noreturn]] void leave_fiber_for_good();
void release_fiber(Thread* thread);  // of a thread that is done
void drop_fiber(Thread* thread);     // of one that never goes on
bool on_own_stack(const Thread* thread, uintptr_t address);

// barriers.cpp and warps.cpp: what the end of a thread means to those who wait.
void barrier_lost(Block* block);
void warp_lost(Block* block, unsigned warp);

}  // namespace kv_host

#endif  // KV_HOST_ENGINE_H
