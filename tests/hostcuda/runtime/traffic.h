// What warps ask of global memory: an access by all lanes of a warp at one instruction is one request, and moves the
// 32-byte sectors that it touches. See traffic.cpp.
#ifndef KV_HOST_TRAFFIC_H
#define KV_HOST_TRAFFIC_H

#include "memory.h"

namespace kv_host {

// Of one instruction, over all requests of a run.
struct SiteTraffic {
  uintptr_t code;
  uint64_t requests, sectors, bytes;  // bytes: distinct ones within each request
  uint32_t width;                     // of the widest access of a lane
  uint32_t is_write, is_atomic;
};

// A small number for each instruction; 0 is none.
uint32_t site_of(uintptr_t code);
uintptr_t site_code(uint32_t site);

void count_request(const Access& access, uint32_t site);
void traffic_of_block_ends(Block* block);
void clear_traffic();
const std::vector<SiteTraffic>& site_traffic();

}  // namespace kv_host

#endif  // KV_HOST_TRAFFIC_H
