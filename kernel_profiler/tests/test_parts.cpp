// Work that is cut into parts is done whole, however many of the threads that should help can be made.

#include <dlfcn.h>
#include <errno.h>

#include <atomic>
#include <vector>

#include "../src/parts.cpp"
#include "memory_check.h"

namespace {

std::atomic<int> may_make{0};  // threads until the first that cannot be made
std::atomic<int> made{0}, refused{0};

}  // namespace

extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*work)(void *), void *of) {
  using Create = int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  static const Create real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (made.load() == may_make.load()) {
    refused++;
    return EAGAIN;
  }
  made++;
  return real(thread, how, work, of);
}

namespace {

constexpr uint64_t kBegin = 100, kEnd = 10007, kPart = 64;

void all_is_done_once(int threads) {
  may_make = threads;
  made = refused = 0;
  std::vector<std::atomic<int>> done(kEnd);
  const auto part = [&](uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++) done[i]++;
    return 0;
  };
  CHECK(sn::in_parts(kBegin, kEnd, kPart, part) == 0);
  for (uint64_t i = 0; i < kEnd; i++) CHECK(done[i] == (i >= kBegin));
  CHECK(made <= threads && refused <= 1);  // after the first refusal it asks no more
  if (threads == 0 && processors() > 1) CHECK(refused == 1);
}

void a_part_that_fails_is_told(int threads) {
  may_make = threads;
  made = 0;
  const auto part = [&](uint64_t from, uint64_t) { return from < kEnd / 2 ? 0 : -EIO; };
  CHECK(sn::in_parts(kBegin, kEnd, kPart, part) == -EIO);
}

void signals_are_as_before_a_refusal() {
  may_make = made = 0;
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  CHECK(sn::in_parts(kBegin, kEnd, kPart, [](uint64_t, uint64_t) { return 0; }) == 0);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; signal++) CHECK(sigismember(&before, signal) == sigismember(&after, signal));
}

}  // namespace

int main() {
  signals_are_as_before_a_refusal();  // first: what an earlier call left would be what was before
  for (int threads = 0; threads < sn::kMostThreads; threads++) {
    all_is_done_once(threads);
    a_part_that_fails_is_told(threads);
  }
  return 0;
}
