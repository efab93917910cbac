#include "shelf.h"

#include <algorithm>

namespace sn {

namespace {
constexpr int kScan = 8;  // looked at in a bin whose blocks may be too short
}

void Shelf::reset(Node *nodes, uint16_t state) {
  nodes_ = nodes;
  state_ = state;
  pages_ = 0;
  std::fill_n(bins_, kBins, kNil);
  std::fill_n(filled_, (kBins + 63) / 64, 0);
}

// Blocks of [bin's least length, next bin's) pages.
unsigned Shelf::bin_of(uint32_t npages) {
  if (npages < (1u << kSubBits)) return npages;
  const unsigned log2 = 31 - static_cast<unsigned>(__builtin_clz(npages));
  return ((log2 - kSubBits + 1) << kSubBits) + ((npages >> (log2 - kSubBits)) & ((1u << kSubBits) - 1));
}

void Shelf::insert(uint32_t page, uint32_t npages) {
  Node &head = nodes_[page], &tail = nodes_[page + npages - 1];
  tail.npages = npages;
  tail.state = static_cast<uint16_t>(state_ + 1);
  head.npages = npages;
  head.state = state_;
  const unsigned bin = bin_of(npages);
  head.prev = kNil;
  head.next = bins_[bin];
  if (bins_[bin] != kNil) nodes_[bins_[bin]].prev = page;
  bins_[bin] = page;
  filled_[bin / 64] |= uint64_t{1} << (bin % 64);
  pages_ += npages;
}

void Shelf::remove(uint32_t page) {
  const Node &node = nodes_[page];
  const unsigned bin = bin_of(node.npages);
  if (node.next != kNil) nodes_[node.next].prev = node.prev;
  if (node.prev != kNil) {
    nodes_[node.prev].next = node.next;
  } else {
    bins_[bin] = node.next;
    if (node.next == kNil) filled_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  }
  pages_ -= node.npages;
}

void Shelf::put(uint32_t page, uint32_t npages, uint32_t end) {
  if (page > 0) {
    const Node &left = nodes_[page - 1];
    if (left.state == state_ || left.state == state_ + 1) {
      page -= left.npages;
      npages += left.npages;
      remove(page);
    }
  }
  const uint32_t next = page + npages;
  if (next < end && nodes_[next].state == state_) {
    npages += nodes_[next].npages;
    remove(next);
  }
  insert(page, npages);
}

uint32_t Shelf::next_filled(unsigned bin) const {
  for (unsigned word = bin / 64; word < (kBins + 63) / 64; word++) {
    uint64_t bits = filled_[word];
    if (word == bin / 64) bits &= ~uint64_t{0} << (bin % 64);
    if (bits != 0) return word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
  }
  return kNil;
}

// A block of at least `npages`. Steps repeat sizes, so the bin of that size is looked into first.
uint32_t Shelf::find(uint32_t npages) const {
  const unsigned bin = bin_of(npages);
  uint32_t page = bins_[bin];
  for (int i = 0; i < kScan && page != kNil; i++, page = nodes_[page].next)
    if (nodes_[page].npages >= npages) return page;
  const uint32_t larger = bin + 1 < kBins ? next_filled(bin + 1) : kNil;
  return larger == kNil ? kNil : bins_[larger];
}

uint32_t Shelf::take(uint32_t npages, uint32_t align) {
  uint32_t page = pages_ == 0 ? kNil : find(npages);
  const auto gap_before = [=](uint32_t block) { return (align - block % align) % align; };
  if (page != kNil && nodes_[page].npages - npages < gap_before(page)) page = find(npages + align - 1);
  if (page == kNil) return kNil;
  remove(page);
  const uint32_t gap = gap_before(page), rest = nodes_[page].npages - npages - gap;
  if (gap != 0) insert(page, gap);
  if (rest != 0) insert(page + gap + npages, rest);
  return page + gap;
}

uint32_t Shelf::take_any(uint32_t *npages) {
  const uint32_t page = first();
  if (page == kNil) return kNil;
  *npages = nodes_[page].npages;
  remove(page);
  nodes_[page].state = nodes_[page + *npages - 1].state = kNone;
  return page;
}

uint32_t Shelf::first() const {
  const uint32_t bin = next_filled(0);
  return bin == kNil ? kNil : bins_[bin];
}

uint32_t Shelf::after(uint32_t page) const {
  if (nodes_[page].next != kNil) return nodes_[page].next;
  const unsigned bin = bin_of(nodes_[page].npages);
  const uint32_t next = bin + 1 < kBins ? next_filled(bin + 1) : kNil;
  return next == kNil ? kNil : bins_[next];
}

}  // namespace sn
