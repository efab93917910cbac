// Readers of armed memory on a workload whose touches are known: prime numbers of layers, reads and writes
// apart, by user code, by system calls, by threads; and nothing where nothing was touched.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "sentinel.h"

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "%s:%d: reader %d: %s\n", __FILE__, __LINE__, reader, #condition); \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 1009;
int reader = -1;
uint64_t base;

struct Counts {
  int read = 0, written = 0, touched = 0;  // layers
};

volatile char *at(uint64_t page) { return reinterpret_cast<volatile char *>(base + page * kPage + page % kPage); }
void read_page(uint64_t page) { (void)*at(page); }
void write_page(uint64_t page) { *at(page) = static_cast<char>(page); }

std::map<uint64_t, Counts> counts() {
  std::vector<sn_touch_run> runs(sn_touch_runs(0, 0, nullptr));
  CHECK(sn_touch_runs(0, runs.size(), runs.data()) == runs.size());
  std::map<uint64_t, Counts> found;
  for (const sn_touch_run &run : runs)
    for (uint64_t i = 0; i < run.npages; i++) {
      Counts &page = found[run.page + i - base / kPage];
      page.touched++;
      page.read += (run.seen & SN_TOUCHED_READ) != 0;
      page.written += (run.seen & SN_TOUCHED_WRITE) != 0;
      CHECK(((run.seen & SN_TOUCHED) != 0) == (reader != SN_TOUCH_UFFD));
    }
  return found;
}

bool start() {
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  const int error = sn_touch_start(reader, nullptr, kPages);
  if (error == 0) return true;
  fprintf(stderr, "reader %d is not available here: %s\n", reader, strerror(-error));
  CHECK(error == -EPERM || error == -EACCES || error == -ENOSYS || error == -EINVAL);
  CHECK(sn_arm_unback() == 0);
  return false;
}

void stop() {
  CHECK(sn_touch_stop() == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  CHECK(state.lost == 0 && state.late == 0);
  CHECK(sn_arm_unback() == 0);
}

void nothing_touched_nothing_told() {
  for (uint64_t page = 0; page < kPages; page++) write_page(page);
  for (int layer = 0; layer < 7; layer++) CHECK(sn_touch_mark(layer) == 0);
  stop();
  CHECK(counts().empty());
}

void system_call_touches(int zero) {
  CHECK(read(zero, const_cast<char *>(at(500)), 8) == 8);
  int ends[2];
  CHECK(pipe(ends) == 0);
  CHECK(write(ends[1], const_cast<char *>(at(501)), 8) == 8);
  close(ends[0]);
  close(ends[1]);
}

void known_touches_exactly() {
  const int zero = open("/dev/zero", O_RDONLY);
  for (int layer = 0; layer < 29; layer++) {
    CHECK(sn_touch_mark(layer) == 0);
    if (layer < 23) {
      write_page(0);
      read_page(3);
      read_page(4), write_page(4);
    }
    if (layer < 17) {
      std::thread one([] { write_page(101); }), two([] { read_page(103), read_page(104); });
      one.join();
      two.join();
    }
    if (layer < 13) system_call_touches(zero);
    if (layer < 2)
      for (uint64_t page = 900; page < kPages; page++) read_page(page);
  }
  CHECK(sn_touch_mark(-1) == 0);
  write_page(2);  // belongs to no layer
  stop();
  close(zero);
  std::map<uint64_t, Counts> found = counts();
  sn_touch_state state;
  sn_touch_quality(&state);
  if (state.unit_pages != 1) return;  // no userfaultfd here: neighbours come along
  const bool kernel = state.sees_system_calls != 0, kinds = reader == SN_TOUCH_UFFD;
  CHECK(found.size() == 3 + 3 + (kernel ? 2 : 0) + (kPages - 900));
  CHECK(found[0].touched == 23 && found[3].touched == 23 && found[4].touched == 23);
  CHECK(found[101].touched == 17 && found[103].touched == 17 && found[104].touched == 17);
  if (kernel) CHECK(found[500].touched == 13 && found[501].touched == 13);
  for (uint64_t page = 900; page < kPages; page++) CHECK(found[page].touched == 2);
  if (!kinds) return;
  CHECK(found[0].written == 23 && found[0].read == 0);
  CHECK(found[3].written == 0 && found[3].read == 23);
  CHECK(found[4].written == 23 && found[4].read == 23);
  CHECK(found[101].written == 17 && found[104].read == 17 && found[104].written == 0);
  CHECK(found[500].written == 13 && found[501].read == 13 && found[501].written == 0);
}

void forks_while_watched() {
  for (uint64_t page = 0; page < kPages; page++) write_page(page);
  CHECK(sn_touch_mark(0) == 0);
  const pid_t child = fork();
  if (child == 0) {
    for (uint64_t page = 0; page < kPages; page++)
      if (*at(page) != static_cast<char>(page)) _exit(1);
    *at(5) = 99;
    _exit(sn_touch_mark(1) == -ENODEV ? 0 : 2);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  write_page(7);
  CHECK(sn_touch_mark(-1) == 0);
  CHECK(*at(5) == 5);
  stop();
  CHECK(counts().size() == 1 && counts()[7].touched == 1);  // neither the copy nor the child's own
}

void failed_starts_leave_nothing() {
  for (uint64_t n = 1;; n++) {
    write_page(11);
    CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
    sn_system_fail(-1, n, EINVAL);
    const int result = sn_touch_start(reader, nullptr, kPages);
    const bool unused = sn_system_fail(-1, 0, 0) != 0;
    if (result == 0) CHECK(sn_touch_mark(0) == 0);
    CHECK(*at(11) == 11);
    CHECK(sn_touch_stop() == 0);
    CHECK(sn_arm_unback() == 0);
    CHECK(*at(11) == 11);
    if (unused) return;
  }
}

// Touches of pages that the table is too short for are lost, and counted.
void a_short_table_loses_and_says_so() {
  constexpr uint64_t kTold = 64;
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  if (sn_touch_start(reader, nullptr, kTold) == 0) {
    CHECK(sn_touch_mark(0) == 0);
    for (uint64_t i = 0; i < 3; i++) write_page(20 * i);
    for (uint64_t i = 0; i < 7; i++) write_page(kTold + 100 * i);
    CHECK(sn_touch_mark(-1) == 0);
    CHECK(sn_touch_stop() == 0);
    sn_touch_state state;
    sn_touch_quality(&state);
    if (state.unit_pages == 1) CHECK(state.lost == 7 && counts().size() == 3);
  }
  CHECK(sn_arm_unback() == 0);
}

// The handler can't map a page: from there on it sees nothing, but the thread that waits goes on with its bytes.
void a_fault_that_cannot_be_answered_is_lost_and_its_thread_goes_on() {
  if (!start()) return;
  CHECK(sn_touch_mark(0) == 0);
  CHECK(sn_touch_mark(1) == 0);
  sn_system_fail(SYS_ioctl, 1, EINVAL);  // the next is the handler's
  CHECK(*at(11) == 11);
  CHECK(sn_system_fail(-1, 0, 0) == 0);
  for (uint64_t page = 0; page < kPages; page++) write_page(page);
  CHECK(sn_touch_stop() == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  CHECK(state.lost > 0);
  CHECK(sn_arm_unback() == 0);
}

std::atomic<bool> was_read{false}, marking{false};

// The handler has read a fault, and comes to it only after the mark has begun.
long reads_late(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number != SYS_read || result <= 0) return result < 0 ? -errno : result;
  was_read.store(true);
  while (!marking.load()) sched_yield();
  usleep(20000);
  return result;
}

void what_was_read_before_a_mark_belongs_to_the_layer_that_ends() {
  if (!start()) return;
  CHECK(sn_touch_mark(0) == 0);
  sn_system_replace(reads_late);
  std::thread toucher([] { write_page(17); });
  while (!was_read.load()) sched_yield();
  marking.store(true);
  CHECK(sn_touch_mark(1) == 0);
  toucher.join();
  sn_system_replace(nullptr);
  stop();
  sn_touch_run run;
  CHECK(sn_touch_runs(0, 1, &run) == 1 && run.page == base / kPage + 17 && run.layer == 0);
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

void allow_descriptors(rlim_t more) {
  rlimit limit;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = std::min(limit.rlim_max, more);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

uint64_t bytes_of_rings() {
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != nullptr);
  char line[512];
  uint64_t sum = 0, from = 0, to = 0;
  while (fgets(line, sizeof line, maps) != nullptr)
    if (strstr(line, "[perf_event]") != nullptr && sscanf(line, "%lx-%lx", &from, &to) == 2) sum += to - from;
  fclose(maps);
  return sum;
}

// Ten threads more, each of which touches a page of its own when it is told to.
struct Crew {
  std::atomic<int> told{0}, done{0};
  std::vector<std::thread> threads;

  void add(int when, uint64_t page) {
    threads.emplace_back([this, when, page] {
      while (told.load() < when) usleep(100);
      write_page(page);
      ++done;
    });
  }
  void tell(int when, int all) {
    told.store(when);
    while (done.load() < all) usleep(100);
  }
};

// A descriptor for each thread and processor is more than the limit allows: each thread has one, and those that are born
// meanwhile are found. Where even that is too much, nothing is watched, and nothing stays open.
void few_descriptors() {
  if (sysconf(_SC_NPROCESSORS_CONF) < 2 || !start()) return;
  stop();
  rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  Crew crew;
  for (uint64_t i = 0; i < 10; i++) crew.add(1, 50 + 40 * i);
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  const int open = open_descriptors();
  allow_descriptors(static_cast<rlim_t>(open + 14));
  CHECK(sn_touch_start(reader, nullptr, kPages) == -EMFILE && open_descriptors() == open);
  allow_descriptors(static_cast<rlim_t>(open + 34));
  CHECK(sn_touch_start(reader, nullptr, kPages) == 0);
  CHECK(open_descriptors() <= open + 17);
  CHECK(bytes_of_rings() > 0 && bytes_of_rings() <= (uint64_t{64} << 20) + 17 * kPage);
  CHECK(sn_touch_mark(0) == 0);
  crew.tell(1, 10);
  crew.add(2, 700);
  CHECK(sn_touch_mark(1) == 0);
  crew.tell(2, 11);
  CHECK(sn_touch_mark(-1) == 0);
  CHECK(sn_touch_stop() == 0);
  allow_descriptors(before.rlim_cur);
  sn_touch_state state;
  sn_touch_quality(&state);
  CHECK(state.lost == 0 && state.late == 1);
  std::map<uint64_t, Counts> found = counts();
  if (state.unit_pages == 1) CHECK(found.size() == 11);
  for (uint64_t i = 0; i < 10; i++) CHECK(found[50 + 40 * i].touched == 1);
  CHECK(found[700].touched == 1);
  CHECK(sn_arm_unback() == 0 && open_descriptors() <= open);
  for (std::thread &thread : crew.threads) thread.join();
}

// More than there are rings for, one after the other: the ring of one that has ended serves the next.
void threads_come_and_go() {
  if (sysconf(_SC_NPROCESSORS_CONF) < 2 || !start()) return;
  stop();
  constexpr int kBorn = 40;  // of rings there are 17 at most
  rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  Crew crew;
  for (uint64_t i = 0; i < 10; i++) crew.add(kBorn + 1, 50 + 40 * i);
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  const int open = open_descriptors();
  allow_descriptors(static_cast<rlim_t>(open + 34));
  CHECK(sn_touch_start(reader, nullptr, kPages) == 0);
  CHECK(sn_touch_mark(0) == 0);
  for (int i = 0; i < kBorn; i++) {
    crew.add(i + 1, 500 + 2 * static_cast<uint64_t>(i));
    CHECK(sn_touch_mark(i + 1) == 0);
    crew.tell(i + 1, i + 1);
    crew.threads.back().join();
    crew.threads.pop_back();
    CHECK(open_descriptors() <= open + 17);
  }
  crew.tell(kBorn + 1, kBorn + 10);
  CHECK(sn_touch_mark(-1) == 0);
  CHECK(sn_touch_stop() == 0);
  allow_descriptors(before.rlim_cur);
  sn_touch_state state;
  sn_touch_quality(&state);
  CHECK(state.lost == 0 && state.late == kBorn);
  std::map<uint64_t, Counts> found = counts();
  for (uint64_t i = 0; i < kBorn; i++) CHECK(found[500 + 2 * i].touched == 1);
  for (uint64_t i = 0; i < 10; i++) CHECK(found[50 + 40 * i].touched == 1);
  CHECK(sn_arm_unback() == 0 && open_descriptors() <= open);
  for (std::thread &thread : crew.threads) thread.join();
}

std::atomic<bool> opened_beyond{false};

// Of a cpuset with one processor beyond those that the C library counts, as where it finds no /sys.
long on_a_high_processor(long number, const long a[6]) {
  const long counted = sysconf(_SC_NPROCESSORS_CONF), high = counted + 5;
  if (number == SYS_perf_event_open && a[2] >= counted) {
    opened_beyond = opened_beyond || a[2] == high;
    return -ENODEV;
  }
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_sched_getaffinity && result > 0) {
    auto *const words = reinterpret_cast<uint64_t *>(a[2]);
    words[high / 64] |= uint64_t{1} << high % 64;
  }
  return result == -1 ? -errno : result;
}

void processors_that_the_library_does_not_count_are_watched() {
  rlimit before;  // where files are few, events are of no processor
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  allow_descriptors(before.rlim_max);
  if (start()) {
    stop();
    sn_system_replace(on_a_high_processor);
    CHECK(start());
    stop();
    sn_system_replace(nullptr);
    CHECK(opened_beyond);
  }
  allow_descriptors(before.rlim_cur);
}

std::atomic<bool> opening{false}, opened{false};

// Of a thread that was born: the drainer is busy with what it keeps of threads.
long opens_late(long number, const long a[6]) {
  if (number == SYS_perf_event_open) {
    opening = true;
    usleep(200000);
    opened = true;
  }
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// Of which the child, that has no drainer, gives up descriptors.
void a_fork_waits_until_the_drainer_has_changed_what_it_keeps() {
  if (sysconf(_SC_NPROCESSORS_CONF) < 2 || !start()) return;
  stop();
  rlimit before;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  Crew crew;
  for (uint64_t i = 0; i < 10; i++) crew.add(1, 50 + 40 * i);
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  allow_descriptors(static_cast<rlim_t>(open_descriptors() + 34));  // an event a thread, and none inherited
  CHECK(sn_touch_start(reader, nullptr, kPages) == 0);
  CHECK(sn_touch_mark(0) == 0);
  sn_system_replace(opens_late);
  crew.add(1, 700);
  constexpr uint64_t kBytes = uint64_t{16} << 20;  // enough faults to wake the drainer
  void *room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(room != MAP_FAILED && madvise(room, kBytes, MADV_NOHUGEPAGE) <= 0);
  for (int i = 0; i < 10 && !opening; i++) {
    memset(room, i, kBytes);
    CHECK(madvise(room, kBytes, MADV_DONTNEED) == 0);
  }
  for (int i = 0; i < 600000 && !opening; i++) usleep(1000);
  CHECK(opening);
  const pid_t child = fork();
  if (child == 0) _exit(opened && sn_touch_mark(1) == -ENODEV ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  sn_system_replace(nullptr);
  crew.tell(1, 11);
  CHECK(sn_touch_stop() == 0);
  allow_descriptors(before.rlim_cur);
  munmap(room, kBytes);
  CHECK(sn_arm_unback() == 0);
  for (std::thread &thread : crew.threads) thread.join();
}

// Without userfaultfd a read maps its neighbours too: the unit says so, and the units touched are all told.
void coarser_without_registration() {
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  sn_system_fail(SYS_userfaultfd, 1, EPERM);
  CHECK(sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, kPages) == 0);
  CHECK(sn_touch_mark(0) == 0);
  read_page(500);
  CHECK(sn_touch_stop() == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  CHECK(state.unit_pages == 16 && state.lost == 0);
  const std::map<uint64_t, Counts> found = counts();
  CHECK(found.count(500) == 1 && found.size() % 16 == 0 && found.size() < kPages / 2);
  CHECK(found.begin()->first + base / kPage == (found.begin()->first + base / kPage) / 16 * 16);
  CHECK(sn_arm_unback() == 0);
}

}  // namespace

int main() {
  CHECK(sn_arm_map(kPages * kPage, &base) == 0);
  for (int kind : {SN_TOUCH_PAGEMAP, SN_TOUCH_PERF, SN_TOUCH_UFFD}) {
    reader = kind;
    for (void (*body)() : {nothing_touched_nothing_told, known_touches_exactly, forks_while_watched}) {
      if (start()) body();
    }
    failed_starts_leave_nothing();
    a_short_table_loses_and_says_so();
  }
  reader = SN_TOUCH_PERF;
  few_descriptors();
  threads_come_and_go();
  processors_that_the_library_does_not_count_are_watched();
  a_fork_waits_until_the_drainer_has_changed_what_it_keeps();
  reader = SN_TOUCH_UFFD;
  a_fault_that_cannot_be_answered_is_lost_and_its_thread_goes_on();
  what_was_read_before_a_mark_belongs_to_the_layer_that_ends();
  reader = SN_TOUCH_PAGEMAP;
  coarser_without_registration();
  CHECK(sn_arm_unmap(base) == 0);
  return 0;
}
