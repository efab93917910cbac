#include "arm_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "arm.h"
#include "uffd.h"

namespace {

int open_with_features() {
  const long fd = sn::uffd_open();
  if (fd < 0) return static_cast<int>(fd);
  uffdio_api api = {};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM;
  const long error = sn::uffd_control(static_cast<int>(fd), UFFDIO_API, &api);
  if (error == 0) return static_cast<int>(fd);
  sn_system(SYS_close, fd, 0, 0, 0, 0, 0);
  return error == -EINVAL ? -EOPNOTSUPP : static_cast<int>(error);
}

// Holds a page of private memory, then the page of a memfd that takes its place.
int try_on(uint64_t page, int fd) {
  sn::Guard guard;
  int error = guard.open();
  *reinterpret_cast<volatile char *>(page) = 1;
  if (error == 0) {
    sn::Hold held(guard, page, sn::kArmPage);
    error = held.stores();
  }
  if (error == 0) {
    const long mapped = sn::map(page, sn::kArmPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd);
    error = mapped < 0 ? static_cast<int>(mapped) : 0;
  }
  if (error == 0) {
    sn::Hold held(guard, page, sn::kArmPage);
    error = held.accesses();
  }
  guard.close();
  return error;
}

}  // namespace

namespace sn {

long uffd_open() {
  const long fd = sn_system(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK, 0, 0, 0, 0, 0);
  if (fd >= 0) return fd;
  const long device = sn_system(SYS_openat, AT_FDCWD, arg("/dev/userfaultfd"), O_RDWR | O_CLOEXEC, 0, 0, 0);
  if (device < 0) return fd;
  const long made = sn_system(SYS_ioctl, device, _IO(0xAA, 0x00), O_CLOEXEC | O_NONBLOCK, 0, 0, 0);
  sn_system(SYS_close, device, 0, 0, 0, 0, 0);
  return made;
}

int Guard::open() {
  if (fd_ >= 0) return 0;
  const int fd = open_with_features();
  if (fd < 0) return fd;
  fd_ = out_of_the_way(fd);
  open_ = true;
  return 0;
}

void Guard::close() {
  shut(fd_);
  open_ = false;
}

int Hold::register_for(uint64_t mode) {
  const int error = guard_.open();  // again, if a failure took it
  if (error != 0) return error;
  uffdio_register request = {};
  request.range = {base_, nbytes_};
  request.mode = mode;
  registered_ = true;  // also at a failure half-way
  return static_cast<int>(uffd_control(guard_.fd_, UFFDIO_REGISTER, &request));
}

// Before 6.3 the stretch must lie in one mapping of the kernel's; where it does not, its halves may.
int Hold::protect(uint64_t base, uint64_t nbytes) {
  uffdio_writeprotect request = {};
  request.range = {base, nbytes};
  request.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  long error;
  do {
    error = uffd_control(guard_.fd_, UFFDIO_WRITEPROTECT, &request);
  } while (error == -EAGAIN || error == -EINTR);
  if (error != -ENOENT || nbytes <= kArmPage) return static_cast<int>(error);
  const uint64_t half = nbytes / 2 / kArmPage * kArmPage;
  const int first = protect(base, half);
  return first != 0 ? first : protect(base + half, nbytes - half);
}

// Pages that hold nothing yet must not be filled either: the copy has left them out.
int Hold::stores() {
  if (!guard_.is_open() || nbytes_ == 0) return 0;
  const int error = register_for(UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP);
  return error != 0 ? error : protect(base_, nbytes_);
}

// What is un-mapped faults again, at a page of the file as well as at a hole in it.
int Hold::accesses() {
  if (!guard_.is_open() || nbytes_ == 0) return 0;
  const int error = register_for(UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR);
  return error != 0 ? error : advise(base_, nbytes_, MADV_DONTNEED);
}

// What was replaced meanwhile is registered no more, but its waiters are still asleep.
Hold::~Hold() {
  if (!registered_ || guard_.fd_ < 0) return;
  uffdio_range all = {base_, nbytes_};
  const long ended = uffd_control(guard_.fd_, UFFDIO_UNREGISTER, &all);
  const long woken = uffd_control(guard_.fd_, UFFDIO_WAKE, &all);
  if (ended != 0 || woken != 0) shut(guard_.fd_);  // that ends everything
}

int guard_try() {
  const long pagemap = sn_system(SYS_openat, AT_FDCWD, arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC, 0, 0, 0);
  if (pagemap < 0) return static_cast<int>(pagemap);  // a copy of what was never touched would wait for itself
  sn_system(SYS_close, pagemap, 0, 0, 0, 0, 0);
  int fd = static_cast<int>(sn_system(SYS_memfd_create, arg("sentinel"), MFD_CLOEXEC, 0, 0, 0, 0));
  if (fd < 0) return fd;
  int error = static_cast<int>(sn_system(SYS_ftruncate, fd, arg(kArmPage), 0, 0, 0, 0));
  const long page = error != 0 ? error : map(0, kArmPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (page < 0) error = static_cast<int>(page);
  if (error == 0) {
    error = try_on(static_cast<uint64_t>(page), fd);
    unmap(static_cast<uint64_t>(page), kArmPage);
  }
  shut(fd);
  return error;
}

}  // namespace sn
