// Ranges whose pages can be made to fault again: private memory outside a recording, a memfd during it.
// Fixed tables only: a forked child works on them before it may allocate.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "arm_guard.h"
#include "sentinel.h"

namespace sn {

constexpr uint64_t kArmPage = 4096;
constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
constexpr uint64_t kChunkBytes = uint64_t{64} << 20;  // copied at a time: what a change of backing takes beyond the data
constexpr int kCollapse = 25;  // MADV_COLLAPSE, from 6.1
constexpr int kArmRanges = SN_ARM_RANGES;
constexpr unsigned kPolicyNodes = 1024;

struct MemoryPolicy {
  int mode = 0;  // MPOL_DEFAULT
  unsigned long nodes[kPolicyNodes / (8 * sizeof(unsigned long))] = {};
};

struct ArmRange {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  uint64_t shared_from = 0;  // offsets [shared_from, shared_to) are the memfd's now, all else is private
  uint64_t shared_to = 0;
  int fd = -1;
  bool exclusive = false;  // lies in the exclusive arena
  MemoryPolicy policy;
  uint64_t view = 0;  // the whole memfd at another address: it is filled, and its huge pages are made, through this
  uint64_t room = 0;  // where the mapping that holds the view begins
  bool huge = false;
  uint64_t huge_to = 0;  // offsets [0, huge_to) have been asked for in huge pages
  uint64_t step_bytes = 0;  // what the watched step will probably take beyond what lasts
};

struct ArmState {
  ArmRange ranges[kArmRanges];
  int count = 0;
  int uffd = -1;  // registered with all ranges, or -1
  Guard guard;    // open from the change to shared memory until the change back, where that was asked for
};

extern ArmState armed;

void arm_lock();
bool arm_try_lock();
void arm_unlock();

// Held by whoever ends a watch, and by the owner's thread while it allocates, commits memory, frees or looks: these take no
// arm_lock, and a fork of another thread may end the watch meanwhile. Whoever holds it may take it again.
extern pthread_mutex_t watching;
void watching_anew();  // in a forked child, of whose parent another thread may have held it

// Bytes of `range`, from its base, that a program can have touched: whole pages.
uint64_t arm_used_bytes(const ArmRange &range);
// Those that are accessible, at least as many: it grows, with the arena.
uint64_t arm_open_bytes(const ArmRange &range);

// Copies [shared_from, shared_to) to private memory under the same addresses, from below; at any failure
// the range is consistent and the call may be repeated. `give_back`: the memfd's pages are freed on the way.
// `to_end`: where memory in use ends is known, and what lies beyond is not copied.
int arm_to_private(ArmRange &range, bool give_back, bool to_end);
int arm_unback(ArmRange &range, bool to_end);  // all of it, and the memfd is closed

// Registers all ranges for write protection without protecting anything, so that read faults map one page,
// read-only. 0, or -errno: then read faults map several pages and a write after a read goes unseen.
int arm_register();
// Asks for the memory of the program's next pages, as much as a step takes where it is the `first` time. They are mapped
// page by page all the same. Best effort.
void arm_prepare(bool first);
void arm_make_huge(ArmRange &range, uint64_t to);  // huge pages for offsets up to `to`, best effort
// What the steps so far took beyond what is held between them, by the most memory that this process ever had: the
// watched step is going to take as much. 0 where that can't be told.
uint64_t taken_by_steps();

// Writes the pages of [from, to) that hold something into the memfd. `pagemap` is /proc/self/pagemap or -1.
int arm_copy_in(const ArmRange &range, int pagemap, uint64_t from, uint64_t to);
// Copies offsets `data` to `to` from the memfd to private memory at `at`, which stands for offset `from`.
int arm_copy_out(const ArmRange &range, uint64_t at, uint64_t from, uint64_t data, uint64_t to);
// The first offset from `from` on at which the memfd holds something; `used` if none does below that.
long arm_first_data(const ArmRange &range, uint64_t from, uint64_t used);
void arm_hide_view(const ArmRange &range, uint64_t from, uint64_t to);  // else it counts as resident twice

// Whether whatever is mapped is locked from then on (mlockall with MCL_FUTURE): the kernel fills it at once, a memfd as
// long as the arena's reservation too, and un-maps no page of it that is to fault again.
bool new_memory_is_locked();

int arm_zap();  // un-maps what is mapped; the data stays

// Does each page of a huge page take a fault of its own here, in a range that is registered and was told to have
// none (MADV_NOHUGEPAGE)? Before 6.12 one fault maps all 512 of them, and hides 511 touches.
bool huge_pages_fault_singly();

int arm_watch_forks();
bool touch_running();
// Was each of these pages seen written since the last mark, one by one (touched, where the reader can't tell)? While
// nothing is watched, or touches belong to no layer: no.
bool written_wholly(uint64_t address, uint64_t nbytes);
void touch_break();   // the watch ends here: the next mark says so
// Around a fork that the watch outlives: meanwhile nothing of it is half changed.
void touch_hold();
void touch_go_on();
void touch_forget();  // in the forked child, instead: nothing is watched any more

}  // namespace sn
