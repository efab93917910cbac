#include "exclusive_huge.h"

#include <algorithm>

#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kMostStretches = 8192;

enum : uint8_t { kSmall = 0, kWithin, kAdvised };  // in no tensor as a whole; in one; and allowed to be a huge page

struct Chunks {
  uint64_t base = 0, count = 0;
  uint8_t *states = nullptr;  // of each 2 MiB; written by the owner, read by anyone
  uint64_t stretches = 0;     // that were advised, and are live, about
} chunks;

bool allowed = true;

uint8_t state_of(uint64_t chunk) { return __atomic_load_n(&chunks.states[chunk], __ATOMIC_RELAXED); }

void set(uint64_t first, uint64_t end, uint8_t state) {
  for (uint64_t chunk = first; chunk < end; chunk++) __atomic_store_n(&chunks.states[chunk], state, __ATOMIC_RELAXED);
}

uint64_t address_of(uint64_t chunk) { return chunks.base + chunk * sn::kHugePageBytes; }

uint64_t first_from(uint64_t address) { return (address - chunks.base + sn::kHugePageBytes - 1) / sn::kHugePageBytes; }

uint64_t end_before(uint64_t end) { return (end - chunks.base) / sn::kHugePageBytes; }

}  // namespace

namespace sn {

int huge_create(uint64_t base, uint64_t nbytes) {
  const uint64_t count = nbytes / kHugePageBytes;
  const long states = map(0, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (states < 0) return static_cast<int>(states);
  chunks = Chunks{base, count, reinterpret_cast<uint8_t *>(states), 0};
  return 0;
}

void huge_destroy() {
  if (chunks.states != nullptr) unmap(reinterpret_cast<uintptr_t>(chunks.states), chunks.count);
  chunks = Chunks{};
}

void huge_born(uint64_t address, uint64_t nbytes, bool advise) {
  const uint64_t first = first_from(address), end = end_before(address + nbytes);
  if (first >= end) return;
  if (allowed) set(first, end, kWithin);
  if (allowed && advise) huge_advise(address_of(first), (end - first) * kHugePageBytes, address_of(first));
}

void huge_died(uint64_t address, uint64_t nbytes, bool unshared) {
  const uint64_t first = first_from(address), end = end_before(address + nbytes);
  if (first >= end) return;
  bool advised = false;
  for (uint64_t chunk = first; chunk < end; chunk++) advised |= state_of(chunk) == kAdvised;
  set(first, end, kSmall);
  if (!advised) return;
  if (chunks.stretches != 0) chunks.stretches--;
  if (!unshared) return;
  advise(address_of(first), (end - first) * kHugePageBytes, MADV_DONTNEED);
  advise(address_of(first), (end - first) * kHugePageBytes, MADV_NOHUGEPAGE);
}

uint64_t huge_stretch(uint64_t address, uint64_t end, uint64_t *stop) {
  *stop = end;
  if (chunks.states == nullptr || address - chunks.base >= chunks.count * kHugePageBytes) return end;
  const uint64_t last = end_before(end);
  uint64_t first = first_from(address);
  while (first < last && state_of(first) == kSmall) first++;
  if (first >= last) return end;
  uint64_t after = first;
  while (after < last && state_of(after) != kSmall) after++;
  *stop = address_of(after);
  return address_of(first);
}

// One that was advised before it was watched counts already.
void huge_advise(uint64_t at, uint64_t nbytes, uint64_t address) {
  const uint64_t first = first_from(address), more = state_of(first) == kAdvised ? 0 : 1;
  if (chunks.stretches + more > kMostStretches || advise(at, nbytes, MADV_HUGEPAGE) != 0) return;
  chunks.stretches += more;
  set(first, end_before(address + nbytes), kAdvised);
}

}  // namespace sn

extern "C" void sn_exclusive_huge(int may) { allowed = may != 0; }

extern "C" void sn_exclusive_small(uint64_t count, const uint64_t *addresses) {
  for (uint64_t i = 0; i < count; i++)
    if (const uint64_t chunk = (addresses[i] - chunks.base) / sn::kHugePageBytes; chunk < chunks.count)
      set(chunk, chunk + 1, kSmall);
}
