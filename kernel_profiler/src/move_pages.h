// Moving pages between NUMA nodes, in batches, with every page's fate known.
#pragma once

#include <stdint.h>

#include <atomic>
#include <vector>

#include "sentinel.h"

namespace sn {

struct PageFate {
  uint64_t moved_bytes = 0;   // by us
  uint64_t failed_bytes = 0;  // stayed elsewhere
  int error = 0;              // why, of the first page that stayed; 0 if none did
  bool bound = false;         // its untouched pages are born on the node from now on
};

struct PageOrder {
  std::vector<sn_span> spans;
  PageFate fate;
  PageOrder *next = nullptr;  // that goes along
};

// What moving pages works on, of the size of its largest batch from the start: so it asks for no memory on the way.
struct Workbench {
  Workbench();  // throws std::bad_alloc

  std::vector<uint64_t> pages;
  std::vector<PageOrder *> owners;  // whose page it is
  std::vector<int> status;          // where each is: a node, or a negative errno
  std::vector<int> nodes, why, told;
  std::vector<uint64_t> heads;      // of the batch's groups of 2 MiB
};

struct PageRoute {
  int node;
  uint64_t bytes_per_s;                // 0: as fast as it goes
  const std::atomic<bool> *abandoned;  // looked at between batches
  std::atomic<uint32_t> *without_huge;  // journeys in a row that met no huge page; kept up to date here
  const std::atomic<bool> *binds_untouched;  // whether pages that nobody has touched are to be born on the node
};

// Carries out `first` and those that go along together, their pages in the same system calls, and fills in their
// fates. Adds to `errors[e]` the pages that stayed because of errno e (SN_ERRNO_COUNT entries).
void move_pages(PageOrder *first, const PageRoute &route, Workbench &bench, uint64_t *errors);

}  // namespace sn
