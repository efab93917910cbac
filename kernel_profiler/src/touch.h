// What the readers of armed memory share: the table that says which pages were touched since the last mark.
#pragma once

#include <stdint.h>

#include <atomic>

#include "arm.h"

namespace sn {

struct TouchCell {  // a page; bytes of their own, so that readers on several processors need no atomics
  uint8_t read;
  uint8_t written;

  void note(bool write) { __atomic_store_n(write ? &written : &read, 1, __ATOMIC_RELAXED); }
};

struct TouchTable {
  TouchCell *cells = nullptr;
  uint64_t n_pages = 0;
  uint64_t first[kArmRanges] = {};  // index of each range's first page, a multiple of four

  // The cell of the page at `address`, or null: no armed range, or beyond the table.
  TouchCell *find(uint64_t address) const;
  bool should_hold(uint64_t address) const;  // lies in an armed range
};

extern TouchTable touched;
extern std::atomic<uint64_t> touch_lost;  // touches seen that have no cell, or that a full buffer dropped
extern std::atomic<uint64_t> touch_late;  // threads found after they may have touched something

// A way to learn of touches, other than a table that somebody else fills.
struct TouchReader {
  int (*start)();    // registers the ranges with userfaultfd as it needs
  int (*collect)();  // brings the table up to date
  int (*look)(uint64_t address, uint64_t nbytes);  // the same for some pages; from the owner's thread, unlocked
  void (*stop)();    // also after a failed start
  void (*hold)();    // before a fork while it watches: until go_on, or in the child forget, no thread changes what it keeps
  void (*go_on)();
  void (*forget)();  // in a forked child: gives up descriptors, touches nothing shared
};

extern const TouchReader pagemap_reader, perf_reader, uffd_reader;
bool perf_sees_kernel();  // faults taken inside system calls too

}  // namespace sn
