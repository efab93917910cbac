// The exclusive arena's blocks: page ranges, each in one state, those that nobody holds on shelves by their length.
#pragma once

#include <stdint.h>

namespace sn {

enum : uint16_t { kNone = 0, kUsed, kResting, kFree, kFreeTail, kWarm, kWarmTail };

// One per page, valid at the first page of a block and, for the length, at the last of one on a shelf.
struct Node {
  uint32_t npages;
  uint32_t next;  // in a bin, in the list of foreign frees, or among the resting
  uint32_t prev;  // in a bin; while it is used: what Births told of it
  uint16_t slack;  // bytes of the last page beyond what was requested
  uint16_t state;
};

constexpr uint32_t kNil = UINT32_MAX;

// Blocks in bins of lengths, eight to each power of two; neighbours are joined.
class Shelf {
 public:
  void reset(Node *nodes, uint16_t state);  // state: that of its blocks; the next one: that of their last pages

  void put(uint32_t page, uint32_t npages, uint32_t end);  // end: the first page that never was in a block
  uint32_t take(uint32_t npages, uint32_t align = 1);      // at a multiple of it; kNil: none is found as long
  uint32_t take_any(uint32_t *npages);                     // a whole block; kNil: there is none
  uint32_t first() const;                                  // to look at all blocks; kNil: there is none
  uint32_t after(uint32_t page) const;
  uint32_t pages() const { return pages_; }

 private:
  static constexpr unsigned kSubBits = 3;
  static constexpr unsigned kBins = (32 - kSubBits + 1) << kSubBits;

  static unsigned bin_of(uint32_t npages);
  void insert(uint32_t page, uint32_t npages);
  void remove(uint32_t page);
  uint32_t find(uint32_t npages) const;
  uint32_t next_filled(unsigned bin) const;

  Node *nodes_ = nullptr;
  uint16_t state_ = kNone;
  uint32_t pages_ = 0;
  uint32_t bins_[kBins] = {};
  uint64_t filled_[(kBins + 63) / 64] = {};  // which bins hold something
};

}  // namespace sn
