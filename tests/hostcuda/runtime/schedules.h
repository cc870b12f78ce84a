// Who runs next: in order, at random from a seed, or as a search decides (explorer.cpp).
#ifndef KV_HOST_SCHEDULES_H
#define KV_HOST_SCHEDULES_H

#include "engine.h"

namespace kv_host {

enum class Point {
  kAtomic,
  kAccess,  // a plain one of memory that some launch may write, seen only in instrumented modules
};

constexpr size_t kStop = SIZE_MAX;  // instead of a position: the run ends here

class Schedule {
 public:
  virtual ~Schedule() = default;
  // A position below `count`: which of the first `count` of a list comes last. Saying `count - 1` keeps its order.
  virtual size_t last_of(size_t count) = 0;
  // Position among the ready threads, of which there is at least one.
  virtual size_t next(const ReadyThreads& ready) = 0;
  // Whether the current thread lets others go before what it is about to do.
  virtual bool switches(Point point) = 0;
  // The current thread touches memory of a launch. Only instrumented modules tell.
  virtual void touches(uintptr_t begin, uintptr_t end, bool writes) { (void)begin, (void)end, (void)writes; }
  // These threads waited for each other, at a barrier or in an operation of a warp, or have returned.
  virtual void meets(const std::vector<Thread*>& threads) { (void)threads; }
  // Whether it wants to be told.
  virtual bool watches() const { return false; }
};

// Blocks and threads in order, each as far as it goes.
class Forward final : public Schedule {
 public:
  size_t last_of(size_t count) override { return count - 1; }
  size_t next(const ReadyThreads&) override { return 0; }
  bool switches(Point) override { return false; }
};

class Random final : public Schedule {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  size_t last_of(size_t count) override { return draw() % count; }
  size_t next(const ReadyThreads& ready) override { return draw() % ready.count(); }
  // Often enough that threads meet, seldom enough that one sometimes gets far.
  bool switches(Point) override { return draw() % 4 == 0; }

 private:
  // Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (SplitMix64).
  uint64_t draw() {
    uint64_t mixed = state_ += 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return mixed ^ (mixed >> 31);
  }
  uint64_t state_;
};

// The current thread stands at such a point, at an instruction: if the schedule says so, it goes on later.
void switch_here(Point point, uintptr_t code);

}  // namespace kv_host

#endif  // KV_HOST_SCHEDULES_H
