#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <new>
#include <unordered_set>
#include <vector>

#include "move_pages.h"
#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kSecond = 1000000000;
constexpr uint64_t kSliceNs = 50000000;  // how long a sleeping worker overlooks that it is to stop
constexpr uint64_t kSpinNs = 80000;      // a sleeping thread wakes up to this late
constexpr uint64_t kTogether = 2 << 20;  // bytes: jobs on nodes below this share system calls

// Counts the forks that led here: a mover made before one has no threads in the child, and its mutex may be
// held by nobody.
std::atomic<uint64_t> generation{0};
std::atomic<uint64_t> forks{0};  // of this process, seen from the parent

timespec spec_of(uint64_t ns) {
  return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

struct Job {
  sn_job spec;
  uint64_t id;
  uint64_t ready_ns;  // since when only the link keeps it waiting
  std::vector<sn_span> spans;

  uint64_t room_bytes() const { return spec.direction == SN_PROMOTE ? spec.nbytes - spec.fast_bytes : 0; }
  uint64_t flight_bytes() const {
    return spec.direction == SN_PROMOTE ? spec.nbytes - spec.fast_bytes : spec.fast_bytes;
  }
};

struct Accounts {
  uint64_t capacity = 0;
  sn_held held{};

  bool has_room(uint64_t nbytes) const { return held.fast_bytes + nbytes <= capacity; }
  void take_fast(uint64_t nbytes) {
    held.fast_bytes += nbytes;
    held.fast_high_bytes = std::max(held.fast_high_bytes, held.fast_bytes);
    held.most_fast_bytes = std::max(held.most_fast_bytes, held.fast_bytes);
  }
  void give_fast(uint64_t nbytes) { held.fast_bytes -= std::min(nbytes, held.fast_bytes); }
  void take_slow(uint64_t nbytes) {
    held.slow_bytes += nbytes;
    held.slow_high_bytes = std::max(held.slow_high_bytes, held.slow_bytes);
  }
  void give_slow(uint64_t nbytes) { held.slow_bytes -= std::min(nbytes, held.slow_bytes); }
  void count_overflow(uint64_t already) {  // `already`: held beyond the capacity before
    const uint64_t over = held.fast_bytes > capacity ? held.fast_bytes - capacity : 0;
    if (over <= already) return;
    held.overflow_bytes += over - already;
    held.overflows += 1;
  }
  uint64_t over() const { return held.fast_bytes > capacity ? held.fast_bytes - capacity : 0; }
};

class Lock {
 public:
  explicit Lock(pthread_mutex_t *mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~Lock() { pthread_mutex_unlock(mutex_); }
  Lock(const Lock &) = delete;
  Lock &operator=(const Lock &) = delete;

 private:
  pthread_mutex_t *mutex_;
};

}  // namespace

struct sn_mover {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed;
  uint64_t born_in = generation.load();
  bool half_duplex = false;
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> without_huge{0};
  Accounts accounts;
  uint64_t births_waiting = 0;
  uint64_t goes_first = 0;  // unfinished jobs that promotions wait for
  uint64_t last_id = 0;
  std::deque<Job> queue[2];
  bool running[2] = {false, false};
  bool link_busy = false;            // half duplex: one emulated job at a time
  uint64_t link_free_ns[2] = {0, 0};  // by the link's own clock; half duplex uses the first
  uint64_t room_since_ns = 0;         // by the same clock: when fast room was last given back
  std::unordered_set<uint64_t> unfinished;
  std::deque<sn_moved> results;
  std::atomic<uint64_t> ended{0};
  uint64_t errors[SN_ERRNO_COUNT] = {};
  pthread_t threads[2];
  bool started[2] = {false, false};

  bool inert() const { return born_in != generation.load(std::memory_order_relaxed); }
  bool freeing() const { return running[SN_DEMOTE] || !queue[SN_DEMOTE].empty(); }
  // False when time is up.
  bool wait_until(uint64_t deadline_ns) {
    const timespec deadline = spec_of(deadline_ns);
    return pthread_cond_timedwait(&changed, &mutex, &deadline) == 0 || sn_now_ns() < deadline_ns;
  }
};

namespace {

bool link_is_free(const sn_mover &m, const Job &job) {
  return job.spec.kind != SN_MOVE_EMULATED || !m.half_duplex || !m.link_busy;
}

// Whether nothing but its link can keep it waiting.
bool ready(const sn_mover &m, const Job &job) {
  if (job.spec.after != 0 && m.unfinished.count(job.spec.after) != 0) return false;
  if (job.spec.direction == SN_DEMOTE) return true;
  return m.births_waiting == 0 && m.goes_first == 0 && m.accounts.has_room(job.room_bytes());
}

bool starved(const sn_mover &m) {
  if (m.queue[SN_PROMOTE].empty() || m.running[SN_PROMOTE]) return false;
  return !m.accounts.has_room(m.queue[SN_PROMOTE].front().room_bytes());
}

// Whether `id` waits, itself or behind another, for room that nothing under way will free.
bool hopeless(const sn_mover &m, uint64_t id) {
  if (!starved(m) || m.freeing()) return false;
  const auto &queue = m.queue[SN_PROMOTE];
  return std::any_of(queue.begin(), queue.end(), [id](const Job &job) { return job.id == id; });
}

void finish(sn_mover &m, const Job &job, sn_moved moved) {
  moved.id = job.id;
  m.results.push_back(moved);
  m.unfinished.erase(job.id);
  m.goes_first -= job.spec.first != 0;
  for (auto &queue : m.queue)  // who waited for it finds the block as it left it
    for (Job &next : queue)
      if (next.spec.after == job.id) next.spec.fast_bytes = moved.fast_bytes;
  m.ended.fetch_add(1, std::memory_order_release);
  pthread_cond_broadcast(&m.changed);
}

int sleep_to(uint64_t deadline_ns) {
  const timespec deadline = spec_of(deadline_ns);
  return static_cast<int>(
      sn_system(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, sn::arg(&deadline), 0, 0, 0));
}

// Sleeps until the job would have ended on a link that does one after the other, with at least one system call
// (so that a test can fail it). 0 or a positive errno.
int sleep_through(const sn_mover &m, uint64_t stop_ns) {
  do {
    if (m.stopping.load(std::memory_order_relaxed)) return ECANCELED;
    const int error = sleep_to(std::min(stop_ns, sn_now_ns() + kSliceNs));
    if (error != 0 && error != -EINTR) return -error;
  } while (sn_now_ns() < stop_ns);
  return 0;
}

sn_moved run_emulated(sn_mover &m, const Job &job, uint64_t start_ns) {
  sn_moved moved{};
  moved.start_ns = start_ns;
  moved.stop_ns = start_ns + job.spec.duration_ns;
  moved.error = sleep_through(m, moved.stop_ns);
  if (moved.error != 0) moved.stop_ns = sn_now_ns();
  moved.outcome = moved.error != 0 ? SN_MOVE_FAILED : SN_MOVE_DONE;
  moved.moved_bytes = moved.error != 0 ? 0 : job.flight_bytes();
  const uint64_t arrived = job.spec.direction == SN_PROMOTE ? job.spec.nbytes : 0;
  moved.fast_bytes = moved.error != 0 ? job.spec.fast_bytes : arrived;
  return moved;
}

sn_moved fate_of(const Job &job, const sn::PageFate &fate) {
  sn_moved moved{};
  moved.moved_bytes = fate.moved_bytes;
  moved.error = fate.error;
  const uint64_t failed = std::min(fate.failed_bytes, job.spec.nbytes);
  moved.fast_bytes = job.spec.direction == SN_PROMOTE ? job.spec.nbytes - failed : failed;
  if (failed == 0) {
    moved.outcome = fate.moved_bytes != 0 ? SN_MOVE_DONE : SN_MOVE_ALREADY;
  } else {
    moved.outcome = failed < job.spec.nbytes ? SN_MOVE_PARTIAL : SN_MOVE_FAILED;
  }
  return moved;
}

std::vector<sn_moved> run_nodes(sn_mover &m, const std::vector<Job> &jobs) {
  const sn_job &first = jobs.front().spec;
  std::vector<sn::PageOrder> orders;
  for (const Job &job : jobs) orders.push_back({&job.spans, {}});
  uint64_t errors[SN_ERRNO_COUNT] = {};
  const uint64_t start_ns = sn_now_ns();
  sn::move_pages(orders, {first.node, first.bytes_per_s, &m.stopping, &m.without_huge}, errors);
  const uint64_t stop_ns = sn_now_ns();
  std::vector<sn_moved> all;
  for (size_t i = 0; i < jobs.size(); ++i) {
    all.push_back(fate_of(jobs[i], orders[i].fate));
    all.back().start_ns = start_ns;
    all.back().stop_ns = stop_ns;
  }
  Lock lock(&m.mutex);
  for (int i = 0; i < SN_ERRNO_COUNT; ++i) m.errors[i] += errors[i];
  return all;
}

// The accounts after a job: from both sides to where its bytes are.
void settle(sn_mover &m, const Job &job, const sn_moved &moved) {
  const uint64_t flight = job.flight_bytes();
  m.accounts.held.in_flight_bytes -= flight;
  const uint64_t before = job.spec.direction == SN_PROMOTE ? job.spec.nbytes : job.spec.fast_bytes;
  if (moved.fast_bytes <= before) {
    m.accounts.give_fast(before - moved.fast_bytes);
  } else {  // a demotion found pages that nobody had counted, and they stayed
    const uint64_t already = m.accounts.over();
    m.accounts.take_fast(moved.fast_bytes - before);
    if (job.spec.first == 0) m.accounts.count_overflow(already);  // else the kernel put them there, not we
  }
  const uint64_t slow_before = job.spec.direction == SN_PROMOTE ? flight : job.spec.nbytes;
  const uint64_t slow_after = job.spec.nbytes - moved.fast_bytes;
  if (slow_after <= slow_before) m.accounts.give_slow(slow_before - slow_after);
  if (slow_after > slow_before) m.accounts.take_slow(slow_after - slow_before);
}

// Takes the head of the queue: its bytes count on both sides until it is settled.
Job depart(sn_mover &m, int direction) {
  Job job = std::move(m.queue[direction].front());
  m.queue[direction].pop_front();
  m.accounts.take_fast(job.room_bytes());
  if (direction == SN_DEMOTE) m.accounts.take_slow(job.flight_bytes());
  m.accounts.held.in_flight_bytes += job.flight_bytes();
  return job;
}

void arrive(sn_mover &m, int direction, const Job &job, const sn_moved &moved) {
  settle(m, job, moved);
  if (direction == SN_DEMOTE) m.room_since_ns = moved.stop_ns;
  finish(m, job, moved);
}

void run_emulated_head(sn_mover &m, int direction) {
  uint64_t &free_ns = m.link_free_ns[m.half_duplex ? 0 : direction];
  uint64_t start_ns = std::max(free_ns, m.queue[direction].front().ready_ns);
  if (direction == SN_PROMOTE) start_ns = std::max(start_ns, m.room_since_ns);
  const Job job = depart(m, direction);
  free_ns = start_ns + job.spec.duration_ns;
  m.running[direction] = m.link_busy = true;
  pthread_mutex_unlock(&m.mutex);
  const sn_moved moved = run_emulated(m, job, start_ns);
  pthread_mutex_lock(&m.mutex);
  if (moved.error != 0 && moved.error < SN_ERRNO_COUNT) m.errors[moved.error] += 1;
  if (moved.error != 0) free_ns = std::min(free_ns, moved.stop_ns);
  m.running[direction] = m.link_busy = false;
  arrive(m, direction, job, moved);
}

// Whether `next` may share the system calls of jobs to where `first` goes, `nbytes` of them so far.
bool goes_along(const sn_mover &m, const Job &next, const Job &first, uint64_t nbytes) {
  return next.spec.kind == SN_MOVE_NODE && next.spec.node == first.spec.node &&
         next.spec.bytes_per_s == first.spec.bytes_per_s && nbytes + next.spec.nbytes <= kTogether && ready(m, next);
}

void run_node_heads(sn_mover &m, int direction) {
  auto &queue = m.queue[direction];
  std::vector<Job> jobs;
  uint64_t nbytes = 0;
  do {
    jobs.push_back(depart(m, direction));
    nbytes += jobs.back().spec.nbytes;
  } while (!queue.empty() && goes_along(m, queue.front(), jobs.front(), nbytes));
  m.running[direction] = true;
  pthread_mutex_unlock(&m.mutex);
  const std::vector<sn_moved> all = run_nodes(m, jobs);
  pthread_mutex_lock(&m.mutex);
  m.running[direction] = false;
  for (size_t i = 0; i < jobs.size(); ++i) arrive(m, direction, jobs[i], all[i]);
}

void run_head(sn_mover &m, int direction) {
  if (m.queue[direction].front().spec.kind == SN_MOVE_EMULATED) {
    run_emulated_head(m, direction);
  } else {
    run_node_heads(m, direction);
  }
}

void work(sn_mover &m, int direction) {
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  pthread_mutex_lock(&m.mutex);
  while (!m.stopping.load(std::memory_order_relaxed)) {
    auto &queue = m.queue[direction];
    const bool is_ready = !queue.empty() && ready(m, queue.front());
    if (is_ready && link_is_free(m, queue.front())) {
      run_head(m, direction);
      continue;
    }
    const uint64_t unready = queue.empty() || is_ready ? 0 : queue.front().id;
    pthread_cond_wait(&m.changed, &m.mutex);
    // Its time on the link counts from when it was ready for it.
    if (!queue.empty() && queue.front().id == unready) queue.front().ready_ns = sn_now_ns();
  }
  pthread_mutex_unlock(&m.mutex);
}

void *work_promote(void *mover) {
  work(*static_cast<sn_mover *>(mover), SN_PROMOTE);
  return nullptr;
}
void *work_demote(void *mover) {
  work(*static_cast<sn_mover *>(mover), SN_DEMOTE);
  return nullptr;
}

void note_fork() { generation.fetch_add(1, std::memory_order_relaxed); }
void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

int start_workers(sn_mover &m) {
  static const int registered = pthread_atfork(nullptr, count_fork, note_fork);
  if (registered != 0) return -registered;
  void *(*const bodies[2])(void *) = {work_promote, work_demote};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  int error = 0;
  for (int direction = 0; direction < 2 && error == 0; ++direction) {
    error = pthread_create(&m.threads[direction], nullptr, bodies[direction], &m);
    m.started[direction] = error == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return -error;
}

uint64_t deadline_in(uint64_t timeout_ns) {
  const uint64_t now = sn_now_ns();
  return timeout_ns > UINT64_MAX / 4 ? UINT64_MAX / 4 : now + timeout_ns;
}

}  // namespace

extern "C" int sn_mover_create(uint64_t fast_capacity_bytes, int half_duplex, sn_mover **out) {
  sn_mover *m = new (std::nothrow) sn_mover;
  if (m == nullptr) return -ENOMEM;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&m->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  m->half_duplex = half_duplex != 0;
  m->accounts.capacity = fast_capacity_bytes;
  const int error = start_workers(*m);
  if (error != 0) {
    sn_mover_destroy(m);
    return error;
  }
  *out = m;
  return 0;
}

extern "C" int sn_mover_destroy(sn_mover *m) {
  if (m == nullptr) return 0;
  if (m->inert()) return -ECHILD;  // its memory stays: its mutex cannot be destroyed here
  {
    Lock lock(&m->mutex);
    m->stopping.store(true, std::memory_order_relaxed);
    pthread_cond_broadcast(&m->changed);
  }
  for (int direction = 0; direction < 2; ++direction)
    if (m->started[direction]) pthread_join(m->threads[direction], nullptr);
  pthread_cond_destroy(&m->changed);
  pthread_mutex_destroy(&m->mutex);
  delete m;
  return 0;
}

extern "C" int64_t sn_mover_submit(sn_mover *m, const sn_job *job) {
  if (m->inert()) return -ECHILD;
  if (job->direction > SN_DEMOTE || job->kind > SN_MOVE_NODE || job->fast_bytes > job->nbytes) return -EINVAL;
  Job order{*job, 0, sn_now_ns(), {}};
  if (job->span_count != 0) order.spans.assign(job->spans, job->spans + job->span_count);
  order.spec.spans = nullptr;
  Lock lock(&m->mutex);
  if (m->stopping.load(std::memory_order_relaxed)) return -ESHUTDOWN;
  if (job->after != 0)  // it may have ended meanwhile, its result not yet fetched
    for (const sn_moved &moved : m->results)
      if (moved.id == job->after) order.spec.fast_bytes = moved.fast_bytes;
  order.id = ++m->last_id;
  const int64_t id = static_cast<int64_t>(order.id);
  m->unfinished.insert(order.id);
  m->goes_first += job->first != 0;
  m->queue[job->direction].push_back(std::move(order));
  pthread_cond_broadcast(&m->changed);
  return id;
}

extern "C" int sn_mover_cancel(sn_mover *m, uint64_t id) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  for (auto &queue : m->queue)
    for (auto job = queue.begin(); job != queue.end(); ++job) {
      if (job->id != id) continue;
      sn_moved moved{};
      moved.stop_ns = sn_now_ns();
      moved.fast_bytes = job->spec.fast_bytes;
      moved.outcome = SN_MOVE_CANCELLED;
      const Job gone = std::move(*job);
      queue.erase(job);
      finish(*m, gone, moved);
      return 1;
    }
  return 0;
}

extern "C" int sn_mover_wait(sn_mover *m, uint64_t id, uint64_t timeout_ns) {
  if (m->inert()) return -ECHILD;
  const uint64_t deadline = deadline_in(timeout_ns);
  Lock lock(&m->mutex);
  while (m->unfinished.count(id) != 0) {
    if (hopeless(*m, id)) return -ENOSPC;
    if (!m->wait_until(deadline)) return m->unfinished.count(id) != 0 ? -ETIMEDOUT : 0;
  }
  return 0;
}

extern "C" uint64_t sn_mover_results(sn_mover *m, sn_moved *out, uint64_t count) {
  if (m->inert()) return 0;
  Lock lock(&m->mutex);
  const uint64_t taken = std::min<uint64_t>(count, m->results.size());
  std::copy_n(m->results.begin(), taken, out);
  m->results.erase(m->results.begin(), m->results.begin() + static_cast<std::ptrdiff_t>(taken));
  return taken;
}

extern "C" const uint64_t *sn_mover_ended(const sn_mover *m) {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) && std::atomic<uint64_t>::is_always_lock_free,
                "readers look at the counter itself");
  return reinterpret_cast<const uint64_t *>(&m->ended);
}

extern "C" int sn_mover_reserve(sn_mover *m, uint64_t nbytes, uint64_t timeout_ns) {
  if (m->inert()) return -ECHILD;
  const uint64_t deadline = deadline_in(timeout_ns);
  Lock lock(&m->mutex);
  int result = 0;
  m->births_waiting += 1;
  while (!m->accounts.has_room(nbytes)) {
    if (!m->freeing()) {
      result = -ENOSPC;
      break;
    }
    if (!m->wait_until(deadline)) {
      result = m->accounts.has_room(nbytes) ? 0 : -ETIMEDOUT;
      break;
    }
  }
  m->births_waiting -= 1;
  if (result == 0) m->accounts.take_fast(nbytes);
  pthread_cond_broadcast(&m->changed);
  return result;
}

extern "C" int sn_mover_force(sn_mover *m, uint64_t nbytes) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  const uint64_t already = m->accounts.over();
  m->accounts.take_fast(nbytes);
  m->accounts.count_overflow(already);
  return 0;
}

extern "C" int sn_mover_release(sn_mover *m, uint64_t nbytes) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  if (nbytes > m->accounts.held.fast_bytes) return -EINVAL;
  m->accounts.give_fast(nbytes);
  m->room_since_ns = sn_now_ns();
  pthread_cond_broadcast(&m->changed);
  return 0;
}

extern "C" int sn_mover_hold_slow(sn_mover *m, int64_t nbytes) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  if (nbytes < 0 && static_cast<uint64_t>(-nbytes) > m->accounts.held.slow_bytes) return -EINVAL;
  if (nbytes < 0) m->accounts.give_slow(static_cast<uint64_t>(-nbytes));
  else m->accounts.take_slow(static_cast<uint64_t>(nbytes));
  return 0;
}

extern "C" int sn_mover_set_capacity(sn_mover *m, uint64_t fast_capacity_bytes) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  m->accounts.capacity = fast_capacity_bytes;
  m->accounts.count_overflow(0);
  pthread_cond_broadcast(&m->changed);
  return 0;
}

extern "C" int sn_mover_held(sn_mover *m, sn_held *out, int restart) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  sn_held &held = m->accounts.held;
  *out = held;
  out->starved = starved(*m);
  if (restart != 0) {
    held.fast_high_bytes = held.fast_bytes;
    held.slow_high_bytes = held.slow_bytes;
  }
  return 0;
}

extern "C" uint64_t sn_fork_count(void) { return forks.load(std::memory_order_relaxed); }

extern "C" int sn_mover_errors(sn_mover *m, uint64_t *out) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  memcpy(out, m->errors, sizeof m->errors);
  return 0;
}

extern "C" int sn_sleep_until(uint64_t deadline_ns) {
  uint64_t now = sn_now_ns();
  if (deadline_ns > now + kSpinNs) {
    const int error = sleep_to(deadline_ns - kSpinNs);
    if (error != 0) return error;
  }
  while (sn_now_ns() < deadline_ns) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return 0;
}

extern "C" int sn_nap_until(uint64_t deadline_ns) {
  while (sn_now_ns() < deadline_ns) {
    const int error = sleep_to(deadline_ns);
    if (error != 0 && error != -EINTR) return error;
  }
  return 0;
}
