// What host.py calls, by ctypes.
#include <dlfcn.h>

#include "explorer.h"
#include "faults.h"
#include "memory.h"
#include "schedules.h"
#include "traffic.h"

using namespace kv_host;

extern "C" {

// How a run goes. host.py has the same fields.
struct Options {
  int is_random;
  int checked;  // the modules are instrumented
  int races;    // report them
  uint64_t seed;
  unsigned long resident;  // blocks at a time
};

// What holds while kernels run.
class Session {
 public:
  Session(const Options& options, bool is_search) {
    engine.checked = options.checked;
    engine.races = options.races;
    engine.traffic = engine.keeps_writes = !is_search;
    engine.orders = is_search;
    engine.steps_max = is_search ? kSearchedStepsMax : kStepsMax;
    catch_signals();
  }
  ~Session() { release_signals(); }
};

int kv_host_run(const Launch* launches, unsigned count, const Options* options) {
  const Session session(*options, false);
  clear_traffic();
  touched = Touched{};
  Forward forward;
  Random random(options->seed);
  Schedule& schedule = options->is_random ? (Schedule&)random : forward;
  return run(launches, count, schedule, options->resident);
}

void kv_host_explore(const Launch* launches, unsigned count, const Region* regions, unsigned region_count,
                     const Options* options, const SearchPlan* plan, SearchResult* result) {
  const Session session(*options, true);
  *result = explore(launches, count, std::vector<Region>(regions, regions + region_count), *plan);
}

int kv_host_replay(const Launch* launches, unsigned count, const Options* options, const uint32_t* choices,
                   unsigned choice_count) {
  const Session session(*options, true);
  return replay(launches, count, std::vector<uint32_t>(choices, choices + choice_count));
}

unsigned long kv_host_steps(const Step** steps) {
  *steps = last_steps().data();
  return last_steps().size();
}

const Fault* kv_host_fault() { return &fault; }

// Which object an instruction lies in, and at what offset of its file.
const char* kv_host_locate(uintptr_t code, uintptr_t* offset) {
  Dl_info info;
  if (dladdr((void*)code, &info) == 0) return nullptr;
  *offset = code - (uintptr_t)info.dli_fbase;
  return info.dli_fname;
}

Shadow* kv_host_new_shadow(uintptr_t begin, unsigned long bytes, int initialised) {
  return new_shadow(begin, bytes, initialised);
}
void kv_host_delete_shadow(Shadow* shadow) { delete_shadow(shadow); }
void kv_host_initialise(Shadow* shadow, unsigned long from, unsigned long to) { initialise(shadow, from, to); }
void kv_host_mark_freed(Shadow* shadow) { mark_freed(shadow); }

const Touched* kv_host_touched() { return &touched; }
unsigned long kv_host_sites(const SiteTraffic** sites) {
  *sites = site_traffic().data();
  return site_traffic().size();
}

}  // extern "C"
