// Which steps of an execution must come before which, and which could have come the other way round. See causality.cpp.
#ifndef KV_HOST_CAUSALITY_H
#define KV_HOST_CAUSALITY_H

#include "engine.h"

namespace kv_host {

struct Touch {
  uintptr_t begin, end;
  bool writes;
};
using Touches = std::vector<Touch>;

bool are_independent(const Touches& one, const Touches& other);

// Steps and threads are named by number, both from 0.
class Causality {
 public:
  void clear();
  // The next step. Returns earlier ones of other threads that it could have come right before.
  std::vector<size_t> add(uint32_t thread, const Touches& touches);
  // Threads that waited for each other: what they did comes before what they do.
  void meet(const std::vector<uint32_t>& threads);
  // Threads of which one must have gone first in the place of `step`, for the last step to come before it.
  std::vector<uint32_t> instead_of(size_t step) const;

 private:
  using Clock = std::vector<size_t>;  // by thread: how many of the execution's steps, up to its last that came before

  struct Step {
    uint32_t thread;
    Touches touches;
    Clock clock;
  };

  static size_t& at(Clock& clock, uint32_t thread);
  static void join(Clock& clock, const Clock& other);
  bool comes_before(size_t first, const Step& second) const;

  std::vector<Step> steps_;
  std::vector<Clock> now_;  // of each thread, after its last step and meeting
};

}  // namespace kv_host

#endif  // KV_HOST_CAUSALITY_H
