#include "system.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace {

long real_call(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

std::atomic<sn_system_call> current{real_call};
std::atomic<uint64_t> countdown{0};  // calls until the ordered failure; 0: none ordered
std::atomic<long> failing_number{-1};
std::atomic<int> failing_error{0};

bool fails_now(long number) {
  const long wanted = failing_number.load(std::memory_order_relaxed);
  if (wanted != -1 && wanted != number) return false;
  uint64_t left = countdown.load(std::memory_order_relaxed);
  while (left != 0)
    if (countdown.compare_exchange_weak(left, left - 1)) return left == 1;
  return false;
}

}  // namespace

namespace sn {

// Not by sn_system: nothing is lost where it fails.
int out_of_the_way(int fd) {
  constexpr rlim_t kHighest = 3072;  // a fork copies the table of descriptors up to the last one
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, static_cast<int>(std::min(limit.rlim_cur / 4 * 3, kHighest)));
  if (moved < 0) return fd;
  ::close(fd);
  return moved;
}

}  // namespace sn

extern "C" int sn_abi_version(void) { return SN_ABI_VERSION; }

extern "C" long sn_system(long number, long a, long b, long c, long d, long e, long f) {
  if (countdown.load(std::memory_order_relaxed) != 0 && fails_now(number)) return -failing_error.load();
  const long arguments[6] = {a, b, c, d, e, f};
  return current.load(std::memory_order_acquire)(number, arguments);
}

extern "C" void sn_system_replace(sn_system_call call) {
  current.store(call != nullptr ? call : real_call, std::memory_order_release);
}

extern "C" uint64_t sn_system_fail(long number, uint64_t nth, int error) {
  const uint64_t left = countdown.exchange(0);
  failing_number.store(number);
  failing_error.store(error);
  countdown.store(nth);
  return left;
}
