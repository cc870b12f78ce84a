// Blocks come and go until all are done.
#include "engine.h"

#include <cstring>

#include "faults.h"
#include "memory.h"
#include "order.h"
#include "schedules.h"
#include "traffic.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kv_host {

Engine engine;

uint3 Block::coordinates() const {
  const unsigned* grid = launch->grid;
  return {index % grid[0], index / grid[0] % grid[1], index / (grid[0] * grid[1])};
}

void ReadyThreads::add(Thread* thread) {
  if (head_ > 4096 && head_ * 2 > items_.size()) {
    items_.erase(items_.begin(), items_.begin() + (ptrdiff_t)head_);
    head_ = 0;
  }
  items_.push_back(thread);
}

Thread* ReadyThreads::take(size_t position) {
  std::swap(items_[head_], items_[head_ + position]);
  return items_[head_++];
}

void make_ready(Thread* thread) {
  thread->status = Status::kReady;
  engine.ready.add(thread);
}

uint3 thread_index() { return {engine.current->index, 0, 0}; }
uint3 block_index() { return engine.current->block->coordinates(); }
dim3 block_shape() { return {engine.current->block->launch->threads, 1, 1}; }
dim3 grid_shape() {
  const unsigned* grid = engine.current->block->launch->grid;
  return {grid[0], grid[1], grid[2]};
}
void* dynamic_shared() { return engine.current->block->dynamic.get(); }

void switch_here(Point point, uintptr_t code) {
  if (engine.current == nullptr || !engine.schedule->switches(point)) return;
  Thread* const thread = engine.current;
  thread->stands_at = code;
  make_ready(thread);
  leave_fiber();
  thread->stands_at = 0;
}

void switch_point() { switch_here(Point::kAtomic, (uintptr_t)__builtin_return_address(0)); }

namespace {

// The processor flushes subnormals as code compiled with -ftz=true does.
class FlushToZero {
 public:
#if defined(__x86_64__)
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ | (1ULL << 24)));
  }
  ~FlushToZero() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#endif
};

class Run {
 public:
  Run(const Launch* launches, unsigned count, Schedule& schedule, size_t resident)
      : launches_(launches), schedule_(schedule), resident_(resident) {
    for (unsigned i = 0; i < count; ++i) {
      const unsigned* grid = launches[i].grid;
      for (unsigned block = 0; block < grid[0] * grid[1] * grid[2]; ++block) waiting_.push_back({i, block});
    }
  }

  bool finish() {
    begin();
    admit();
    for (uint64_t steps = 0; !engine.failed && engine.ready.count() != 0; ++steps) {
      if (steps == engine.steps_max) {
        note_fault(FaultKind::kEndless, engine.ready.at(0), "is one of those that still run after %llu steps",
                   (unsigned long long)steps);
        break;
      }
      const size_t position = schedule_.next(engine.ready);
      if (position == kStop) {
        was_stopped_ = true;
        break;
      }
      Thread* const thread = engine.ready.take(position);
      enter_block(thread->block);
      resume(thread);
      if (thread->status == Status::kDone) retire(thread);
    }
    if (!engine.failed && !was_stopped_ && !started_.empty()) note_deadlock();
    end();
    return !engine.failed;
  }

 private:
  struct Waiting {
    unsigned launch, block;
  };

  void begin() {
    engine.schedule = &schedule_;
    engine.failed = false;
    fault = Fault{};
    engine.ready.clear();
    engine.first_id_of_run = engine.next_id;
    clear_order();
    shuffle(waiting_);
  }

  void end() {
    for (Block* block : started_) {
      for (Thread& thread : block->threads)
        if (thread.fiber != nullptr) drop_fiber(&thread);
      forget(block);
    }
    engine.schedule = nullptr;
  }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[schedule_.last_of(left)]);
  }

  void admit() {
    while (started_.size() < resident_ && next_waiting_ < waiting_.size()) start(waiting_[next_waiting_++]);
  }

  SharedSection* section_of(const Launch& launch) {
    if (launch.shared_begin == launch.shared_end) return nullptr;
    for (auto& section : sections_)
      if (section->begin == launch.shared_begin) return section.get();
    sections_.push_back(std::make_unique<SharedSection>());
    *sections_.back() = {launch.shared_begin, (size_t)(launch.shared_end - launch.shared_begin), nullptr};
    return sections_.back().get();
  }

  void start(Waiting which) {
    const Launch& launch = launches_[which.launch];
    Block* const block = new Block{};
    block->launch = &launch;
    block->launch_index = which.launch;
    block->index = which.block;
    block->first_id = engine.next_id;
    engine.next_id += launch.threads;
    block->alive = launch.threads;
    block->threads.resize(launch.threads);
    block->warps.resize((launch.threads + kLanes - 1) / kLanes);
    block->section = section_of(launch);
    if (block->section != nullptr) block->shared.assign(block->section->bytes, (char)kPoison);
    if (launch.dynamic_bytes != 0) {
      const size_t vectors = (launch.dynamic_bytes + sizeof(uint4) - 1) / sizeof(uint4);
      block->dynamic.reset(new uint4[vectors]);
      memset(block->dynamic.get(), kPoison, vectors * sizeof(uint4));
    }
    if (engine.checked) add_shared_shadows(block);
    started_.push_back(block);
    std::vector<Thread*> order;
    for (unsigned index = 0; index < launch.threads; ++index) {
      Thread& thread = block->threads[index];
      thread.block = block;
      thread.index = index;
      thread.id = block->first_id + index;
      thread.seen[thread.lane()] = 1;
      block->warps[thread.warp()].alive |= 1u << thread.lane();
      order.push_back(&thread);
    }
    shuffle(order);
    for (Thread* thread : order) make_ready(thread);
  }

  // The block's own contents of its module's shared memory come into place.
  void enter_block(Block* block) {
    SharedSection* const section = block->section;
    if (section == nullptr || section->holder == block) return;
    if (section->holder != nullptr) memcpy(section->holder->shared.data(), section->begin, section->bytes);
    memcpy(section->begin, block->shared.data(), section->bytes);
    section->holder = block;
  }

  void retire(Thread* thread) {
    Block* const block = thread->block;
    release_fiber(thread);
    --block->alive;
    block->warps[thread->warp()].alive &= ~(1u << thread->lane());
    if (block->alive == 0) {
      if (engine.checked) traffic_of_block_ends(block);
      for (size_t i = 0; i < started_.size(); ++i)
        if (started_[i] == block) started_.erase(started_.begin() + (ptrdiff_t)i--);
      forget(block);
      admit();
      return;
    }
    warp_lost(block, thread->warp());
    barrier_lost(block);
  }

  void forget(Block* block) {
    if (block->section != nullptr && block->section->holder == block) block->section->holder = nullptr;
    if (engine.checked) remove_shared_shadows(block);
    delete block;
  }

  void note_deadlock() {
    for (Block* block : started_) {
      for (Thread& thread : block->threads) {
        if (thread.status == Status::kDone) continue;
        const char* const what = thread.status == Status::kInWarp ? "for lanes that its mask names" : "at a barrier";
        Fault& noted = note_fault(FaultKind::kDeadlock, &thread, "waits for ever %s", what);
        noted.file = thread.waits_at.file, noted.line = thread.waits_at.line;
        return;
      }
    }
  }

  const Launch* launches_;
  Schedule& schedule_;
  size_t resident_;
  std::vector<Waiting> waiting_;
  size_t next_waiting_ = 0;
  bool was_stopped_ = false;
  std::vector<Block*> started_;
  std::vector<std::unique_ptr<SharedSection>> sections_;
  FlushToZero flush_;
};

}  // namespace

bool run(const Launch* launches, unsigned count, Schedule& schedule, size_t resident) {
  return Run(launches, count, schedule, resident).finish();
}

}  // namespace kv_host
