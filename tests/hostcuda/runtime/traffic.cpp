// Lanes belong to one request if they come to one instruction for the same time: the n-th access of each lane there.
// That is how a warp goes through a loop together. Lanes that leave a loop early leave smaller requests behind.
#include "traffic.h"

#include <algorithm>
#include <unordered_map>

namespace kv_host {

namespace {

constexpr uintptr_t kSectorBytes = 32;

struct Range {
  uintptr_t begin, end;
};

struct BlockTraffic {
  std::unordered_map<uint64_t, uint32_t> visits;              // by thread and site
  std::unordered_map<uint64_t, std::vector<Range>> requests;  // by warp, site and visit
};

std::vector<uintptr_t> codes(1, 0);
std::unordered_map<uintptr_t, uint32_t> numbers;
std::vector<SiteTraffic> totals;
std::unordered_map<Block*, BlockTraffic> open_blocks;

// `bytes` distinct ones, and the sectors that they lie in.
void finish_request(std::vector<Range>& ranges, SiteTraffic& total) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uintptr_t bytes_to = 0, next_sector = 0;
  for (const Range& range : ranges) {
    const uintptr_t from = std::max(range.begin, bytes_to);
    if (range.end > from) total.bytes += range.end - from, bytes_to = range.end;
    const uintptr_t first = std::max(range.begin / kSectorBytes, next_sector);
    const uintptr_t last = (range.end - 1) / kSectorBytes;
    if (last >= first) total.sectors += last - first + 1, next_sector = last + 1;
  }
  ++total.requests;
}

uint64_t key(uint64_t high, uint64_t site, uint64_t visit) { return high << 54 | site << 32 | visit; }

}  // namespace

uint32_t site_of(uintptr_t code) {
  static struct {
    uintptr_t code;
    uint32_t site;
  } recent[256];
  auto& slot = recent[code / 4 % 256];
  if (slot.code == code && slot.site != 0) return slot.site;
  auto [found, is_new] = numbers.emplace(code, (uint32_t)codes.size());
  if (is_new) codes.push_back(code);
  slot.code = code, slot.site = found->second;
  return found->second;
}

uintptr_t site_code(uint32_t site) { return codes[site]; }

void count_request(const Access& access, uint32_t site) {
  Thread* const thread = engine.current;
  BlockTraffic& traffic = open_blocks[thread->block];
  const uint32_t visit = traffic.visits[key(thread->index, site, 0)]++;
  if (site >= totals.size()) totals.resize(site + 1);
  SiteTraffic& total = totals[site];
  total.code = site_code(site);
  total.width = std::max(total.width, (uint32_t)access.bytes);
  total.is_write = access.writes, total.is_atomic = access.is_atomic;
  auto entry = traffic.requests.try_emplace(key(thread->warp(), site, visit)).first;
  std::vector<Range>& ranges = entry->second;
  ranges.push_back({access.address, access.address + access.bytes});
  if (ranges.size() < kLanes) return;
  finish_request(ranges, total);
  traffic.requests.erase(entry);
}

void traffic_of_block_ends(Block* block) {
  auto found = open_blocks.find(block);
  if (found == open_blocks.end()) return;
  for (auto& [which, ranges] : found->second.requests) finish_request(ranges, totals[which >> 32 & 0x3FFFFF]);
  open_blocks.erase(found);
}

void clear_traffic() {
  totals.clear();
  open_blocks.clear();
}

const std::vector<SiteTraffic>& site_traffic() { return totals; }

}  // namespace kv_host
