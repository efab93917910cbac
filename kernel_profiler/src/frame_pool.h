// The frames: memory of a fixed amount, in pieces of 2 MiB, all of it there from the start.
#pragma once

#include <stdint.h>

#include <vector>

namespace sn {

constexpr uint64_t kFrameBytes = uint64_t{2} << 20;
constexpr uint32_t kNone = UINT32_MAX;

// One memfd, mapped once. The kernel gives all its pages when it is opened, so that none can be missing later.
class FramePool {
 public:
  // `huge`: in huge pages, where the kernel makes them. 0 or a negative errno, with what was tried in `step` and nothing
  // left behind. May throw for want of memory, likewise.
  int open(uint32_t frames, bool huge, const char **step);
  void close();
  void close_in_child();  // where a fork has left the mapping out

  int descriptor() const { return fd_; }
  uint32_t count() const { return count_; }
  uint32_t huge_count() const { return huge_count_; }
  uint64_t address(uint32_t frame) const { return base_ + frame * kFrameBytes; }
  static uint64_t offset(uint32_t frame) { return frame * kFrameBytes; }

  // The frame that has been free for the longest; kNone if there is none.
  uint32_t take();
  void give(uint32_t frame);
  uint32_t free_count() const { return free_count_; }

 private:
  int map_frames(const char **step);
  int fill(bool huge, const char **step);

  int fd_ = -1;
  uint64_t base_ = 0;
  uint32_t count_ = 0, huge_count_ = 0;
  std::vector<uint32_t> free_;  // a ring
  uint32_t oldest_ = 0, free_count_ = 0;
};

// Addresses that begin at a multiple of 2 MiB, and hold nothing; -errno if there are none.
long reserve_addresses(uint64_t nbytes);

}  // namespace sn
