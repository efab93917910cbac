// System calls of the native library that go as a test orders (tests/unlucky.py): slowly, in parts, not at all, with a
// signal, or not before they are let go.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace {

enum Way : int { kAsEver = 0, kSlow, kFitful, kFail, kSignal, kHold };

constexpr int64_t kBillion = 1000000000;
constexpr size_t kPage = 4096;

std::atomic<int> way{kAsEver}, which{0};  // bits of bit_of
std::atomic<int64_t> amount{0};
std::atomic<uint64_t> as_before{0}, seen{0}, held{0}, held_at_fork{0};
std::atomic<bool> all_have_names{false};

long real(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

void nap(int64_t ns) {
  const timespec a_while = {ns / kBillion, ns % kBillion};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &a_while, nullptr);
}

int bit_of(long number, const long a[6]) {
  switch (number) {
    case SYS_preadv:
      return 1;
    case SYS_pwritev:
      return 2;
    case SYS_unlinkat:
      return 4;
    case SYS_openat:
      return (a[2] & O_CREAT) != 0 || (a[2] & O_TMPFILE) == O_TMPFILE ? 8 : 0;
    case SYS_memfd_create:
      return 16;
    default:
      return 0;
  }
}

// At least `amount` ns for each KiB.
long slow(long number, const long a[6]) {
  timespec before{}, after{};
  clock_gettime(CLOCK_MONOTONIC, &before);
  const long moved = real(number, a);
  clock_gettime(CLOCK_MONOTONIC, &after);
  const int64_t took = (after.tv_sec - before.tv_sec) * kBillion + after.tv_nsec - before.tv_nsec;
  if (const int64_t wanted = amount * (moved >> 10); moved > 0 && wanted > took) nap(wanted - took);
  return moved;
}

long fitful(long number, const long a[6], uint64_t turn) {
  if (turn % 5 == 1) return -EINTR;
  if (turn % 5 == 2) return -EAGAIN;
  const iovec whole = *reinterpret_cast<const iovec *>(a[1]);
  const size_t half = whole.iov_len / 2 / kPage * kPage, part = turn % 5 == 3 ? 3 * kPage : std::max(half, kPage);
  const iovec some = {whole.iov_base, std::min(part, whole.iov_len)};
  const long b[6] = {a[0], reinterpret_cast<long>(&some), 1, a[3], a[4], a[5]};
  const long moved = real(number, b);
  return turn % 5 == 4 && moved > 100 ? moved - 100 : moved;  // it did more than it says
}

long hold(long number, const long a[6]) {
  held++;
  while (way == kHold) nap(1000000);
  held--;
  return real(number, a);
}

void as_a_fork_begins() {
  held_at_fork = held.load();
  if (way == kHold) way = kAsEver;
}

}  // namespace

extern "C" long unlucky_call(long number, const long a[6]) {
  if (number == SYS_openat && all_have_names && (a[2] & O_TMPFILE) == O_TMPFILE) return -EOPNOTSUPP;
  if ((bit_of(number, a) & which) == 0) return real(number, a);
  const uint64_t turn = seen.fetch_add(1);
  if (turn < as_before) return real(number, a);
  switch (way.load()) {
    case kSlow:
      return slow(number, a);
    case kFitful:
      return fitful(number, a, turn);
    case kFail:
      return -static_cast<long>(amount);
    case kSignal: {
      int expected = kSignal;  // of several lanes one sends it
      if (way.compare_exchange_strong(expected, kAsEver)) kill(getpid(), static_cast<int>(amount));
      return real(number, a);
    }
    case kHold:
      return hold(number, a);
    default:
      return real(number, a);
  }
}

// From now on, but for the next `after` calls of those kinds.
extern "C" void unlucky_order(int next, int of, int64_t how_much, uint64_t after) {
  way = kAsEver;
  which = of;
  amount = how_much;
  as_before = after;
  seen = 0;
  way = next;
}

extern "C" uint64_t unlucky_seen() { return seen; }
extern "C" uint64_t unlucky_held() { return held; }
extern "C" uint64_t unlucky_held_at_fork() { return held_at_fork; }
extern "C" void unlucky_names(int wanted) { all_have_names = wanted != 0; }

// What is held goes on once a fork has begun, before the library hears of it: handlers run in reverse order.
extern "C" int unlucky_let_go_at_fork() {
  static const int watched = pthread_atfork(as_a_fork_begins, nullptr, nullptr);
  return watched;
}
