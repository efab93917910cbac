#include "placement.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "bitmap.h"
#include "guarded.h"
#include "immortal.h"
#include "sentinel.h"
#include "system.h"
#include "tables.h"

namespace {

constexpr uint64_t kGranule = SN_GRANULE_BYTES, kHuge = uint64_t{2} << 20;
constexpr int32_t kBack = 4, kAhead = 12;  // slots looked at around the planned one

struct Arena {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  uint64_t extent = 0;
  uint64_t committed = 0;
  std::atomic<uint64_t> *words = nullptr;
  uint64_t *sizes = nullptr;  // bytes as requested, at a tenant's first granule
  std::atomic<uint64_t> *due = nullptr;
  uint64_t words_bytes = 0, sizes_bytes = 0, due_bytes = 0;
  int32_t layer = -1;  // -1: unsynchronised
  int32_t cursor = 0;  // the slot after the last one asked for: an unsynchronised look-ahead starts there
};

Arena arena;
sn::Immortal<sn::Tables> kept_tables;
sn::Tables &tables = kept_tables.value;
sn::Bitmap bitmap;
sn::Bitmap due;  // pages that are to be discarded once nobody has them
std::atomic<bool> any_due{false};
std::atomic<bool> keep_free_pages{false};
std::atomic<uint64_t> fitted_bytes{0}, unlike_bytes{0};  // written by the owner alone

uint64_t granules(uint64_t nbytes) { return (nbytes + kGranule - 1) / kGranule; }

void *serve(const sn::Slot &slot, uint64_t nbytes) {
  const uint64_t first = slot.offset / kGranule;
  if (!bitmap.claim_as_owner(first, granules(nbytes))) return nullptr;
  arena.sizes[first] = nbytes;
  return reinterpret_cast<void *>(arena.base + slot.offset);
}

// The first free slot of [first, end) that is as long as the request, else the first it fits in.
void *look_around(int32_t first, int32_t end, uint64_t nbytes) {
  const sn::Table &table = tables.current();
  for (int32_t i = first; i < end; i++)
    if (granules(table.slot(i).nbytes) == granules(nbytes))
      if (void *found = serve(table.slot(i), nbytes)) return found;
  for (int32_t i = first; i < end; i++)
    if (table.slot(i).nbytes >= nbytes)
      if (void *found = serve(table.slot(i), nbytes)) return found;
  return nullptr;
}

void *serve_unsynchronised(uint64_t nbytes, int *why) {
  const int32_t count = tables.current().size();
  *why = SN_WHY_UNSYNCHRONISED;
  if (arena.cursor >= count) arena.cursor = 0;
  const int32_t at = arena.cursor++;
  return look_around(std::max(0, at - kBack), std::min(count, at + kAhead), nbytes);
}

void add(std::atomic<uint64_t> &sum, uint64_t nbytes) {
  sum.store(sum.load(std::memory_order_relaxed) + nbytes, std::memory_order_relaxed);
}

// What was served where the plan expected another size.
void *fitted(void *address, uint64_t nbytes) {
  if (address != nullptr) add(fitted_bytes, nbytes);
  return address;
}

int commit(uint64_t extent_bytes) {
  const uint64_t extent = (extent_bytes + 65535) / 65536 * 65536;  // whole pages of any kernel
  if (extent > arena.nbytes) return -ENOMEM;
  if (extent <= arena.committed) return 0;
  const uint64_t fresh = arena.base + arena.committed, nbytes = extent - arena.committed;
  const int error = sn::protect(fresh, nbytes, PROT_READ | PROT_WRITE);
  if (error != 0) return error;
  arena.committed = extent;
  sn::advise(fresh, nbytes, MADV_NOHUGEPAGE);  // until it is said where; a kernel without huge pages refuses it
  return 0;
}

// The whole pages of a range that is claimed still.
void discard_within(uint64_t first, uint64_t end) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  first = (first + page - 1) / page * page;
  end = end / page * page;
  if (end > first) sn::advise(first, end - first, MADV_DONTNEED);
}

uint64_t page_granules() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / kGranule; }

struct Pages {
  uint64_t first, end;
};

// The next of these pages of which nobody has anything; empty, at their end, if there are none.
Pages next_free(Pages pages) {
  const uint64_t page = page_granules(), end = pages.end * page;
  for (uint64_t at = pages.first * page; at < end;) {
    const uint64_t free = (bitmap.next(at, end, false) + page - 1) / page;
    const uint64_t taken = bitmap.next(std::min(free * page, end), end, true) / page;
    if (taken > free) return {free, taken};
    at = (free + 1) * page;  // of that page somebody has a part
  }
  return {pages.end, pages.end};
}

// Of pages that are claimed still.
int drop(Pages pages) {
  const uint64_t count = pages.end - pages.first, nbytes = page_granules() * kGranule;
  due.clear(pages.first, count);
  return sn::advise(arena.base + pages.first * nbytes, count * nbytes, MADV_DONTNEED);
}

// Drops those of these pages that nobody has, and if `later` the others once nobody has them. Bytes, or -errno of the
// first that the kernel refused to drop.
int64_t discard(Pages pages, bool later) {
  const uint64_t page = page_granules();
  const auto postpone = [&](uint64_t first, uint64_t end) {
    if (!later || first == end) return;
    any_due.store(true, std::memory_order_relaxed);
    due.mark(first, end - first);
  };
  int64_t nbytes = 0;
  while (pages.first < pages.end) {
    const Pages free = next_free(pages);
    postpone(pages.first, free.first);
    pages.first = free.end;
    const uint64_t at = free.first * page, count = (free.end - free.first) * page;
    if (count == 0) break;
    if (!bitmap.claim_as_other(at, count)) {
      postpone(free.first, free.end);
      continue;
    }
    const int error = drop(free);
    bitmap.clear(at, count);
    if (error != 0) return error;
    nbytes += static_cast<int64_t>(count * kGranule);
  }
  return nbytes;
}

// Before granules are given back: what is due of the pages that have no others. So nobody is served what is to be dropped.
void drop_due_within(uint64_t first_granule, uint64_t end_granule) {
  const uint64_t page = page_granules(), end = end_granule / page;
  for (uint64_t at = (first_granule + page - 1) / page; at < end;) {
    const uint64_t first = due.next(at, end, true);
    at = due.next(first, end, false);
    if (at > first) drop({first, at});
  }
}

// After they were given back: a page of which others have a part goes with the last of them.
void drop_due_around(uint64_t granule) {
  const uint64_t page = page_granules(), at = granule / page;
  if (granule % page == 0 || due.taken(at, 1) == 0 || !bitmap.claim_as_other(at * page, page)) return;
  drop({at, at + 1});
  bitmap.clear(at * page, page);
}

bool granular(uint64_t offset, uint64_t nbytes) {
  return offset % kGranule == 0 && nbytes % kGranule == 0 && nbytes != 0 && nbytes <= arena.nbytes &&
         offset <= arena.nbytes - nbytes;
}

}  // namespace

namespace sn {

int placement_create(uint64_t base, uint64_t nbytes) {
  const int empty = guarded([] {  // first: what follows needs no memory of its own
    tables.begin(std::make_unique<Table>());
    return 0;
  });
  if (empty != 0) return empty;
  const uint64_t count = nbytes / kGranule;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const long words = map(0, count / 8, PROT_READ | PROT_WRITE, flags);
  if (words < 0) return static_cast<int>(words);
  const long sizes = map(0, count * sizeof(uint64_t), PROT_READ | PROT_WRITE, flags);
  if (sizes < 0) {
    unmap(static_cast<uint64_t>(words), count / 8);
    return static_cast<int>(sizes);
  }
  const uint64_t due_bytes = (count / page_granules() + 63) / 64 * sizeof(uint64_t);
  const long due_words = map(0, due_bytes, PROT_READ | PROT_WRITE, flags);
  if (due_words < 0) {
    unmap(static_cast<uint64_t>(words), count / 8);
    unmap(static_cast<uint64_t>(sizes), count * sizeof(uint64_t));
    return static_cast<int>(due_words);
  }
  arena.base = base;
  arena.nbytes = nbytes;
  arena.words = reinterpret_cast<std::atomic<uint64_t> *>(words);
  arena.sizes = reinterpret_cast<uint64_t *>(sizes);
  arena.due = reinterpret_cast<std::atomic<uint64_t> *>(due_words);
  arena.words_bytes = count / 8;
  arena.sizes_bytes = count * sizeof(uint64_t);
  arena.due_bytes = due_bytes;
  bitmap.reset(arena.words);
  due.reset(arena.due);
  return 0;
}

void placement_destroy() {
  unmap(reinterpret_cast<uintptr_t>(arena.words), arena.words_bytes);
  unmap(reinterpret_cast<uintptr_t>(arena.sizes), arena.sizes_bytes);
  unmap(reinterpret_cast<uintptr_t>(arena.due), arena.due_bytes);
  arena = Arena{};
  any_due.store(false);
}

int placement_plan(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
                   const uint64_t *nbytes, uint64_t extent_bytes, bool alone) {
  if (!alone && tables.full()) return -ENOSPC;
  return guarded([&] {
    std::unique_ptr<Table> table = Table::build(count, layers, ordinals, offsets, nbytes, extent_bytes);
    if (table == nullptr) return -EINVAL;
    const int error = commit(extent_bytes);
    if (error != 0) return error;
    arena.extent = alone ? extent_bytes : std::max(arena.extent, extent_bytes);
    if (!alone) return tables.add(std::move(table));
    tables.begin(std::move(table));
    return 0;
  });
}

void placement_enter(int32_t layer) {
  arena.layer = layer;
  if (layer == 0) tables.step_begins();
  if (layer >= 0) arena.cursor = tables.current().first(layer);
}

void *placement_allocate(uint64_t nbytes, int32_t ordinal, int *why) {
  if (arena.layer < 0) return serve_unsynchronised(nbytes, why);
  tables.ask(arena.layer, ordinal, nbytes);
  *why = SN_WHY_NO_SLOT;
  const Table &table = tables.current();
  const int32_t index = table.find(arena.layer, ordinal);
  if (index < 0) {
    add(unlike_bytes, nbytes);
    return nullptr;
  }
  const Slot &slot = table.slot(index);
  if (granules(nbytes) != granules(slot.nbytes))
    add(unlike_bytes, std::max(nbytes, slot.nbytes) - std::min(nbytes, slot.nbytes));
  arena.cursor = index + 1;
  if (nbytes <= slot.nbytes) {
    *why = SN_WHY_BUSY;
    const bool planned = granules(nbytes) == granules(slot.nbytes);
    if (void *served = serve(slot, nbytes)) return planned ? served : fitted(served, nbytes);
    if (planned) return nullptr;  // its tenant lives on
  }
  *why = SN_WHY_SIZE_DIFFERS;
  const int32_t first = table.first(arena.layer), end = table.end(arena.layer);
  return fitted(look_around(std::max(first, index - kBack), std::min(end, index + kAhead), nbytes), nbytes);
}

void placement_keep_free_pages(bool keep) { keep_free_pages.store(keep); }

void placement_after_fork() {
  bitmap.reset(arena.words);
  due.reset(arena.due);
}

uint64_t placement_free(uint64_t address) {
  const uint64_t first = (address - arena.base) / kGranule;
  const uint64_t nbytes = arena.sizes[first];
  if (nbytes == 0) return 0;
  arena.sizes[first] = 0;
  const uint64_t end = first + granules(nbytes);
  // What becomes due as its tenant is freed by another thread may be seen here too late: then its next tenant takes it along.
  const bool may_be_due = any_due.load(std::memory_order_relaxed);
  if (!keep_free_pages.load(std::memory_order_relaxed)) discard_within(address, address + nbytes);
  if (may_be_due) drop_due_within(first, end);
  bitmap.clear(first, granules(nbytes));
  if (may_be_due) drop_due_around(first);
  if (may_be_due) drop_due_around(end);
  return nbytes;
}

}  // namespace sn

extern "C" int64_t sn_placement_release(void) {
  if (arena.nbytes == 0) return -ENODEV;
  return discard({0, arena.committed / kGranule / page_granules()}, false);
}

extern "C" int64_t sn_placement_discard(uint64_t offset, uint64_t nbytes) {
  if (!granular(offset, nbytes)) return -EINVAL;
  const uint64_t page = page_granules(), first = (offset / kGranule + page - 1) / page;
  const uint64_t end = (offset + nbytes) / kGranule / page;
  return first < end ? discard({first, end}, true) : 0;
}

extern "C" int sn_placement_huge(uint64_t count, const uint64_t *offsets, const uint64_t *nbytes) {
  if (arena.nbytes == 0) return -ENODEV;
  uint64_t end = 0;
  for (uint64_t i = 0; i < count; end = offsets[i] + nbytes[i], i++)
    if (offsets[i] < end || offsets[i] % kHuge != 0 || nbytes[i] % kHuge != 0 || offsets[i] > arena.committed ||
        nbytes[i] > arena.committed - offsets[i])
      return -EINVAL;
  if (arena.committed == 0) return 0;
  // Advice only: a kernel without huge pages refuses it, and the plan is as good.
  sn::advise(arena.base, arena.committed, MADV_NOHUGEPAGE);
  for (uint64_t i = 0; i < count; i++) sn::advise(arena.base + offsets[i], nbytes[i], MADV_HUGEPAGE);
  return 0;
}

extern "C" int sn_use_table(int32_t table) {
  if (arena.nbytes == 0) return -ENODEV;
  if (!tables.use(table)) return -EINVAL;
  if (arena.layer >= 0) arena.cursor = tables.current().first(arena.layer);
  return 0;
}

extern "C" const int32_t *sn_table_in_use(void) { return tables.in_use(); }

extern "C" uint64_t sn_placement_fitted(void) { return fitted_bytes.load(std::memory_order_relaxed); }

extern "C" uint64_t sn_placement_unlike(void) { return unlike_bytes.load(std::memory_order_relaxed); }

extern "C" int sn_placement_range(sn_range *out) {
  if (arena.nbytes == 0) return -ENODEV;
  *out = sn_range{arena.base, arena.extent, arena.nbytes, 0};
  return 0;
}

extern "C" int sn_reserve(uint64_t offset, uint64_t nbytes) {
  if (!granular(offset, nbytes)) return -EINVAL;
  return bitmap.claim_as_other(offset / kGranule, nbytes / kGranule) ? 0 : -EBUSY;
}

extern "C" int sn_release(uint64_t offset, uint64_t nbytes) {
  if (!granular(offset, nbytes)) return -EINVAL;
  bitmap.clear(offset / kGranule, nbytes / kGranule);
  return 0;
}

extern "C" uint64_t sn_placement_taken(uint64_t offset, uint64_t nbytes) {
  if (!granular(offset, nbytes)) return 0;
  return bitmap.taken(offset / kGranule, nbytes / kGranule) * kGranule;
}
