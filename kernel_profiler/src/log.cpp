#include "log.h"

#include <errno.h>

#include <algorithm>
#include <atomic>

#include "clock.h"
#include "system.h"

namespace {

// 16 Mi events (a step has thousands) of address space; pages arrive as they are written, none is copied.
constexpr uint64_t kCapacity = uint64_t{1} << 24;
constexpr uint64_t kWarmBytes = uint64_t{1} << 20;  // faulted in ahead of the recorded step

std::atomic<sn_event *> events{nullptr};
std::atomic<uint64_t> next{0};

uint64_t held() { return std::min(next.load(std::memory_order_acquire), kCapacity); }

}  // namespace

namespace sn {

int log_open() {
  if (events.load() == nullptr) {
    const long base = map(0, kCapacity * sizeof(sn_event), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (base < 0) return static_cast<int>(base);
    sn_event *first = reinterpret_cast<sn_event *>(base);
    for (uint64_t i = 0; i < kWarmBytes / sizeof(sn_event); i += 4096 / sizeof(sn_event)) first[i].kind = 0;
    events.store(first);
  }
  return 0;
}

void log_clear() {
  const uint64_t used = held();
  for (uint64_t i = 0; i < used; i++) __atomic_store_n(&events.load()[i].seq, 0, __ATOMIC_RELAXED);
  next.store(0, std::memory_order_release);
}

void log_release() {
  const uint64_t used = held() * sizeof(sn_event);
  log_clear();
  if (used <= kWarmBytes) return;
  // Where it fails, the pages stay until they are used again.
  advise(reinterpret_cast<uintptr_t>(events.load()) + kWarmBytes, used - kWarmBytes, MADV_DONTNEED);
}

void log_append(uint8_t kind, const void *address, uint64_t nbytes, int32_t ordinal, uint32_t flags) {
  const uint64_t seq = sn_next_seq();
  const uint64_t index = next.fetch_add(1, std::memory_order_relaxed);
  if (index >= kCapacity) return;
  sn_event &event = events.load(std::memory_order_relaxed)[index];
  event.address = reinterpret_cast<uintptr_t>(address);
  event.nbytes = nbytes;
  event.time_ns = sn_now_ns();
  event.layer = sn_current_layer();
  event.ordinal = ordinal;
  event.flags = flags;
  event.kind = kind;
  __atomic_store_n(&event.seq, seq, __ATOMIC_RELEASE);  // last: from now on it is there
}

}  // namespace sn

extern "C" uint64_t sn_log_count(void) { return held(); }

extern "C" uint64_t sn_log_lost(void) {
  const uint64_t all = next.load(std::memory_order_acquire);
  return all > kCapacity ? all - kCapacity : 0;
}

extern "C" uint64_t sn_log_copy(uint64_t first, uint64_t count, sn_event *out) {
  const uint64_t end = held();
  if (first >= end) return 0;
  const uint64_t taken = std::min(count, end - first);
  const sn_event *from = events.load() + first;
  for (uint64_t i = 0; i < taken; i++)  // what another thread has not written to its end yet has no seq
    out[i] = __atomic_load_n(&from[i].seq, __ATOMIC_ACQUIRE) == 0 ? sn_event{} : from[i];
  return taken;
}
