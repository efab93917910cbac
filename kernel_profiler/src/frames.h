// Granules, the frames and regions they have, and what is under way. Whoever looks at them holds the mutex; what touches
// blocks looks at gates only.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "away_file.h"
#include "frame_pool.h"
#include "frames_ahead.h"
#include "frames_guard.h"
#include "lanes.h"
#include "lock.h"
#include "regions.h"
#include "sentinel.h"

namespace sn {

struct Order;

// What a store into a granule finds. The gate is shut before its mapping forbids stores, and opened after it allows them.
enum Gate : uint8_t { kNothing = 0, kOpen, kShut, kStuck };

// What its addresses show: nothing; the frame, with everybody who has it; the frame, and pages of its own where it was
// written to since; the file, and such pages.
enum class View : uint8_t { kNothing, kShared, kPrivate, kFile };

struct Granule {
  std::atomic<uint8_t> gate{kNothing};
  View view = View::kNothing;
  bool saved = false;      // its region holds what its frame holds
  bool was_shared = false;  // before the fork that is under way
  bool kept = false;        // it leaves only where nobody else can
  bool pinned = false;      // a device was seen to have its pages: it shows what it shows until it is released
  bool ahead = false;       // read ahead, or being so, and not needed since
  bool changed = false;     // is in the list of that name
  bool touched = false;     // since it shows the file, or since that left the page cache: noted
  uint8_t unforeseen = 0;   // times that stores nobody had announced were found
  uint16_t own = 0;         // pages of its own, noted since it shows the file
  uint32_t frame = kNone, region = kNone;
  uint64_t used = 0;  // by the count of needs
  Order *order = nullptr;
};

struct Item {
  uint32_t granule;
  uint32_t frame;  // of an arrival; a departure's is its granule's
  size_t piece;    // SIZE_MAX: nothing is to be transferred
};

struct Order {
  uint64_t id = 0;
  bool arrives = false, writes = false, noted = false, settled = false, wanted = true;
  bool foreseen = false;  // the stores that it finds
  uint32_t waiting = 0;  // threads that wait for its transfer
  Transfer transfer;
  std::vector<Item> items;
  sn_frames_result result{};
};

}  // namespace sn

struct sn_frames {
  uint64_t base = 0;
  uint32_t count = 0;  // granules
  std::unique_ptr<sn::Granule[]> granules;
  sn::FramePool pool;
  sn::AwayFile file;
  sn::Regions regions;
  sn::Lanes lanes;
  std::string directory;
  int pagemap = -1;
  bool inert = false;  // in a forked child
  bool whole_child = false;  // the fork under way lets the child have the mappings
  bool held = false;         // and the regions that it reads are listed
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t manager = PTHREAD_MUTEX_INITIALIZER;  // taken before `mutex`, by those who make room
  std::map<uint64_t, std::unique_ptr<sn::Order>> orders;
  uint64_t last_id = 0, needs = 0;
  uint64_t failed_reads = 0, failed_writes = 0;  // pieces of transfers
  int read_failure = 0, write_failure = 0;       // of the last ones: positive errno
  uint64_t read_bytes = 0, written_bytes = 0, carried_pages = 0, given_up = 0, dropped = 0, fork_bytes = 0;
  int statm = -1;
  int64_t anonymous = 0;   // pages of the process; the least since they were looked through
  uint64_t own_pages = 0;  // beside the frames, that the last look has found and left
  uint64_t most_own_pages = 0, unread_bytes = 0;
  uint64_t file_full = 0;  // times that no region was free
  uint32_t kept = 0;    // granules
  uint32_t pinned = 0;    // granules
  uint64_t pins_seen = 0;  // granules that were found so, ever
  sn_pinned pins = nullptr;  // whether a device has pages of a range
  bool foreseen = false;  // what whoever holds the mutex finds of stores; false while nobody does
  sn::Ahead ahead;
  uint64_t look_after_ns = 0;  // the next look is not before, by sn_now_ns
  int64_t major_faults = 0;    // of the process, when the page cache was left last
  uint32_t pages_out = 0;      // steps at whose beginning mapped pages of the file still leave the page cache
  uint64_t page_out_after_ns = 0;  // but not before
  std::atomic<uint64_t> waited{0};
  std::atomic<uint32_t> turns{0};  // instants that have begun or ended: odd while one is under way

  uint64_t address(uint32_t granule) const { return base + granule * sn::kFrameBytes; }
  bool has(uint32_t first, uint32_t number) const { return number <= count && first <= count - number; }
};

namespace sn {

// frames_views.cpp: one view for another. Each gives 0 or a negative errno, and leaves the granule as it was, or as told.

int show_shared(sn_frames &f, uint32_t granule, uint32_t frame);
int show_private(sn_frames &f, uint32_t granule, uint32_t frame);
int show_file(sn_frames &f, uint32_t granule);
// A granule that shows the file is about to be read from end to end: a fault reads many pages.
void expect_stream(sn_frames &f, uint32_t granule);
int show_nothing(sn_frames &f, uint32_t granule);
// From the file to a frame with any bytes, shared: what was there is lost.
int show_zeros(sn_frames &f, uint32_t granule);
// The entries of the pages of a granule that are its own, neither its frame's nor the file's: how many, or -errno.
int own_pages(int pagemap, uint64_t address, bool *own);

// Pages of a granule that page tables show: its frame's or the file's, and its own. None where the kernel does not tell.
struct Touched {
  uint16_t shown, own;
};
Touched touched_pages(int pagemap, uint64_t address);

constexpr uint32_t kPagesPerGranule = kFrameBytes / 4096;

// Granules that stay resident, of so many frames.
constexpr uint32_t most_kept(uint32_t frames) { return frames / 4; }

// Shared again, what was written meanwhile included; at a failure still private.
int turn_shared(sn_frames &f, uint32_t granule);
// From the frame, which the file holds, to the file. -EAGAIN: it was written to, and is shared now.
int turn_away(sn_frames &f, uint32_t granule);
// From the file to `frame`, which holds the same; shared if `writes` or if it was written to.
int turn_resident(sn_frames &f, uint32_t granule, uint32_t frame, bool writes);

// The latest operator reads these bytes from end to end, and not all that it needs fits in frames: where they are away, or
// leave soon, a page fault reads many pages.
void frames_stream(sn_frames &f, uint64_t address, uint64_t nbytes);

// frames_limits.cpp: what the host allows, and what the process takes beside its frames.

constexpr uint64_t kShortLookNs = 1000000;  // so much computing is never too much
constexpr uint64_t kPauseInVain = 99;       // times what one took that found nothing
constexpr uint64_t kPauseFound = 9;         // times what another one took
// When a look that computed for so long may be repeated.
inline uint64_t pause_after(uint64_t took_ns, uint64_t times, uint64_t allowed_ns = kShortLookNs) {
  return took_ns > allowed_ns ? sn_now_ns() + times * took_ns : 0;
}

// 0, or a negative errno with the reason in `step`.
int check_host(uint32_t granules, const char **step);
int open_statm(sn_frames &f);
// Pages that stores into clean or away granules may take before somebody looks for them.
uint64_t own_pages_allowed(const sn_frames &f);
// Whether there may be more: by the anonymous memory of the process, which the kernel counts. Not while looks in vain
// would take more than a hundredth of the time.
bool own_pages_may_have_grown(sn_frames &f);
struct Owner {
  uint32_t granule, pages;
};
// All granules with pages of their own, those with most of them first. Counts the pages.
std::vector<Owner> find_owners(sn_frames &f);
// What faults have read of the file, here and in children, is not kept beside the frames: it is read again where it is
// touched again. Where the host swaps, what is mapped stays: stores may have changed it. Looking for what is mapped
// computes for at most a tenth of the time, unless faults have waited for longer than that.
void leave_page_cache(sn_frames &f);

// frames_pins.cpp: pages that a device has.

// Whether a device has pages of the granule, and so reads and writes those whatever its addresses show. It is asked before
// another view takes the place of one, and never in an instant: a driver may store there with locks held.
bool is_pinned(sn_frames &f, uint32_t granule);

// frames_orders.cpp: transfers.

// So many regions are free, at most as many as there are frames; 0 or -ENOSPC.
int need_regions(sn_frames &f, uint32_t count);
// A region for the granule that may be written; 0 or -ENOSPC.
int region_for(sn_frames &f, uint32_t granule);
// An order with memory for so many granules, known by its id; throws where there is no memory.
Order &open_order(sn_frames &f, bool arrives, bool writes, uint32_t granules);
// Adds a granule that has no order. 0; 1: there is nothing to do; or a negative errno: -EBUSY: it is pinned.
int add_departure(sn_frames &f, Order &order, uint32_t granule);
int add_arrival(sn_frames &f, Order &order, uint32_t granule);
int add_write(sn_frames &f, Order &order, uint32_t granule);  // as a departure of one that stays
// A positive errno of its transfer, or 0.
int error_of(const Order &order, const Item &item);
// Its place in the file is not written again: it stays taken, by nobody.
void forsake_region(Granule &granule);
// Notes what the file holds, now that its transfer is over.
void note_transferred(sn_frames &f, Order &order);
// Whether the transfer is over by CLOCK_MONOTONIC `deadline_ns`. Meanwhile the mutex is let go of; the order stays.
bool wait_for(sn_frames &f, Order &order, uint64_t deadline_ns);
// Turns over what was transferred, once.
void settle(sn_frames &f, Order &order);
// Nobody is going to ask for it: it goes when nobody waits for it either.
void drop_order(sn_frames &f, Order &order);
void drop_if_unwanted(sn_frames &f, Order &order);

// frames_victims.cpp: who leaves.

// Whether one of the latest two operators has asked for it, or something before any has begun.
bool is_recent(const sn_frames &f, const Granule &g);

// At least `wanted` granules outside [first, end), if there are as many: those needed last where a recorded step is being
// followed, else those needed longest ago. Those that are kept only where there is nobody else. By address.
std::vector<uint32_t> victims(const sn_frames &f, uint32_t wanted, uint32_t first, uint32_t end);
// At most `most` that may leave before they have to: those needed last, the last one first, each with its next use.
struct Leaver {
  uint32_t granule;
  uint64_t next;
};
std::vector<Leaver> leavers(sn_frames &f, size_t most);

// frames_fork.cpp
int frames_watch_forks();
int frames_register(sn_frames *f, bool there);  // -ENFILE: too many

}  // namespace sn
