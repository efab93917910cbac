#include "clock.h"

#include <time.h>

namespace {

uint64_t now_of(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

namespace sn {

std::atomic<uint64_t> sequence{0};
std::atomic<int32_t> layer{-1};

uint64_t computed_ns() { return now_of(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace sn

extern "C" uint64_t sn_next_seq(void) { return sn::sequence.fetch_add(1, std::memory_order_relaxed) + 1; }

extern "C" int32_t sn_current_layer(void) { return sn::layer.load(std::memory_order_relaxed); }

extern "C" uint64_t sn_now_ns(void) { return now_of(CLOCK_MONOTONIC); }
