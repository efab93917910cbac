// What the host allows, and what the process takes beside its frames: a store into what is clean or away makes a page of
// the granule's own, which no frame gives.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "clock.h"
#include "frames.h"
#include "system.h"
#include "taken.h"

namespace {

constexpr int kPage = 4096;
constexpr uint64_t kUsualMappings = 65530;  // the kernel's own choice
constexpr uint64_t kFaultNs = 20000;        // a fault that reads has waited for several times as long
constexpr int kPageOut = 21;                // MADV_PAGEOUT, from Linux 5.4 on; before, it is refused

uint64_t most_mappings() {
  char text[32];
  const long got = sn::read_small("/proc/sys/vm/max_map_count", text, sizeof text);
  return got > 0 ? strtoull(text, nullptr, 10) : kUsualMappings;
}

// Negative: not known. The file stays open: it is read at each need.
int64_t anonymous_pages(int statm) {
  char text[128];
  long got;
  do {
    got = sn_system(SYS_pread64, statm, sn::arg(text), sizeof text - 1, 0, 0, 0);
  } while (got == -EINTR);
  if (got <= 0) return -1;
  text[got] = 0;
  return sn::resident_pages(text).anonymous();
}

}  // namespace

namespace sn {

int check_host(uint32_t granules, const char **step) {
  *step = "frames need a kernel with pages of 4 KiB; this one has others";
  if (getpagesize() != kPage) return -EOPNOTSUPP;
  *step = "mapping so many granules: each may be a mapping, and the kernel allows a process fewer (vm.max_map_count)";
  const uint64_t most = most_mappings();
  return granules > most - most / 8 ? -E2BIG : 0;  // the rest of the process has mappings too
}

int open_statm(sn_frames &f) {
  f.statm = static_cast<int>(sn_system(SYS_openat, AT_FDCWD, arg("/proc/self/statm"), O_RDONLY | O_CLOEXEC, 0, 0, 0));
  if (f.statm >= 0) f.statm = out_of_the_way(f.statm);
  f.anonymous = f.statm < 0 ? 0 : anonymous_pages(f.statm);
  return std::min(f.statm, 0);
}

uint64_t own_pages_allowed(const sn_frames &f) {
  return uint64_t{std::max(1u, f.pool.count() / 128)} * kPagesPerGranule;
}

bool own_pages_may_have_grown(sn_frames &f) {
  const int64_t now = anonymous_pages(f.statm);
  if (now >= 0 && now - f.anonymous <= static_cast<int64_t>(own_pages_allowed(f))) {
    f.anonymous = std::min(f.anonymous, now);
    return false;
  }
  return sn_now_ns() >= f.look_after_ns;
}

void leave_page_cache(sn_frames &f) {
  rusage spent{};
  getrusage(RUSAGE_SELF, &spent);
  struct sysinfo host {};
  // What is mapped stays in the page cache. Where the host swaps, pages of the process's own would go with it.
  const bool swaps = sysinfo(&host) != 0 || host.totalswap != 0;
  const int64_t faults = std::exchange(f.major_faults, spent.ru_majflt);
  const auto read = static_cast<uint64_t>(spent.ru_majflt - faults);
  if (read != 0) f.pages_out = 2;  // and once more: what somebody holds at the moment stays
  if (!swaps && f.pages_out != 0 && sn_now_ns() >= f.page_out_after_ns) {
    const uint64_t began = computed_ns();
    f.pages_out--;
    // Pages that a processor has not put on the kernel's lists yet would stay. They are mapped, so this drops none of
    // them; but since it fails, the kernel lists what each processor holds back, and the next call finds them.
    if (f.file.direct()) f.file.leave_page_cache();
    for (uint32_t i = 0, end = 0; i < f.count; i = end + 1) {
      for (end = i; end < f.count && f.granules[end].view == View::kFile;) end++;
      if (end == i || advise(f.address(i), (end - i) * kFrameBytes, kPageOut) != 0) continue;
      for (uint32_t left = i; left < end; left++) f.granules[left].touched = false;
    }
    f.page_out_after_ns = pause_after(computed_ns() - began, kPauseFound, std::max(kShortLookNs, read * kFaultNs));
  }
  if (f.file.direct()) f.file.leave_page_cache();  // else each piece has, and what is being written would be waited for
}

std::vector<Owner> find_owners(sn_frames &f) {
  const uint64_t began = computed_ns();
  const int64_t now = anonymous_pages(f.statm);
  std::vector<Owner> owners;
  bool own[kPagesPerGranule];
  for (uint32_t i = 0; i < f.count; i++) {
    const View view = f.granules[i].view;
    if (view != View::kPrivate && view != View::kFile) continue;
    const int found = own_pages(f.pagemap, f.address(i), own);
    if (found > 0) owners.push_back({i, static_cast<uint32_t>(found)});
  }
  f.anonymous = now;  // not before: a look that found no memory for its list comes again
  f.own_pages = 0;
  for (const Owner &owner : owners) f.own_pages += owner.pages;
  f.most_own_pages = std::max(f.most_own_pages, f.own_pages);
  const uint64_t took = computed_ns() - began;
  f.look_after_ns = f.own_pages <= own_pages_allowed(f) ? pause_after(took, kPauseInVain) : 0;
  std::stable_sort(owners.begin(), owners.end(), [](const Owner &a, const Owner &b) { return a.pages > b.pages; });
  return owners;
}

}  // namespace sn
