// Who is needed last, against a look at all.
#include <random>

#include "../src/last_needed.h"
#include "memory_check.h"

namespace {

using sn::LastNeeded;

constexpr uint32_t kGranules = 50;
constexpr uint64_t kNobody = UINT64_MAX - 1;

void each_comes_as_last_said() {
  std::mt19937 random(3);
  LastNeeded last(kGranules);
  std::vector<uint64_t> said(kGranules, kNobody);
  for (uint32_t i = 1; i < 20000; i++) {
    const uint32_t granule = random() % kGranules;
    said[granule] = random() % 20 == 0 ? UINT64_MAX : i + random() % 200;
    last.put(granule, said[granule]);
    CHECK(last.size() <= last.most());
    if (i % 7 != 0) continue;
    uint64_t before = UINT64_MAX;
    uint32_t visits = 0;
    const uint32_t most = 1 + random() % (2 * kGranules);
    std::vector<uint64_t> seen(kGranules, kNobody);
    last.each([&](uint32_t each, uint64_t next) {
      CHECK(said[each] == next && next <= before && seen[each] == kNobody);
      seen[each] = before = next;
      const bool goes = random() % 16 == 0;
      if (goes) said[each] = kNobody;
      return ++visits == most ? LastNeeded::kEnough : goes ? LastNeeded::kGoes : LastNeeded::kStays;
    });
    for (uint32_t each = 0; each < kGranules; each++) {
      if (seen[each] != kNobody) {
        if (said[each] == kNobody) last.put(each, said[each] = seen[each]);  // enough, or gone: it is there again
        continue;
      }
      CHECK(said[each] == kNobody || (visits == most && said[each] <= before));  // all others are needed sooner
    }
  }
}

// Of 50,000 as few are looked at as there are to leave, however often all of them are used.
void few_are_looked_at() {
  constexpr uint32_t kMany = 50000;
  LastNeeded last(kMany);
  for (uint64_t step = 0; step < 5; step++)
    for (uint32_t i = 0; i < kMany; i++) last.put(i, (step + 1) * kMany + i);
  CHECK(last.size() <= last.most());
  uint32_t visits = 0;
  last.each([&](uint32_t granule, uint64_t) {
    CHECK(granule == kMany - 1 - visits);
    return ++visits == 16 ? LastNeeded::kEnough : LastNeeded::kStays;
  });
  CHECK(visits == 16);
}

}  // namespace

int main() {
  each_comes_as_last_said();
  few_are_looked_at();
}
