#include "granule.h"

#include <errno.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "exclusive.h"
#include "guarded.h"
#include "immortal.h"
#include "lock.h"
#include "system.h"

namespace {

enum : uint8_t { kPages = 0, kGranule, kGranuleUntilMark };

using States = std::vector<uint8_t>[sn::kArmRanges];
sn::Immortal<States> kept_states;
States &states = kept_states.value;  // one a granule of each range; empty: none is wanted
uint64_t wanted = 0;
std::atomic<bool> running{false};

// The granules that lie wholly in [address, address + nbytes): [first, end) of range `index`, -1 for none.
int granules_of(uint64_t address, uint64_t nbytes, uint64_t *first, uint64_t *end) {
  for (int i = 0; i < sn::armed.count; i++) {
    const sn::ArmRange &range = sn::armed.ranges[i];
    if (address - range.base >= range.nbytes || states[i].empty()) continue;
    // huge pages lie at multiples of their length in the file, and so at the same ones in memory
    *first = (address - range.base + sn::kHugeBytes - 1) / sn::kHugeBytes;
    *end = std::min<uint64_t>((address + nbytes - range.base) / sn::kHugeBytes, states[i].size());
    return *end > *first ? i : -1;
  }
  return -1;
}

void born(uint64_t address, uint64_t nbytes) {
  uint64_t first = 0, end = 0;
  const int index = nbytes < wanted ? -1 : granules_of(address, nbytes, &first, &end);
  if (index < 0) return;
  const uint64_t at = sn::armed.ranges[index].base + first * sn::kHugeBytes;
  // Page tables that small tenants left here may stay before 6.14: then its pages go on faulting one by one.
  if (sn::advise(at, (end - first) * sn::kHugeBytes, MADV_HUGEPAGE) != 0) return;
  std::fill(states[index].begin() + static_cast<std::ptrdiff_t>(first),
            states[index].begin() + static_cast<std::ptrdiff_t>(end), uint8_t{kGranule});
}

}  // namespace

namespace sn {

void granules_want(uint64_t tensor_bytes) { wanted = tensor_bytes; }

int granules_start() {
  if (wanted == 0) return 0;
  const int error = guarded([] {
    for (int i = 0; i < armed.count; i++) {
      const ArmRange &range = armed.ranges[i];
      if (range.base % kHugeBytes != 0 || range.nbytes < wanted) continue;
      states[i].assign(range.nbytes / kHugeBytes, kPages);
    }
    return 0;
  });
  if (error != 0) {
    granules_stop();
    return error;
  }
  running = true;
  for (int i = 0; i < armed.count; i++)
    if (armed.ranges[i].exclusive)
      exclusive_each(born);
    else
      born(armed.ranges[i].base, armed.ranges[i].nbytes);
  return 0;
}

void granules_stop() {
  for (int i = 0; i < kArmRanges; i++) {
    if (running && i < armed.count && !states[i].empty())
      advise(armed.ranges[i].base, armed.ranges[i].nbytes, MADV_NOHUGEPAGE);
    std::vector<uint8_t>().swap(states[i]);
  }
  running = false;
  wanted = 0;
}

void granules_born(uint64_t address, uint64_t nbytes) {
  if (!running) return;
  Lock held(&watching);
  if (running) born(address, nbytes);
}

// What is mapped stays so until the layer ends, and is told as a granule until then; afterwards pages fault one by one.
void granules_died(uint64_t address, uint64_t nbytes) {
  if (!running) return;
  Lock held(&watching);
  uint64_t first = 0, end = 0;
  const int index = !running || nbytes < wanted ? -1 : granules_of(address, nbytes, &first, &end);
  if (index < 0) return;
  const uint64_t at = armed.ranges[index].base + first * kHugeBytes;
  advise(at, (end - first) * kHugeBytes, MADV_NOHUGEPAGE);
  for (uint64_t i = first; i < end; i++)
    if (states[index][i] == kGranule) states[index][i] = kGranuleUntilMark;
}

bool in_granule(int range, uint64_t page) {
  const uint64_t granule = page / kGranulePages;
  return granule < states[range].size() && states[range][granule] != kPages;
}

bool granule_within(uint64_t address, uint64_t nbytes) {
  for (int i = 0; running && i < armed.count; i++) {
    if (address - armed.ranges[i].base >= armed.ranges[i].nbytes) continue;
    const uint64_t first = (address - armed.ranges[i].base) / kArmPage, last = first + nbytes / kArmPage - 1;
    for (uint64_t granule = first / kGranulePages; granule <= last / kGranulePages; granule++)
      if (in_granule(i, granule * kGranulePages)) return true;
  }
  return false;
}

void granules_marked() {
  for (int i = 0; running && i < armed.count; i++) {
    if (states[i].empty()) continue;
    const auto used = std::min<uint64_t>(states[i].size(), arm_used_bytes(armed.ranges[i]) / kHugeBytes + 1);
    std::replace(states[i].begin(), states[i].begin() + static_cast<std::ptrdiff_t>(used),
                 uint8_t{kGranuleUntilMark}, uint8_t{kPages});
  }
}

}  // namespace sn
