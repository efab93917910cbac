// Tensors watched in granules of a huge page: only those large enough, only whole granules, only while they live.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "memory_check.h"

namespace {

constexpr uint64_t kPage = 4096, kGranule = 512;  // bytes; pages
constexpr uint64_t kLarge = 8 * kMiB;

uint64_t page_of(const void *address) { return reinterpret_cast<uintptr_t>(address) / kPage; }

// The pages told of layer `layer`, how often each.
std::vector<sn_touch_run> told(int32_t layer) {
  std::vector<sn_touch_run> runs(sn_touch_runs(0, 0, nullptr)), mine;
  sn_touch_runs(0, runs.size(), runs.data());
  for (const sn_touch_run &run : runs)
    if (run.layer == layer) mine.push_back(run);
  return mine;
}

bool begin(uint64_t tensor_bytes, int guarded = 0) {
  const sn_range range = exclusive();
  CHECK(sn_arm_back(range.base, range.reserved_bytes, guarded) == 0);
  CHECK(sn_record() == 0);
  CHECK(sn_touch_granules(tensor_bytes) == 0);
  if (sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, range.reserved_bytes / kPage) == 0) return true;
  CHECK(sn_arm_unback() == 0);
  return false;
}

void end() {
  CHECK(sn_touch_stop() == 0);
  CHECK(sn_pass_through() == 0);
  CHECK(sn_arm_unback() == 0);
}

// Its first whole granule, in pages from its beginning.
uint64_t whole_from(const void *tensor) { return (kGranule - page_of(tensor) % kGranule) % kGranule; }

void only_whole_granules_of_large_tensors() {
  auto *small = static_cast<char *>(sn_allocate_exclusive(3 * kMiB));
  fill(small, 3 * kMiB, 1);
  if (!begin(kLarge)) return;
  // asked for while it is watched, it begins where the other one ends
  auto *large = static_cast<char *>(sn_allocate_exclusive(9 * kMiB + 5 * kPage));
  fill(large, 9 * kMiB + 5 * kPage, 2);
  const uint64_t whole = whole_from(large);
  CHECK(whole != 0);
  CHECK(sn_touch_granules(kLarge) == -EBUSY);
  CHECK(sn_touch_mark(0) == 0);
  small[600 * kPage]++;
  large[0]++;                           // before the first whole one
  large[(whole + 7) * kPage]++;         // in it
  large[(whole + 3 * kGranule) * kPage]++;
  CHECK(sn_touch_mark(1) == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  const std::vector<sn_touch_run> runs = told(0);
  if (state.unit_pages == 1) {
    CHECK(runs.size() == 4);
    CHECK(runs[0].page == page_of(small) + 600 && runs[0].npages == 1 && (runs[0].seen & SN_IN_GRANULE) == 0);
    CHECK(runs[1].page == page_of(large) && runs[1].npages == 1);
    CHECK(runs[2].page == page_of(large) + whole && runs[2].npages == kGranule);
    CHECK(runs[2].seen == (SN_TOUCHED | SN_IN_GRANULE));
    // the fourth granule is not whole any more, or ends the tensor
    const uint64_t last = page_of(large) + whole + 3 * kGranule;
    const bool whole_too = (9 * kMiB / kPage + 5) >= whole + 4 * kGranule;
    CHECK(runs[3].page == last && runs[3].npages == (whole_too ? kGranule : 1));
  }
  CHECK(told(1).empty());
  end();
  CHECK(small[600 * kPage] == 2 && large[0] == 3 && large[kPage] == 2);
  sn_free(small);
  sn_free(large);
}

// What follows a large tensor on its pages is watched page by page, from the next layer at the latest.
void a_granule_ends_with_its_tensor() {
  if (!begin(kLarge)) return;
  auto *large = static_cast<char *>(sn_allocate(10 * kMiB));
  const uint64_t whole = whole_from(large);
  CHECK(sn_tick(0) == 0 && sn_touch_mark(0) == 0);
  large[whole * kPage] = 5;
  sn_free(large);
  CHECK(sn_tick(1) == 0 && sn_touch_mark(1) == 0);
  auto *small = static_cast<char *>(sn_allocate(7 * kMiB));
  CHECK(small == large);
  for (uint64_t at = 0; at < 7 * kMiB / kPage; at += 2) small[at * kPage] = 1;
  CHECK(sn_tick(2) == 0 && sn_touch_mark(2) == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  if (state.unit_pages == 1) {
    CHECK(told(0).size() == 1 && told(0)[0].npages == kGranule && told(0)[0].page == page_of(large) + whole);
    CHECK(told(1).size() == 7 * kMiB / kPage / 2);
  }
  sn_free(small);
  end();
}

void the_next_watch_knows_nothing_of_it() {
  if (!begin(0)) return;
  auto *large = static_cast<char *>(sn_allocate(10 * kMiB));
  CHECK(sn_tick(0) == 0 && sn_touch_mark(0) == 0);
  large[4 * kMiB] = 1;
  CHECK(sn_touch_mark(1) == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  if (state.unit_pages == 1) CHECK(told(0).size() == 1 && told(0)[0].npages == 1);
  sn_free(large);
  end();
}

// The n-th madvise fails: nothing is told that was not touched, no touch is lost, no byte changes.
void advice_may_fail() {
  auto *large = static_cast<char *>(sn_allocate_exclusive(10 * kMiB));
  fill(large, 10 * kMiB, 3);
  for (uint64_t n = 1, left = 0; left == 0; n++) {
    CHECK(n < 1000);
    if (!begin(kLarge)) return;
    sn_system_fail(SYS_madvise, n, ENOMEM);
    const bool marked = sn_tick(0) == 0 && sn_touch_mark(0) == 0;
    auto *other = static_cast<char *>(sn_allocate(9 * kMiB));
    large[4 * kMiB] = 7;
    other[4 * kMiB] = 7;
    sn_free(other);
    const bool ended = sn_touch_mark(1) == 0;
    left = sn_system_fail(-1, 0, 0);
    uint64_t found = 0;
    for (const sn_touch_run &run : told(0))
      for (const char *at : {large + 4 * kMiB, other + 4 * kMiB})
        found += page_of(at) - run.page < run.npages ? 1 : 0;
    if (marked && ended) CHECK(found == 2);
    end();
    CHECK(large[4 * kMiB] == 7 && large[4 * kMiB + 1] == 3 && large[10 * kMiB - 1] == 3);
  }
  sn_free(large);
}

std::atomic<int> asked{0}, forked{0};
std::atomic<pthread_t> owner;

// As the owner asks for huge pages another thread is to fork, which ends the watch: it has 50 ms to do so meanwhile.
long a_fork_meanwhile(long number, const long a[6]) {
  if (number == SYS_madvise && a[2] == MADV_HUGEPAGE && pthread_equal(pthread_self(), owner) != 0 && forked == asked) {
    asked++;
    for (int i = 0; i < 50 && forked < asked; i++) usleep(1000);
  }
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

void a_fork_of_another_thread_ends_the_watch_between_births() {
  constexpr int kForks = 6;
  if (sn_arm_guarded() != 0) return;  // the owner's stores could not be held back: then a child copies by itself
  owner = pthread_self();
  std::thread other([] {
    for (int done = 0; done < kForks;) {
      if (asked == done) {
        usleep(100);
        continue;
      }
      const pid_t child = fork();
      if (child == 0) _exit(0);
      int status = -1;
      CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
      forked = ++done;
    }
  });
  for (int round = 1; round <= kForks; round++) {
    if (!begin(kLarge, 1)) {
      asked = kForks;
      break;
    }
    CHECK(sn_tick(0) == 0 && sn_touch_mark(0) == 0);
    sn_system_replace(a_fork_meanwhile);
    while (forked < round) {
      auto *large = static_cast<char *>(sn_allocate(16 * kMiB));
      CHECK(large != nullptr);
      for (uint64_t at = 0; at < 16 * kMiB; at += kPage) large[at] = static_cast<char>(round);
      for (uint64_t at = 0; at < 16 * kMiB; at += kPage) CHECK(large[at] == static_cast<char>(round));
      sn_free(large);
    }
    sn_system_replace(nullptr);
    CHECK(sn_touch_stop() == -ECANCELED);
    CHECK(sn_pass_through() == 0 && sn_arm_unback() == 0);
  }
  other.join();
}

}  // namespace

int main() {
  create();
  CHECK(sn_touch_granules(kMiB) == -EINVAL);  // less than a granule
  only_whole_granules_of_large_tensors();
  a_granule_ends_with_its_tensor();
  the_next_watch_knows_nothing_of_it();
  advice_may_fail();
  a_fork_of_another_thread_ends_the_watch_between_births();
  CHECK(counters().live_bytes == 0);
  CHECK(sn_memory_destroy() == 0);
  return 0;
}
