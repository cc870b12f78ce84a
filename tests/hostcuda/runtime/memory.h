// Shadow memory: of each byte, whether it was written and who touched it last. See memory.cpp.
#ifndef KV_HOST_MEMORY_H
#define KV_HOST_MEMORY_H

#include "engine.h"

namespace kv_host {

struct Access {
  uintptr_t address;
  size_t bytes;
  bool reads;
  bool writes;
  bool is_atomic;
  uintptr_t code;  // where the call of the hook returns to
};

// One access of the current thread, about to happen. Returns if all is well, else ends the run.
void check_access(const Access& access);

Shadow* new_shadow(uintptr_t begin, size_t bytes, bool initialised);
void delete_shadow(Shadow* shadow);
void initialise(Shadow* shadow, size_t from, size_t to);
void mark_freed(Shadow* shadow);

void add_shared_shadows(Block* block);
void remove_shared_shadows(Block* block);

// Distinct bytes of global memory that plain accesses touched in this run.
struct Touched {
  uint64_t read, written;
};
extern Touched touched;

}  // namespace kv_host

#endif  // KV_HOST_MEMORY_H
