#include "mover.h"

#include <errno.h>
#include <string.h>

#include <initializer_list>
#include <utility>

#include "guarded.h"

namespace sn {
std::atomic<uint64_t> generation{0};
}

namespace {

using sn::Job;
using sn::Jobs;
using sn::kFast;
using sn::Lock;

std::atomic<uint64_t> forks{0};  // of this process, seen from the parent; of failed ones too

void note_fork() {
  sn::generation.fetch_add(1, std::memory_order_relaxed);
  sn::scratch::forget();
}
void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

int watch_forks() {
  static const int registered = pthread_atfork(nullptr, count_fork, note_fork);
  return -registered;
}

bool is_sound(const sn_job &job) {
  if (job.source >= SN_TIERS || job.target >= SN_TIERS || job.source == job.target) return false;
  const bool may_spare = job.target != kFast && job.spare < SN_TIERS && job.spare != job.target;
  if (job.spare != 0 && !may_spare) return false;
  uint64_t left = job.nbytes;
  for (const uint64_t nbytes : job.held) {
    if (nbytes > left) return false;
    left -= nbytes;
  }
  if (job.kind == SN_MOVE_BACKEND && (job.backend == nullptr || job.spare != 0)) return false;
  return job.kind <= SN_MOVE_BACKEND && left == 0;
}

// So many numbers more are those of unfinished jobs: all of them, or none if there is no memory.
void number(sn_mover &m, uint64_t count) {
  const uint64_t before = m.submitted.load(std::memory_order_relaxed);
  uint64_t last = before;
  try {
    for (; last < before + count; ++last) m.unfinished.insert(last + 1);
  } catch (...) {
    for (; last > before; --last) m.unfinished.erase(last);
    throw;
  }
  m.submitted.store(last, std::memory_order_release);
}

const uint64_t *looked_at(const std::atomic<uint64_t> &counter) {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) && std::atomic<uint64_t>::is_always_lock_free,
                "readers look at the counter itself");
  return reinterpret_cast<const uint64_t *>(&counter);
}

uint64_t deadline_in(uint64_t timeout_ns) {
  const uint64_t now = sn_now_ns();
  return timeout_ns > UINT64_MAX / 4 ? UINT64_MAX / 4 : now + timeout_ns;
}

}  // namespace

extern "C" int sn_mover_create(uint64_t fast_capacity_bytes, int half_duplex, sn_mover **out) {
  sn_mover *m = nullptr;
  const int made = sn::guarded([&] {
    m = new sn_mover;
    return 0;
  });
  if (made != 0) return made;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  for (pthread_cond_t *condition : {&m->changed, &m->work[SN_PROMOTE], &m->work[SN_DEMOTE]})
    pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
  m->half_duplex = half_duplex != 0;
  m->accounts.capacity[kFast] = fast_capacity_bytes;
  int error = watch_forks();
  if (error == 0) error = sn::start_workers(*m);
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
    m->wake_all();
  }
  for (int direction = 0; direction < 2; ++direction)
    if (m->started[direction]) pthread_join(m->threads[direction], nullptr);
  m->let_scratch_go();
  for (pthread_cond_t *condition : {&m->changed, &m->work[SN_PROMOTE], &m->work[SN_DEMOTE]})
    pthread_cond_destroy(condition);
  pthread_mutex_destroy(&m->mutex);
  delete m;
  return 0;
}

extern "C" int sn_mover_close(sn_mover **mover) {
  sn_mover *ending = *mover;
  *mover = nullptr;
  return sn_mover_destroy(ending);
}

extern "C" int64_t sn_mover_submit_all(sn_mover *m, const sn_job *jobs, uint64_t count) {
  if (m->inert()) return -ECHILD;
  if (count == 0 || !std::all_of(jobs, jobs + count, is_sound)) return -EINVAL;
  return sn::guarded([&]() -> int64_t {
    Jobs fresh[2];
    bool copies = false, is_next[2] = {false, false}, goes_first = false;
    for (const sn_job *job = jobs; job != jobs + count; ++job) {
      Jobs &all = fresh[job->target == kFast ? SN_PROMOTE : SN_DEMOTE];
      Job &order = all.emplace_back(Job{*job, static_cast<uint64_t>(job - jobs), sn_now_ns(), {}, {}});
      if (job->span_count != 0) order.order.spans.assign(job->spans, job->spans + job->span_count);
      order.spec.spans = nullptr;
      copies = copies || (job->kind == SN_MOVE_EMULATED && job->span_count != 0);
      goes_first = goes_first || job->first != 0;
    }
    int64_t first_id = 0;
    {
      Lock lock(&m->mutex);
      if (m->stopping.load(std::memory_order_relaxed)) return -ESHUTDOWN;
      if (copies && !m->holds_scratch) {
        const int held = sn::scratch::hold();
        if (held != 0) return held;
        m->holds_scratch = true;
      }
      const uint64_t last_id = m->submitted.load(std::memory_order_relaxed);
      number(*m, count);  // the last that may throw
      first_id = static_cast<int64_t>(last_id) + 1;
      for (int direction = 0; direction < 2; ++direction) {
        for (Job &order : fresh[direction]) {
          order.id += last_id + 1;
          m->goes_first += order.spec.first != 0;
          if (order.spec.after != 0 && m->unfinished.count(order.spec.after) == 0) {
            for (const Job &ended : m->ended_jobs)  // its result may not have been fetched yet
              if (ended.id == order.spec.after) sn::follow(ended, order);
            order.spec.after = 0;
          }
          m->followers += order.spec.after != 0;
        }
        is_next[direction] = m->queue[direction].empty() && !fresh[direction].empty();
        m->queue[direction].splice(m->queue[direction].end(), fresh[direction]);
      }
    }
    // Else nobody can start earlier than before: one that goes first makes promotions wait, and a demotion go on that
    // waited for the room of one. A worker that is woken finds the mutex free.
    for (const int direction : {SN_DEMOTE, SN_PROMOTE})
      if (is_next[direction] || goes_first) pthread_cond_signal(&m->work[direction]);
    return first_id;
  });
}

extern "C" int64_t sn_mover_submit(sn_mover *m, const sn_job *job) { return sn_mover_submit_all(m, job, 1); }

extern "C" int sn_mover_cancel(sn_mover *m, uint64_t id) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  for (Jobs &queue : m->queue)
    for (auto job = queue.begin(); job != queue.end(); ++job) {
      if (job->id != id) continue;
      sn::drop(*m, queue, job);
      return 1;
    }
  return 0;
}

extern "C" int sn_mover_wait(sn_mover *m, uint64_t id, uint64_t timeout_ns) {
  if (m->inert()) return -ECHILD;
  const uint64_t deadline = deadline_in(timeout_ns);
  Lock lock(&m->mutex);
  while (m->unfinished.count(id) != 0) {
    if (sn::hopeless(*m, id)) return -ENOSPC;
    if (!m->wait_until(deadline)) return m->unfinished.count(id) != 0 ? -ETIMEDOUT : 0;
  }
  return 0;
}

extern "C" uint64_t sn_mover_results_from(sn_mover *m, uint64_t first, sn_moved *out, uint64_t count) {
  if (m->inert()) return 0;
  Lock lock(&m->mutex);
  for (; m->dropped < first && !m->ended_jobs.empty(); ++m->dropped) m->ended_jobs.pop_front();
  uint64_t told = 0;
  for (auto job = m->ended_jobs.begin(); told < count && job != m->ended_jobs.end(); ++job) out[told++] = job->moved;
  return told;
}

extern "C" uint64_t sn_mover_results(sn_mover *m, sn_moved *out, uint64_t count) {
  const uint64_t told = sn_mover_results_from(m, 0, out, count);
  if (told != 0) sn_mover_results_from(m, m->dropped + told, nullptr, 0);
  return told;
}

extern "C" const uint64_t *sn_mover_ended(const sn_mover *m) { return looked_at(m->ended); }

extern "C" const uint64_t *sn_mover_submitted(const sn_mover *m) { return looked_at(m->submitted); }

extern "C" const uint64_t *sn_mover_changes(const sn_mover *m) { return looked_at(m->accounts.changes); }

extern "C" int sn_mover_reserve(sn_mover *m, uint64_t nbytes, uint64_t timeout_ns) {
  if (m->inert()) return -ECHILD;
  const uint64_t deadline = deadline_in(timeout_ns);
  Lock lock(&m->mutex);
  int result = 0;
  bool waited = false;
  m->births_waiting += 1;
  while (!m->accounts.has_room(kFast, nbytes)) {
    // A demotion may wait for a promotion that waits for this birth from now on.
    if (!std::exchange(waited, true)) m->wake_all();
    if (!m->freeing()) {
      result = -ENOSPC;
      break;
    }
    if (!m->wait_until(deadline)) {
      result = m->accounts.has_room(kFast, nbytes) ? 0 : -ETIMEDOUT;
      break;
    }
  }
  m->births_waiting -= 1;
  if (result == 0) m->accounts.take(kFast, nbytes);
  // Whoever let this birth go first may go on. A promotion may have lost its room, and a demotion have waited for that.
  if (waited) m->wake_all();
  else if (!m->queue[SN_PROMOTE].empty()) {
    pthread_cond_signal(&m->work[SN_DEMOTE]);
    pthread_cond_broadcast(&m->changed);  // who waits for that promotion may be waiting in vain now
  }
  return result;
}

extern "C" int sn_mover_force(sn_mover *m, uint64_t nbytes) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  const uint64_t already = m->accounts.over();
  m->accounts.take(kFast, nbytes);
  m->accounts.count_overflow(already);
  if (!m->queue[SN_DEMOTE].empty()) m->wake_all();  // promotions may wait for one from now on
  return 0;
}

extern "C" int sn_mover_release(sn_mover *m, uint64_t nbytes) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  if (nbytes > m->accounts.held.bytes[kFast]) return -EINVAL;
  m->accounts.give(kFast, nbytes);
  m->room_since_ns = sn_now_ns();
  if (m->births_waiting != 0) m->wake_all();
  else if (!m->queue[SN_PROMOTE].empty()) pthread_cond_signal(&m->work[SN_PROMOTE]);
  return 0;
}

extern "C" int sn_mover_hold(sn_mover *m, int tier, int64_t nbytes) {
  if (m->inert()) return -ECHILD;
  if (tier <= kFast || tier >= SN_TIERS) return -EINVAL;
  Lock lock(&m->mutex);
  if (nbytes < 0 && static_cast<uint64_t>(-nbytes) > m->accounts.held.bytes[tier]) return -EINVAL;
  if (nbytes >= 0) {
    m->accounts.take(tier, static_cast<uint64_t>(nbytes));
    return 0;
  }
  m->accounts.give(tier, static_cast<uint64_t>(-nbytes));
  if (!m->queue[SN_DEMOTE].empty()) pthread_cond_signal(&m->work[SN_DEMOTE]);  // the first may have waited for that room
  return 0;
}

extern "C" int sn_mover_take_in(sn_mover *m, int tier, uint64_t nbytes) {
  if (m->inert()) return -ECHILD;
  if (tier <= kFast || tier >= SN_TIERS) return -EINVAL;
  Lock lock(&m->mutex);
  if (!m->accounts.has_room(tier, nbytes)) return -ENOSPC;
  m->accounts.take(tier, nbytes);
  return 0;
}

extern "C" int sn_mover_set_capacity(sn_mover *m, int tier, uint64_t nbytes) {
  if (m->inert()) return -ECHILD;
  if (tier < kFast || tier >= SN_TIERS) return -EINVAL;
  Lock lock(&m->mutex);
  m->accounts.capacity[tier] = nbytes;
  if (tier == kFast) m->accounts.count_overflow(0);
  m->wake_all();
  return 0;
}

extern "C" int sn_mover_bind_untouched(sn_mover *m, int whether) {
  if (m->inert()) return -ECHILD;
  m->binds_untouched.store(whether != 0, std::memory_order_relaxed);
  return 0;
}

extern "C" int sn_mover_held(sn_mover *m, sn_held *out, int restart) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  sn_held &held = m->accounts.held;
  *out = held;
  out->starved = sn::starved(*m);
  if (restart != 0) {
    std::copy_n(held.bytes, SN_TIERS, held.high_bytes);
    held.slow_high_bytes = m->accounts.slow_bytes();
  }
  return 0;
}

extern "C" int sn_mover_copied(sn_mover *m, sn_copied *out) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  *out = m->copied;
  return 0;
}

extern "C" uint64_t sn_fork_count(void) { return forks.load(std::memory_order_relaxed); }

extern "C" int sn_mover_errors(sn_mover *m, uint64_t *out) {
  if (m->inert()) return -ECHILD;
  Lock lock(&m->mutex);
  memcpy(out, m->errors, sizeof m->errors);
  return 0;
}
