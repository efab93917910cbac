// The workers of a mover: one for each direction. Neither asks for memory: what it needs, its jobs and its bench hold.
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>

#include <iterator>

#include "clock.h"
#include "mover.h"

namespace {

using sn::Job;
using sn::Lock;

constexpr uint64_t kSliceNs = 50000000;  // how long a sleeping worker overlooks that it is to stop
constexpr uint64_t kAheadNs = 100000;    // a copier that is so far ahead of its link sleeps
constexpr uint64_t kIdleNs = 1000000000;  // a mover without a job for so long needs no scratch memory
constexpr uint64_t kTogether = 2 << 20;  // bytes: jobs on nodes below this share system calls

bool link_is_free(const sn_mover &m, const Job &job) {
  return job.spec.kind != SN_MOVE_EMULATED || !m.half_duplex || !m.link_busy;
}

// Sleeps until the job would have ended on a link that does one after the other, with at least one system call
// (so that a test can fail it). 0 or a positive errno.
int sleep_through(const sn_mover &m, uint64_t stop_ns) {
  do {
    if (m.stopping.load(std::memory_order_relaxed)) return ECANCELED;
    const int error = sn::sleep_to(std::min(stop_ns, sn_now_ns() + kSliceNs));
    if (error != 0 && error != -EINTR) return -error;
  } while (sn_now_ns() < stop_ns);
  return 0;
}

// Copies the pages of `job` piece by piece, none earlier than its link would have brought it. 0 or a positive errno.
int copy_along(const sn_mover &m, const Job &job, uint64_t start_ns, sn_copied &told) {
  uint64_t total = 0, done = 0;
  for (const sn_span &span : job.order.spans) total += span.nbytes;
  for (const sn_span &span : job.order.spans) {
    for (uint64_t at = 0; at < span.nbytes; at += sn::kCopyPiece) {
      if (m.stopping.load(std::memory_order_relaxed)) return ECANCELED;
      const uint64_t nbytes = std::min(span.nbytes - at, sn::kCopyPiece);
      sn::copy_piece(span.address + at, nbytes, sn::scratch::next_piece(), told);
      done += nbytes;
      const double share = static_cast<double>(done) / static_cast<double>(total);
      const uint64_t due_ns = start_ns + static_cast<uint64_t>(share * static_cast<double>(job.spec.duration_ns));
      if (done == total || due_ns < sn_now_ns() + kAheadNs) continue;
      const int error = sleep_through(m, due_ns);
      if (error != 0) return error;
    }
  }
  return 0;
}

// A job with pages ends when its link would have ended it, or when they are copied if that takes longer.
sn_moved run_emulated(sn_mover &m, const Job &job, uint64_t start_ns, sn_copied &told) {
  sn_moved moved{};
  moved.start_ns = start_ns;
  moved.stop_ns = start_ns + job.spec.duration_ns;
  if (!job.order.spans.empty()) {
    const uint64_t before_ns = sn::computed_ns();
    moved.error = copy_along(m, job, start_ns, told);
    told.cpu_ns = sn::computed_ns() - before_ns;
    moved.stop_ns = std::max(moved.stop_ns, sn_now_ns());
  }
  if (moved.error == 0) moved.error = sleep_through(m, moved.stop_ns);
  if (moved.error != 0) moved.stop_ns = sn_now_ns();
  moved.outcome = moved.error != 0 ? SN_MOVE_FAILED : SN_MOVE_DONE;
  moved.moved_bytes = moved.error != 0 ? 0 : job.flight_bytes();
  if (moved.error != 0) std::copy_n(job.spec.held, SN_TIERS, moved.held);
  else moved.held[job.spec.target] = job.spec.nbytes;
  return moved;
}

sn_moved fate_of(const Job &job) {
  const sn::PageFate &fate = job.order.fate;
  sn_moved moved{};
  moved.moved_bytes = fate.moved_bytes;
  moved.error = fate.error;
  moved.bound = fate.bound;
  const uint64_t failed = std::min(fate.failed_bytes, job.spec.nbytes);
  moved.held[job.spec.target] = job.spec.nbytes - failed;
  moved.held[job.spec.source] = failed;
  if (failed == 0) {
    moved.outcome = fate.moved_bytes != 0 ? SN_MOVE_DONE : SN_MOVE_ALREADY;
  } else {
    moved.outcome = failed < job.spec.nbytes ? SN_MOVE_PARTIAL : SN_MOVE_FAILED;
  }
  return moved;
}

// All of them go to one node at one rate.
void run_nodes(sn_mover &m, int direction, sn::Jobs &jobs) {
  const sn_job &first = jobs.front().spec;
  for (auto job = jobs.begin(); job != jobs.end(); ++job) {
    const auto next = std::next(job);
    job->order.next = next == jobs.end() ? nullptr : &next->order;
  }
  uint64_t errors[SN_ERRNO_COUNT] = {};
  const uint64_t start_ns = sn_now_ns();
  const sn::PageRoute route{first.node, first.bytes_per_s, &m.stopping, &m.without_huge, &m.binds_untouched};
  sn::move_pages(&jobs.front().order, route, m.bench[direction], errors);
  const uint64_t stop_ns = sn_now_ns();
  for (Job &job : jobs) {
    job.moved = fate_of(job);
    job.moved.start_ns = start_ns;
    job.moved.stop_ns = stop_ns;
  }
  Lock lock(&m.mutex);
  for (int i = 0; i < SN_ERRNO_COUNT; ++i) m.errors[i] += errors[i];
}

void add(sn_copied &all, const sn_copied &told) {
  all.copied_bytes += told.copied_bytes;
  all.absent_bytes += told.absent_bytes;
  all.refused_bytes += told.refused_bytes;
  all.cpu_ns += told.cpu_ns;
  if (all.error == 0) all.error = told.error;
}

void run_emulated_head(sn_mover &m, int direction) {
  uint64_t &free_ns = m.link_free_ns[m.half_duplex ? 0 : direction];
  uint64_t start_ns = std::max(free_ns, m.queue[direction].front().ready_ns);
  if (direction == SN_PROMOTE) start_ns = std::max(start_ns, m.room_since_ns);
  sn::Jobs away;
  Job &job = sn::depart(m, direction, away);
  free_ns = start_ns + job.spec.duration_ns;
  m.running[direction] = m.link_busy = true;
  pthread_mutex_unlock(&m.mutex);
  sn_copied told{};
  const sn_moved moved = job.moved = run_emulated(m, job, start_ns, told);
  pthread_mutex_lock(&m.mutex);
  add(m.copied, told);
  if (moved.error != 0 && moved.error < SN_ERRNO_COUNT) m.errors[moved.error] += 1;
  free_ns = moved.error != 0 ? std::min(free_ns, moved.stop_ns) : std::max(free_ns, moved.stop_ns);
  m.running[direction] = m.link_busy = false;
  sn::arrive(m, direction, away);
}

// All of it goes, or nothing.
sn_moved run_backend(const Job &job) {
  const sn_backend &backend = *job.spec.backend;
  sn_moved moved{};
  moved.start_ns = sn_now_ns();
  moved.error = backend.move(backend.context, job.order.spans.data(), job.order.spans.size(), job.spec.source,
                             job.spec.target);
  moved.stop_ns = sn_now_ns();
  moved.outcome = moved.error != 0 ? SN_MOVE_FAILED : SN_MOVE_DONE;
  moved.moved_bytes = moved.error != 0 ? 0 : job.flight_bytes();
  if (moved.error != 0) std::copy_n(job.spec.held, SN_TIERS, moved.held);
  else moved.held[job.spec.target] = job.spec.nbytes;
  return moved;
}

void run_backend_head(sn_mover &m, int direction) {
  sn::Jobs away;
  Job &job = sn::depart(m, direction, away);
  m.running[direction] = true;
  pthread_mutex_unlock(&m.mutex);
  job.moved = run_backend(job);
  pthread_mutex_lock(&m.mutex);
  if (job.moved.error > 0 && job.moved.error < SN_ERRNO_COUNT) m.errors[job.moved.error] += 1;
  m.running[direction] = false;
  sn::arrive(m, direction, away);
}

// Whether `next` may share the system calls of jobs to where `first` goes, `nbytes` of them so far.
bool goes_along(const sn_mover &m, Job &next, const Job &first, uint64_t nbytes) {
  if (next.spec.kind != SN_MOVE_NODE || nbytes + next.spec.nbytes > kTogether || !sn::ready(m, next)) return false;
  // What is away still counts where it was: with its room the job may go where it is to go.
  if (m.accounts.leaving[next.spec.target] != 0 && !m.accounts.has_room(next.spec.target, next.flight_bytes())) return false;
  if (!sn::aim(m, next)) return false;
  return next.spec.node == first.spec.node && next.spec.bytes_per_s == first.spec.bytes_per_s;
}

void run_node_heads(sn_mover &m, int direction) {
  sn::Jobs &queue = m.queue[direction];
  sn::Jobs away;
  uint64_t nbytes = 0;
  do {
    nbytes += sn::depart(m, direction, away).spec.nbytes;
  } while (!queue.empty() && goes_along(m, queue.front(), away.front(), nbytes));
  m.running[direction] = true;
  pthread_mutex_unlock(&m.mutex);
  run_nodes(m, direction, away);
  pthread_mutex_lock(&m.mutex);
  m.running[direction] = false;
  while (!away.empty()) sn::arrive(m, direction, away);
}

void run_head(sn_mover &m, int direction) {
  if (!sn::aim(m, m.queue[direction].front())) return sn::drop(m, m.queue[direction], m.queue[direction].begin());
  switch (m.queue[direction].front().spec.kind) {
    case SN_MOVE_EMULATED: return run_emulated_head(m, direction);
    case SN_MOVE_BACKEND: return run_backend_head(m, direction);
    default: return run_node_heads(m, direction);
  }
}

// Until something has changed.
void rest(sn_mover &m, int direction) {
  if (!m.holds_scratch) pthread_cond_wait(&m.work[direction], &m.mutex);
  else if (!m.rest_until(m.work[direction], sn_now_ns() + kIdleNs) && m.idle()) m.let_scratch_go();
}

void work(sn_mover &m, int direction) {
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  pthread_mutex_lock(&m.mutex);
  while (!m.stopping.load(std::memory_order_relaxed)) {
    auto &queue = m.queue[direction];
    const bool is_ready = !queue.empty() && sn::ready(m, queue.front());
    if (is_ready && link_is_free(m, queue.front())) {
      run_head(m, direction);
      continue;
    }
    const uint64_t unready = queue.empty() || is_ready ? 0 : queue.front().id;
    rest(m, direction);
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

}  // namespace

namespace sn {

int start_workers(sn_mover &m) {
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

}  // namespace sn
