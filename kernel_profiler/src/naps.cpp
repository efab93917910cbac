#include "naps.h"

#include <errno.h>

#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kSpinNs = 80000;  // a sleeping thread wakes up to this late

}  // namespace

namespace sn {

int sleep_to(uint64_t deadline_ns) {
  const timespec deadline = spec_of(deadline_ns);
  return static_cast<int>(
      sn_system(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, arg(&deadline), 0, 0, 0));
}

}  // namespace sn

extern "C" int sn_sleep_until(uint64_t deadline_ns) {
  uint64_t now = sn_now_ns();
  if (deadline_ns > now + kSpinNs) {
    const int error = sn::sleep_to(deadline_ns - kSpinNs);
    if (error != 0) return error;
  }
  while (sn_now_ns() < deadline_ns) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return 0;
}

extern "C" int sn_nap_until(uint64_t deadline_ns) {
  while (sn_now_ns() < deadline_ns) {
    const int error = sn::sleep_to(deadline_ns);
    if (error != 0 && error != -EINTR) return error;
  }
  return 0;
}
