// What acquire and release order, in searches: there threads are few. See order.cpp.
#ifndef KV_HOST_ORDER_H
#define KV_HOST_ORDER_H

#include <map>

#include "engine.h"

namespace kv_host {

// Accesses that are ordered before what a thread does now, beyond those that barriers and __syncwarp of its own block
// order: it learned of them by acquiring.
struct Knowledge {
  struct Phases {
    uint32_t threads;  // of the block
    uint32_t before;   // all that its threads did in phases before this one
  };
  std::map<uint32_t, uint32_t> clocks;  // by thread: all that it did up to this clock
  std::map<uint32_t, Phases> blocks;    // by id of the first thread

  void join(const Knowledge& other);
  bool has(uint32_t thread, uint32_t phase, uint32_t clock) const;
};

enum class Operation { kLoad, kStore, kChange };

// The current thread has done an atomic operation with an order of __ATOMIC_RELAXED, ....
void order_by(Operation operation, uintptr_t address, int order);
// It writes a word without one.
void order_is_lost(uintptr_t address);

// All of a block, or the lanes of a warp that arrived, know what each of them knew.
void share_knowledge(Block* block);
void share_knowledge(Thread* lanes, uint32_t arrived);

void clear_order();

}  // namespace kv_host

#endif  // KV_HOST_ORDER_H
