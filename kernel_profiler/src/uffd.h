// Opening and driving userfaultfd.
#pragma once

#include "system.h"

namespace sn {

// One that sees faults inside system calls too, without which a read() into a watched page fails with EFAULT. -errno
// where that is refused: without rights, unless vm.unprivileged_userfaultfd or /dev/userfaultfd allows it.
long uffd_open();

inline long uffd_control(int fd, unsigned long request, void *argument) {
  return sn_system(SYS_ioctl, fd, static_cast<long>(request), arg(argument), 0, 0, 0);
}

}  // namespace sn
