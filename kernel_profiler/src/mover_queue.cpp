// What may start, what it takes of each tier while it runs, and what it leaves when it ends.
#include "mover.h"

namespace {

// The accounts after a job: from both sides to where its bytes are. Room is given back before any is taken.
void settle(sn_mover &m, const sn::Job &job) {
  const sn_moved &moved = job.moved;
  m.accounts.held.in_flight_bytes -= job.flight_bytes();
  for (int tier = 0; tier < SN_TIERS; ++tier)
    if (tier != job.spec.target) m.accounts.leaving[tier] -= job.spec.held[tier];
  const auto counted = [&](int tier) { return tier == job.spec.target ? job.spec.nbytes : job.spec.held[tier]; };
  for (int tier = 0; tier < SN_TIERS; ++tier)
    if (moved.held[tier] < counted(tier)) m.accounts.give(tier, counted(tier) - moved.held[tier]);
  const uint64_t already = m.accounts.over();
  for (int tier = 0; tier < SN_TIERS; ++tier)
    if (moved.held[tier] > counted(tier)) m.accounts.take(tier, moved.held[tier] - counted(tier));
  // A demotion found pages that nobody had counted, and they stayed; or else the kernel put them there, not we.
  if (job.spec.first == 0) m.accounts.count_overflow(already);
}

// Whether promotions bring bytes out of a slower tier, or are about to, without waiting for a demotion.
bool makes_room(const sn_mover &m, int tier) {
  if (m.running[SN_PROMOTE]) return m.accounts.leaving[tier] != 0;
  const sn::Jobs &queue = m.queue[SN_PROMOTE];
  return !queue.empty() && queue.front().spec.held[tier] != 0 && sn::ready(m, queue.front());
}

}  // namespace

namespace sn {

bool ready(const sn_mover &m, const Job &job) {
  if (job.spec.after != 0) return false;
  if (job.direction() == SN_DEMOTE)
    return m.accounts.has_room(job.spec.target, job.flight_bytes()) || !makes_room(m, job.spec.target);
  return m.births_waiting == 0 && m.goes_first == 0 && m.accounts.has_room(kFast, job.room_bytes());
}

bool aim(const sn_mover &m, Job &job) {
  sn_job &spec = job.spec;
  if (job.direction() != SN_DEMOTE || spec.spare == 0 || m.accounts.has_room(spec.target, job.flight_bytes())) return true;
  if (spec.spare == spec.source) return false;
  spec.target = spec.spare;
  spec.node = spec.spare_node;
  spec.duration_ns = spec.spare_duration_ns;
  return true;
}

void drop(sn_mover &m, Jobs &queue, Jobs::iterator job) {
  job->moved.stop_ns = sn_now_ns();
  std::copy_n(job->spec.held, SN_TIERS, job->moved.held);
  job->moved.outcome = SN_MOVE_CANCELLED;
  finish(m, queue, job);
}

void follow(const Job &before, Job &next) {
  std::copy_n(before.moved.held, SN_TIERS, next.spec.held);
  if (next.spec.source == kFast || next.direction() != SN_PROMOTE) return;
  // What stays of a promotion stays where the block is, not where the job before was to take it.
  const auto *most = std::max_element(next.spec.held + kFast + 1, next.spec.held + SN_TIERS);
  if (*most == 0) return;
  const auto source = static_cast<uint8_t>(most - next.spec.held);
  if (source != next.spec.source && source == before.spec.spare) next.spec.duration_ns = next.spec.spare_duration_ns;
  next.spec.source = source;
}

bool starved(const sn_mover &m) {
  if (m.queue[SN_PROMOTE].empty() || m.running[SN_PROMOTE]) return false;
  return !m.accounts.has_room(kFast, m.queue[SN_PROMOTE].front().room_bytes());
}

bool hopeless(const sn_mover &m, uint64_t id) {
  if (!starved(m) || m.freeing()) return false;
  const Jobs &queue = m.queue[SN_PROMOTE];
  return std::any_of(queue.begin(), queue.end(), [id](const Job &job) { return job.id == id; });
}

void finish(sn_mover &m, Jobs &from, Jobs::iterator job) {
  job->moved.id = job->id;
  job->moved.target = job->spec.target;
  m.ended_jobs.splice(m.ended_jobs.end(), from, job);
  m.unfinished.erase(job->id);
  m.goes_first -= job->spec.first != 0;
  m.followers -= job->spec.after != 0;  // it was dropped before the other one ended
  if (m.followers != 0)  // else each end would look through whole queues
    for (Jobs &queue : m.queue)
      for (Job &next : queue) {
        if (next.spec.after != job->id) continue;
        follow(*job, next);
        next.ready_ns = std::max(next.ready_ns, job->moved.stop_ns);  // it has no time on the link before
        next.spec.after = 0;
        m.followers--;
      }
  m.ended.fetch_add(1, std::memory_order_release);
  m.wake_all();
}

Job &depart(sn_mover &m, int direction, Jobs &away) {
  Jobs &queue = m.queue[direction];
  away.splice(away.end(), queue, queue.begin());
  Job &job = away.back();
  m.accounts.take(job.spec.target, job.flight_bytes());
  m.accounts.held.in_flight_bytes += job.flight_bytes();
  for (int tier = 0; tier < SN_TIERS; ++tier)
    if (tier != job.spec.target) m.accounts.leaving[tier] += job.spec.held[tier];
  return job;
}

void arrive(sn_mover &m, int direction, Jobs &away) {
  settle(m, away.front());
  if (direction == SN_DEMOTE) m.room_since_ns = away.front().moved.stop_ns;
  finish(m, away, away.begin());
}

}  // namespace sn
