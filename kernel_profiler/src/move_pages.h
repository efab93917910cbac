// Moving pages between NUMA nodes, in batches, with every page's fate known.
#pragma once

#include <stdint.h>

#include <atomic>
#include <vector>

#include "sentinel.h"

namespace sn {

struct PageOrder {
  std::vector<sn_span> spans;
  int node;
  uint64_t bytes_per_s;                // 0: as fast as it goes
  const std::atomic<bool> *abandoned;  // looked at between batches
};

struct PageFate {
  uint64_t moved_bytes = 0;    // by us
  uint64_t present_bytes = 0;  // on the node already
  uint64_t absent_bytes = 0;   // never touched: on no node
  uint64_t failed_bytes = 0;   // stayed elsewhere
  int error = 0;               // why, of the first page that stayed; 0 if none did
};

// Adds to `errors[e]` the pages that stayed because of errno e (SN_ERRNO_COUNT entries).
PageFate move_pages(const PageOrder &order, uint64_t *errors);

}  // namespace sn
