// Every schedule of some launches, one execution after the other from one and the same memory. See explorer.cpp.
#ifndef KV_HOST_EXPLORER_H
#define KV_HOST_EXPLORER_H

#include "schedules.h"

namespace kv_host {

struct Region {
  char* begin;
  size_t bytes;
};

// A thread, by its number in the run, went on from an instruction.
struct Step {
  uint32_t thread;
  uintptr_t code;
};

enum class Outcome { kAllRight, kFault, kCheckFailed, kLimit };

struct SearchPlan {
  int reduces;            // leave out schedules that differ only in the order of independent steps
  long preemptions;       // at most so many a schedule; negative: any number
  unsigned long limit;    // executions
  int (*at_end)();        // 0 if the regions are right in the end; may be null
  int (*at_each_step)();  // 0 if they are right between two steps; may be null
};

struct SearchResult {
  Outcome outcome;
  unsigned long executions;  // that ran to their end
  unsigned long cut_short;   // that were found to be others again
  unsigned long steps_max;   // of one execution
};

SearchResult explore(const Launch* launches, unsigned count, const std::vector<Region>& regions,
                     const SearchPlan& plan);

// One execution that takes the given choices, then goes on with whoever is next. Whether it went well.
bool replay(const Launch* launches, unsigned count, const std::vector<uint32_t>& choices);

// Of the last execution.
const std::vector<Step>& last_steps();

}  // namespace kv_host

#endif  // KV_HOST_EXPLORER_H
