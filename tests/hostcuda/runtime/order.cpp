// Who acquires a word knows all that the thread that released it knew and did before. A change of the word by a third
// thread keeps that (a release sequence), a plain or relaxed store ends it. C++ draft, "Data races" (intro.races); the
// PTX ISA's causality order is no stronger for these operations, which are all of one scope.
#include "order.h"

#include <algorithm>
#include <unordered_map>

namespace kv_host {

namespace {

std::unordered_map<uintptr_t, Knowledge> released;  // by address of the word

bool acquires(int order) { return order == __ATOMIC_ACQUIRE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST; }
bool releases(int order) { return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST; }

Knowledge all_known_to(const Thread* thread) {
  Knowledge known;
  if (thread->knows != nullptr) known = *thread->knows;
  const Block* const block = thread->block;
  const uint32_t first_of_warp = block->first_id + thread->warp() * kLanes;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (thread->seen[lane] == 0) continue;
    uint32_t& clock = known.clocks[first_of_warp + lane];
    clock = std::max(clock, thread->seen[lane]);
  }
  known.join({{}, {{block->first_id, {(uint32_t)block->threads.size(), block->phase}}}});
  return known;
}

void learn(Thread* thread, const Knowledge& what) {
  if (thread->knows == nullptr) thread->knows = std::make_shared<Knowledge>();
  thread->knows->join(what);
}

}  // namespace

void Knowledge::join(const Knowledge& other) {
  for (auto [thread, clock] : other.clocks) {
    uint32_t& mine = clocks[thread];
    mine = std::max(mine, clock);
  }
  for (auto [block, phases] : other.blocks) {
    auto [mine, is_new] = blocks.emplace(block, phases);
    if (!is_new) mine->second.before = std::max(mine->second.before, phases.before);
  }
}

bool Knowledge::has(uint32_t thread, uint32_t phase, uint32_t clock) const {
  auto found = clocks.find(thread);
  if (found != clocks.end() && clock <= found->second) return true;
  auto block = blocks.upper_bound(thread);
  if (block == blocks.begin()) return false;
  --block;
  return thread < block->first + block->second.threads && phase < block->second.before;
}

void order_by(Operation operation, uintptr_t address, int order) {
  Thread* const thread = engine.current;
  if (!engine.orders || thread == nullptr) return;
  if (operation != Operation::kStore && acquires(order)) {
    auto word = released.find(address);
    if (word != released.end()) learn(thread, word->second);
  }
  if (operation == Operation::kLoad) return;
  if (operation == Operation::kStore) released.erase(address);
  if (!releases(order)) return;
  released[address].join(all_known_to(thread));
  ++thread->seen[thread->lane()];  // what comes after the release is not among what it publishes
}

void order_is_lost(uintptr_t address) {
  if (engine.orders) released.erase(address);
}

void share_knowledge(Block* block) {
  Knowledge together;
  for (const Thread& thread : block->threads)
    if (thread.knows != nullptr) together.join(*thread.knows);
  if (together.clocks.empty()) return;
  for (Thread& thread : block->threads) learn(&thread, together);
}

void share_knowledge(Thread* lanes, uint32_t arrived) {
  Knowledge together;
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if ((arrived >> lane & 1) && lanes[lane].knows != nullptr) together.join(*lanes[lane].knows);
  if (together.clocks.empty()) return;
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if (arrived >> lane & 1) learn(&lanes[lane], together);
}

void clear_order() { released.clear(); }

}  // namespace kv_host
