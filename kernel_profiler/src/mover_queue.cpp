// What may start, what it takes of either tier while it runs, and what it leaves when it ends.
#include "mover.h"

namespace {

// The accounts after a job: from both sides to where its bytes are.
void settle(sn_mover &m, const sn::Job &job) {
  const sn_moved &moved = job.moved;
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

}  // namespace

namespace sn {

bool ready(const sn_mover &m, const Job &job) {
  if (job.spec.after != 0 && m.unfinished.count(job.spec.after) != 0) return false;
  if (job.spec.direction == SN_DEMOTE) return true;
  return m.births_waiting == 0 && m.goes_first == 0 && m.accounts.has_room(job.room_bytes());
}

bool starved(const sn_mover &m) {
  if (m.queue[SN_PROMOTE].empty() || m.running[SN_PROMOTE]) return false;
  return !m.accounts.has_room(m.queue[SN_PROMOTE].front().room_bytes());
}

bool hopeless(const sn_mover &m, uint64_t id) {
  if (!starved(m) || m.freeing()) return false;
  const Jobs &queue = m.queue[SN_PROMOTE];
  return std::any_of(queue.begin(), queue.end(), [id](const Job &job) { return job.id == id; });
}

void finish(sn_mover &m, Jobs &from, Jobs::iterator job) {
  job->moved.id = job->id;
  m.ended_jobs.splice(m.ended_jobs.end(), from, job);
  m.unfinished.erase(job->id);
  m.goes_first -= job->spec.first != 0;
  for (Jobs &queue : m.queue)  // who waited for it finds the block as it left it
    for (Job &next : queue)
      if (next.spec.after == job->id) next.spec.fast_bytes = job->moved.fast_bytes;
  m.ended.fetch_add(1, std::memory_order_release);
  pthread_cond_broadcast(&m.changed);
}

Job &depart(sn_mover &m, int direction, Jobs &away) {
  Jobs &queue = m.queue[direction];
  away.splice(away.end(), queue, queue.begin());
  Job &job = away.back();
  m.accounts.take_fast(job.room_bytes());
  if (direction == SN_DEMOTE) m.accounts.take_slow(job.flight_bytes());
  m.accounts.held.in_flight_bytes += job.flight_bytes();
  return job;
}

void arrive(sn_mover &m, int direction, Jobs &away) {
  settle(m, away.front());
  if (direction == SN_DEMOTE) m.room_since_ns = away.front().moved.stop_ns;
  finish(m, away, away.begin());
}

}  // namespace sn
