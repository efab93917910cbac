// Sleeping to a point in time, by CLOCK_MONOTONIC, through sn_system.
#pragma once

#include <stdint.h>
#include <time.h>

namespace sn {

inline timespec spec_of(uint64_t ns) {
  constexpr uint64_t second = 1000000000;
  return {static_cast<time_t>(ns / second), static_cast<long>(ns % second)};
}

int sleep_to(uint64_t deadline_ns);  // 0, or -EINTR or another negative errno

}  // namespace sn
