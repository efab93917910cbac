// The mover: order, room, failures, forks; page moves where one node is enough to see them.
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "mover_check.h"

namespace {

void nothing_happens_without_jobs() {
  sn_mover *mover = make(10);
  CHECK(*sn_mover_ended(mover) == 0 && *sn_mover_submitted(mover) == 0 && *sn_mover_changes(mover) == 0);
  CHECK(results(mover).empty());
  CHECK(held(mover).most_fast_bytes == 0);
  CHECK(sn_mover_wait(mover, 1, kForever) == 0);  // no such job: nothing to wait for
  sn_mover_destroy(mover);
  CHECK(sn_mover_destroy(nullptr) == 0);
}

void jobs_of_one_direction_queue_on_the_link() {
  sn_mover *mover = make(1000);
  uint64_t last = 0;
  const uint64_t began = sn_now_ns();
  for (int i = 0; i < 7; ++i) last = submit(mover, emulated(SN_PROMOTE, 100, 3 * kMs));
  CHECK(sn_mover_wait(mover, last, kForever) == 0);
  CHECK(sn_now_ns() - began >= 7 * 3 * kMs);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 7);
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].id == i + 1 && all[i].outcome == SN_MOVE_DONE && all[i].moved_bytes == 100);
    CHECK(all[i].stop_ns - all[i].start_ns == 3 * kMs);
    if (i > 0) CHECK(all[i].start_ns >= all[i - 1].stop_ns);
  }
  CHECK(held(mover).bytes[0] == 700 && held(mover).in_flight_bytes == 0);
  sn_mover_destroy(mover);
}

void jobs_submitted_together_are_numbered_in_their_order() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_reserve(mover, 60, 0) == 0 && sn_mover_hold(mover, 1, 90) == 0);
  sn_job jobs[] = {emulated(SN_DEMOTE, 60, 3 * kMs), emulated(SN_PROMOTE, 50, kMs), emulated(SN_PROMOTE, 40, kMs)};
  jobs[1].source = jobs[1].target;
  CHECK(sn_mover_submit_all(mover, jobs, 3) == -EINVAL && sn_mover_submit_all(mover, jobs, 0) == -EINVAL);
  CHECK(*sn_mover_submitted(mover) == 0);
  jobs[1].source = 1;
  CHECK(sn_mover_submit_all(mover, jobs, 3) == 1 && *sn_mover_submitted(mover) == 3);
  for (uint64_t id = 1; id <= 3; ++id) CHECK(sn_mover_wait(mover, id, kForever) == 0);
  sn_moved seen[3];
  CHECK(sn_mover_results_from(mover, 0, seen, 2) == 2 && seen[0].id == 1 && seen[1].id == 2);
  CHECK(sn_mover_results_from(mover, 0, seen, 3) == 3 && seen[0].id == 1 && seen[2].id == 3);  // they stay
  CHECK(sn_mover_results_from(mover, 1, seen + 1, 2) == 2 && seen[1].id == 2);
  CHECK(sn_mover_results_from(mover, 0, seen + 1, 2) == 2 && seen[1].id == 2);  // but for the one before
  std::vector<sn_moved> all = results(mover);
  CHECK(sn_mover_results_from(mover, 3, seen + 1, 2) == 0);
  all.insert(all.begin(), seen[0]);
  CHECK(all.size() == 3 && all[0].id == 1 && all[1].id == 2 && all[2].id == 3);
  CHECK(all[1].start_ns >= all[0].stop_ns && all[2].start_ns >= all[1].stop_ns);  // there was no room before
  CHECK(held(mover).bytes[0] == 90 && held(mover).most_fast_bytes <= 100);
  // Behind a job that has ended: it finds the block as that one left it.
  sn_job up = emulated(SN_PROMOTE, 10, 0), down = emulated(SN_DEMOTE, 10, 0);
  CHECK(sn_mover_hold(mover, 1, 10) == 0);
  down.after = submit(mover, up);
  CHECK(sn_mover_wait(mover, down.after, kForever) == 0);
  CHECK(sn_mover_submit_all(mover, &down, 1) == 5 && sn_mover_wait(mover, 5, kForever) == 0);
  CHECK(held(mover).bytes[0] == 90);
  sn_mover_destroy(mover);
}

void a_half_duplex_link_carries_one_job_at_a_time() {
  sn_mover *mover = make(1000, 1);
  CHECK(sn_mover_reserve(mover, 300, 0) == 0);
  for (int i = 0; i < 3; ++i) {
    submit(mover, emulated(SN_DEMOTE, 100, 2 * kMs));
    submit(mover, emulated(SN_PROMOTE, 100, 2 * kMs));
  }
  for (uint64_t id = 1; id <= 6; ++id) CHECK(sn_mover_wait(mover, id, kForever) == 0);
  std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 6);
  for (size_t i = 1; i < all.size(); ++i) CHECK(all[i].start_ns >= all[i - 1].stop_ns);
  sn_mover_destroy(mover);
}

void a_promotion_waits_for_the_room_that_a_demotion_frees() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_reserve(mover, 100, 0) == 0 && sn_mover_hold(mover, 1, 60) == 0);
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 60, kMs));
  CHECK(sn_mover_wait(mover, up, kForever) == -ENOSPC);  // and nothing will free it
  CHECK(held(mover).starved == 1);
  const uint64_t down = submit(mover, emulated(SN_DEMOTE, 100, 5 * kMs));
  CHECK(sn_mover_wait(mover, up, kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[0].id == down && all[1].id == up);
  CHECK(all[1].start_ns >= all[0].stop_ns);
  const sn_held now = held(mover);
  CHECK(now.bytes[0] == 60 && now.most_fast_bytes == 100 && now.bytes[1] == 100);
  sn_mover_destroy(mover);
}

// False if the demotion may have ended before the birth waited: then it says nothing.
bool births_take_room_and_go_first_while_a_demotion_takes(uint64_t demotion_ns) {
  sn_mover *mover = make(100);
  CHECK(sn_mover_reserve(mover, 80, 0) == 0);
  CHECK(sn_mover_reserve(mover, 30, kForever) == -ENOSPC);
  CHECK(sn_mover_force(mover, 30) == 0);
  CHECK(held(mover).overflow_bytes == 10 && held(mover).overflows == 1);
  CHECK(sn_mover_release(mover, 30) == 0 && sn_mover_release(mover, 1000) == -EINVAL);
  const uint64_t began = sn_now_ns();
  submit(mover, emulated(SN_DEMOTE, 80, demotion_ns));
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 90, kMs));
  const int at_once = sn_mover_reserve(mover, 50, 1);
  bool in_time = sn_now_ns() - began < demotion_ns;
  if (in_time) {
    CHECK(at_once == -ETIMEDOUT);
    const int waited = sn_mover_reserve(mover, 50, kForever);  // before the promotion, which came first
    in_time = waited == 0 || sn_now_ns() - began < demotion_ns;
    if (in_time) CHECK(waited == 0);
  }
  if (!in_time) {
    sn_mover_destroy(mover);
    return false;
  }
  CHECK(sn_mover_wait(mover, up, kForever) == -ENOSPC);
  CHECK(sn_mover_cancel(mover, up) == 1 && sn_mover_cancel(mover, up) == 0);
  CHECK(sn_mover_wait(mover, up, kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[1].outcome == SN_MOVE_CANCELLED && all[1].start_ns == 0);
  CHECK(held(mover).bytes[0] == 50);
  sn_mover_destroy(mover);
  return true;
}

void births_take_room_and_go_first() {
  uint64_t demotion_ns = 5 * kMs;
  while (!births_take_room_and_go_first_while_a_demotion_takes(demotion_ns)) demotion_ns *= 4;  // a busy machine
}

void a_job_starts_after_the_one_it_names() {
  sn_mover *mover = make(1000);
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 100, 8 * kMs));
  sn_job down = emulated(SN_DEMOTE, 100, kMs);
  down.after = up;
  CHECK(sn_mover_wait(mover, submit(mover, down), kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[0].id == up && all[1].start_ns >= all[0].stop_ns);
  CHECK(held(mover).bytes[0] == 0 && held(mover).bytes[1] == 100);
  sn_mover_destroy(mover);
}

// The hard budget: whatever comes, the fast tier never holds more than its capacity.
void the_budget_holds_under_random_load() {
  constexpr uint64_t kCapacity = 1000;
  sn_mover *mover = make(kCapacity);
  unsigned seed = 12345;
  uint64_t resident = 0, waiting_down = 0;
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done.load()) {
      CHECK(held(mover).bytes[0] <= kCapacity);
      usleep(50);
    }
  });
  for (int i = 0; i < 997; ++i) {
    const uint64_t nbytes = static_cast<uint64_t>(rand_r(&seed) % 300) + 1;
    switch (rand_r(&seed) % 3) {
      case 0:
        submit(mover, emulated(SN_PROMOTE, nbytes, 20000));
        break;
      case 1:
        if (sn_mover_reserve(mover, nbytes, 100000) == 0) resident += nbytes;
        break;
      default:
        if (resident > 0) {
          const uint64_t leaving = resident < nbytes ? resident : nbytes;
          resident -= leaving;
          submit(mover, emulated(SN_DEMOTE, leaving, 20000));
        }
    }
    for (const sn_moved &moved : results(mover)) {
      if (moved.held[0] != 0 && moved.outcome == SN_MOVE_DONE) resident += moved.held[0];
      waiting_down += moved.outcome != SN_MOVE_DONE;
    }
  }
  done.store(true);
  watcher.join();
  CHECK(waiting_down == 0);
  CHECK(held(mover).most_fast_bytes <= kCapacity && held(mover).most_fast_bytes > 0);
  CHECK(held(mover).overflows == 0);
  sn_mover_destroy(mover);  // with jobs still queued
}

void a_failed_delay_leaves_the_bytes_where_they_were() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_reserve(mover, 100, 0) == 0);
  sn_system_fail(SYS_clock_nanosleep, 1, EIO);
  CHECK(sn_mover_wait(mover, submit(mover, emulated(SN_DEMOTE, 100, 5 * kMs)), kForever) == 0);
  std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 1 && all[0].outcome == SN_MOVE_FAILED && all[0].error == EIO);
  CHECK(all[0].moved_bytes == 0 && all[0].held[0] == 100 && held(mover).bytes[0] == 100);
  CHECK(held(mover).bytes[1] == 0);
  uint64_t errors[SN_ERRNO_COUNT];
  CHECK(sn_mover_errors(mover, errors) == 0 && errors[EIO] == 1);
  CHECK(sn_mover_wait(mover, submit(mover, emulated(SN_DEMOTE, 100, kMs)), kForever) == 0);
  CHECK(held(mover).bytes[0] == 0 && held(mover).bytes[1] == 100);
  sn_mover_destroy(mover);
}

void the_second_of_two_finds_the_block_where_the_first_left_it() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_reserve(mover, 100, 0) == 0);
  held_up.store(true);
  sn_system_replace(sleeps_fail);
  sn_job up = emulated(SN_PROMOTE, 100, kMs);
  up.after = submit(mover, emulated(SN_DEMOTE, 100, kMs));
  const uint64_t second = submit(mover, up);  // it expects an empty fast tier
  held_up.store(false);
  CHECK(sn_mover_wait(mover, second, kForever) == 0);  // else there were no room for it
  sn_system_replace(nullptr);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[0].outcome == SN_MOVE_FAILED && all[0].held[0] == 100);
  CHECK(all[1].id == second && all[1].held[0] == 100 && all[1].moved_bytes == 0);
  CHECK(held(mover).bytes[0] == 100 && held(mover).most_fast_bytes == 100 && held(mover).in_flight_bytes == 0);
  sn_mover_destroy(mover);
}

struct Shelf {
  std::vector<char> kept;
  int error = 0;
  int calls = 0;

  static int move(void *context, const sn_span *spans, uint64_t span_count, int source, int target) {
    Shelf &shelf = *static_cast<Shelf *>(context);
    shelf.calls += 1;
    CHECK((source == 0) != (target == 0));
    if (shelf.error != 0) return shelf.error;
    size_t at = 0;
    shelf.kept.resize(span_count * kPage);
    for (uint64_t i = 0; i < span_count; ++i, at += kPage) {
      char *page = reinterpret_cast<char *>(spans[i].address);
      if (target != 0) memcpy(shelf.kept.data() + at, page, kPage), memset(page, 0, kPage);
      else memcpy(page, shelf.kept.data() + at, kPage);
    }
    return 0;
  }
};

void what_is_not_memory_moves_by_a_backend() {
  sn_mover *mover = make(2 * kPage);
  CHECK(sn_mover_reserve(mover, 2 * kPage, 0) == 0);
  std::vector<char> memory(2 * kPage, 'x');
  Shelf shelf;
  const sn_backend backend{Shelf::move, &shelf};
  const auto job = [&](uint8_t direction, const sn_span *spans) {
    sn_job made = emulated(direction, 2 * kPage, 0);
    made.kind = SN_MOVE_BACKEND, made.backend = &backend, made.spans = spans, made.span_count = 2;
    return made;
  };
  const uint64_t address = reinterpret_cast<uint64_t>(memory.data());
  const sn_span spans[] = {{address, kPage}, {address + kPage, kPage}};
  CHECK(sn_mover_wait(mover, submit(mover, job(SN_DEMOTE, spans)), kForever) == 0);
  CHECK(memory[0] == 0 && held(mover).bytes[0] == 0 && held(mover).bytes[1] == 2 * kPage);
  shelf.error = EIO;
  CHECK(sn_mover_wait(mover, submit(mover, job(SN_PROMOTE, spans)), kForever) == 0);
  std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[0].outcome == SN_MOVE_DONE && all[0].moved_bytes == 2 * kPage);
  CHECK(all[1].outcome == SN_MOVE_FAILED && all[1].error == EIO && all[1].held[1] == 2 * kPage);
  uint64_t errors[SN_ERRNO_COUNT];
  CHECK(sn_mover_errors(mover, errors) == 0 && errors[EIO] == 1);
  shelf.error = 0;
  CHECK(sn_mover_wait(mover, submit(mover, job(SN_PROMOTE, spans)), kForever) == 0);
  CHECK(memory == std::vector<char>(2 * kPage, 'x') && shelf.calls == 3);
  CHECK(held(mover).bytes[0] == 2 * kPage && held(mover).bytes[1] == 0 && held(mover).in_flight_bytes == 0);
  sn_job bad = job(SN_DEMOTE, spans);
  bad.backend = nullptr;
  CHECK(sn_mover_submit(mover, &bad) == -EINVAL);
  sn_mover_destroy(mover);
}

void a_failed_delay_leaves_the_link_free() {
  constexpr uint64_t kHour = 3600000 * kMs;
  sn_mover *mover = make(200);
  CHECK(sn_mover_reserve(mover, 200, 0) == 0);
  sn_system_replace(sleeps_fail);
  for (int i = 0; i < 2; ++i) CHECK(sn_mover_wait(mover, submit(mover, emulated(SN_DEMOTE, 100, kHour)), kForever) == 0);
  sn_system_replace(nullptr);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[1].start_ns - all[0].start_ns < kHour);
  sn_mover_destroy(mover);
}

// What waits for the link has not started: it takes no room in the other tier, and can be called off.
void a_half_duplex_link_that_is_busy_keeps_jobs_where_they_are() {
  sn_mover *mover = make(200, 1);
  CHECK(sn_mover_reserve(mover, 100, 0) == 0);
  held_up.store(true);
  sleeping.store(0);
  sn_system_replace(sleeps_fail);
  submit(mover, emulated(SN_DEMOTE, 100, kMs));
  while (sleeping.load() == 0) sched_yield();
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 100, kMs));
  for (int i = 0; i < 200; ++i) {  // time enough for the other worker to look at it
    usleep(100);
    CHECK(sleeping.load() == 1 && held(mover).in_flight_bytes == 100);
  }
  CHECK(sn_mover_cancel(mover, up) == 1);
  held_up.store(false);
  CHECK(sn_mover_wait(mover, 1, kForever) == 0);
  sn_system_replace(nullptr);
  sn_mover_destroy(mover);
}

void a_child_finds_the_mover_inert() {
  sn_mover *mover = make(1000);
  for (int i = 0; i < 5; ++i) {
    submit(mover, emulated(SN_PROMOTE, 10, 2 * kMs));
    const pid_t child = fork();
    if (child == 0) {
      sn_held now;
      sn_job job = emulated(SN_PROMOTE, 10, 0);
      const bool inert = sn_mover_submit(mover, &job) == -ECHILD && sn_mover_wait(mover, 1, kForever) == -ECHILD &&
                         sn_mover_reserve(mover, 1, kForever) == -ECHILD && sn_mover_held(mover, &now, 1) == -ECHILD &&
                         sn_mover_results(mover, nullptr, 1) == 0 && sn_mover_destroy(mover) == -ECHILD;
      _exit(inert ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(sn_mover_wait(mover, 5, kForever) == 0);
  CHECK(held(mover).bytes[0] == 50);
  sn_mover_destroy(mover);
}

sn_job to_node(uint8_t direction, const sn_span *spans, uint64_t count, int node) {
  sn_job job{};
  for (uint64_t i = 0; i < count; ++i) job.nbytes += spans[i].nbytes;
  job.held[direction == SN_DEMOTE ? 0 : 1] = job.nbytes;
  job.source = direction == SN_DEMOTE ? 0 : 1;
  job.target = direction == SN_DEMOTE ? 1 : 0;
  job.kind = SN_MOVE_NODE;
  job.spans = spans;
  job.span_count = count;
  job.node = node;
  return job;
}

int pages_are_moved_or_accounted_for() {
  const uint64_t nbytes = 3001 * kPage;
  char *memory = static_cast<char *>(mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(memory != MAP_FAILED);
  madvise(memory, nbytes, MADV_NOHUGEPAGE);
  memset(memory, 7, nbytes - kPage);  // the last page is never touched
  void *page = memory;
  int node = -1;
  if (syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &node, 0) != 0 || node < 0) return 77;
  const sn_span spans[] = {{reinterpret_cast<uintptr_t>(memory), 1000 * kPage},
                           {reinterpret_cast<uintptr_t>(memory) + 1000 * kPage, 2001 * kPage}};
  sn_mover *mover = make(nbytes);

  CHECK(sn_mover_wait(mover, submit(mover, to_node(SN_PROMOTE, spans, 2, node)), kForever) == 0);
  std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 1 && all[0].outcome == SN_MOVE_ALREADY && all[0].moved_bytes == 0);
  CHECK(all[0].held[0] == nbytes && held(mover).bytes[0] == nbytes);

  // a node that is not there: all stays, all is accounted for, by errno
  CHECK(sn_mover_wait(mover, submit(mover, to_node(SN_DEMOTE, spans, 2, 1000)), kForever) == 0);
  all = results(mover);
  CHECK(all.size() == 1 && all[0].outcome == SN_MOVE_PARTIAL && all[0].error == ENODEV);
  CHECK(all[0].held[0] == 3000 * kPage);  // the untouched page is nowhere, so it left
  uint64_t errors[SN_ERRNO_COUNT];
  CHECK(sn_mover_errors(mover, errors) == 0 && errors[ENODEV] == 3000);

  // each of the first calls fails in turn; whatever is said to be held is what was held
  for (uint64_t nth = 1; nth <= 4; ++nth) {
    sn_system_fail(SYS_move_pages, nth, ENOMEM);
    CHECK(sn_mover_wait(mover, submit(mover, to_node(SN_DEMOTE, spans, 2, node)), kForever) == 0);
    sn_system_fail(SYS_move_pages, 0, 0);
    all = results(mover);
    CHECK(all.size() == 1 && all[0].outcome == SN_MOVE_ALREADY);  // asked a second time, it knew
    sn_mover_set_capacity(mover, 0, nbytes);
  }
  for (uint64_t i = 0; i < nbytes - kPage; ++i) CHECK(memory[i] == 7);
  sn_mover_destroy(mover);
  munmap(memory, nbytes);
  return 0;
}

}  // namespace

int main() {
  nothing_happens_without_jobs();
  jobs_of_one_direction_queue_on_the_link();
  jobs_submitted_together_are_numbered_in_their_order();
  a_half_duplex_link_carries_one_job_at_a_time();
  a_promotion_waits_for_the_room_that_a_demotion_frees();
  births_take_room_and_go_first();
  a_job_starts_after_the_one_it_names();
  the_budget_holds_under_random_load();
  a_failed_delay_leaves_the_bytes_where_they_were();
  the_second_of_two_finds_the_block_where_the_first_left_it();
  what_is_not_memory_moves_by_a_backend();
  a_failed_delay_leaves_the_link_free();
  a_half_duplex_link_that_is_busy_keeps_jobs_where_they_are();
  a_child_finds_the_mover_inert();
  return pages_are_moved_or_accounted_for();
}
