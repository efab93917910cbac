// Page moves against a kernel of two nodes that does what real ones do: lies about huge pages, leaves tails
// untried, finds pages busy, shared or untouched. What the mover says must be what that kernel holds.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "sentinel.h"

#define CHECK(truth)                                                            \
  do {                                                                          \
    if (!(truth)) {                                                             \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #truth);       \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBase = 0x100000000;  // never touched: the kernel here is ours

struct Kernel {
  std::mutex mutex;
  std::map<uint64_t, int> node;       // page -> node; absent: never touched
  std::map<uint64_t, int> busy;       // page -> calls during which it stays
  std::map<uint64_t, int> barred;     // page -> errno for ever
  std::set<uint64_t> shared;          // pages that a child maps too
  std::set<uint64_t> leaving;         // pages that are back on node 0 once they were moved, the first time
  std::set<uint64_t> ending;          // pages whose life ends as soon as they were moved
  uint64_t moves = 0;                 // of pages, as a witness would count them
  std::set<uint64_t> huge;            // first pages of huge pages: one address moves all 512
  bool may_move_shared = false;       // CAP_SYS_NICE
  uint64_t refusals = 0;              // of calls, for want of it
  int asking_fails = 0;               // errno of every query
  bool leaves_tail = false;           // the last third of each call is not tried, and reported by a positive result
  bool huge_lie = false;              // -EBUSY for every page that moved but the first of 512
  int untouched = -ENOENT;
  uint64_t room[2] = {1u << 30, 1u << 30};  // pages
  std::map<uint64_t, int> policy;     // page -> node on which it is born, 0 where there is none
  std::set<uint64_t> touched_meanwhile;  // pages that are touched as soon as they were asked for
  int binding_fails = 0;              // errno of each change of a policy
  uint64_t bindings = 0;              // that were made
  std::vector<uint64_t> batches;      // pages of each move
} kernel;

void take_along(uint64_t page, int node) {
  const uint64_t head = page / kPage / 512 * 512 * kPage;
  if (!kernel.huge.count(head)) return;
  for (uint64_t i = 0; i < 512; ++i) kernel.node[head + i * kPage] = node;
}

long move(uint64_t count, const uint64_t *pages, const int *nodes, int *status, long flags) {
  if (flags == 4 && !kernel.may_move_shared) {
    ++kernel.refusals;
    return -EPERM;
  }
  kernel.batches.push_back(count);
  const uint64_t tried = kernel.leaves_tail ? count - count / 3 : count;
  long left = static_cast<long>(count - tried);
  for (uint64_t i = 0; i < tried; ++i) {
    const uint64_t page = pages[i];
    auto at = kernel.node.find(page);
    if (at == kernel.node.end()) {
      status[i] = kernel.untouched;
    } else if (kernel.barred.count(page)) {
      status[i] = -kernel.barred[page];
    } else if (kernel.shared.count(page) && flags != 4) {
      status[i] = -EACCES;
    } else if (kernel.busy.count(page) && kernel.busy[page]-- > 0) {
      status[i] = -EBUSY;
      ++left;
    } else if (kernel.room[nodes[i]] == 0) {
      return -ENOMEM;
    } else {
      kernel.room[nodes[i]] -= 1;
      kernel.room[at->second] += 1;
      kernel.moves += at->second != nodes[i];
      at->second = nodes[i];
      if (kernel.leaving.erase(page)) at->second = 0;
      if (kernel.ending.erase(page)) kernel.node.erase(at);
      take_along(page, nodes[i]);
      status[i] = kernel.huge_lie && page / kPage % 512 != 0 ? -EBUSY : nodes[i];
    }
  }
  return left;
}

void touch(uint64_t page) {
  const auto at = kernel.policy.find(page);
  kernel.node.emplace(page, at == kernel.policy.end() ? 0 : at->second);
}

long bind(uint64_t address, uint64_t nbytes, long mode, const unsigned long *nodes, long flags) {
  CHECK(mode == 1 && flags == 0);  // preferred, and what exists stays where it is
  if (kernel.binding_fails != 0) return -kernel.binding_fails;
  kernel.bindings += 1;
  for (uint64_t page = address; page < address + nbytes; page += kPage) kernel.policy[page] = nodes[0] == 2 ? 1 : 0;
  return 0;
}

long system_call(long number, const long a[6]) {
  if (number == SYS_clock_nanosleep)
    return -clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, reinterpret_cast<const timespec *>(a[2]), nullptr);
  const std::lock_guard<std::mutex> lock(kernel.mutex);
  if (number == SYS_mbind)
    return bind(static_cast<uint64_t>(a[0]), static_cast<uint64_t>(a[1]), a[2], reinterpret_cast<const unsigned long *>(a[3]),
                a[5]);
  CHECK(number == SYS_move_pages);
  const uint64_t count = static_cast<uint64_t>(a[1]);
  const uint64_t *pages = reinterpret_cast<const uint64_t *>(a[2]);
  const int *nodes = reinterpret_cast<const int *>(a[3]);
  int *status = reinterpret_cast<int *>(a[4]);
  CHECK(count > 0 && count <= 4096);
  if (nodes != nullptr) return nodes[0] > 1 ? -ENODEV : move(count, pages, nodes, status, a[5]);
  if (kernel.asking_fails != 0) return -kernel.asking_fails;
  for (uint64_t i = 0; i < count; ++i) {
    const auto at = kernel.node.find(pages[i]);
    status[i] = at == kernel.node.end() ? kernel.untouched : at->second;
  }
  for (const uint64_t page : kernel.touched_meanwhile) touch(page);
  kernel.touched_meanwhile.clear();
  return 0;
}

void reset(uint64_t pages) {
  kernel.node.clear();
  kernel.busy.clear();
  kernel.barred.clear();
  kernel.batches.clear();
  kernel.shared.clear();
  kernel.leaving.clear();
  kernel.ending.clear();
  kernel.policy.clear();
  kernel.touched_meanwhile.clear();
  kernel.binding_fails = 0;
  kernel.bindings = 0;
  kernel.moves = 0;
  kernel.huge.clear();
  kernel.may_move_shared = false;
  kernel.refusals = 0;
  kernel.asking_fails = 0;
  kernel.leaves_tail = false;
  kernel.huge_lie = false;
  kernel.untouched = -ENOENT;
  kernel.room[0] = kernel.room[1] = 1u << 30;
  for (uint64_t i = 0; i < pages; ++i) kernel.node[kBase + i * kPage] = 0;
}

uint64_t on(int node) {
  uint64_t count = 0;
  for (const auto &entry : kernel.node) count += entry.second == node;
  return count;
}

struct Result {
  sn_moved moved;
  std::vector<uint64_t> errors;
};

// Demotes `pages` pages from node 0 to `node`; checks that the accounts are the kernel's truth.
Result demote(uint64_t pages, int node = 1, uint64_t bytes_per_s = 0, bool binds = false) {
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(pages * kPage, 0, &mover) == 0);
  CHECK(sn_mover_reserve(mover, pages * kPage, 0) == 0);
  CHECK(sn_mover_bind_untouched(mover, binds) == 0);
  const sn_span spans[] = {{kBase, 7 * kPage}, {kBase + 7 * kPage, (pages - 7) * kPage}};
  sn_job job{};
  job.nbytes = job.held[0] = pages * kPage;
  job.target = 1;
  job.kind = SN_MOVE_NODE;
  job.node = node;
  job.spans = spans;
  job.span_count = 2;
  job.bytes_per_s = bytes_per_s;
  CHECK(sn_mover_wait(mover, static_cast<uint64_t>(sn_mover_submit(mover, &job)), UINT64_MAX) == 0);
  Result result{{}, std::vector<uint64_t>(SN_ERRNO_COUNT)};
  CHECK(sn_mover_results(mover, &result.moved, 1) == 1);
  CHECK(sn_mover_errors(mover, result.errors.data()) == 0);
  sn_held held;
  CHECK(sn_mover_held(mover, &held, 0) == 0);
  CHECK(held.bytes[0] == result.moved.held[0] && held.in_flight_bytes == 0);
  CHECK(held.bytes[0] + held.bytes[1] == pages * kPage);
  CHECK(held.bytes[0] == on(0) * kPage);
  sn_mover_destroy(mover);
  return result;
}

constexpr uint64_t kPages = 9001;  // prime, and more than two batches
constexpr uint64_t kGroups = kPages / 512;

void all_pages_arrive() {
  reset(kPages);
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && result.moved.error == 0);
  CHECK(result.moved.moved_bytes == kPages * kPage && on(1) == kPages);
  // The first page of each group goes ahead once, alone, as no huge page would.
  CHECK(kernel.batches == (std::vector<uint64_t>{8, 4096 - 8, 4096, 809}));
}

void what_is_there_is_not_asked_for_again() {
  reset(kPages);
  for (uint64_t i = 0; i < 100; ++i) kernel.node[kBase + i * 13 * kPage] = 1;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && result.moved.moved_bytes == (kPages - 100) * kPage);
  uint64_t asked = 0;
  for (const uint64_t batch : kernel.batches) asked += batch;
  CHECK(asked == kPages - 100);
}

void huge_pages_lie_and_are_not_believed() {
  reset(kPages);
  kernel.huge_lie = true;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && result.moved.moved_bytes == kPages * kPage);
  CHECK(result.errors[EBUSY] == 0 && kernel.batches.size() == 4);  // no second try either
}

void huge_pages_go_by_their_first_pages() {
  reset(kPages);
  kernel.huge_lie = true;
  for (uint64_t group = 0; group < kGroups; ++group) kernel.huge.insert(kBase + group * 512 * kPage);
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && result.moved.moved_bytes == kPages * kPage && on(1) == kPages);
  CHECK(kernel.batches == (std::vector<uint64_t>{8, 8, 1, kPages - kGroups * 512}));
}

void a_huge_page_that_stays_is_counted_page_by_page() {
  reset(kPages);
  kernel.huge.insert(kBase);
  for (uint64_t i = 0; i < 512; ++i) kernel.busy[kBase + i * kPage] = 1000;  // pinned
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_PARTIAL && result.moved.held[0] == 512 * kPage);
  CHECK(result.errors[EBUSY] == 512 && on(1) == kPages - 512);
}

void a_tail_that_was_not_tried_is_tried_again() {
  reset(kPages);
  kernel.leaves_tail = true;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && on(1) == kPages);
  CHECK(kernel.batches.size() > 3);
}

void a_page_busy_for_a_while_comes_later() {
  reset(kPages);
  kernel.busy[kBase + 5 * kPage] = 2;
  CHECK(demote(kPages).moved.outcome == SN_MOVE_DONE);
  reset(kPages);
  kernel.busy[kBase + 5 * kPage] = 1000;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_PARTIAL && result.moved.error == EBUSY);
  CHECK(result.errors[EBUSY] == 1 && result.moved.held[0] == kPage);
}

void shared_pages_stay_without_the_right_and_are_not_asked_twice() {
  reset(kPages);
  for (uint64_t i = 1; i < 18; ++i) kernel.shared.insert(kBase + i * 512 * kPage - kPage);
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_PARTIAL && result.moved.error == EACCES);
  CHECK(result.errors[EACCES] == 17 && result.errors[EPERM] == 0 && result.moved.held[0] == 17 * kPage);
  CHECK(kernel.batches.size() == 4 && kernel.refusals == 1);
}

void shared_pages_move_with_the_right_to() {
  reset(kPages);
  kernel.may_move_shared = true;
  for (uint64_t i = 1; i < 18; ++i) kernel.shared.insert(kBase + i * 512 * kPage - kPage);
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && on(1) == kPages && result.errors[EACCES] == 0);
}

void what_can_never_move_is_not_asked_for_ever() {
  reset(kPages);
  kernel.may_move_shared = true;
  kernel.barred[kBase + 5 * kPage] = EACCES;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_PARTIAL && result.errors[EACCES] == 1 && on(1) == kPages - 1);
}

void untouched_pages_are_nowhere_in_every_kernels_words() {
  for (const int word : {-ENOENT, -EFAULT}) {
    reset(kPages);
    kernel.untouched = word;
    for (uint64_t i = 0; i < 23; ++i) kernel.node.erase(kBase + i * 3 * kPage);
    const Result result = demote(kPages);
    CHECK(result.moved.outcome == SN_MOVE_DONE && result.moved.error == 0);
    CHECK(result.moved.moved_bytes == (kPages - 23) * kPage && result.moved.held[0] == 0);
  }
}

// In each of three batches are some that nobody touches before the move has ended; two are touched while it goes on.
void untouched_pages_are_born_where_their_block_went() {
  for (const bool binds : {true, false}) {
    reset(kPages);
    for (uint64_t i = 0; i < 23; ++i) kernel.node.erase(kBase + i * 390 * kPage);
    if (binds) kernel.touched_meanwhile = {kBase, kBase + 390 * kPage};
    const Result result = demote(kPages, 1, 0, binds);
    CHECK(result.moved.outcome == SN_MOVE_DONE && (result.moved.bound != 0) == binds && result.moved.held[0] == 0);
    CHECK(result.moved.moved_bytes == (kPages - 23 + (binds ? 2 : 0)) * kPage && kernel.bindings == (binds ? 2u : 0u));
    for (uint64_t i = 0; i < 23; ++i) touch(kBase + i * 390 * kPage);
    CHECK(on(1) == kPages - (binds ? 0 : 23));
  }
}

void what_was_touched_needs_no_policy_of_its_own() {
  reset(kPages);
  CHECK(demote(kPages, 1, 0, true).moved.bound == 0 && kernel.bindings == 0);
}

void a_policy_that_is_refused_is_no_failure() {
  reset(kPages);
  kernel.node.erase(kBase + 8 * kPage);
  kernel.binding_fails = EPERM;
  const Result result = demote(kPages, 1, 0, true);
  CHECK(result.moved.outcome == SN_MOVE_DONE && result.moved.bound == 0 && result.moved.error == 0);
  CHECK(result.errors[EPERM] == 0 && on(1) == kPages - 1);
}

// Of jobs in the same system calls only those change their policy that have such pages.
void only_blocks_with_untouched_pages_are_bound() {
  reset(2 * 13);
  kernel.node.erase(kBase + 15 * kPage);
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(2 * 13 * kPage, 0, &mover) == 0);
  CHECK(sn_mover_reserve(mover, 2 * 13 * kPage, 0) == 0 && sn_mover_bind_untouched(mover, 1) == 0);
  sn_job jobs[2] = {};
  const sn_span spans[2] = {{kBase, 13 * kPage}, {kBase + 13 * kPage, 13 * kPage}};
  for (int i = 0; i < 2; ++i) {
    jobs[i].nbytes = jobs[i].held[0] = 13 * kPage;
    jobs[i].target = 1;
    jobs[i].kind = SN_MOVE_NODE;
    jobs[i].node = 1;
    jobs[i].spans = &spans[i];
    jobs[i].span_count = 1;
  }
  CHECK(sn_mover_submit_all(mover, jobs, 2) == 1 && sn_mover_wait(mover, 2, UINT64_MAX) == 0);
  sn_moved all[2];
  CHECK(sn_mover_results(mover, all, 2) == 2 && all[0].bound == 0 && all[1].bound == 1);
  CHECK(kernel.policy.size() == 13 && kernel.policy.begin()->first == spans[1].address);
  sn_mover_destroy(mover);
}

// The claim is what an independent witness sees: each move, not what is left of it.
void a_page_that_leaves_again_has_moved_twice() {
  reset(kPages);
  for (uint64_t i = 0; i < 24; ++i) kernel.leaving.insert(kBase + (i * 300 + 1) * kPage);
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && on(1) == kPages && kernel.moves == kPages + 24);
  CHECK(result.moved.moved_bytes == kernel.moves * kPage && result.moved.held[0] == 0);
}

void a_page_whose_life_ends_has_moved() {
  reset(kPages);
  for (uint64_t i = 0; i < 24; ++i) kernel.ending.insert(kBase + (i * 300 + 1) * kPage);
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_DONE && on(1) == kPages - 24 && kernel.moves == kPages);
  CHECK(result.moved.moved_bytes == kernel.moves * kPage && result.moved.held[0] == 0);
}

void a_full_node_takes_what_it_can() {
  reset(kPages);
  kernel.room[1] = 4507;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_PARTIAL && result.moved.error == ENOMEM);
  CHECK(on(1) == 4507 && result.errors[ENOMEM] == kPages - 4507);
}

void a_node_that_is_not_there_moves_nothing() {
  reset(kPages);
  const Result result = demote(kPages, 5);
  CHECK(result.moved.outcome == SN_MOVE_FAILED && result.moved.error == ENODEV && on(0) == kPages);
}

// Each system call of a move fails in turn, once: whatever comes of it, the accounts are the kernel's truth.
void any_call_may_fail() {
  bool failed = true;
  for (uint64_t nth = 1; failed; ++nth) {
    CHECK(nth < 100);
    reset(kPages);
    sn_system_fail(SYS_move_pages, nth, EINTR);
    const Result result = demote(kPages);
    failed = sn_system_fail(SYS_move_pages, 0, 0) == 0;
    CHECK(result.moved.outcome == SN_MOVE_DONE || result.moved.outcome == SN_MOVE_PARTIAL);
    if (!failed) CHECK(result.moved.outcome == SN_MOVE_DONE);
  }
}

void pages_that_cannot_be_asked_for_stay_for_that_reason() {
  reset(kPages);
  kernel.asking_fails = EPERM;
  const Result result = demote(kPages);
  CHECK(result.moved.outcome == SN_MOVE_FAILED && result.moved.error == EPERM && on(0) == kPages);
  CHECK(result.errors[EPERM] == kPages && result.errors[EAGAIN] == 0);
}

void a_rate_limit_is_kept() {
  reset(kPages);
  const Result result = demote(kPages, 1, kPages * kPage * 20);  // a twentieth of a second
  CHECK(result.moved.stop_ns - result.moved.start_ns >= 50000000 && on(1) == kPages);
}

// Where no memory is huge, only every now and then a first page goes ahead; where it is huge again, that is noticed.
void where_no_page_is_huge_none_goes_ahead() {
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(1024 * kPage, 0, &mover) == 0);
  CHECK(sn_mover_reserve(mover, 1024 * kPage, 0) == 0);
  uint64_t ahead = 0;
  for (int i = 0; i < 131; ++i) {
    reset(1024);
    if (i > 3) kernel.huge.insert(kBase);
    const sn_span span{kBase, 1024 * kPage};
    sn_job job{};
    job.nbytes = job.held[0] = 1024 * kPage;
    job.target = 1;
    job.kind = SN_MOVE_NODE;
    job.node = 1;
    job.spans = &span;
    job.span_count = 1;
    CHECK(sn_mover_wait(mover, static_cast<uint64_t>(sn_mover_submit(mover, &job)), UINT64_MAX) == 0);
    sn_moved moved;
    CHECK(sn_mover_results(mover, &moved, 1) == 1 && moved.moved_bytes == 1024 * kPage && on(1) == 1024);
    CHECK(sn_mover_reserve(mover, 1024 * kPage, 0) == 0);
    ahead += kernel.batches[0] == 2;
    if (i == 2 || i == 63) CHECK(ahead == 3);  // three times in vain, and then not for long
    if (i > 64) CHECK(kernel.batches[0] == 2);  // tried again, and it was worth it
  }
  sn_mover_destroy(mover);
}

// Many small jobs in few calls, each with its own fate and accounts.
void small_jobs_travel_together() {
  constexpr uint64_t kJobs = 101, kEach = 13;
  reset(kJobs * kEach);
  kernel.barred[kBase + 57 * kEach * kPage] = EBADF;
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(kJobs * kEach * kPage, 0, &mover) == 0);
  CHECK(sn_mover_reserve(mover, kJobs * kEach * kPage, 0) == 0);
  uint64_t last = 0;
  kernel.mutex.lock();  // the first job's call waits, the others gather behind it
  for (uint64_t i = 0; i < kJobs; ++i) {
    const sn_span span{kBase + i * kEach * kPage, kEach * kPage};
    sn_job job{};
    job.nbytes = job.held[0] = kEach * kPage;
    job.target = 1;
    job.kind = SN_MOVE_NODE;
    job.node = 1;
    job.spans = &span;
    job.span_count = 1;
    last = static_cast<uint64_t>(sn_mover_submit(mover, &job));
  }
  kernel.mutex.unlock();
  CHECK(sn_mover_wait(mover, last, UINT64_MAX) == 0);
  std::vector<sn_moved> all(kJobs);
  CHECK(sn_mover_results(mover, all.data(), kJobs) == kJobs);
  for (uint64_t i = 0; i < kJobs; ++i) {
    CHECK(all[i].id == i + 1 && all[i].outcome == (i == 57 ? SN_MOVE_PARTIAL : SN_MOVE_DONE));
    CHECK(all[i].moved_bytes == (kEach - (i == 57)) * kPage && all[i].error == (i == 57 ? EBADF : 0));
  }
  CHECK(kernel.batches.size() < 12 && on(1) == kJobs * kEach - 1);  // 512 pages together
  sn_held held;
  CHECK(sn_mover_held(mover, &held, 0) == 0 && held.bytes[0] == kPage && held.in_flight_bytes == 0);
  sn_mover_destroy(mover);
}

// What the kernel put into fast memory by itself leaves it before anything is promoted.
void strays_leave_before_promotions() {
  reset(200);
  for (uint64_t i = 100; i < 200; ++i) kernel.node[kBase + i * kPage] = 1;
  for (uint64_t i = 0; i < 17; ++i) kernel.node[kBase + i * kPage] = i < 11 ? 0 : 1;
  for (uint64_t i = 17; i < 100; ++i) kernel.node[kBase + i * kPage] = 1;
  kernel.barred[kBase] = EBUSY;
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(100 * kPage, 0, &mover) == 0);
  CHECK(sn_mover_hold(mover, 1, 200 * kPage) == 0);
  sn_job jobs[2] = {};
  const sn_span spans[2] = {{kBase, 100 * kPage}, {kBase + 100 * kPage, 99 * kPage}};
  for (int i = 0; i < 2; ++i) {
    jobs[i].nbytes = spans[i].nbytes;
    jobs[i].held[1] = spans[i].nbytes;
    jobs[i].source = i == 0 ? 0 : 1;
    jobs[i].target = i == 0 ? 1 : 0;
    jobs[i].kind = SN_MOVE_NODE;
    jobs[i].node = i == 0 ? 1 : 0;
    jobs[i].spans = &spans[i];
    jobs[i].span_count = 1;
  }
  jobs[0].first = 1;
  const uint64_t down = static_cast<uint64_t>(sn_mover_submit(mover, &jobs[0]));
  const uint64_t up = static_cast<uint64_t>(sn_mover_submit(mover, &jobs[1]));
  CHECK(sn_mover_wait(mover, up, UINT64_MAX) == 0);
  sn_moved all[2];
  CHECK(sn_mover_results(mover, all, 2) == 2 && all[0].id == down && all[1].id == up);
  CHECK(all[1].start_ns >= all[0].stop_ns && all[0].moved_bytes == 10 * kPage && all[0].held[0] == kPage);
  sn_held held;
  CHECK(sn_mover_held(mover, &held, 0) == 0 && held.overflows == 0 && held.bytes[0] == 100 * kPage);
  CHECK(held.bytes[1] == 100 * kPage);
  sn_mover_destroy(mover);
}

}  // namespace

int main() {
  sn_system_replace(system_call);
  all_pages_arrive();
  what_is_there_is_not_asked_for_again();
  huge_pages_lie_and_are_not_believed();
  a_tail_that_was_not_tried_is_tried_again();
  a_page_busy_for_a_while_comes_later();
  huge_pages_go_by_their_first_pages();
  a_huge_page_that_stays_is_counted_page_by_page();
  shared_pages_stay_without_the_right_and_are_not_asked_twice();
  shared_pages_move_with_the_right_to();
  what_can_never_move_is_not_asked_for_ever();
  untouched_pages_are_nowhere_in_every_kernels_words();
  untouched_pages_are_born_where_their_block_went();
  what_was_touched_needs_no_policy_of_its_own();
  a_policy_that_is_refused_is_no_failure();
  only_blocks_with_untouched_pages_are_bound();
  a_page_that_leaves_again_has_moved_twice();
  a_page_whose_life_ends_has_moved();
  a_full_node_takes_what_it_can();
  a_node_that_is_not_there_moves_nothing();
  any_call_may_fail();
  pages_that_cannot_be_asked_for_stay_for_that_reason();
  a_rate_limit_is_kept();
  where_no_page_is_huge_none_goes_ahead();
  small_jobs_travel_together();
  strays_leave_before_promotions();
  sn_system_replace(nullptr);
  return 0;
}
