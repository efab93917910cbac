// The frames: memory of an amount that is set, in pieces of 2 MiB.
#pragma once

#include <stdint.h>

#include <vector>

namespace sn {

constexpr uint64_t kFrameBytes = uint64_t{2} << 20;
constexpr uint32_t kNone = UINT32_MAX;

// One memfd, mapped once. The kernel gives all pages of a frame before it is used, so that none can be missing later.
class FramePool {
 public:
  // At most `frames`, of which `filled` have memory at first. `huge`: in huge pages, where the kernel makes them. 0 or a
  // negative errno, with what was tried in `step` and nothing left behind. May throw for want of memory, likewise.
  int open(uint32_t frames, uint32_t filled, bool huge, const char **step);
  void close();
  void close_in_child();  // where a fork has left the mapping out

  int descriptor() const { return fd_; }
  uint32_t count() const { return count_; }  // that have memory
  uint32_t huge_count() const { return huge_count_; }
  uint64_t address(uint32_t frame) const { return base_ + frame * kFrameBytes; }
  static uint64_t offset(uint32_t frame) { return frame * kFrameBytes; }

  // The frame that has been free for the longest; kNone if there is none.
  uint32_t take();
  void give(uint32_t frame);
  uint32_t free_count() const { return free_count_; }

  // A free frame gives its memory back to the kernel; -EAGAIN: there is none that is free.
  int retire();
  // A frame without memory gets some, and is free; -ENOSPC: all have it. Others: the kernel has none.
  int restore();

 private:
  int map_frames(const char **step);
  int fill(uint32_t frame);
  // `frames` from `first` on, which have no memory, become huge pages, or none of them is known to be.
  void collapse(uint32_t first, uint32_t frames);
  void populate(uint32_t frame);
  int empty(uint32_t frame);
  long allocate(int mode, uint32_t frame, uint64_t nbytes);

  int fd_ = -1;
  uint64_t base_ = 0;
  uint32_t most_ = 0, count_ = 0, huge_count_ = 0;
  bool huge_ = false;
  std::vector<uint32_t> free_;     // a ring
  std::vector<uint32_t> retired_;  // without memory; with room for all
  std::vector<bool> is_huge_;
  uint32_t oldest_ = 0, free_count_ = 0;
};

// Addresses that begin at a multiple of 2 MiB, and hold nothing; -errno if there are none.
long reserve_addresses(uint64_t nbytes);

}  // namespace sn
