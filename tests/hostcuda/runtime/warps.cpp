// Operations of a warp: the lanes that a mask names meet at one line. Lanes that have returned are not waited for.
#include "faults.h"
#include "order.h"
#include "schedules.h"

namespace kv_host {

namespace {

constexpr uint64_t kFromAbsentLane = 0xDEADBEEFDEADBEEFULL;

int source_lane(WarpOp op, int lane, int argument) {
  switch (op) {
    case WarpOp::kFrom: return argument & 31;
    case WarpOp::kUp: return lane - argument < 0 ? lane : lane - argument;
    case WarpOp::kDown: return lane + argument > 31 ? lane : lane + argument;
    case WarpOp::kXor: return (lane ^ argument) & 31;
    case WarpOp::kBallot:
    case WarpOp::kSync: break;
  }
  return lane;
}

// __syncwarp orders memory among its lanes: each learns what all knew. Nothing else here does.
void order_memory(Thread* lanes, uint32_t arrived) {
  uint32_t joined[kLanes] = {};
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(arrived >> lane & 1)) continue;
    for (unsigned other = 0; other < kLanes; ++other)
      if (lanes[lane].seen[other] > joined[other]) joined[other] = lanes[lane].seen[other];
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(arrived >> lane & 1)) continue;
    for (unsigned other = 0; other < kLanes; ++other) lanes[lane].seen[other] = joined[other];
    ++lanes[lane].seen[lane];
  }
}

void complete(Block* block, unsigned warp, WarpMeeting& meeting) {
  Thread* const lanes = &block->threads[warp * kLanes];
  const uint32_t arrived = meeting.arrived;
  meeting.arrived = 0;
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if (arrived >> lane & 1) votes |= (uint32_t)(meeting.bits[lane] & 1) << lane;
  if (meeting.op == WarpOp::kSync) order_memory(lanes, arrived);
  if (meeting.op == WarpOp::kSync && engine.orders) share_knowledge(lanes, arrived);
  if (engine.schedule->watches()) {
    std::vector<Thread*> all;  // lanes that have returned too: that they did is why others go on
    const unsigned started = (unsigned)block->threads.size() - warp * kLanes;
    for (unsigned lane = 0; lane < kLanes && lane < started; ++lane)
      if (meeting.mask >> lane & 1) all.push_back(&lanes[lane]);
    engine.schedule->meets(all);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (!(arrived >> lane & 1)) continue;
    const int source = source_lane(meeting.op, (int)lane, meeting.argument[lane]);
    const bool is_shuffle = meeting.op != WarpOp::kBallot && meeting.op != WarpOp::kSync;
    // What comes from a lane that is not there is undefined. A reduction may get it, and not use it.
    const uint64_t shuffled = arrived >> source & 1 ? meeting.bits[source] : kFromAbsentLane;
    lanes[lane].answer = is_shuffle ? shuffled : votes;
    make_ready(&lanes[lane]);
  }
}

void complete_if_all_came(Block* block, unsigned warp, WarpMeeting& meeting) {
  const uint32_t awaited = meeting.mask & block->warps[warp].alive;
  if (meeting.arrived != 0 && (meeting.arrived & awaited) == awaited) complete(block, warp, meeting);
}

WarpMeeting& meeting_of(Warp& warp, uint32_t mask) {
  for (WarpMeeting& meeting : warp.meetings)
    if (meeting.mask == mask) return meeting;
  warp.meetings.push_back(WarpMeeting{});
  warp.meetings.back().mask = mask;
  return warp.meetings.back();
}

}  // namespace

uint64_t warp(const char* file, int line, WarpOp op, uint32_t mask, uint64_t bits, int argument) {
  Thread* const thread = engine.current;
  Block* const block = thread->block;
  const Place place = {file, line};
  const unsigned lane = thread->lane();
  if (!(mask >> lane & 1)) {
    Fault& noted =
        note_fault(FaultKind::kLaneOutsideMask, thread,
                   "is lane %u and calls an operation of its warp whose mask 0x%08x leaves it out", lane, mask);
    noted.file = file, noted.line = line;
    abandon();
  }
  WarpMeeting& meeting = meeting_of(block->warps[thread->warp()], mask);
  if (meeting.arrived != 0 && !(meeting.place == place && meeting.op == op)) {
    Fault& noted =
        note_fault(FaultKind::kWarpDivergence, thread,
                   "calls an operation of its warp with mask 0x%08x while other lanes are in one at {other}", mask);
    noted.file = file, noted.line = line;
    noted.other_file = meeting.place.file, noted.other_line = meeting.place.line;
    abandon();
  }
  meeting.place = place;
  meeting.op = op;
  meeting.arrived |= 1u << lane;
  meeting.bits[lane] = bits;
  meeting.argument[lane] = argument;
  thread->status = Status::kInWarp;
  thread->waits_at = place;
  complete_if_all_came(block, thread->warp(), meeting);
  leave_fiber();
  return thread->answer;
}

void warp_lost(Block* block, unsigned warp) {
  for (WarpMeeting& meeting : block->warps[warp].meetings) complete_if_all_came(block, warp, meeting);
}

}  // namespace kv_host
