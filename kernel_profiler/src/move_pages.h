// Moving pages between NUMA nodes, in batches, with every page's fate known.
#pragma once

#include <stdint.h>

#include <atomic>
#include <vector>

#include "sentinel.h"

namespace sn {

struct PageFate {
  uint64_t moved_bytes = 0;    // by us
  uint64_t present_bytes = 0;  // on the node already
  uint64_t absent_bytes = 0;   // never touched: on no node
  uint64_t failed_bytes = 0;   // stayed elsewhere
  int error = 0;               // why, of the first page that stayed; 0 if none did
};

struct PageOrder {
  const std::vector<sn_span> *spans;
  PageFate fate;
};

struct PageRoute {
  int node;
  uint64_t bytes_per_s;                // 0: as fast as it goes
  const std::atomic<bool> *abandoned;  // looked at between batches
  std::atomic<uint32_t> *without_huge;  // journeys in a row that met no huge page; kept up to date here
};

// Carries out `orders` together, their pages in the same system calls, and fills in their fates. Adds to
// `errors[e]` the pages that stayed because of errno e (SN_ERRNO_COUNT entries).
void move_pages(std::vector<PageOrder> &orders, const PageRoute &route, uint64_t *errors);

}  // namespace sn
