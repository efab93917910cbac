#include "exclusive.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "granule.h"
#include "sentinel.h"
#include "system.h"

namespace {

enum : uint16_t { kNone = 0, kUsed, kFree, kFreeTail, kResting };

// One per page, valid at the first page of a block and, for the length, at the last of a free one.
struct Node {
  uint32_t npages;
  uint32_t next;  // in a bin, in the list of foreign frees, or among the resting
  uint32_t prev;
  uint16_t slack;  // bytes of the last page beyond what was requested
  uint16_t state;
};

constexpr uint32_t kNil = UINT32_MAX;
constexpr uint64_t kCommitBytes = uint64_t{64} << 20;
constexpr unsigned kSubBits = 3;  // eight bins to each power of two
constexpr unsigned kBins = (32 - kSubBits + 1) << kSubBits;
constexpr int kScan = 8;  // looked at in a bin whose blocks may be too short

// Freed blocks that are not given out again before the next tick, oldest first.
struct Resting {
  uint32_t first = kNil, last = kNil;
  uint64_t percent = 0;      // over the peak of live pages that live and resting ones may take; 0: nothing rests
  uint64_t pages = 0;
  uint64_t peak_live = 0;    // pages, since it began
  uint64_t peak_held = 0;    // live and resting ones
  uint64_t given_up = 0;     // pages that had to be free again earlier
};

struct Arena {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  uint64_t committed = 0;  // bytes made accessible
  uint32_t bump = 0;       // pages ever handed out
  uint32_t free_pages = 0;
  unsigned page_shift = 12;
  bool shared = false;
  bool keep = false;
  Node *nodes = nullptr;
  uint64_t nodes_bytes = 0;
  uint32_t bins[kBins];
  uint64_t filled[(kBins + 63) / 64];  // which bins hold something
  std::atomic<uint32_t> foreign{kNil};
  Resting resting;
};

Arena arena;

uint64_t address_of(uint32_t page) { return arena.base + (uint64_t{page} << arena.page_shift); }

// Blocks of [bin's least length, next bin's) pages.
unsigned bin_of(uint32_t npages) {
  if (npages < (1u << kSubBits)) return npages;
  const unsigned log2 = 31 - static_cast<unsigned>(__builtin_clz(npages));
  return ((log2 - kSubBits + 1) << kSubBits) + ((npages >> (log2 - kSubBits)) & ((1u << kSubBits) - 1));
}

void bin_insert(uint32_t page) {
  const unsigned bin = bin_of(arena.nodes[page].npages);
  arena.nodes[page].prev = kNil;
  arena.nodes[page].next = arena.bins[bin];
  if (arena.bins[bin] != kNil) arena.nodes[arena.bins[bin]].prev = page;
  arena.bins[bin] = page;
  arena.filled[bin / 64] |= uint64_t{1} << (bin % 64);
}

void bin_remove(uint32_t page) {
  const Node &node = arena.nodes[page];
  const unsigned bin = bin_of(node.npages);
  if (node.next != kNil) arena.nodes[node.next].prev = node.prev;
  if (node.prev != kNil) {
    arena.nodes[node.prev].next = node.next;
  } else {
    arena.bins[bin] = node.next;
    if (node.next == kNil) arena.filled[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }
}

void put_free(uint32_t page, uint32_t npages) {
  Node &head = arena.nodes[page], &tail = arena.nodes[page + npages - 1];
  tail.npages = npages;
  tail.state = kFreeTail;
  head.npages = npages;
  head.state = kFree;
  bin_insert(page);
}

uint32_t next_filled(unsigned bin) {
  for (unsigned word = bin / 64; word < (kBins + 63) / 64; word++) {
    uint64_t bits = arena.filled[word];
    if (word == bin / 64) bits &= ~uint64_t{0} << (bin % 64);
    if (bits != 0) return word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
  }
  return kNil;
}

// A free block of at least `npages`. Steps repeat sizes, so the bin of that size is looked into first.
uint32_t find(uint32_t npages) {
  const unsigned bin = bin_of(npages);
  uint32_t page = arena.bins[bin];
  for (int i = 0; i < kScan && page != kNil; i++, page = arena.nodes[page].next)
    if (arena.nodes[page].npages >= npages) return page;
  const uint32_t larger = bin + 1 < kBins ? next_filled(bin + 1) : kNil;
  return larger == kNil ? kNil : arena.bins[larger];
}

uint32_t take_free(uint32_t npages) {
  const uint32_t page = find(npages);
  if (page == kNil) return kNil;
  bin_remove(page);
  const uint32_t rest = arena.nodes[page].npages - npages;
  if (rest != 0) put_free(page + npages, rest);
  arena.free_pages -= npages;
  return page;
}

bool commit(uint64_t end) {
  if (end <= arena.committed) return true;
  const uint64_t target = std::min(arena.nbytes, std::max(end, arena.committed + kCommitBytes));
  if (sn::protect(arena.base + arena.committed, target - arena.committed, PROT_READ | PROT_WRITE) != 0) return false;
  arena.committed = target;
  return true;
}

uint32_t take_bump(uint32_t npages) {
  const uint64_t end = (uint64_t{arena.bump} + npages) << arena.page_shift;
  if (end > arena.nbytes || !commit(end)) return kNil;
  const uint32_t page = arena.bump;
  arena.bump += npages;
  return page;
}

int discard(uint32_t page, uint32_t npages) {
  return sn::advise(address_of(page), uint64_t{npages} << arena.page_shift,
                    arena.shared ? MADV_REMOVE : MADV_DONTNEED);
}

uint64_t held_pages() { return arena.bump - arena.free_pages; }

// Joins a block to its free neighbours.
void release(uint32_t page, uint32_t npages) {
  // Nothing is lost if this fails: the pages stay resident until they are used again.
  if (!arena.keep) discard(page, npages);
  arena.free_pages += npages;
  if (page > 0) {
    const Node &left = arena.nodes[page - 1];
    if (left.state == kFreeTail || left.state == kFree) {
      page -= left.npages;
      npages += left.npages;
      bin_remove(page);
    }
  }
  const uint32_t end = page + npages;
  if (end < arena.bump && arena.nodes[end].state == kFree) {
    npages += arena.nodes[end].npages;
    bin_remove(end);
  }
  put_free(page, npages);
}

void release_oldest() {
  Resting &resting = arena.resting;
  const uint32_t page = resting.first, npages = arena.nodes[page].npages;
  resting.first = arena.nodes[page].next;
  resting.pages -= npages;
  arena.nodes[page].state = kNone;
  release(page, npages);
}

void rest(uint32_t page) {
  Resting &resting = arena.resting;
  Node &node = arena.nodes[page];
  node.state = kResting;
  node.next = kNil;
  (resting.first == kNil ? resting.first : arena.nodes[resting.last].next) = page;
  resting.last = page;
  resting.pages += node.npages;
}

// Before `npages` become live: lets go of what rests, where memory would grow beyond what is allowed or there is.
void keep_within_limit(uint32_t npages) {
  Resting &resting = arena.resting;
  resting.peak_live = std::max(resting.peak_live, held_pages() - resting.pages + npages);
  const uint64_t limit = std::min(resting.peak_live * (100 + resting.percent) / 100, arena.nbytes >> arena.page_shift);
  while (resting.first != kNil && held_pages() + npages > limit) {
    resting.given_up += arena.nodes[resting.first].npages;
    release_oldest();
  }
  resting.peak_held = std::max(resting.peak_held, held_pages() + npages);
}

}  // namespace

namespace sn {

int exclusive_create(uint64_t base, uint64_t nbytes) {
  arena.page_shift = static_cast<unsigned>(__builtin_ctzl(static_cast<unsigned long>(sysconf(_SC_PAGESIZE))));
  // One node beyond the end, so that the block after the last may be asked for.
  const uint64_t nodes_bytes = ((nbytes >> arena.page_shift) + 1) * sizeof(Node);
  const long nodes = map(0, nodes_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (nodes < 0) return static_cast<int>(nodes);
  // Huge pages would hold many tensors. Kernels without them say -EINVAL, which is as good.
  advise(base, nbytes, MADV_NOHUGEPAGE);
  arena.base = base;
  arena.nbytes = nbytes;
  arena.nodes = reinterpret_cast<Node *>(nodes);
  arena.nodes_bytes = nodes_bytes;
  std::fill_n(arena.bins, kBins, kNil);
  std::fill_n(arena.filled, (kBins + 63) / 64, 0);
  return 0;
}

void exclusive_destroy() {
  unmap(reinterpret_cast<uintptr_t>(arena.nodes), arena.nodes_bytes);
  arena.base = arena.nbytes = arena.committed = arena.nodes_bytes = 0;
  arena.bump = arena.free_pages = 0;
  arena.nodes = nullptr;
  arena.shared = arena.keep = false;
}

void *exclusive_allocate(uint64_t nbytes) {
  const uint64_t page_bytes = uint64_t{1} << arena.page_shift;
  if (nbytes > arena.nbytes) return nullptr;
  const uint32_t npages = static_cast<uint32_t>((nbytes + page_bytes - 1) >> arena.page_shift);
  if (arena.resting.percent != 0) keep_within_limit(npages);
  uint32_t page = take_free(npages);
  if (page == kNil) page = take_bump(npages);
  if (page == kNil && arena.resting.first != kNil) {
    arena.resting.given_up += arena.resting.pages;
    exclusive_settle();
    page = take_free(npages);
  }
  if (page == kNil) return nullptr;
  Node &node = arena.nodes[page];
  node.npages = npages;
  node.slack = static_cast<uint16_t>((uint64_t{npages} << arena.page_shift) - nbytes);
  if (npages > 1) arena.nodes[page + npages - 1].state = kNone;
  node.state = kUsed;
  granules_born(address_of(page), uint64_t{npages} << arena.page_shift);
  return reinterpret_cast<void *>(address_of(page));
}

uint64_t exclusive_free(uint64_t address) {
  const uint32_t page = static_cast<uint32_t>((address - arena.base) >> arena.page_shift);
  Node &node = arena.nodes[page];
  if (node.state != kUsed) return 0;
  const uint64_t nbytes = (uint64_t{node.npages} << arena.page_shift) - node.slack;
  node.state = kNone;
  granules_died(address, uint64_t{node.npages} << arena.page_shift);
  if (arena.resting.percent != 0)
    rest(page);
  else
    release(page, node.npages);
  return nbytes;
}

void exclusive_push(uint64_t address) {
  const uint32_t page = static_cast<uint32_t>((address - arena.base) >> arena.page_shift);
  uint32_t head = arena.foreign.load(std::memory_order_relaxed);
  do {
    arena.nodes[page].next = head;
  } while (!arena.foreign.compare_exchange_weak(head, page, std::memory_order_release, std::memory_order_relaxed));
}

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

void exclusive_keep_free_pages(bool keep) { arena.keep = keep; }

void exclusive_rest(uint64_t percent) {
  exclusive_settle();
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
  while (arena.resting.first != kNil) release_oldest();
}

}  // namespace sn

extern "C" int sn_exclusive_range(sn_range *out) {
  if (arena.nbytes == 0) return -ENODEV;
  out->base = arena.base;
  out->used_bytes = uint64_t{arena.bump} << arena.page_shift;
  out->reserved_bytes = arena.nbytes;
  out->free_bytes = uint64_t{arena.free_pages} << arena.page_shift;
  return 0;
}

extern "C" int sn_exclusive_set_shared(int shared) {
  if (arena.nbytes == 0) return -ENODEV;
  arena.shared = shared != 0;
  return 0;
}

extern "C" int64_t sn_exclusive_release(void) {
  if (arena.nbytes == 0) return -ENODEV;
  if (sn_memory_is_owner() == 0) return -EPERM;
  int64_t nbytes = 0;
  for (uint32_t bin = next_filled(0); bin != kNil; bin = bin + 1 < kBins ? next_filled(bin + 1) : kNil)
    for (uint32_t page = arena.bins[bin]; page != kNil; page = arena.nodes[page].next) {
      const int error = discard(page, arena.nodes[page].npages);
      if (error != 0) return error;
      nbytes += static_cast<int64_t>(uint64_t{arena.nodes[page].npages} << arena.page_shift);
    }
  return nbytes;
}
