#include "frame_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <unistd.h>

#include <algorithm>

#include "arm.h"
#include "system.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr int kAddSeals = 1033, kSealShrink = 2, kSealGrow = 4;  // F_ADD_SEALS and its arguments
constexpr uint32_t kAtOnce = 8;  // frames of a call that makes huge pages: each call first asks something of all CPUs
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, from Linux 5.14 on; before, it is refused

}  // namespace

namespace sn {

long reserve_addresses(uint64_t nbytes) {
  const long room = map(0, nbytes + kFrameBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (room < 0) return room;
  const uint64_t begin = static_cast<uint64_t>(room);
  const uint64_t aligned = (begin + kFrameBytes - 1) / kFrameBytes * kFrameBytes;
  if (aligned != begin) unmap(begin, aligned - begin);
  unmap(aligned + nbytes, begin + kFrameBytes - aligned);
  return static_cast<long>(aligned);
}

int FramePool::open(uint32_t frames, uint32_t filled, bool huge, const char **step) {
  free_.resize(frames);
  is_huge_.resize(frames);
  for (uint32_t frame = frames; frame-- > 0;) retired_.push_back(frame);  // the first one is filled first
  most_ = frames;
  huge_ = huge;
  *step = "making the memory of frames (memfd_create)";
  const long fd =
      sn_system(SYS_memfd_create, arg("sentinel-frames"), MFD_CLOEXEC | MFD_ALLOW_SEALING, 0, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  fd_ = out_of_the_way(static_cast<int>(fd));
  int error = map_frames(step);
  if (error == 0) *step = "filling the frames with memory (fallocate)";
  while (error == 0 && count_ < filled) {
    const uint32_t first = count_, together = std::min(kAtOnce, filled - first);
    collapse(first, together);
    while (error == 0 && count_ < first + together) error = restore();
  }
  if (error != 0) close();
  return error;
}

int FramePool::map_frames(const char **step) {
  const uint64_t nbytes = most_ * kFrameBytes;
  *step = "giving the memory of frames its length (ftruncate)";
  const int error = static_cast<int>(sn_system(SYS_ftruncate, fd_, arg(nbytes), 0, 0, 0, 0));
  if (error != 0) return error;
  // Nobody else has it: a seal keeps our own mistakes away, and a kernel that refuses it does no harm.
  sn_system(SYS_fcntl, fd_, kAddSeals, kSealShrink | kSealGrow, 0, 0, 0);
  *step = "mapping the frames (mmap)";
  const long base = reserve_addresses(nbytes);
  if (base < 0) return static_cast<int>(base);
  base_ = static_cast<uint64_t>(base);
  const long mapped = map(base_, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_);
  if (mapped < 0) return static_cast<int>(mapped);
  *step = "keeping the frames from children (madvise MADV_DONTFORK)";
  return advise(base_, nbytes, MADV_DONTFORK);
}

long FramePool::allocate(int mode, uint32_t frame, uint64_t nbytes) {
  long error;
  do {
    error = sn_system(SYS_fallocate, fd_, mode, arg(offset(frame)), arg(nbytes), 0, 0);
  } while (error == -EINTR);
  return error;
}

// A huge page is made of a single small one: the kernel has no other call that makes those of a memfd.
void FramePool::collapse(uint32_t first, uint32_t frames) {
  bool made = huge_;
  for (uint32_t frame = first; made && frame < first + frames; frame++) made = allocate(0, frame, kPage) == 0;
  made = made && advise(address(first), frames * kFrameBytes, kCollapse) == 0;
  std::fill_n(is_huge_.begin() + first, frames, made);
}

// Where the kernel makes no huge page of it, small ones do.
int FramePool::fill(uint32_t frame) {
  if (!is_huge_[frame]) collapse(frame, 1);
  if (is_huge_[frame]) return 0;
  const int error = static_cast<int>(allocate(0, frame, kFrameBytes));
  if (error == 0) populate(frame);
  return error;
}

// Pages that nobody has mapped are missing from the Pss of the process. A cap takes the frames from its shared memory,
// and would take other shared memory for them.
void FramePool::populate(uint32_t frame) {
  const uint64_t begin = address(frame);
  if (advise(begin, kFrameBytes, kPopulateWrite) == 0) return;
  for (uint64_t page = begin; page < begin + kFrameBytes; page += kPage)
    static_cast<void>(*reinterpret_cast<const volatile uint8_t *>(page));
}

int FramePool::empty(uint32_t frame) {
  return static_cast<int>(allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, frame, kFrameBytes));
}

int FramePool::retire() {
  const uint32_t frame = take();
  if (frame == kNone) return -EAGAIN;
  const int error = empty(frame);
  if (error != 0) {
    give(frame);
    return error;
  }
  retired_.push_back(frame);
  count_--;
  huge_count_ -= is_huge_[frame] ? 1 : 0;
  is_huge_[frame] = false;
  return 0;
}

int FramePool::restore() {
  if (retired_.empty()) return -ENOSPC;
  const uint32_t frame = retired_.back();
  const int error = fill(frame);
  if (error != 0) {
    empty(frame);  // what the kernel gave of it
    return error;
  }
  retired_.pop_back();
  count_++;
  huge_count_ += is_huge_[frame] ? 1 : 0;
  give(frame);
  return 0;
}

void FramePool::close() {
  if (base_ != 0) unmap(base_, most_ * kFrameBytes);
  close_in_child();
}

void FramePool::close_in_child() {
  shut(fd_);
  base_ = 0;
  most_ = count_ = huge_count_ = oldest_ = free_count_ = 0;
}

uint32_t FramePool::take() {
  if (free_count_ == 0) return kNone;
  const uint32_t frame = free_[oldest_];
  oldest_ = (oldest_ + 1) % most_;
  free_count_--;
  return frame;
}

void FramePool::give(uint32_t frame) {
  free_[(oldest_ + free_count_) % most_] = frame;
  free_count_++;
}

}  // namespace sn
