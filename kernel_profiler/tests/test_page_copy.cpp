// Transfers of emulated jobs copy pages: at the link's rate, out of live memory that stays as it was, and never more.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
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

constexpr uint64_t kMs = 1000000;
constexpr uint64_t kHour = 3600000 * kMs;
constexpr uint64_t kForever = UINT64_MAX;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = 1001 * kPage;  // no multiple of a piece

uint8_t *pages(uint64_t nbytes) {
  void *made = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  madvise(made, nbytes, MADV_NOHUGEPAGE);
  return static_cast<uint8_t *>(made);
}

sn_span span(const uint8_t *at, uint64_t nbytes) { return {reinterpret_cast<uintptr_t>(at), nbytes}; }

sn_mover *make() {
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(uint64_t{1} << 40, 0, &mover) == 0);
  return mover;
}

uint64_t submit(sn_mover *mover, uint8_t target, const std::vector<sn_span> &spans, uint64_t duration_ns) {
  sn_job job{};
  for (const sn_span &each : spans) job.nbytes += each.nbytes;
  job.source = target == 0 ? 1 : 0;
  job.target = target;
  job.held[job.source] = job.nbytes;
  job.duration_ns = duration_ns;
  job.spans = spans.data();
  job.span_count = spans.size();
  CHECK((target == 0 ? sn_mover_hold(mover, 1, static_cast<int64_t>(job.nbytes)) : sn_mover_force(mover, job.nbytes)) == 0);
  const int64_t id = sn_mover_submit(mover, &job);
  CHECK(id > 0);
  return static_cast<uint64_t>(id);
}

sn_moved moved(sn_mover *mover, uint64_t id) {
  CHECK(sn_mover_wait(mover, id, kForever) == 0);
  sn_moved one;
  CHECK(sn_mover_results(mover, &one, 1) == 1 && one.id == id);
  return one;
}

sn_copied copied(sn_mover *mover) {
  sn_copied told;
  CHECK(sn_mover_copied(mover, &told) == 0);
  return told;
}

void what_moves_is_copied_and_stays_as_it_was() {
  uint8_t *memory = pages(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) memory[i] = static_cast<uint8_t>(i % 251);
  sn_mover *mover = make();
  CHECK(copied(mover).copied_bytes == 0);
  const std::vector<sn_span> both = {span(memory, 400 * kPage), span(memory + 400 * kPage, kBytes - 400 * kPage)};
  const sn_moved down = moved(mover, submit(mover, 1, both, 20 * kMs));
  CHECK(down.outcome == SN_MOVE_DONE && down.moved_bytes == kBytes && down.stop_ns - down.start_ns >= 20 * kMs);
  CHECK(copied(mover).copied_bytes == kBytes && copied(mover).cpu_ns > 0);
  CHECK(moved(mover, submit(mover, 0, both, 0)).outcome == SN_MOVE_DONE);  // the link is faster than any copy
  const sn_copied told = copied(mover);
  CHECK(told.copied_bytes == 2 * kBytes && told.absent_bytes == 0 && told.refused_bytes == 0 && told.error == 0);
  for (uint64_t i = 0; i < kBytes; ++i) CHECK(memory[i] == i % 251);
  sn_mover_destroy(mover);
  munmap(memory, kBytes);
}

// By the clock of the link the second begins when the copies of the first are done, not when its link would have been.
void a_link_that_is_faster_than_copies_tells_how_long_they_took() {
  uint8_t *memory = pages(kBytes);
  memset(memory, 1, kBytes);
  sn_mover *mover = make();
  const uint64_t first = submit(mover, 1, {span(memory, kBytes)}, 0);
  const uint64_t second = submit(mover, 1, {span(memory, kBytes)}, 0);
  const sn_moved one = moved(mover, first), other = moved(mover, second);
  CHECK(one.stop_ns > one.start_ns && other.start_ns >= one.stop_ns && other.stop_ns > other.start_ns);
  sn_mover_destroy(mover);
  munmap(memory, kBytes);
}

void pages_that_nobody_touched_stay_so() {
  uint8_t *memory = pages(64 * kPage);
  memory[3 * kPage] = memory[4 * kPage] = memory[60 * kPage] = 9;
  sn_mover *mover = make();
  CHECK(moved(mover, submit(mover, 1, {span(memory, 64 * kPage)}, kMs)).moved_bytes == 64 * kPage);
  CHECK(copied(mover).copied_bytes == 3 * kPage && copied(mover).absent_bytes == 61 * kPage);
  unsigned char resident[64];
  CHECK(mincore(memory, 64 * kPage, resident) == 0);
  int there = 0;
  for (const unsigned char page : resident) there += page & 1;
  CHECK(there == 3);
  sn_mover_destroy(mover);
  munmap(memory, 64 * kPage);
}

void what_is_gone_or_closed_is_refused_and_the_move_goes_on() {
  uint8_t *memory = pages(100 * kPage);
  memset(memory, 5, 100 * kPage);
  CHECK(munmap(memory + 20 * kPage, 10 * kPage) == 0);
  CHECK(mprotect(memory + 99 * kPage, kPage, PROT_NONE) == 0);
  sn_mover *mover = make();
  const std::vector<sn_span> spans = {span(memory, 20 * kPage), span(memory + 20 * kPage, 10 * kPage),
                                      span(memory + 30 * kPage, 70 * kPage)};
  CHECK(moved(mover, submit(mover, 1, spans, kMs)).outcome == SN_MOVE_DONE);
  const sn_copied told = copied(mover);
  CHECK(told.copied_bytes + told.refused_bytes == 100 * kPage && told.refused_bytes >= 11 * kPage);
  CHECK(told.error == ENOMEM || told.error == EFAULT);
  sn_mover_destroy(mover);
  munmap(memory, 20 * kPage);
  munmap(memory + 30 * kPage, 70 * kPage);
}

void a_system_that_lets_nobody_copy_costs_the_copies_only() {
  uint8_t *memory = pages(10 * kPage);
  memset(memory, 5, 10 * kPage);
  for (const long number : {static_cast<long>(SYS_mincore), static_cast<long>(SYS_process_vm_readv)}) {
    sn_mover *mover = make();
    sn_system_fail(number, 1, EPERM);
    CHECK(moved(mover, submit(mover, 1, {span(memory, 10 * kPage)}, kMs)).outcome == SN_MOVE_DONE);
    CHECK(copied(mover).refused_bytes == 10 * kPage && copied(mover).error == EPERM);
    CHECK(moved(mover, submit(mover, 0, {span(memory, 10 * kPage)}, kMs)).outcome == SN_MOVE_DONE);
    CHECK(copied(mover).copied_bytes == 10 * kPage && copied(mover).refused_bytes == 10 * kPage);
    sn_mover_destroy(mover);
  }
  munmap(memory, 10 * kPage);
}

void without_memory_for_copies_a_job_is_refused_and_the_next_is_not() {
  uint8_t *memory = pages(kPage);
  memory[0] = 1;
  const sn_span one = span(memory, kPage);
  sn_mover *mover = make();
  sn_job job{};
  job.nbytes = job.held[0] = kPage;
  job.target = 1;
  job.spans = &one;
  job.span_count = 1;
  CHECK(sn_mover_force(mover, kPage) == 0);
  sn_system_fail(SYS_mmap, 1, EAGAIN);
  CHECK(sn_mover_submit(mover, &job) == -ENOMEM);
  const int64_t id = sn_mover_submit(mover, &job);
  CHECK(id == 1 && moved(mover, 1).outcome == SN_MOVE_DONE && copied(mover).copied_bytes == kPage);
  sn_mover_destroy(mover);
  munmap(memory, kPage);
}

// Of all mappings only scratch memory has both: it is not for forked children, and it is private.
uint64_t scratch_bytes() {
  FILE *file = fopen("/proc/self/smaps", "r");
  CHECK(file != nullptr);
  char line[4096];
  unsigned long begin = 0, end = 0, from = 0, to = 0;
  char mode[8] = "", found[8] = "";
  uint64_t nbytes = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    if (sscanf(line, "%lx-%lx %7s", &from, &to, found) == 3) {
      begin = from;
      end = to;
      memcpy(mode, found, sizeof mode);
    } else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " dc") != nullptr && strcmp(mode, "rw-p") == 0) {
      nbytes += end - begin;
    }
  }
  fclose(file);
  return nbytes;
}

constexpr uint64_t kScratch = 32 << 20;

void movers_share_one_scratch_memory_and_free_it_when_they_rest() {
  const uint64_t before = scratch_bytes();
  uint8_t *memory = pages(kBytes);
  memset(memory, 1, kBytes);
  std::vector<sn_mover *> movers(10);
  for (sn_mover *&mover : movers) {
    mover = make();
    CHECK(moved(mover, submit(mover, 1, {span(memory, kBytes)}, 0)).moved_bytes == kBytes);
    CHECK(moved(mover, submit(mover, 0, {span(memory, kBytes)}, 0)).moved_bytes == kBytes);
  }
  submit(movers[0], 1, {span(memory, kBytes)}, kHour);
  CHECK(scratch_bytes() == before + kScratch);
  sn_mover_destroy(movers[0]);
  for (int tenths = 0; tenths < 6000 && scratch_bytes() != before; ++tenths) usleep(100000);
  CHECK(scratch_bytes() == before);
  CHECK(moved(movers[1], submit(movers[1], 1, {span(memory, kBytes)}, 0)).outcome == SN_MOVE_DONE);
  CHECK(copied(movers[1]).copied_bytes == 3 * kBytes && copied(movers[1]).refused_bytes == 0);
  for (size_t i = 1; i < movers.size(); ++i) sn_mover_destroy(movers[i]);
  CHECK(scratch_bytes() == before);
  munmap(memory, kBytes);
}

#ifndef __SANITIZE_THREAD__  // which lets no child of several threads have threads
void a_child_copies_by_movers_of_its_own() {
  uint8_t *memory = pages(kBytes);
  memset(memory, 1, kBytes);
  sn_mover *mover = make();
  submit(mover, 1, {span(memory, kBytes)}, kHour);
  const pid_t child = fork();
  if (child == 0) {
    sn_mover *own = make();
    moved(own, submit(own, 1, {span(memory, kBytes)}, 0));
    const bool right = copied(own).copied_bytes == kBytes && copied(own).refused_bytes == 0;
    sn_mover_destroy(own);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  sn_mover_destroy(mover);
  munmap(memory, kBytes);
}
#endif

void a_sleep_that_fails_between_two_pieces_fails_the_job() {
  uint8_t *memory = pages(kBytes);
  memset(memory, 1, kBytes);
  sn_mover *mover = make();
  sn_system_fail(SYS_clock_nanosleep, 1, EIO);
  const sn_moved one = moved(mover, submit(mover, 1, {span(memory, kBytes)}, kHour));
  CHECK(one.outcome == SN_MOVE_FAILED && one.error == EIO && one.moved_bytes == 0 && one.held[0] == kBytes);
  CHECK(copied(mover).copied_bytes > 0 && copied(mover).copied_bytes < kBytes);
  sn_mover_destroy(mover);
  munmap(memory, kBytes);
}

// Each would take an hour.
void a_mover_ends_in_the_middle_of_its_copies() {
  uint8_t *memory = pages(kBytes);
  memset(memory, 1, kBytes);
  for (int i = 0; i < 20; ++i) {
    sn_mover *mover = make();
    submit(mover, 1, {span(memory, kBytes)}, kHour);
    submit(mover, 0, {span(memory, kBytes)}, kHour);
    if (i % 2 != 0) usleep(300);
    sn_mover_destroy(mover);
  }
  munmap(memory, kBytes);
}

// Its parent copies, writes and forks at once; a child has the bytes as they were when it was forked.
void children_and_writers_find_their_own_bytes() {
  uint8_t *memory = pages(kBytes);
  memset(memory, 1, kBytes);
  sn_mover *mover = make();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint8_t value = 2; !done.load(); value = static_cast<uint8_t>(value % 200 + 1))
      for (uint64_t at = kBytes / 2; at < kBytes; at += kPage) memory[at] = value;
  });
  for (int i = 0; i < 20; ++i) {
    submit(mover, static_cast<uint8_t>(i % 2), {span(memory, kBytes)}, kMs);
    const pid_t child = fork();
    if (child == 0) {
      bool right = true;
      sn_copied told;
      for (uint64_t at = 0; at < kBytes / 2; at += kPage) right = right && memory[at] == 1;
      right = right && sn_mover_copied(mover, &told) == -ECHILD && sn_mover_destroy(mover) == -ECHILD;
      memset(memory, 7, kBytes);
      _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(sn_mover_wait(mover, 19, kForever) == 0 && sn_mover_wait(mover, 20, kForever) == 0);  // each way has a worker
  done.store(true);
  writer.join();
  CHECK(copied(mover).copied_bytes == 20 * kBytes);
  for (uint64_t at = 0; at < kBytes; ++at) CHECK(memory[at] != 7);
  sn_mover_destroy(mover);
  munmap(memory, kBytes);
}

}  // namespace

int main() {
  what_moves_is_copied_and_stays_as_it_was();
  a_link_that_is_faster_than_copies_tells_how_long_they_took();
  pages_that_nobody_touched_stay_so();
  what_is_gone_or_closed_is_refused_and_the_move_goes_on();
  a_system_that_lets_nobody_copy_costs_the_copies_only();
  without_memory_for_copies_a_job_is_refused_and_the_next_is_not();
  movers_share_one_scratch_memory_and_free_it_when_they_rest();
#ifndef __SANITIZE_THREAD__
  a_child_copies_by_movers_of_its_own();
#endif
  a_sleep_that_fails_between_two_pieces_fails_the_job();
  a_mover_ends_in_the_middle_of_its_copies();
  children_and_writers_find_their_own_bytes();
}
