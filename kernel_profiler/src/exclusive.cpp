#include "exclusive.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "arm.h"
#include "births.h"
#include "exclusive_huge.h"
#include "granule.h"
#include "lock.h"
#include "sentinel.h"
#include "shelf.h"
#include "system.h"

namespace {

using sn::kNil;
using sn::Node;

constexpr uint64_t kCommitBytes = uint64_t{64} << 20;

// While touches are watched: freed blocks that are not given out again before the next tick, oldest first.
struct Resting {
  uint32_t first = kNil, last = kNil;
  uint64_t percent = 0;      // over the peak of live pages that others may take; 0: nothing rests
  uint64_t pages = 0;
  uint64_t peak_live = 0;    // pages, since it began
  uint64_t peak_held = 0;    // live, resting and warm ones
  uint64_t given_up = 0;     // pages that had to be free again earlier
};

struct Arena {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  std::atomic<uint64_t> committed{0};  // bytes made accessible
  uint32_t bump = 0;       // pages ever handed out
  unsigned page_shift = 12;
  std::atomic<bool> shared{false};  // a fork of another thread may take memory back
  std::atomic<bool> keep{false};
  Node *nodes = nullptr;
  uint64_t nodes_bytes = 0;
  sn::Shelf free;
  sn::Shelf warm;  // born, written and freed in this layer: for tensors that will not outlive it either
  std::atomic<uint32_t> foreign{kNil};
  Resting resting;
};

Arena arena;
sn::Births births;  // apart from the arena, whose values do not begin as 0

uint64_t address_of(uint32_t page) { return arena.base + (uint64_t{page} << arena.page_shift); }

// Under the lock, for a fork of another thread closes meanwhile what is not committed.
bool commit(uint64_t end) {
  const uint64_t from = arena.committed.load(std::memory_order_relaxed);
  if (end <= from) return true;
  const uint64_t target = std::min(arena.nbytes, std::max(end, from + kCommitBytes));
  sn::Lock held(&sn::watching);
  if (sn::protect(arena.base + from, target - from, PROT_READ | PROT_WRITE) != 0) return false;
  arena.committed.store(target);
  return true;
}

uint32_t take_bump(uint32_t npages, uint32_t align) {
  const uint32_t page = (arena.bump + align - 1) / align * align, gap = page - arena.bump;
  const uint64_t end = (uint64_t{page} + npages) << arena.page_shift;
  if (page < arena.bump || end > arena.nbytes || !commit(end)) return kNil;
  if (gap != 0) arena.free.put(arena.bump, gap, page);  // for smaller ones
  arena.bump = page + npages;
  return page;
}

int discard(uint32_t page, uint32_t npages) {
  return sn::advise(address_of(page), uint64_t{npages} << arena.page_shift,
                    arena.shared ? MADV_REMOVE : MADV_DONTNEED);
}

uint64_t held_pages() { return arena.bump - arena.free.pages(); }

uint64_t live_pages() { return held_pages() - arena.resting.pages - arena.warm.pages(); }

// Joins a block to its free neighbours.
void release(uint32_t page, uint32_t npages) {
  // Nothing is lost if this fails: the pages stay resident until they are used again.
  if (!arena.keep) discard(page, npages);
  arena.free.put(page, npages, arena.bump);
}

// 0: none rests.
uint32_t release_oldest() {
  Resting &resting = arena.resting;
  const uint32_t page = resting.first;
  if (page == kNil) return 0;
  const uint32_t npages = arena.nodes[page].npages;
  resting.first = arena.nodes[page].next;
  resting.pages -= npages;
  arena.nodes[page].state = sn::kNone;
  release(page, npages);
  return npages;
}

// 0: none is warm.
uint32_t release_a_warm_one() {
  uint32_t npages = 0;
  const uint32_t page = arena.warm.take_any(&npages);
  if (page != kNil) release(page, npages);
  return npages;
}

void rest(uint32_t page) {
  Resting &resting = arena.resting;
  Node &node = arena.nodes[page];
  node.state = sn::kResting;
  node.next = kNil;
  (resting.first == kNil ? resting.first : arena.nodes[resting.last].next) = page;
  resting.last = page;
  resting.pages += node.npages;
}

// Before `npages` are taken from what is free: gives up others, where memory would grow beyond what is allowed or
// there is. Of a warm page only the next tenant's touches go unseen, so those go first.
void keep_within_limit(uint32_t npages) {
  Resting &resting = arena.resting;
  const uint64_t limit = std::min(resting.peak_live * (100 + resting.percent) / 100, arena.nbytes >> arena.page_shift);
  while (held_pages() + npages > limit) {
    uint32_t given_up = release_a_warm_one();
    if (given_up == 0) given_up = release_oldest();
    if (given_up == 0) break;
    resting.given_up += given_up;
  }
  resting.peak_held = std::max(resting.peak_held, held_pages() + npages);
}

// Begins at a multiple of `align` pages.
uint32_t take(uint32_t npages, uint32_t align = 1) {
  const uint32_t page = arena.free.take(npages, align);
  return page != kNil ? page : take_bump(npages, align);
}

// While nothing watches pages, tensors that fill huge pages begin with one. While a step is watched they are packed: most
// of them end with it.
uint32_t take_unwatched(uint32_t npages) {
  const uint32_t huge = static_cast<uint32_t>(sn::kHugePageBytes >> arena.page_shift);
  return take(npages, npages >= huge ? huge : 1);
}

// What outlives its layer gets pages that nobody else had in it. What probably does not may as well have those of others
// that did not: they count as written already, and fault no more.
uint32_t take_watched(uint32_t npages, uint64_t nbytes, uint32_t *ticket) {
  Resting &resting = arena.resting;
  resting.peak_live = std::max(resting.peak_live, live_pages() + npages);
  const bool brief = births.born(nbytes, ticket);
  uint32_t page = brief ? arena.warm.take(npages) : kNil;
  if (page != kNil) return page;
  keep_within_limit(npages);
  page = take(npages);
  if (page != kNil || resting.pages + arena.warm.pages() == 0) return page;
  resting.given_up += resting.pages + arena.warm.pages();
  sn::exclusive_settle();
  return take(npages);
}

}  // namespace

namespace sn {

int exclusive_create(uint64_t base, uint64_t nbytes) {
  arena.page_shift = static_cast<unsigned>(__builtin_ctzl(static_cast<unsigned long>(sysconf(_SC_PAGESIZE))));
  // One node beyond the end, so that the block after the last may be asked for.
  const uint64_t nodes_bytes = ((nbytes >> arena.page_shift) + 1) * sizeof(Node);
  const long nodes = map(0, nodes_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (nodes < 0) return static_cast<int>(nodes);
  if (const int error = huge_create(base, nbytes); error != 0) {
    unmap(static_cast<uint64_t>(nodes), nodes_bytes);
    return error;
  }
  // Else huge pages would hold many tensors. Kernels without them say -EINVAL, which is as good.
  advise(base, nbytes, MADV_NOHUGEPAGE);
  arena.base = base;
  arena.nbytes = nbytes;
  arena.nodes = reinterpret_cast<Node *>(nodes);
  arena.nodes_bytes = nodes_bytes;
  arena.free.reset(arena.nodes, kFree);
  arena.warm.reset(arena.nodes, kWarm);
  return 0;
}

void exclusive_destroy() {
  unmap(reinterpret_cast<uintptr_t>(arena.nodes), arena.nodes_bytes);
  huge_destroy();
  arena.base = arena.nbytes = arena.nodes_bytes = 0;
  arena.committed = 0;
  arena.bump = 0;
  arena.nodes = nullptr;
  arena.free.reset(nullptr, kFree);
  arena.shared = false;
  arena.keep = false;
}

void *exclusive_allocate(uint64_t nbytes) {
  const uint64_t page_bytes = uint64_t{1} << arena.page_shift;
  if (nbytes > arena.nbytes) return nullptr;
  const uint32_t npages = static_cast<uint32_t>((nbytes + page_bytes - 1) >> arena.page_shift);
  uint32_t ticket = 0;
  const uint32_t page = arena.resting.percent != 0 ? take_watched(npages, nbytes, &ticket) : take_unwatched(npages);
  if (page == kNil) return nullptr;
  Node &node = arena.nodes[page];
  node.npages = npages;
  node.prev = ticket;
  node.slack = static_cast<uint16_t>((uint64_t{npages} << arena.page_shift) - nbytes);
  if (npages > 1) arena.nodes[page + npages - 1].state = kNone;
  node.state = kUsed;
  granules_born(address_of(page), uint64_t{npages} << arena.page_shift);
  // what a step asks for mostly ends with it, and is to keep its pages for the next tenant
  sn::huge_born(address_of(page), uint64_t{npages} << arena.page_shift, !arena.shared && !arena.keep);
  return reinterpret_cast<void *>(address_of(page));
}

uint64_t exclusive_free(uint64_t address) {
  const uint32_t page = static_cast<uint32_t>((address - arena.base) >> arena.page_shift);
  Node &node = arena.nodes[page];
  if (node.state != kUsed) return 0;
  const uint64_t nbytes = (uint64_t{node.npages} << arena.page_shift) - node.slack;
  const uint64_t whole = uint64_t{node.npages} << arena.page_shift;
  node.state = kNone;
  huge_died(address, whole, !arena.shared);
  if (arena.resting.percent == 0)
    release(page, node.npages);
  else if (births.died(node.prev) && written_wholly(address, whole))
    arena.warm.put(page, node.npages, arena.bump);
  else
    rest(page);
  granules_died(address, whole);
  return nbytes;
}

// The owner's next drain may never come: its thread may have ended. So the pages go back to the system at once, where
// they would as the owner freed them. Not while memory changes its backing: whoever copies the page, which would be
// missing then, would wait for itself; the drain makes up for it.
void exclusive_push(uint64_t address) {
  const uint32_t page = static_cast<uint32_t>((address - arena.base) >> arena.page_shift);
  if (!arena.keep && arm_try_lock()) {
    discard(page, arena.nodes[page].npages);
    arm_unlock();
  }
  uint32_t head = arena.foreign.load(std::memory_order_relaxed);
  do {
    arena.nodes[page].next = head;
  } while (!arena.foreign.compare_exchange_weak(head, page, std::memory_order_release, std::memory_order_relaxed));
}

uint64_t exclusive_committed_end() { return arena.base + arena.committed.load(); }

bool exclusive_pending() { return arena.foreign.load(std::memory_order_relaxed) != kNil; }

uint64_t exclusive_drain() {
  uint64_t nbytes = 0;
  uint32_t page = arena.foreign.exchange(kNil, std::memory_order_acquire);
  while (page != kNil) {
    const uint32_t next = arena.nodes[page].next;
    nbytes += exclusive_free(address_of(page));
    page = next;
  }
  return nbytes;
}

void exclusive_set_shared(bool shared) { arena.shared = shared; }

void exclusive_keep_free_pages(bool keep) { arena.keep = keep; }

void exclusive_rest(uint64_t percent) {
  exclusive_settle();
  births.reset();
  arena.resting = Resting{};
  arena.resting.percent = percent;
  arena.resting.peak_live = arena.resting.peak_held = held_pages();
}

// Every block, whatever its state, holds its length at its first page.
void exclusive_each(void (*visit)(uint64_t address, uint64_t nbytes)) {
  for (uint32_t page = 0; page < arena.bump; page += arena.nodes[page].npages)
    if (arena.nodes[page].state == kUsed)
      visit(address_of(page), uint64_t{arena.nodes[page].npages} << arena.page_shift);
}

Rested exclusive_rested() {
  const Resting &resting = arena.resting;
  return Rested{resting.peak_live << arena.page_shift, resting.peak_held << arena.page_shift,
                resting.given_up << arena.page_shift};
}

void exclusive_settle() {
  while (release_oldest() != 0) continue;
  while (release_a_warm_one() != 0) continue;
  births.end_layer();
}

}  // namespace sn

extern "C" int sn_exclusive_range(sn_range *out) {
  if (arena.nbytes == 0) return -ENODEV;
  out->base = arena.base;
  out->used_bytes = uint64_t{arena.bump} << arena.page_shift;
  out->reserved_bytes = arena.nbytes;
  out->free_bytes = uint64_t{arena.free.pages()} << arena.page_shift;
  return 0;
}

extern "C" int64_t sn_exclusive_release(void) {
  if (arena.nbytes == 0) return -ENODEV;
  if (sn_memory_is_owner() == 0) return -EPERM;
  int64_t nbytes = 0;
  for (uint32_t page = arena.free.first(); page != kNil; page = arena.free.after(page)) {
    const int error = discard(page, arena.nodes[page].npages);
    if (error != 0) return error;
    nbytes += static_cast<int64_t>(uint64_t{arena.nodes[page].npages} << arena.page_shift);
  }
  return nbytes;
}
