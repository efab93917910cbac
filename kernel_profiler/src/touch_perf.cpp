// The software page-fault event, every fault, of every thread: which page, but not whether to read or write.
//
// An event that threads born later inherit needs one descriptor for each thread and processor, for the kernel gives
// such events no ring across processors; then nothing is missed. On a large machine that would be tens of thousands:
// where they are more than half of what the limit on open files leaves, each thread has one event on any processor,
// nothing is inherited, and a thread born meanwhile is told of by its parent's event: it is watched from then on, and
// counted as late; the event of one that has ended makes room. Where not even those fit, the reader refuses. Rings are
// pinned memory: together they take kAllRingsBytes at most, in equal parts, and less where the host's limit on locked
// memory says so.
#include <dirent.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "guarded.h"
#include "immortal.h"
#include "system.h"
#include "touch.h"

namespace {

constexpr uint64_t kAllRingsBytes = uint64_t{64} << 20;
constexpr uint64_t kRingBytes = uint64_t{16} << 20;
constexpr uint64_t kLeastRingBytes = uint64_t{64} << 10;
constexpr size_t kMoreThreads = 64;  // at a time, born while we watch, where each has a ring of its own

struct Ring {
  int cpu;       // -1: of one thread
  pid_t thread;  // that, or the first one
  int fd;
  uint8_t *memory;  // a control page, then the records
  uint64_t nbytes;  // of records
  bool ended;       // with its one thread
};

struct Watch {
  std::vector<int> events;  // one a thread and processor, but for those that own a ring
  std::vector<Ring> rings;  // has room for all that may come
  std::set<pid_t> threads;  // that are watched
  std::vector<pollfd> waits;  // the drainer's, as large as it may become
  bool other_rings = false;   // than `waits` has
  std::thread drainer;
};

sn::Immortal<Watch> kept;
Watch &watched = kept.value;
std::mutex draining;
uint64_t ring_bytes = kRingBytes;
int wake_up = -1;
bool with_kernel = true;
bool by_thread = false;  // one event a thread, on any processor

long open_event(pid_t thread, int cpu) {
  perf_event_attr attributes = {};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_PAGE_FAULTS;
  attributes.sample_period = 1;
  attributes.sample_type = PERF_SAMPLE_ADDR;
  attributes.read_format = PERF_FORMAT_LOST;
  attributes.exclude_hv = 1;
  attributes.exclude_kernel = with_kernel ? 0 : 1;
  attributes.inherit = by_thread ? 0 : 1;
  attributes.inherit_thread = by_thread ? 0 : 1;  // threads, not forked children
  attributes.task = by_thread ? 1 : 0;            // a record of each thread that it starts
  attributes.watermark = 1;
  attributes.wakeup_watermark = static_cast<uint32_t>(kLeastRingBytes / 4);
  return sn_system(SYS_perf_event_open, sn::arg(&attributes), thread, cpu, -1, PERF_FLAG_FD_CLOEXEC, 0);
}

int add_ring(int cpu, pid_t thread, int fd) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (watched.rings.size() == watched.rings.capacity()) return -ENOSPC;
  const long mapped = sn::map(0, ring_bytes + page, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  if (mapped < 0) return static_cast<int>(mapped);
  watched.rings.push_back(Ring{cpu, thread, fd, reinterpret_cast<uint8_t *>(mapped), ring_bytes, false});
  watched.other_rings = true;
  return 0;
}

void close_ring(Ring &ring) {
  sn::unmap(reinterpret_cast<uintptr_t>(ring.memory), ring.nbytes + static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  sn::shut(ring.fd);
}

int watch(pid_t thread, int cpu) {
  if (watched.events.size() == watched.events.capacity()) watched.events.reserve(2 * watched.events.size() + 64);
  const long opened = open_event(thread, cpu);
  if (opened == -ESRCH || opened == -ENODEV) return 0;  // the thread has ended; the processor is off
  if (opened < 0) return static_cast<int>(opened);
  int fd = sn::out_of_the_way(static_cast<int>(opened));
  for (const Ring &ring : watched.rings)
    if (cpu >= 0 && ring.cpu == cpu) {
      watched.events.push_back(fd);
      return static_cast<int>(sn_system(SYS_ioctl, fd, PERF_EVENT_IOC_SET_OUTPUT, ring.fd, 0, 0, 0));
    }
  const int error = add_ring(cpu, thread, fd);
  if (error != 0) sn::shut(fd);
  return error;
}

// Calls `visit` with each number among the names in a folder, until it returns an error.
template <typename Visit>
int each_number(const char *folder, Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR *)> opened(opendir(folder), closedir);
  if (opened == nullptr) return -errno;
  for (const dirent *entry = readdir(opened.get()); entry != nullptr; entry = readdir(opened.get())) {
    if (entry->d_name[0] == '.') continue;
    const int error = visit(atoi(entry->d_name));
    if (error != 0) return error;
  }
  return 0;
}

// One that is ending is listed for a moment still. It is not late, and its number is free for another.
int watch_thread(pid_t thread, uint64_t *found) {
  const size_t before = watched.rings.size();
  const int error = watch(thread, -1);
  if (error == 0 && watched.rings.size() == before) {
    watched.threads.erase(thread);
  } else {
    ++*found;
  }
  return error;
}

// Watches those threads that are not watched yet; `found` counts them.
int watch_threads(int cpus, uint64_t *found) {
  for (uint64_t before = *found;; before = *found) {
    const int error = each_number("/proc/self/task", [&](pid_t thread) {
      if (!watched.threads.insert(thread).second) return 0;
      if (by_thread) return watch_thread(thread, found);
      ++*found;
      int failed = 0;
      for (int cpu = 0; cpu < cpus && failed == 0; cpu++) failed = watch(thread, cpu);
      return failed;
    });
    if (error != 0 || *found == before) return error;  // until a look finds no new thread
  }
}

uint64_t word_at(const Ring &ring, uint64_t position) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return *reinterpret_cast<const uint64_t *>(ring.memory + page + position % ring.nbytes);
}

// Whether threads have come or gone.
bool drain(Ring &ring) {
  auto *control = reinterpret_cast<perf_event_mmap_page *>(ring.memory);
  uint64_t tail = control->data_tail;
  bool changed = false;
  const uint64_t head = __atomic_load_n(&control->data_head, __ATOMIC_ACQUIRE);
  while (tail < head) {
    const uint64_t raw = word_at(ring, tail);  // type: 32 bits, misc: 16, nbytes: 16
    const uint32_t type = static_cast<uint32_t>(raw);
    if (type == PERF_RECORD_SAMPLE) {
      const uint64_t address = word_at(ring, tail + 8);
      sn::TouchCell *cell = sn::touched.find(address);
      if (cell != nullptr) cell->note(false);
      if (cell == nullptr && sn::touched.should_hold(address)) sn::touch_lost++;
    }
    if (type == PERF_RECORD_EXIT) {
      const auto thread = static_cast<pid_t>(word_at(ring, tail + 16));
      watched.threads.erase(thread);  // its number is free for another
      ring.ended |= ring.cpu < 0 && ring.thread == thread;
    }
    changed |= type == PERF_RECORD_FORK || type == PERF_RECORD_EXIT;
    tail += raw >> 48;
  }
  __atomic_store_n(&control->data_tail, tail, __ATOMIC_RELEASE);
  return changed;
}

// Faults that found a ring full. Before Linux 6.0 the kernel doesn't tell: EINVAL at open.
uint64_t lost_by(int fd) {
  uint64_t counts[2] = {};
  return sn_system(SYS_read, fd, sn::arg(counts), sizeof counts, 0, 0, 0) == sizeof counts ? counts[1] : 0;
}

void close_ended() {
  std::vector<Ring> &rings = watched.rings;
  const auto ended = std::partition(rings.begin(), rings.end(), [](const Ring &ring) { return !ring.ended; });
  watched.other_rings |= ended != rings.end();
  for (auto ring = ended; ring != rings.end(); ++ring) {
    sn::touch_lost += lost_by(ring->fd);
    close_ring(*ring);
  }
  rings.erase(ended, rings.end());
}

int drain_all() {
  std::lock_guard<std::mutex> held(draining);
  bool changed = false;
  for (Ring &ring : watched.rings) changed |= drain(ring);
  if (!changed) return 0;
  close_ended();
  uint64_t found = 0;
  const int error = sn::guarded([&] { return watch_threads(0, &found); });
  sn::touch_late += found;
  if (error != 0) sn::touch_lost++;  // and who knows how many more: one of them is not watched
  return 0;
}

int look(uint64_t, uint64_t) { return drain_all(); }

void lay_out_waits() {
  std::lock_guard<std::mutex> held(draining);
  watched.waits.clear();  // its memory stays
  watched.waits.push_back(pollfd{wake_up, POLLIN, 0});
  for (const Ring &ring : watched.rings) watched.waits.push_back(pollfd{ring.fd, POLLIN, 0});
  watched.other_rings = false;
}

bool other_rings() {
  std::lock_guard<std::mutex> held(draining);
  return watched.other_rings;
}

void serve() {
  std::vector<pollfd> &waits = watched.waits;
  for (lay_out_waits(); waits[0].revents == 0;) {
    const long ready = sn_system(SYS_poll, sn::arg(waits.data()), static_cast<long>(waits.size()), -1, 0, 0, 0);
    if (ready < 0 && ready != -EINTR) return;
    drain_all();
    for (pollfd &wait : waits)
      if ((wait.revents & POLLHUP) != 0) wait.fd = -1;  // its thread has ended, and would wake us for ever
    if (other_rings()) lay_out_waits();
  }
}

uint64_t count_of(const char *folder) {
  uint64_t count = 0;
  each_number(folder, [&](int) {
    ++count;
    return 0;
  });
  return count;
}

// Descriptors that may be taken: half of what the limit leaves, for the program opens files too.
uint64_t spare_descriptors() {
  rlimit limit = {};
  if (sn_system(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, sn::arg(&limit), 0, 0) != 0) return 0;
  const uint64_t used = count_of("/proc/self/fd");
  return limit.rlim_cur > used ? (limit.rlim_cur - used) / 2 : 0;
}

// One more than the highest number of a processor. The C library's count is too small where it finds no /sys and a
// container's /proc/stat tells only of processors that the container may use, numbered anew.
int cpus_end() {
  uint64_t allowed[128] = {};  // of 8192 processors, the most that a kernel is built for
  sn_system(SYS_sched_getaffinity, 0, sizeof allowed, sn::arg(allowed), 0, 0, 0);
  int end = 64 * static_cast<int>(std::size(allowed));
  while (end > 0 && (allowed[(end - 1) / 64] >> (end - 1) % 64 & 1) == 0) end--;
  return std::max(end, static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)));
}

void close_all() {
  for (int &fd : watched.events) sn::shut(fd);
  watched.events.clear();
  for (Ring &ring : watched.rings) close_ring(ring);
  watched.rings.clear();
  watched.threads.clear();
}

int probe() {
  by_thread = false;
  with_kernel = true;
  int fd = static_cast<int>(open_event(0, 0));
  if (fd == -EACCES || fd == -EPERM) {
    with_kernel = false;
    fd = static_cast<int>(open_event(0, 0));
  }
  const int error = fd < 0 && fd != -ENODEV ? fd : 0;
  sn::shut(fd);
  return error;
}

int open_all() {
  int error = probe();
  if (error != 0) return error;
  const int cpus = cpus_end();
  const uint64_t threads = count_of("/proc/self/task"), spare = spare_descriptors();
  by_thread = threads * static_cast<uint64_t>(cpus) >= spare;
  if (by_thread && threads >= spare) return -EMFILE;
  const uint64_t most = by_thread ? std::min(spare, threads + kMoreThreads) : static_cast<uint64_t>(cpus);
  watched.rings.reserve(most);
  watched.waits.reserve(watched.rings.capacity() + 1);
  ring_bytes = kRingBytes;
  while (ring_bytes * most > kAllRingsBytes && ring_bytes > kLeastRingBytes) ring_bytes /= 2;
  for (;; ring_bytes /= 2) {
    uint64_t found = 0;
    error = watch_threads(cpus, &found);
    const bool refused = error == -EPERM || error == -ENOMEM;  // so much locked memory
    if (!refused || ring_bytes == kLeastRingBytes) return error;
    close_all();
  }
}

int start_draining() {
  watched.waits.reserve(1);
  const long fd = sn_system(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  wake_up = sn::out_of_the_way(static_cast<int>(fd));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  const int error = sn::guarded([] {
    watched.drainer = std::thread(serve);
    return 0;
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

int start() {
  sn::arm_register();
  return sn::guarded([] {
    std::lock_guard<std::mutex> held(draining);  // the drainer waits for all that there is to drain, and is none born late
    const int error = start_draining();
    return error != 0 ? error : open_all();
  });
}

void stop() {
  if (watched.drainer.joinable()) {
    const uint64_t one = 1;
    while (sn_system(SYS_write, wake_up, sn::arg(&one), sizeof one, 0, 0, 0) == -EINTR) {
    }
    watched.drainer.join();
  }
  for (int fd : watched.events) sn::touch_lost += lost_by(fd);
  for (const Ring &ring : watched.rings) sn::touch_lost += lost_by(ring.fd);
  close_all();
  sn::shut(wake_up);
}

// The drainer may be in the middle of a change.
void hold() { draining.lock(); }
void go_on() { draining.unlock(); }

void forget() {
  sn::forget_thread(watched.drainer);
  for (int &fd : watched.events) sn::shut(fd);
  for (Ring &ring : watched.rings) sn::shut(ring.fd);  // the mappings stay: nothing is written to them any more
  sn::shut(wake_up);
  watched.events.clear();
  watched.rings.clear();
  watched.threads.clear();
  go_on();
}

}  // namespace

namespace sn {
const TouchReader perf_reader = {start, drain_all, look, stop, hold, go_on, forget};
bool perf_sees_kernel() { return with_kernel; }
}
