// What an access may not do: leave the arguments' memory, touch freed memory, write through const, be misaligned, read
// what nobody wrote, or race.
//
// A race is two accesses by different threads, one a write, not both atomic, that nothing orders. Ordered are: threads
// of one block by a barrier between them, lanes of one warp by __syncwarp with both in its mask, and runs one after the
// other. Blocks are ordered by acquire and release alone, and these are looked at in searches only (order.cpp). Of a
// byte's readers two are remembered, of different warps or blocks where there are such.
#include "memory.h"

#include <link.h>

#include <cstdio>
#include <unordered_map>

#include "faults.h"
#include "order.h"
#include "schedules.h"
#include "traffic.h"

namespace kv_host {

Touched touched;

constexpr size_t kPageBytes = 1024;

// When an access happened, in the terms in which order is decided.
struct Stamp {
  uint32_t thread = 0;  // id; 0 is nobody
  uint32_t phase = 0;   // of its block
  uint32_t clock = 0;   // of its lane
  uint32_t site = 0;    // of the instruction
};

struct Cell {
  Stamp write;
  Stamp reads[2];
  bool is_initialised = false;
  bool write_is_atomic = false;
  bool read_is_atomic[2] = {};
};

// Cells are made when they are first needed: most of a large buffer is never looked at.
struct Page {
  bool initialised;  // what its cells are made as
  std::unique_ptr<Cell[]> cells;
};

struct Shadow {
  uintptr_t begin;
  size_t bytes;
  bool freed;
  std::vector<Page> pages;

  Cell& at(size_t offset) {
    Page& page = pages[offset / kPageBytes];
    if (page.cells == nullptr) {
      page.cells.reset(new Cell[kPageBytes]);
      for (size_t i = 0; i < kPageBytes; ++i) page.cells[i].is_initialised = page.initialised;
    }
    return page.cells[offset % kPageBytes];
  }
};

Shadow* new_shadow(uintptr_t begin, size_t bytes, bool initialised) {
  Shadow* const shadow = new Shadow{begin, bytes, false, {}};
  shadow->pages.resize((bytes + kPageBytes - 1) / kPageBytes);
  for (Page& page : shadow->pages) page.initialised = initialised;
  return shadow;
}

void delete_shadow(Shadow* shadow) { delete shadow; }

void initialise(Shadow* shadow, size_t from, size_t to) {
  while (from < to) {
    Page& page = shadow->pages[from / kPageBytes];
    if (from % kPageBytes == 0 && to - from >= kPageBytes && page.cells == nullptr) {
      page.initialised = true;
      from += kPageBytes;
    } else {
      shadow->at(from++).is_initialised = true;
    }
  }
}

void mark_freed(Shadow* shadow) { shadow->freed = true; }

void add_shared_shadows(Block* block) {
  const Launch& launch = *block->launch;
  if (block->section != nullptr)
    block->shared_shadow = new_shadow((uintptr_t)block->section->begin, block->section->bytes, false);
  if (block->dynamic != nullptr)
    block->dynamic_shadow = new_shadow((uintptr_t)block->dynamic.get(), launch.dynamic_bytes, false);
}

void remove_shared_shadows(Block* block) {
  delete_shadow(block->shared_shadow);
  delete_shadow(block->dynamic_shadow);
  block->shared_shadow = block->dynamic_shadow = nullptr;
}

namespace {

const char* verb(const Access& access) {
  if (access.reads && access.writes) return "changes";
  return access.writes ? "writes" : "reads";
}

[[noreturn]] void refuse(FaultKind kind, const Access& access, const Span* span, const char* what, long detail = 0,
                         uint32_t other_site = 0) {
  char text[200];
  snprintf(text, sizeof text, what, detail);
  const size_t offset = span != nullptr ? access.address - span->begin : access.address;
  Fault& noted =
      span != nullptr
          ? note_fault(kind, engine.current, "%s %zu bytes at byte %zd of {argument}, which has %zu: %s", verb(access),
                       access.bytes, (ptrdiff_t)offset, (size_t)(span->end - span->begin), text)
          : note_fault(kind, engine.current, "%s %zu bytes at %#zx: %s", verb(access), access.bytes, offset, text);
  noted.argument = span != nullptr ? span->argument : -1;
  noted.code = access.code;
  if (other_site != 0) noted.other_code = site_code(other_site);
  abandon();
}

bool is_inside(uintptr_t address, uintptr_t begin, uintptr_t end) { return address >= begin && address < end; }

// Constants and the engine's own data lie in the loaded objects.
bool is_in_object_of(const void* symbol, uintptr_t address) {
  static std::unordered_map<const void*, std::pair<uintptr_t, uintptr_t>> known;
  auto found = known.find(symbol);
  if (found == known.end()) {
    struct Query {
      uintptr_t symbol, begin, end;
    } query = {(uintptr_t)symbol, 0, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
          Query& asked = *(Query*)data;
          uintptr_t begin = UINTPTR_MAX, end = 0;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            if (header.p_type != PT_LOAD) continue;
            const uintptr_t first = info->dlpi_addr + header.p_vaddr;
            begin = first < begin ? first : begin;
            end = first + header.p_memsz > end ? first + header.p_memsz : end;
          }
          if (!is_inside(asked.symbol, begin, end)) return 0;
          asked.begin = begin, asked.end = end;
          return 1;
        },
        &query);
    found = known.emplace(symbol, std::make_pair(query.begin, query.end)).first;
  }
  return is_inside(address, found->second.first, found->second.second);
}

struct Found {
  Shadow* shadow;
  Span span;  // of shared memory, one made for the message
  bool is_shared;
};

const Span* nearest(const Launch& launch, uintptr_t address) {
  const Span* best = nullptr;
  uintptr_t least = 4096;  // further away it says nothing
  for (unsigned i = 0; i < launch.span_count; ++i) {
    const Span& span = launch.spans[i];
    const uintptr_t distance = address < span.begin ? span.begin - address : address - span.end;
    if (distance < least) least = distance, best = &span;
  }
  return best;
}

// The memory that the access goes to; false if it is none that is checked.
bool find(const Access& access, Found& found) {
  Thread* const thread = engine.current;
  Block* const block = thread->block;
  const Launch& launch = *block->launch;
  const uintptr_t address = access.address;
  if (on_own_stack(thread, address)) return false;
  const Span* hit = nullptr;
  for (unsigned i = 0; i < launch.span_count; ++i) {
    const Span& span = launch.spans[i];
    if (is_inside(address, span.begin, span.end) && (hit == nullptr || (access.writes && !hit->writable))) hit = &span;
  }
  if (hit != nullptr) {
    found = {hit->shadow, *hit, false};
    return true;
  }
  for (Shadow* shared : {block->shared_shadow, block->dynamic_shadow}) {
    if (shared == nullptr || !is_inside(address, shared->begin, shared->begin + shared->bytes)) continue;
    found = {shared, {shared->begin, shared->begin + shared->bytes, shared, -2, 1, 0}, true};
    return true;
  }
  const bool is_constant = is_in_object_of((const void*)launch.entry, address);
  if (is_constant && !access.writes) return false;
  if (is_constant) refuse(FaultKind::kOutOfBounds, access, nullptr, "that is a variable of the module");
  const Span* const close = nearest(launch, address);
  if (close == nullptr) refuse(FaultKind::kOutOfBounds, access, nullptr, "no argument points there");
  if (close->shadow->freed) refuse(FaultKind::kUseAfterFree, access, close, "the buffer was freed");
  refuse(FaultKind::kOutOfBounds, access, close, "out of bounds");
}

bool is_ordered_before(const Stamp& stamp, const Thread* thread) {
  if (stamp.thread < engine.first_id_of_run || stamp.thread == thread->id) return true;
  const Block* const block = thread->block;
  if (thread->knows != nullptr && thread->knows->has(stamp.thread, stamp.phase, stamp.clock)) return true;
  if (stamp.thread < block->first_id || stamp.thread >= block->first_id + block->threads.size()) return false;
  if (stamp.phase < block->phase) return true;
  const uint32_t index = stamp.thread - block->first_id;
  return index / kLanes == thread->warp() && stamp.clock <= thread->seen[index % kLanes];
}

void check_race(const Access& access, const Span& span, const Cell& cell) {
  const Thread* const thread = engine.current;
  if (!(access.is_atomic && cell.write_is_atomic) && !is_ordered_before(cell.write, thread))
    refuse(FaultKind::kRace, access, &span, "another thread wrote it at {other}, and nothing orders them", 0,
           cell.write.site);
  if (!access.writes) return;
  for (int i = 0; i < 2; ++i)
    if (!(access.is_atomic && cell.read_is_atomic[i]) && !is_ordered_before(cell.reads[i], thread))
      refuse(FaultKind::kRace, access, &span, "another thread read it at {other}, and nothing orders them", 0,
             cell.reads[i].site);
}

// Which of the two remembered readers gives way to the current thread.
int replaced_reader(const Cell& cell, const Thread* thread) {
  for (int i = 0; i < 2; ++i)
    if (is_ordered_before(cell.reads[i], thread)) return i;
  // Keep one that is of another warp: what orders a later writer with its own warp may not order it with that one.
  const uint32_t first = thread->block->first_id + thread->warp() * kLanes;
  return is_inside(cell.reads[0].thread, first, first + kLanes) ? 0 : 1;
}

void record(const Access& access, bool is_shared, Cell& cell, const Stamp& stamp) {
  const bool is_counted = !is_shared && !access.is_atomic;
  if (access.writes) {
    if (is_counted && cell.write.thread < engine.first_id_of_run) ++touched.written;
    cell.write = stamp;
    cell.write_is_atomic = access.is_atomic;
    cell.is_initialised |= engine.keeps_writes;
    return;
  }
  if (is_counted && cell.reads[0].thread < engine.first_id_of_run && cell.reads[1].thread < engine.first_id_of_run)
    ++touched.read;
  const int which = replaced_reader(cell, engine.current);
  cell.reads[which] = stamp;
  cell.read_is_atomic[which] = access.is_atomic;
}

}  // namespace

void check_access(const Access& access) {
  if (engine.current == nullptr) return;
  Found found;
  if (!find(access, found)) return;
  Thread* const thread = engine.current;
  if (found.shadow->freed) refuse(FaultKind::kUseAfterFree, access, &found.span, "the buffer was freed");
  if (access.address + access.bytes > found.span.end)
    refuse(FaultKind::kOutOfBounds, access, &found.span, "past its end");
  if (access.writes && !found.span.writable)
    refuse(FaultKind::kConstWrite, access, &found.span, "the argument is const");
  const bool has_width = (access.bytes & (access.bytes - 1)) == 0 && access.bytes <= 16;
  if (has_width && access.address % access.bytes != 0)
    refuse(FaultKind::kMisaligned, access, &found.span, "its address must be a multiple of %ld", (long)access.bytes);
  // Who goes first where nobody writes makes no difference. Threads of a block that meet in its shared memory are a
  // matter of barriers, not of schedules.
  if (access.is_atomic || (!found.is_shared && found.span.contended)) {
    switch_here(access.is_atomic ? Point::kAtomic : Point::kAccess, access.code);
    engine.schedule->touches(access.address, access.address + access.bytes, access.writes);
    if (access.writes && !access.is_atomic) order_is_lost(access.address);
  }

  const Stamp stamp = {thread->id, thread->block->phase, thread->seen[thread->lane()], site_of(access.code)};
  const size_t first = access.address - found.shadow->begin;
  for (size_t offset = first; offset < first + access.bytes; ++offset) {
    Cell& cell = found.shadow->at(offset);
    const bool is_initialised = cell.is_initialised || cell.write.thread >= engine.first_id_of_run;
    if (!is_initialised && access.reads)
      refuse(FaultKind::kUninitialised, access, &found.span, "nobody has written byte %ld", (long)offset);
    if (engine.races) check_race(access, found.span, cell);
    record(access, found.is_shared, cell, stamp);
  }
  if (engine.traffic && !found.is_shared) count_request(access, stamp.site);
}

}  // namespace kv_host
