#include "arm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "exclusive.h"
#include "exclusive_huge.h"
#include "lock.h"
#include "policy.h"
#include "system.h"

namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

struct Own {
  uint64_t base;
  uint64_t nbytes;
};

std::mutex lock;
Own own[sn::kArmRanges];
int own_count = 0;

bool ours(uint64_t base, uint64_t nbytes, bool *exclusive) {
  sn_range arena;
  *exclusive = sn_exclusive_range(&arena) == 0 && base >= arena.base && nbytes <= arena.reserved_bytes &&
               base - arena.base <= arena.reserved_bytes - nbytes;
  if (*exclusive) return true;
  return std::any_of(own, own + own_count,
                     [=](const Own &o) { return base == o.base && nbytes == o.nbytes; });
}

int share(sn::ArmRange &range, uint64_t to) {
  const long mapped = sn::map(range.base + range.shared_to, to - range.shared_to, kReadWrite,
                              MAP_SHARED | MAP_FIXED | MAP_NORESERVE, range.fd, range.shared_to);
  if (mapped < 0) return static_cast<int>(mapped);
  sn::advise(range.base + range.shared_to, to - range.shared_to, MADV_NOHUGEPAGE);
  range.shared_to = to;
  return 0;
}

int make_view(sn::ArmRange &range) {
  const uint64_t nbytes = range.nbytes + sn::kHugeBytes;  // so that huge pages of the file are aligned in it
  const long room = sn::map(0, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (room < 0) return static_cast<int>(room);
  const uint64_t aligned = (static_cast<uint64_t>(room) + sn::kHugeBytes - 1) / sn::kHugeBytes * sn::kHugeBytes;
  const long view = sn::map(aligned, range.nbytes, kReadWrite, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, range.fd);
  if (view < 0) {
    sn::unmap(static_cast<uint64_t>(room), nbytes);
    return static_cast<int>(view);
  }
  range.room = static_cast<uint64_t>(room);
  range.view = aligned;
  range.huge = range.base % sn::kHugeBytes == 0 && range.nbytes % sn::kHugeBytes == 0 && sn::huge_pages_fault_singly();
  return 0;
}

int make_memfd(sn::ArmRange &range) {
  const long fd = sn_system(SYS_memfd_create, sn::arg("sentinel"), MFD_CLOEXEC, 0, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  range.fd = sn::out_of_the_way(static_cast<int>(fd));
  const long sized = sn_system(SYS_ftruncate, range.fd, sn::arg(range.nbytes), 0, 0, 0, 0);
  if (sized != 0) return static_cast<int>(sized);
  const int error = make_view(range);
  // A shared policy belongs to the file: set through any mapping, it holds for every one.
  return error != 0 ? error : sn::policy_apply(range.policy, range.view, range.nbytes);
}

int to_shared(sn::ArmRange &range) {
  int error = make_memfd(range);
  if (error != 0) return error;
  int pagemap = static_cast<int>(
      sn_system(SYS_openat, AT_FDCWD, sn::arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC, 0, 0, 0));
  if (pagemap < 0 && sn::armed.guard.is_open()) return pagemap;  // reading what was never touched would wait for us
  const uint64_t used = sn::arm_used_bytes(range);
  while (error == 0 && range.shared_to < used) {
    const uint64_t to = std::min(used, range.shared_to + sn::kChunkBytes);
    sn::arm_make_huge(range, to);  // chunk by chunk: the private pages go as they are copied
    sn::Hold held(sn::armed.guard, range.base + range.shared_to, to - range.shared_to);
    error = held.stores();
    if (error == 0) error = sn::arm_copy_in(range, pagemap, range.shared_to, to);
    if (error == 0) error = share(range, to);
  }
  if (error == 0 && range.shared_to < range.nbytes) error = share(range, range.nbytes);
  sn::shut(pagemap);
  return error;
}

int map_small_pages(uint64_t at, uint64_t nbytes, int protection) {
  const long fresh = sn::map(at, nbytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED);
  if (fresh < 0) return static_cast<int>(fresh);
  sn::advise(at, nbytes, MADV_NOHUGEPAGE);  // kernels without huge pages refuse: as good
  return 0;
}

// Of fresh memory, which lies or will lie at offset `from`: huge pages within one live tensor of the exclusive arena, if it
// is known which live (`huge`), and the policy that the range had.
int set_pages(const sn::ArmRange &range, uint64_t at, uint64_t from, uint64_t nbytes, bool huge) {
  const uint64_t begin = range.base + from, end = begin + nbytes;
  for (uint64_t address = begin, stop = 0; huge && address < end; address = stop) {
    address = sn::huge_stretch(address, end, &stop);
    if (address < end) sn::huge_advise(at + address - begin, stop - address, address);
  }
  return sn::policy_apply(range.policy, at, nbytes);
}

// Address space where huge pages lie as they do at `like`.
int reserve(uint64_t nbytes, uint64_t like, uint64_t *at) {
  const long room = sn::map(0, nbytes + sn::kHugeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (room < 0) return static_cast<int>(room);
  const uint64_t begin = static_cast<uint64_t>(room), before = (like - begin) % sn::kHugeBytes;
  *at = begin + before;
  if (before != 0) sn::unmap(begin, before);
  sn::unmap(*at + nbytes, sn::kHugeBytes - before);
  return 0;
}

// Moves private memory at `at` to [shared_from, to), which follows it. One call of the kernel's moves one mapping: what
// may be huge pages, or what lies between.
int put_in_place(sn::ArmRange &range, uint64_t at, uint64_t to, bool huge) {
  const uint64_t end = range.base + to;
  while (range.shared_from < to) {
    const uint64_t begin = range.base + range.shared_from;
    uint64_t stop = end;
    const uint64_t stretch = huge ? sn::huge_stretch(begin, end, &stop) : end;
    const uint64_t nbytes = (stretch == begin ? stop : stretch) - begin;
    const long moved = sn_system(SYS_mremap, sn::arg(at), sn::arg(nbytes), sn::arg(nbytes),
                                 MREMAP_MAYMOVE | MREMAP_FIXED, sn::arg(begin), 0);
    if (moved < 0) {
      sn::unmap(at, end - begin);
      return static_cast<int>(moved);
    }
    at += nbytes;
    range.shared_from += nbytes;
  }
  return 0;
}

// Replaces [shared_from, to) by private memory with the same bytes; the first of them that hold something
// are at `data`. At a failure what comes before shared_from has been replaced.
int privatise(sn::ArmRange &range, uint64_t data, uint64_t to, bool huge) {
  const uint64_t from = range.shared_from, nbytes = to - from;
  if (data >= to) {
    if (const int error = map_small_pages(range.base + from, nbytes, kReadWrite); error != 0) return error;
    range.shared_from = to;  // whatever follows: the program writes to it from now on
    return set_pages(range, range.base + from, from, nbytes, huge);
  }
  uint64_t at = 0;
  int error = reserve(nbytes, range.base + from, &at);
  if (error != 0) return error;
  error = map_small_pages(at, nbytes, kReadWrite);
  if (error == 0) error = set_pages(range, at, from, nbytes, huge);
  if (error == 0) error = sn::arm_copy_out(range, at, from, data, to);
  if (error == 0) return put_in_place(range, at, to, huge);
  sn::unmap(at, nbytes);
  return error;
}

// What the arena has not opened, nearly all of it, is as it was reserved. Writable private memory would count against
// limits (RLIMIT_DATA, vm.overcommit_memory=2), and mlockall would fill it. Does nothing if the owner has opened more.
int close_rest(sn::ArmRange &range) {
  sn::Lock nothing_is_opened(&sn::watching);
  const uint64_t from = range.shared_from, nbytes = range.shared_to - from;
  if (from < sn::arm_open_bytes(range)) return 0;
  if (const int error = map_small_pages(range.base + from, nbytes, PROT_NONE); error != 0) return error;
  range.shared_from = range.shared_to;
  return sn::policy_apply(range.policy, range.base + from, nbytes);
}

}  // namespace

namespace sn {

ArmState armed;

void arm_lock() { lock.lock(); }
bool arm_try_lock() { return lock.try_lock(); }
void arm_unlock() { lock.unlock(); }

pthread_mutex_t watching = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
void watching_anew() { watching = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; }

uint64_t arm_used_bytes(const ArmRange &range) {
  sn_range arena;
  if (!range.exclusive || sn_exclusive_range(&arena) != 0) return range.nbytes;
  const uint64_t end = arena.base + arena.used_bytes;
  return end <= range.base ? 0 : std::min(range.nbytes, end - range.base);
}

uint64_t arm_open_bytes(const ArmRange &range) {
  if (!range.exclusive) return range.nbytes;
  const uint64_t end = exclusive_committed_end();
  return end <= range.base ? 0 : std::min(range.nbytes, end - range.base);
}

int arm_to_private(ArmRange &range, bool give_back, bool to_end) {
  while (range.shared_from < range.shared_to) {
    const uint64_t from = range.shared_from, end = std::min(range.shared_to, arm_open_bytes(range));
    int error = 0;
    if (from >= end) {
      error = close_rest(range);
      if (error != 0) return error;
      continue;
    }
    // data beyond: prepared in vain, or copied, but not shared as the way there failed
    const uint64_t used = to_end ? std::min(end, arm_used_bytes(range)) : end;
    const long data = arm_first_data(range, from, used);
    if (data < 0) return static_cast<int>(data);
    const bool none = static_cast<uint64_t>(data) >= used;
    const uint64_t next = none ? end : static_cast<uint64_t>(data);
    // a stretch without data needs no copy, however long it is; then one chunk. Both end with a huge page
    uint64_t to = next - (none ? 0 : next % kHugeBytes);
    if (to <= from) to = std::min(used, (from + kChunkBytes) / kHugeBytes * kHugeBytes);
    Hold held(armed.guard, range.base + from, to - from);
    error = held.accesses();
    if (error == 0 && next > from && arm_first_data(range, from, used) != data) continue;  // written to meanwhile
    if (error == 0) error = privatise(range, next, to, range.exclusive && to_end);
    if (error != 0) return error;
    if (give_back)  // only lest the copy exist twice in whole: the close frees it anyway
      sn_system(SYS_fallocate, range.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, arg(from), arg(to - from), 0, 0);
  }
  return 0;
}

int arm_unback(ArmRange &range, bool to_end) {
  if (range.view != 0) unmap(range.room, range.nbytes + kHugeBytes);
  range.view = range.huge_to = 0;  // what follows may fail, and be tried again once others have used the range
  range.huge = false;
  const int error = arm_to_private(range, true, to_end);
  if (error != 0) return error;
  shut(range.fd);
  if (range.exclusive) exclusive_set_shared(false);
  return 0;
}

int arm_register() {
  long fd = sn_system(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  uffdio_api api = {};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  long error = sn_system(SYS_ioctl, fd, UFFDIO_API, arg(&api), 0, 0, 0);
  for (int i = 0; error == 0 && i < armed.count; i++) {
    uffdio_register request = {};
    request.range.start = armed.ranges[i].base;
    request.range.len = armed.ranges[i].nbytes;
    request.mode = UFFDIO_REGISTER_MODE_WP;
    error = sn_system(SYS_ioctl, fd, UFFDIO_REGISTER, arg(&request), 0, 0, 0);
  }
  armed.uffd = out_of_the_way(static_cast<int>(fd));
  if (error != 0) shut(armed.uffd);  // closing ends what was registered
  return static_cast<int>(error);
}

bool new_memory_is_locked() {
  const long page = map(0, kArmPage, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS);
  if (page < 0) return page == -EAGAIN;  // more than may be locked
  const bool locked = advise(static_cast<uint64_t>(page), kArmPage, MADV_DONTNEED) == -EINVAL;
  unmap(static_cast<uint64_t>(page), kArmPage);
  return locked;
}

int arm_zap() {
  for (int i = 0; i < armed.count; i++) {
    const ArmRange &range = armed.ranges[i];
    const uint64_t from = range.shared_from, to = std::min(arm_used_bytes(range), range.shared_to);
    if (to <= from) continue;  // what is private already, where giving it back failed half way, would be lost
    const int error = advise(range.base + from, to - from, MADV_DONTNEED);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace sn

extern "C" int sn_arm_map(uint64_t nbytes, uint64_t *base) {
  if (nbytes == 0 || nbytes % sn::kArmPage != 0) return -EINVAL;
  std::lock_guard<std::mutex> held(lock);
  if (own_count == sn::kArmRanges) return -ENOSPC;
  // whole huge pages are aligned like the exclusive arena: what holds there is measured on them
  const uint64_t slack = nbytes % sn::kHugeBytes == 0 ? sn::kHugeBytes : 0;
  const long mapped = sn::map(0, nbytes + slack, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (mapped < 0) return static_cast<int>(mapped);
  uint64_t at = static_cast<uint64_t>(mapped);
  if (slack != 0) {
    const uint64_t aligned = (at + slack - 1) / slack * slack;
    if (aligned != at) sn::unmap(at, aligned - at);
    if (aligned != at + slack) sn::unmap(aligned + nbytes, at + slack - aligned);
    at = aligned;
  }
  sn::advise(at, nbytes, MADV_NOHUGEPAGE);
  own[own_count++] = Own{at, nbytes};
  *base = at;
  return 0;
}

extern "C" int sn_arm_unmap(uint64_t base) {
  std::lock_guard<std::mutex> held(lock);
  for (int i = 0; i < sn::armed.count; i++)
    if (sn::armed.ranges[i].base == base) return -EBUSY;
  for (int i = 0; i < own_count; i++) {
    if (own[i].base != base) continue;
    const int error = sn::unmap(base, own[i].nbytes);
    if (error == 0) own[i] = own[--own_count];
    return error;
  }
  return -EPERM;
}

extern "C" int sn_arm_guarded(void) { return sn::guard_try(); }

extern "C" int sn_arm_back(uint64_t base, uint64_t nbytes, int guarded) {
  if (nbytes == 0 || base % sn::kArmPage != 0 || nbytes % sn::kArmPage != 0) return -EINVAL;
  std::lock_guard<std::mutex> held(lock);
  sn::ArmRange range;
  if (!ours(base, nbytes, &range.exclusive)) return -EPERM;
  if (sn::armed.count == sn::kArmRanges) return -ENOSPC;
  if (sn::touch_running()) return -EBUSY;
  for (int i = 0; i < sn::armed.count; i++) {
    const sn::ArmRange &other = sn::armed.ranges[i];
    if (base < other.base + other.nbytes && other.base < base + nbytes) return -EEXIST;
  }
  if (sn::new_memory_is_locked()) return -ENOLCK;
  if (range.exclusive) sn_exclusive_release();  // free pages need no copy; only the owner can tell which they are
  int error = sn::arm_watch_forks();
  if (error == 0 && guarded != 0) error = sn::armed.guard.open();
  if (error != 0) return error;
  range.base = base;
  range.nbytes = nbytes;
  range.policy = sn::policy_of(base);
  if (range.exclusive) range.step_bytes = sn::taken_by_steps();  // before the copy adds to what is held
  sn::ArmRange &kept = sn::armed.ranges[sn::armed.count++] = range;
  error = to_shared(kept);
  if (error == 0 && kept.exclusive) sn::exclusive_set_shared(true);
  if (error != 0 && sn::arm_unback(kept, true) == 0) sn::armed.count--;  // else sn_arm_unback tries again
  if (sn::armed.count == 0) sn::armed.guard.close();
  return error;
}

extern "C" int sn_arm_unback(void) {
  std::lock_guard<std::mutex> held(lock);
  if (sn::touch_running()) return -EBUSY;
  for (; sn::armed.count != 0; sn::armed.count--) {
    sn::ArmRange &range = sn::armed.ranges[sn::armed.count - 1];
    if (range.exclusive) sn_exclusive_release();
    const int error = sn::arm_unback(range, true);
    if (error != 0) return error;
  }
  sn::armed.guard.close();
  return 0;
}

extern "C" int sn_arm_range(int index, uint64_t *base, uint64_t *nbytes) {
  std::lock_guard<std::mutex> held(lock);
  if (index < 0 || index >= sn::armed.count) return -ENOENT;
  *base = sn::armed.ranges[index].base;
  *nbytes = sn::armed.ranges[index].nbytes;
  return 0;
}
