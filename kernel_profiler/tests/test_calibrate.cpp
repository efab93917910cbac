// Measuring memory: what is counted is what was done. No time is judged, only that work and clock agree.
#include <errno.h>
#include <sched.h>
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

constexpr uint64_t kLine = 64;
constexpr uint64_t kNbytes = 1009 * kLine;  // a prime number of lines, no multiple of a chunk
constexpr uint64_t kDuration = 3000000;

struct Memory {
  explicit Memory(uint64_t nbytes) : bytes(static_cast<uint64_t *>(aligned_alloc(kLine, nbytes))) {
    for (uint64_t i = 0; i < nbytes / 8; ++i) bytes[i] = i;
  }
  ~Memory() { free(bytes); }
  uint64_t base() const { return reinterpret_cast<uint64_t>(bytes); }
  uint64_t *bytes;
};

sn_work work_of(uint32_t kind, uint64_t base, uint64_t nbytes, int32_t cpu = -1, int32_t node = 0) {
  sn_work work{};
  work.kind = kind;
  work.base = base;
  work.nbytes = nbytes;
  work.cpu = cpu;
  work.node = node;
  return work;
}

int32_t some_cpu() {
  cpu_set_t set;
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) return cpu;
  return -1;
}

sn_pace one(const sn_work &work, uint64_t duration_ns = kDuration) {
  sn_pace pace{};
  CHECK(sn_measure(&work, 1, duration_ns, &pace) == 0);
  CHECK(pace.error == 0 && pace.stop_ns - pace.start_ns >= duration_ns);
  CHECK(pace.busy_ns > 0 && pace.busy_ns <= pace.stop_ns - pace.start_ns + 100000);
  return pace;
}

void links_are_one_cycle_through_every_line() {
  Memory memory(kNbytes);
  CHECK(sn_chase_link(memory.base(), kNbytes, 41) == 0);
  std::set<uint64_t> seen;
  uint64_t at = memory.base();
  do {
    CHECK(at >= memory.base() && at < memory.base() + kNbytes && at % kLine == 0);
    CHECK(seen.insert(at).second);
    at = *reinterpret_cast<uint64_t *>(at);
  } while (at != memory.base());
  CHECK(seen.size() == 1009);
  CHECK(memory.bytes[1] == 1 && memory.bytes[15] == 15);  // the rest of a line is left alone
}

void a_chase_goes_on_where_it_ended() {
  Memory memory(kNbytes);
  CHECK(sn_chase_link(memory.base(), kNbytes, 7) == 0);
  sn_work work = work_of(SN_MEASURE_CHASE, memory.base(), kNbytes, some_cpu());
  for (int turn = 0; turn < 3; ++turn) {
    const sn_pace pace = one(work);
    CHECK(pace.loads > 0 && pace.bytes == 0);
    uint64_t at = work.start != 0 ? work.start : memory.base();
    for (uint64_t i = 0; i < pace.loads % 1009; ++i) at = *reinterpret_cast<uint64_t *>(at);
    CHECK(at == pace.at);
    work.start = pace.at;
  }
}

void a_reader_changes_nothing_and_a_writer_everything() {
  Memory memory(kNbytes);
  CHECK(one(work_of(SN_MEASURE_READ, memory.base(), kNbytes)).bytes > 0);
  for (uint64_t i = 0; i < kNbytes / 8; ++i) CHECK(memory.bytes[i] == i);
  sn_pace pace = one(work_of(SN_MEASURE_WRITE, memory.base(), kNbytes / 2 / kLine * kLine));
  CHECK(pace.bytes > 0);
  CHECK(memory.bytes[0] != 0 && memory.bytes[1] == ~memory.bytes[0]);
  CHECK(memory.bytes[kNbytes / 8 - 1] == kNbytes / 8 - 1);  // beyond its range
}

void an_update_counts_a_read_and_a_write_of_each_byte() {
  Memory memory(kLine);
  const sn_pace pace = one(work_of(SN_MEASURE_UPDATE, memory.base(), kLine), 0);
  CHECK(pace.bytes == 2 * kLine && memory.bytes[0] == 1);  // no time: once
  memory.bytes[0] = 0;
  const sn_pace some = one(work_of(SN_MEASURE_UPDATE, memory.base(), kLine));
  CHECK(some.bytes % (2 * kLine) == 0 && some.bytes > 0);
  uint64_t expected = 0;  // after v passes: 1 ^ 2 ^ ... ^ v
  for (uint64_t value = 1; value <= some.bytes / (2 * kLine); ++value) expected ^= value;
  CHECK(memory.bytes[0] == expected);
}

void threads_work_at_once() {
  Memory memory(5 * kNbytes);
  std::vector<sn_work> works;
  for (uint64_t i = 0; i < 5; ++i) works.push_back(work_of(SN_MEASURE_READ, memory.base() + i * kNbytes, kNbytes));
  std::vector<sn_pace> paces(works.size());
  CHECK(sn_measure(works.data(), 5, kDuration, paces.data()) == 0);
  for (const sn_pace &pace : paces) CHECK(pace.bytes > 0 && pace.start_ns == paces[0].start_ns);
}

void what_makes_no_sense_is_refused() {
  Memory memory(kNbytes);
  sn_pace pace{};
  const auto refused = [&](sn_work work) { CHECK(sn_measure(&work, 1, kDuration, &pace) == -EINVAL); };
  refused(work_of(SN_MEASURE_MOVE + 1, memory.base(), kNbytes));
  refused(work_of(SN_MEASURE_READ, memory.base() + 8, kLine));
  refused(work_of(SN_MEASURE_READ, memory.base(), 0));
  refused(work_of(SN_MEASURE_READ, memory.base(), kLine + 8));
  sn_work outside = work_of(SN_MEASURE_CHASE, memory.base(), kNbytes);
  outside.start = memory.base() + kNbytes;
  refused(outside);
  const sn_work fine = work_of(SN_MEASURE_READ, memory.base(), kNbytes);
  CHECK(sn_measure(&fine, 0, kDuration, &pace) == -EINVAL);
  CHECK(sn_measure(&fine, 1, UINT64_MAX, &pace) == -EINVAL);
  CHECK(sn_chase_link(memory.base(), kLine, 1) == -EINVAL);
  CHECK(sn_chase_link(memory.base() + 8, kNbytes, 1) == -EINVAL);
}

void one_that_cannot_start_stops_all() {
  Memory memory(kNbytes);
  const sn_work works[2] = {work_of(SN_MEASURE_WRITE, memory.base(), kNbytes),
                            work_of(SN_MEASURE_READ, memory.base(), kNbytes, 1 << 20)};  // no such CPU
  sn_pace paces[2] = {};
  CHECK(sn_measure(works, 2, kDuration, paces) == -EINVAL);
  CHECK(memory.bytes[0] == 0 && memory.bytes[1] == 1 && paces[0].bytes == 0);  // nothing was written
}

// A kernel of two nodes that knows where pages are.
struct Kernel {
  std::mutex mutex;
  std::map<uint64_t, int> node;
  int error = 0;  // of the first page, for ever
} kernel;

long system_call(long number, const long a[6]) {
  if (number == SYS_clock_nanosleep)
    return -clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, reinterpret_cast<const timespec *>(a[2]), nullptr);
  CHECK(number == SYS_move_pages);
  const std::lock_guard<std::mutex> lock(kernel.mutex);
  const uint64_t *pages = reinterpret_cast<const uint64_t *>(a[2]);
  const int *nodes = reinterpret_cast<const int *>(a[3]);
  int *status = reinterpret_cast<int *>(a[4]);
  for (long i = 0; i < a[1]; ++i) {
    int &at = kernel.node[pages[i]];
    const bool barred = kernel.error != 0 && pages[i] == kernel.node.begin()->first;
    if (nodes != nullptr && !barred) at = nodes[i];
    status[i] = nodes != nullptr && barred ? -kernel.error : at;
  }
  return 0;
}

void pages_are_moved_by_several_threads_and_counted() {
  constexpr uint64_t kPage = 4096, kPages = 1543, kBase = 0x200000000;
  sn_system_replace(system_call);
  const sn_work works[2] = {work_of(SN_MEASURE_MOVE, kBase, kPages * kPage, -1, 1),
                            work_of(SN_MEASURE_MOVE, kBase + kPages * kPage, kPages * kPage, -1, 1)};
  sn_pace paces[2] = {};
  CHECK(sn_measure(works, 2, 0, paces) == 0);
  for (const sn_pace &pace : paces) {
    CHECK(pace.bytes == kPages * kPage && pace.error == 0 && pace.stop_ns > pace.start_ns);
  }
  for (uint64_t i = 0; i < 2 * kPages; ++i) CHECK(kernel.node[kBase + i * kPage] == 1);
  CHECK(sn_measure(works, 2, 0, paces) == 0);
  CHECK(paces[0].bytes == 0 && paces[0].error == 0);  // they are there already
  kernel.error = EACCES;
  const sn_work back = work_of(SN_MEASURE_MOVE, kBase, kPages * kPage, -1, 0);
  CHECK(sn_measure(&back, 1, 0, paces) == 0);
  CHECK(paces[0].bytes == (kPages - 1) * kPage && paces[0].error == EACCES);
  sn_system_replace(nullptr);
}

}  // namespace

int main() {
  links_are_one_cycle_through_every_line();
  a_chase_goes_on_where_it_ended();
  a_reader_changes_nothing_and_a_writer_everything();
  an_update_counts_a_read_and_a_write_of_each_byte();
  threads_work_at_once();
  what_makes_no_sense_is_refused();
  one_that_cannot_start_stops_all();
  pages_are_moved_by_several_threads_and_counted();
  return 0;
}
