#include "away_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "frame_pool.h"
#include "system.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr long kHugetlbfs = 0x958458f6, kRamfs = 0x858458f6;
constexpr int kPatience = 1000;  // times that a call may say EAGAIN, or move nothing whole, one after the other

constexpr char kName[] = ".sentinel-away-";

std::atomic<uint64_t> names_used{0};

int call(long number, long a, long b = 0, long c = 0, long d = 0) {
  return static_cast<int>(sn_system(number, a, b, c, d, 0, 0));
}

void nap() {
  const timespec a_while = {0, 1000000};
  sn_system(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, sn::arg(&a_while), 0, 0, 0);
}

// Of processes that were killed between making a file and taking its name away. Who is alive needs no name either.
void remove_left_names(const char *directory) {
  DIR *const opened = opendir(directory);
  if (opened == nullptr) return;
  while (const dirent *const entry = readdir(opened))
    if (strncmp(entry->d_name, kName, sizeof kName - 1) == 0) unlinkat(dirfd(opened), entry->d_name, 0);
  closedir(opened);
}

// Beyond it the kernel would not only refuse, but end the program by a signal.
int within_limit(uint64_t nbytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return 0;
  return limit.rlim_cur != RLIM_INFINITY && nbytes > limit.rlim_cur ? -EFBIG : 0;
}

// What is left of a piece.
struct Rest {
  iovec parts[sn::kPieceFrames];
  uint32_t first = 0, end = 0;
  uint64_t offset;

  explicit Rest(const sn::Piece &piece) : end(piece.count), offset(piece.offset) {
    for (uint32_t i = 0; i < piece.count; i++)
      parts[i] = {reinterpret_cast<void *>(piece.addresses[i]), sn::kFrameBytes};
  }
  bool empty() const { return first == end; }
  uint64_t nbytes() const {
    uint64_t sum = 0;
    for (uint32_t i = first; i < end; i++) sum += parts[i].iov_len;
    return sum;
  }
  // Direct transfers begin at whole pages: what is beyond the last whole one is moved again.
  uint64_t advance(uint64_t moved) {
    uint64_t left = moved / kPage * kPage;
    const uint64_t done = left;
    offset += left;
    while (left != 0) {
      const uint64_t taken = std::min<uint64_t>(left, parts[first].iov_len);
      parts[first].iov_base = static_cast<char *>(parts[first].iov_base) + taken;
      parts[first].iov_len -= taken;
      left -= taken;
      if (parts[first].iov_len == 0) first++;
    }
    return done;
  }
};

}  // namespace

namespace sn {

int AwayFile::open(const char *directory, uint64_t nbytes, bool direct, uint32_t writers, const char **step) {
  *step = "asking what file system the directory is on (statfs)";
  struct statfs file_system = {};
  int error = call(SYS_statfs, arg(directory), arg(&file_system));
  if (error != 0) return error;
  const long kind = static_cast<long>(static_cast<uint32_t>(file_system.f_type));
  *step = "the directory is in memory (tmpfs, ramfs or hugetlbfs): what is away would still take memory";
  if (kind == TMPFS_MAGIC || kind == kRamfs || kind == kHugetlbfs) return -EMEDIUMTYPE;
  *step = "making a file in the directory (open)";
  const int wanted = direct ? O_DIRECT : 0;
  error = open_unnamed(directory, wanted);
  if (error == -EINVAL && direct) error = open_unnamed(directory, 0);
  if (error == -EOPNOTSUPP || error == -EISDIR || error == -EINVAL) {
    error = open_named(directory, wanted);
    if (error == -EINVAL && direct) error = open_named(directory, 0);
  }
  if (error == 0) error = reserve(nbytes, step);
  if (error == 0 && direct_) error = try_direct(step);
  if (error == 0 && !direct_) error = open_for_writers(writers, step);
  if (error != 0) close();
  return error;
}

int AwayFile::open_unnamed(const char *directory, int flags) {
  constexpr int always = O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC;  // O_EXCL: nobody can give it a name later
  const int fd = call(SYS_openat, AT_FDCWD, arg(directory), always | flags, 0600);
  if (fd < 0) return fd;
  fd_ = out_of_the_way(fd);
  direct_ = (flags & O_DIRECT) != 0;
  unnamed_ = true;
  return 0;
}

int AwayFile::open_named(const char *directory, int flags) {
  char path[4096];
  const unsigned long number = names_used.fetch_add(1);
  const int length = snprintf(path, sizeof path, "%s/%s%d-%lu", directory, kName, getpid(), number);
  if (length < 0 || length >= static_cast<int>(sizeof path)) return -ENAMETOOLONG;
  remove_left_names(directory);
  constexpr int always = O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  const int fd = call(SYS_openat, AT_FDCWD, arg(path), always | flags, 0600);
  // A file system without direct transfers refuses the opening, but only after it has made the file.
  if (fd >= 0 || fd == -EINVAL) {
    const int unlinked = call(SYS_unlinkat, AT_FDCWD, arg(path), 0);
    if (fd >= 0 && unlinked != 0 && unlinked != -ENOENT) {  // another process may have taken it away
      call(SYS_unlinkat, AT_FDCWD, arg(path), 0);
      call(SYS_close, fd);
      return unlinked;
    }
  }
  if (fd < 0) return fd;
  fd_ = out_of_the_way(fd);
  direct_ = (flags & O_DIRECT) != 0;
  unnamed_ = false;
  return 0;
}

int AwayFile::reserve(uint64_t nbytes, const char **step) {
  *step = "reserving room in the file: it is larger than the limit of this process (ulimit -f)";
  int error = within_limit(nbytes);
  if (error != 0) return error;
  *step = "reserving room in the file (fallocate)";
  do {
    error = call(SYS_fallocate, fd_, 0, 0, arg(nbytes));
  } while (error == -EINTR);
  promised_ = error == 0;
  if (error != -EOPNOTSUPP) return error;
  *step = "giving the file its length (ftruncate)";
  return call(SYS_ftruncate, fd_, arg(nbytes));
}

// Some file systems take the flag and refuse the transfer, or are too busy for it.
int AwayFile::try_direct(const char **step) {
  *step = "trying a direct transfer (pread)";
  const long page = map(0, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (page < 0) return static_cast<int>(page);
  int error = -EAGAIN;
  for (int in_vain = 0; error == -EINTR || (error == -EAGAIN && in_vain < kPatience); in_vain += error == -EAGAIN ? 1 : 0) {
    if (in_vain != 0) nap();
    error = call(SYS_pread64, fd_, page, kPage, 0);
  }
  unmap(static_cast<uint64_t>(page), kPage);
  if (error == -EINVAL || error == -EAGAIN) {
    direct_ = false;
    error = call(SYS_fcntl, fd_, F_SETFL, 0);
  }
  return std::min(error, 0);
}

int AwayFile::open_for_writers(uint32_t writers, const char **step) {
  *step = "opening the file once more for each thread that writes (/proc/self/fd)";
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd_);
  for (; writers_ < writers; writers_++) {
    const int fd = call(SYS_openat, AT_FDCWD, arg(path), O_RDWR | O_CLOEXEC);
    if (fd < 0) return fd;
    writer_fds_[writers_] = out_of_the_way(fd);
  }
  return 0;
}

int AwayFile::grow(uint64_t nbytes) {
  const bool promised = promised_;
  const char *step;
  const int error = reserve(nbytes, &step);
  promised_ = error == 0 ? promised && promised_ : promised;
  return error;
}

void AwayFile::close() {
  for (; writers_ != 0; writers_--) call(SYS_close, writer_fds_[writers_ - 1]);
  if (fd_ >= 0) call(SYS_close, fd_);
  fd_ = -1;
}

int AwayFile::transfer(const Piece &piece, bool writes, uint32_t writer) const {
  const int fd = writes && !direct_ ? writer_fds_[writer] : fd_;
  int error = transfer_once(piece, writes, fd);
  if (error == EIO && !writes) error = transfer_once(piece, writes, fd);  // what is read once more may come
  if (error == 0 && !direct_) error = leave_cache(piece, writes, fd);
  return error;
}

void AwayFile::leave_page_cache() const { call(SYS_fadvise64, fd_, 0, 0, POSIX_FADV_DONTNEED); }

int AwayFile::transfer_once(const Piece &piece, bool writes, int fd) const {
  Rest rest(piece);
  for (int in_vain = 0; !rest.empty();) {
    const long moved = sn_system(writes ? SYS_pwritev : SYS_preadv, fd, arg(rest.parts + rest.first),
                                 rest.end - rest.first, arg(rest.offset), 0, 0);
    if (moved == -EINTR) continue;
    if (moved == -EAGAIN) {
      if (++in_vain == kPatience) return EAGAIN;
      nap();
      continue;
    }
    if (moved < 0) return static_cast<int>(-moved);
    if (moved == 0 || static_cast<uint64_t>(moved) > rest.nbytes()) return EIO;  // the file has ended, or the kernel lies
    if (rest.advance(static_cast<uint64_t>(moved)) != 0) in_vain = 0;
    else if (++in_vain == kPatience) return EIO;
  }
  return 0;
}

// Without direct transfers the page cache must not keep what the frames were to free.
int AwayFile::leave_cache(const Piece &piece, bool writes, int fd) const {
  constexpr unsigned all = 7;  // SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER
  const uint64_t nbytes = piece.count * kFrameBytes;
  int error = 0;
  if (writes) {
    do {
      error = call(SYS_sync_file_range, fd, arg(piece.offset), arg(nbytes), all);
    } while (error == -EINTR);
    if (error == -ESPIPE || error == -ENOSYS || error == -EINVAL) error = call(SYS_fdatasync, fd);
  }
  call(SYS_fadvise64, fd, arg(piece.offset), arg(nbytes), POSIX_FADV_DONTNEED);
  return -error;
}

}  // namespace sn
