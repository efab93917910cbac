// Found by trying, on a huge page of its own: how this kernel maps the huge pages of a memfd.
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <initializer_list>

#include "arm.h"
#include "system.h"

namespace {

constexpr uint64_t kPresent = uint64_t{1} << 63;  // of an entry of /proc/self/pagemap

// What is open or mapped during the trial; all of it goes at its end.
struct Trial {
  long fd = -1, uffd = -1, pagemap = -1, room = -1;

  ~Trial() {
    for (const long opened : {fd, uffd, pagemap})
      if (opened >= 0) sn_system(SYS_close, opened, 0, 0, 0, 0, 0);
    if (room >= 0) sn::unmap(static_cast<uint64_t>(room), 3 * sn::kHugeBytes);
  }

  // Two mappings of the same huge page, neither of them touched: the first is for collapsing alone.
  bool map(uint64_t *collapsed, uint64_t *watched) {
    fd = sn_system(SYS_memfd_create, sn::arg("sentinel"), MFD_CLOEXEC, 0, 0, 0, 0);
    if (fd < 0 || sn_system(SYS_ftruncate, fd, sn::arg(sn::kHugeBytes), 0, 0, 0, 0) != 0) return false;
    room = sn::map(0, 3 * sn::kHugeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (room < 0) return false;
    *collapsed = (static_cast<uint64_t>(room) + sn::kHugeBytes - 1) / sn::kHugeBytes * sn::kHugeBytes;
    *watched = *collapsed + sn::kHugeBytes;
    for (const uint64_t at : {*collapsed, *watched})
      if (sn::map(at, sn::kHugeBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, static_cast<int>(fd)) < 0)
        return false;
    return true;
  }

  bool watch(uint64_t at) {
    uffd = sn_system(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY, 0, 0, 0, 0, 0);
    uffdio_api api = {};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    uffdio_register request = {};
    request.range = {at, sn::kHugeBytes};
    request.mode = UFFDIO_REGISTER_MODE_WP;
    return uffd >= 0 && sn_system(SYS_ioctl, uffd, UFFDIO_API, sn::arg(&api), 0, 0, 0) == 0 &&
           sn_system(SYS_ioctl, uffd, UFFDIO_REGISTER, sn::arg(&request), 0, 0, 0) == 0;
  }

  bool mapped(uint64_t page, uint64_t *entry) {
    if (pagemap < 0)
      pagemap = sn_system(SYS_openat, AT_FDCWD, sn::arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC, 0, 0, 0);
    return pagemap >= 0 && sn_system(SYS_pread64, pagemap, sn::arg(entry), sizeof *entry,
                                     sn::arg(page * sizeof *entry), 0, 0) == sizeof *entry;
  }
};

}  // namespace

namespace sn {

bool huge_pages_fault_singly() {
  Trial trial;
  uint64_t collapsed = 0, watched = 0, touched = 0, beside = 0;
  if (!trial.map(&collapsed, &watched)) return false;
  advise(watched, kHugeBytes, MADV_NOHUGEPAGE);
  if (sn_system(SYS_fallocate, trial.fd, 0, 0, sn::arg(kArmPage), 0, 0) != 0) return false;
  if (!trial.watch(watched) || advise(collapsed, kHugeBytes, kCollapse) != 0) return false;
  (void)*reinterpret_cast<const volatile char *>(watched);
  return trial.mapped(watched / kArmPage, &touched) && trial.mapped(watched / kArmPage + 1, &beside) &&
         (touched & kPresent) != 0 && (beside & kPresent) == 0;
}

}  // namespace sn
