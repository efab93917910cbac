// System calls by name, all through sn_system so that a test can fail the n-th.
#pragma once

#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "sentinel.h"

namespace sn {

inline long arg(const void *p) { return static_cast<long>(reinterpret_cast<uintptr_t>(p)); }
inline long arg(uint64_t value) { return static_cast<long>(value); }

// The address, or a negative errno (addresses of user space are positive).
inline long map(uint64_t address, uint64_t nbytes, int protection, int flags, int fd = -1, uint64_t offset = 0) {
  return sn_system(SYS_mmap, arg(address), arg(nbytes), protection, flags, fd, arg(offset));
}
inline int unmap(uint64_t address, uint64_t nbytes) {
  return static_cast<int>(sn_system(SYS_munmap, arg(address), arg(nbytes), 0, 0, 0, 0));
}
inline int protect(uint64_t address, uint64_t nbytes, int protection) {
  return static_cast<int>(sn_system(SYS_mprotect, arg(address), arg(nbytes), protection, 0, 0, 0));
}
inline int advise(uint64_t address, uint64_t nbytes, int advice) {
  return static_cast<int>(sn_system(SYS_madvise, arg(address), arg(nbytes), advice, 0, 0, 0));
}

// It is closed, if it was open.
inline void shut(int &fd) {
  if (fd >= 0) sn_system(SYS_close, fd, 0, 0, 0, 0, 0);
  fd = -1;
}

// `fd` at a high number, if the limit on open files leaves one: a program that closes what it does not know, as by
// os.closerange(3, 256), would close it at a low one, and the next file that it opens would be written in its place.
int out_of_the_way(int fd);

}  // namespace sn
