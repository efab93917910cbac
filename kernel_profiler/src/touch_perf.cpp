// The software page-fault event, every fault, of every thread: which page, but not whether to read or write.
#include <dirent.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "guarded.h"
#include "system.h"
#include "touch.h"

namespace {

constexpr uint64_t kRingBytes = uint64_t{16} << 20;  // a processor; less where the host grants less
constexpr uint64_t kLeastRingBytes = uint64_t{64} << 10;

struct Ring {
  int cpu;
  int fd;
  uint8_t *memory;  // a control page, then the records
  uint64_t nbytes;  // of records
};

std::vector<int> events;  // one a thread and processor, but for those that own a ring
std::vector<Ring> rings;
std::mutex draining;
std::thread drainer;
std::vector<pollfd> waits;  // the drainer's: made before it starts
int wake_up = -1;
bool with_kernel = true;

void shut(int fd) {
  if (fd >= 0) sn_system(SYS_close, fd, 0, 0, 0, 0, 0);
}

// Threads that are born later inherit the event; this needs one for each processor, as inherited events
// may not share a ring across processors.
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
  attributes.inherit = 1;
  attributes.inherit_thread = 1;  // threads, not forked children
  attributes.watermark = 1;
  attributes.wakeup_watermark = static_cast<uint32_t>(kLeastRingBytes / 4);
  return sn_system(SYS_perf_event_open, sn::arg(&attributes), thread, cpu, -1, PERF_FLAG_FD_CLOEXEC, 0);
}

int add_ring(int cpu, int fd) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  long mapped = -ENOMEM;
  for (uint64_t nbytes = kRingBytes; nbytes >= kLeastRingBytes; nbytes /= 2) {
    mapped = sn::map(0, nbytes + page, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    if (mapped < 0) continue;
    rings.push_back(Ring{cpu, fd, reinterpret_cast<uint8_t *>(mapped), nbytes});
    return 0;
  }
  return static_cast<int>(mapped);
}

int watch(pid_t thread, int cpu) {
  const long opened = open_event(thread, cpu);
  if (opened == -ESRCH || opened == -ENODEV) return 0;  // the thread has ended; the processor is off
  if (opened < 0) return static_cast<int>(opened);
  const int fd = static_cast<int>(opened);
  for (const Ring &ring : rings)
    if (ring.cpu == cpu) {
      events.push_back(fd);
      return static_cast<int>(sn_system(SYS_ioctl, fd, PERF_EVENT_IOC_SET_OUTPUT, ring.fd, 0, 0, 0));
    }
  const int error = add_ring(cpu, fd);
  if (error != 0) shut(fd);
  return error;
}

int watch_threads(int cpus) {
  std::set<pid_t> known;
  for (size_t before = 0;; before = known.size()) {
    const std::unique_ptr<DIR, int (*)(DIR *)> tasks(opendir("/proc/self/task"), closedir);
    if (tasks == nullptr) return -errno;
    int error = 0;
    for (const dirent *entry = readdir(tasks.get()); entry != nullptr && error == 0; entry = readdir(tasks.get())) {
      const pid_t thread = atoi(entry->d_name);
      if (thread == 0 || !known.insert(thread).second) continue;
      for (int cpu = 0; cpu < cpus && error == 0; cpu++) error = watch(thread, cpu);
    }
    if (error != 0 || known.size() == before) return error;  // until a look finds no new thread
  }
}

uint64_t word_at(const Ring &ring, uint64_t position) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return *reinterpret_cast<const uint64_t *>(ring.memory + page + position % ring.nbytes);
}

void drain(const Ring &ring) {
  auto *control = reinterpret_cast<perf_event_mmap_page *>(ring.memory);
  uint64_t tail = control->data_tail;
  const uint64_t head = __atomic_load_n(&control->data_head, __ATOMIC_ACQUIRE);
  while (tail < head) {
    const uint64_t raw = word_at(ring, tail);  // type: 32 bits, misc: 16, nbytes: 16
    if (static_cast<uint32_t>(raw) == PERF_RECORD_SAMPLE) {
      const uint64_t address = word_at(ring, tail + 8);
      sn::TouchCell *cell = sn::touched.find(address);
      if (cell != nullptr) cell->note(false);
      if (cell == nullptr && sn::touched.should_hold(address)) sn::touch_lost++;
    }
    tail += raw >> 48;
  }
  __atomic_store_n(&control->data_tail, tail, __ATOMIC_RELEASE);
}

int drain_all() {
  std::lock_guard<std::mutex> held(draining);
  for (const Ring &ring : rings) drain(ring);
  return 0;
}

int look(uint64_t, uint64_t) { return drain_all(); }

void serve() {
  while (waits.back().revents == 0) {
    const long ready = sn_system(SYS_poll, sn::arg(waits.data()), static_cast<long>(waits.size()), -1, 0, 0, 0);
    if (ready < 0 && ready != -EINTR) return;
    drain_all();
  }
}

// Faults that found a ring full. Before Linux 6.0 the kernel doesn't tell: EINVAL at open.
uint64_t lost_by(int fd) {
  uint64_t counts[2] = {};
  return sn_system(SYS_read, fd, sn::arg(counts), sizeof counts, 0, 0, 0) == sizeof counts ? counts[1] : 0;
}

int open_all() {
  const int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  with_kernel = true;
  long probe = open_event(0, 0);
  if (probe == -EACCES || probe == -EPERM) {
    with_kernel = false;
    probe = open_event(0, 0);
  }
  if (probe < 0 && probe != -ENODEV) return static_cast<int>(probe);
  shut(static_cast<int>(probe));
  return watch_threads(cpus);
}

int start_draining() {
  wake_up = static_cast<int>(sn_system(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0));
  if (wake_up < 0) return wake_up;
  for (const Ring &ring : rings) waits.push_back(pollfd{ring.fd, POLLIN, 0});
  waits.push_back(pollfd{wake_up, POLLIN, 0});
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  const int error = sn::guarded([] {
    drainer = std::thread(serve);
    return 0;
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

int start() {
  sn::arm_register();
  return sn::guarded([] {
    const int error = open_all();
    return error != 0 ? error : start_draining();
  });
}

void close_all() {
  for (int fd : events) shut(fd);
  events.clear();
  for (const Ring &ring : rings) {
    sn::unmap(reinterpret_cast<uintptr_t>(ring.memory), ring.nbytes + static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
    shut(ring.fd);
  }
  rings.clear();
  waits.clear();
  shut(wake_up);
  wake_up = -1;
}

void stop() {
  if (drainer.joinable()) {
    const uint64_t one = 1;
    while (sn_system(SYS_write, wake_up, sn::arg(&one), sizeof one, 0, 0, 0) == -EINTR) {
    }
    drainer.join();
  }
  for (int fd : events) sn::touch_lost += lost_by(fd);
  for (const Ring &ring : rings) sn::touch_lost += lost_by(ring.fd);
  close_all();
}

void forget() {
  if (drainer.joinable()) drainer.detach();  // it runs in the parent only
  for (int fd : events) shut(fd);
  for (const Ring &ring : rings) shut(ring.fd);  // the mappings stay: nothing is written to them any more
  shut(wake_up);
}

}  // namespace

namespace sn {
const TouchReader perf_reader = {start, drain_all, look, stop, forget};
bool perf_sees_kernel() { return with_kernel; }
}
