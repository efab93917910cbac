// Memory for the pages that the program is going to touch while it is watched, in huge pages: these un-map ten times
// faster, and need no allocation when they are first touched.
#include <stdio.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <atomic>

#include "arm.h"
#include "parts.h"
#include "system.h"
#include "taken.h"

namespace {

constexpr uint64_t kAheadBytes = uint64_t{256} << 20;  // beyond what is used, renewed when half is left
constexpr uint64_t kPartBytes = uint64_t{16} << 20;    // one thread's: each collapse first asks something of all CPUs

std::atomic<uint64_t> room{UINT64_MAX};  // what the memory cgroup leaves, by the last that was told, less what was prepared

uint64_t host_free_bytes() {
  struct sysinfo memory = {};
  if (sn_system(SYS_sysinfo, sn::arg(&memory), 0, 0, 0, 0, 0) != 0) return 0;
  return static_cast<uint64_t>(memory.freeram) * memory.mem_unit;
}

// UINT64_MAX where the kernel does not tell.
uint64_t node_free_bytes(unsigned node) {
  char path[64], text[64];
  snprintf(path, sizeof path, "/sys/devices/system/node/node%u/vmstat", node);
  const int64_t pages = sn::read_small(path, text, sizeof text) > 0 ? sn::number_after(text, "nr_free_pages ") : -1;
  return pages < 0 ? UINT64_MAX : static_cast<uint64_t>(pages) * sn::kArmPage;
}

// Where memory is to come from, of the nodes that the policy names: the others have room for other things.
uint64_t free_bytes(const sn::MemoryPolicy &policy) {
  constexpr unsigned kBits = 8 * sizeof policy.nodes[0];
  const uint64_t all = host_free_bytes();
  uint64_t named = 0;
  bool any = false;
  for (unsigned node = 0; node < sn::kPolicyNodes && named < all; node++) {
    if ((policy.nodes[node / kBits] >> node % kBits & 1) == 0) continue;
    any = true;
    const uint64_t free = node_free_bytes(node);
    named = free < all - named ? named + free : all;
  }
  return any ? named : all;
}

// The most that is allocated ahead: a quarter of free memory, so that pages that nobody will use do no harm.
uint64_t spare_bytes(const sn::ArmRange &range) { return std::min(free_bytes(range.policy), room.load()) / 4; }

void take_room(uint64_t nbytes) {
  const uint64_t left = room.load();
  if (left != UINT64_MAX) room.store(left - std::min(left, nbytes));
}

}  // namespace

namespace sn {

uint64_t taken_by_steps() {
  struct rusage usage = {};
  if (sn_system(SYS_getrusage, RUSAGE_SELF, arg(&usage), 0, 0, 0, 0) != 0) return 0;
  char text[128];
  if (read_small("/proc/self/statm", text, sizeof text) <= 0) return 0;
  const uint64_t most = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  const uint64_t now = static_cast<uint64_t>(resident_pages(text).all) * kArmPage;
  return now != 0 && most > now ? most - now : 0;
}

// A block needs one page before it can become huge; where the host refuses, small pages do as well.
void arm_make_huge(ArmRange &range, uint64_t to) {
  const uint64_t from = range.huge_to;
  if (!range.huge || to <= from) return;
  to = std::min({range.nbytes, to, from + spare_bytes(range)}) / kHugeBytes * kHugeBytes;
  if (to <= from) return;
  take_room(to - from);
  in_parts(from, to, kPartBytes, [&](uint64_t begin, uint64_t end) {
    for (uint64_t block = begin; block < end; block += kHugeBytes)
      sn_system(SYS_fallocate, range.fd, 0, arg(block), kArmPage, 0, 0);
    advise(range.view + begin, end - begin, kCollapse);
    return 0;
  });
  arm_hide_view(range, from, to);
  range.huge_to = to;
}

void arm_prepare(bool first) {
  for (int i = 0; i < armed.count; i++) {
    ArmRange &range = armed.ranges[i];
    const uint64_t used = arm_used_bytes(range);
    const uint64_t spare = spare_bytes(range), step = first ? std::min(range.step_bytes, spare / 8 * 7) : 0;
    const uint64_t ahead = std::min(kAheadBytes + step, spare);
    if (first || used + ahead / 2 > range.huge_to) arm_make_huge(range, used + ahead);
  }
}

}  // namespace sn

extern "C" void sn_arm_room(uint64_t nbytes) { room.store(nbytes); }
