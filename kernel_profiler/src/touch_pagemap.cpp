// Which pages are mapped, from the page tables: every touched one, whoever touched it, but not how.
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "system.h"
#include "touch.h"

namespace {

// From linux/fs.h of 6.7, which build hosts may not have yet.
struct PageRegion {
  uint64_t start, end, categories;
};
struct ScanArguments {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kScan = _IOWR('f', 16, ScanArguments);
constexpr uint64_t kPresent = 1 << 3;
constexpr uint64_t kRegions = 512;

int pagemap = -1;
bool can_scan = false;
PageRegion regions[kRegions];
uint64_t entries[512];

void touch(uint64_t from, uint64_t to) {
  for (uint64_t address = from; address < to; address += sn::kArmPage) {
    sn::TouchCell *cell = sn::touched.find(address);
    if (cell != nullptr) {
      cell->note(false);
    } else {
      sn::touch_lost++;
    }
  }
}

int scan(uint64_t from, uint64_t to) {
  while (from < to) {
    ScanArguments request = {};
    request.size = sizeof request;
    request.start = from;
    request.end = to;
    request.vec = reinterpret_cast<uintptr_t>(regions);
    request.vec_len = kRegions;
    request.category_mask = request.return_mask = kPresent;
    const long found = sn_system(SYS_ioctl, pagemap, static_cast<long>(kScan), sn::arg(&request), 0, 0, 0);
    if (found < 0) return static_cast<int>(found);
    for (long i = 0; i < found; i++) touch(regions[i].start, regions[i].end);
    if (request.walk_end <= from) return -EIO;
    from = request.walk_end;
  }
  return 0;
}

int read_entries(uint64_t from, uint64_t to) {
  while (from < to) {
    const uint64_t count = std::min<uint64_t>(512, (to - from) / sn::kArmPage);
    const long got = sn_system(SYS_pread64, pagemap, sn::arg(entries), sn::arg(count * 8),
                               sn::arg(from / sn::kArmPage * 8), 0, 0);
    if (got < 0) return static_cast<int>(got);
    if (got < 8) return -EIO;
    const uint64_t pages = static_cast<uint64_t>(got) / 8;
    for (uint64_t i = 0; i < pages; i++)
      if ((entries[i] >> 63) != 0) touch(from + i * sn::kArmPage, from + (i + 1) * sn::kArmPage);
    from += pages * sn::kArmPage;
  }
  return 0;
}

int start() {
  const long fd = sn_system(SYS_openat, AT_FDCWD, sn::arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  pagemap = sn::out_of_the_way(static_cast<int>(fd));
  can_scan = scan(sn::armed.ranges[0].base, sn::armed.ranges[0].base + sn::kArmPage) == 0;
  sn::arm_register();
  return 0;
}

int look(uint64_t address, uint64_t nbytes) {
  return can_scan ? scan(address, address + nbytes) : read_entries(address, address + nbytes);
}

int collect() {
  for (int i = 0; i < sn::armed.count; i++) {
    const sn::ArmRange &range = sn::armed.ranges[i];
    const uint64_t end = range.base + sn::arm_used_bytes(range);
    const int error = look(range.base, end - range.base);
    if (error != 0) return error;
  }
  return 0;
}

void nothing() {}

void stop() {
  sn::shut(pagemap);
}

}  // namespace

namespace sn {
const TouchReader pagemap_reader = {start, collect, look, stop, nothing, nothing, stop};
}
