#include "parts.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>

namespace {

constexpr size_t kStackBytes = size_t{1} << 20;

std::atomic<bool> alone{false};

struct Work {
  uint64_t end, part_bytes;
  int (*part)(const void *job, uint64_t from, uint64_t to);
  const void *job;
  std::atomic<uint64_t> next;  // where the first part begins that nobody has taken
  std::atomic<int> error{0};

  void go_on() {
    uint64_t from = next.load();
    while (from < end && error.load() == 0) {
      const uint64_t to = std::min(end, (from / part_bytes + 1) * part_bytes);
      if (!next.compare_exchange_weak(from, to)) continue;
      if (const int failed = part(job, from, to); failed != 0) error.store(failed);
      from = next.load();
    }
  }
};

void *help(void *work) {
  static_cast<Work *>(work)->go_on();
  return nullptr;
}

uint64_t processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return static_cast<uint64_t>(CPU_COUNT(&allowed));
  return sn::kMostThreads;  // it has more than fit in there
}

// Makes up to `wanted` helpers; how many there are.
int call_helpers(Work *work, pthread_t *helpers, int wanted) {
  pthread_attr_t small;
  if (pthread_attr_init(&small) != 0) return 0;
  pthread_attr_setstacksize(&small, kStackBytes);  // where libraries need more, none is made: as good
  sigset_t all, before;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS}) sigdelset(&all, own);  // of a store into frames that are on their way: it waits
  pthread_sigmask(SIG_SETMASK, &all, &before);  // they inherit it
  int made = 0;
  while (made < wanted && pthread_create(&helpers[made], &small, help, work) == 0) made++;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&small);
  return made;
}

}  // namespace

namespace sn {

void work_alone() { alone.store(true); }

int in_parts(uint64_t begin, uint64_t end, uint64_t part_bytes, int (*part)(const void *job, uint64_t from, uint64_t to),
             const void *job) {
  if (begin >= end) return 0;
  Work work = {end, part_bytes, part, job, {begin}};
  const uint64_t parts = (end - 1) / part_bytes - begin / part_bytes + 1;
  pthread_t helpers[kMostThreads];
  int made = 0;
  if (parts > 1 && !alone.load())
    made = call_helpers(&work, helpers, static_cast<int>(std::min({parts, processors(), uint64_t{kMostThreads}})) - 1);
  work.go_on();
  for (int i = 0; i < made; i++) pthread_join(helpers[i], nullptr);
  return work.error.load();
}

}  // namespace sn
