// A mover's state: two queues of jobs, and what they hold of each tier. Whoever looks at it holds its mutex.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <list>
#include <numeric>
#include <unordered_set>

#include "lock.h"
#include "move_pages.h"
#include "naps.h"
#include "page_copy.h"
#include "sentinel.h"

namespace sn {

// Counts the forks that led here: a mover made before one has no threads in the child, and its mutex may be
// held by nobody.
extern std::atomic<uint64_t> generation;

constexpr int kFast = 0;  // the tier whose budget holds whatever comes

struct Job {
  sn_job spec;
  uint64_t id;
  uint64_t ready_ns;  // since when only the link keeps it waiting
  PageOrder order;    // its pages; node: and what became of them
  sn_moved moved;     // once it has ended

  int direction() const { return spec.target == kFast ? SN_PROMOTE : SN_DEMOTE; }
  uint64_t flight_bytes() const { return spec.nbytes - spec.held[spec.target]; }
  uint64_t room_bytes() const { return direction() == SN_PROMOTE ? flight_bytes() : 0; }
};

// All the memory that a job needs it gets when it is submitted. From then on it goes from list to list, queue to worker
// to results, which needs none: a worker has nobody to tell that there is none.
using Jobs = std::list<Job>;

struct Accounts {
  Accounts() { std::fill_n(capacity, SN_TIERS, UINT64_MAX); }

  uint64_t capacity[SN_TIERS];
  uint64_t leaving[SN_TIERS] = {};  // bytes that jobs under way take out of each tier
  sn_held held{};
  std::atomic<uint64_t> changes{0};  // of `held.bytes`

  bool has_room(int tier, uint64_t nbytes) const {
    return nbytes == 0 || (held.bytes[tier] <= capacity[tier] && nbytes <= capacity[tier] - held.bytes[tier]);
  }
  void take(int tier, uint64_t nbytes) {
    if (tier != kFast && !has_room(tier, nbytes)) {  // of the fast one `count_overflow` tells
      const uint64_t room = capacity[tier] - std::min(capacity[tier], held.bytes[tier]);
      held.slow_overflow_bytes += nbytes - std::min(nbytes, room);
    }
    held.bytes[tier] += nbytes;
    count_change();
    held.high_bytes[tier] = std::max(held.high_bytes[tier], held.bytes[tier]);
    if (tier == kFast) held.most_fast_bytes = std::max(held.most_fast_bytes, held.bytes[kFast]);
    else held.slow_high_bytes = std::max(held.slow_high_bytes, slow_bytes());
  }
  void give(int tier, uint64_t nbytes) {
    held.bytes[tier] -= std::min(nbytes, held.bytes[tier]);
    count_change();
  }
  uint64_t slow_bytes() const { return std::accumulate(held.bytes + kFast + 1, held.bytes + SN_TIERS, uint64_t{0}); }
  void count_overflow(uint64_t already) {  // `already`: held beyond the capacity before
    if (over() <= already) return;
    held.overflow_bytes += over() - already;
    held.overflows += 1;
  }
  void count_change() { changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  uint64_t over() const { return held.bytes[kFast] - std::min(held.bytes[kFast], capacity[kFast]); }
};

}  // namespace sn

struct sn_mover {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed;  // for callers that wait
  pthread_cond_t work[2];  // for the worker of each direction
  uint64_t born_in = sn::generation.load();
  bool half_duplex = false;
  std::atomic<bool> stopping{false};
  std::atomic<uint32_t> without_huge{0};
  std::atomic<bool> binds_untouched{false};
  sn::Accounts accounts;
  uint64_t births_waiting = 0;
  uint64_t goes_first = 0;  // unfinished jobs that promotions wait for
  uint64_t followers = 0;   // queued jobs whose `after` is not 0: it is 0 once the job that it names has ended
  std::atomic<uint64_t> submitted{0};  // the id of the last job
  sn::Jobs queue[2];
  sn::Workbench bench[2];  // of the worker of each direction
  bool holds_scratch = false;  // from the first job with something to copy until there was no job for a second
  sn_copied copied{};
  bool running[2] = {false, false};
  bool link_busy = false;            // half duplex: one emulated job at a time
  uint64_t link_free_ns[2] = {0, 0};  // by the link's own clock; half duplex uses the first
  uint64_t room_since_ns = 0;         // by the same clock: when fast room was last given back
  std::unordered_set<uint64_t> unfinished;
  sn::Jobs ended_jobs;  // whose results are not dropped yet
  uint64_t dropped = 0;
  std::atomic<uint64_t> ended{0};
  uint64_t errors[SN_ERRNO_COUNT] = {};
  pthread_t threads[2];
  bool started[2] = {false, false};

  bool inert() const { return born_in != sn::generation.load(std::memory_order_relaxed); }
  bool idle() const { return queue[0].empty() && queue[1].empty() && !running[0] && !running[1]; }
  void let_scratch_go() {
    if (holds_scratch) sn::scratch::let_go();
    holds_scratch = false;
  }
  bool freeing() const { return running[SN_DEMOTE] || !queue[SN_DEMOTE].empty(); }
  void wake_all() {
    for (pthread_cond_t *condition : {&changed, &work[SN_PROMOTE], &work[SN_DEMOTE]}) pthread_cond_broadcast(condition);
  }
  // False when time is up.
  bool wait_until(uint64_t deadline_ns) { return rest_until(changed, deadline_ns); }
  bool rest_until(pthread_cond_t &condition, uint64_t deadline_ns) {
    const timespec deadline = sn::spec_of(deadline_ns);
    return pthread_cond_timedwait(&condition, &mutex, &deadline) == 0 || sn_now_ns() < deadline_ns;
  }
};

namespace sn {

// Whether nothing but its link can keep it waiting. A demotion waits for room in a slower tier only while promotions make
// some by themselves: one that they wait for goes at once.
bool ready(const sn_mover &m, const Job &job);
// A job that is ready goes to its spare tier from now on if its target has no room. False: it stays where it is.
bool aim(const sn_mover &m, Job &job);
// `next`, to start once `before` has ended, finds the block as that one left it.
void follow(const Job &before, Job &next);
// Whether the first promotion waits for room.
bool starved(const sn_mover &m);
// Whether `id` waits, itself or behind another, for room that nothing under way will free.
bool hopeless(const sn_mover &m, uint64_t id);

// Takes the head of the queue to the end of `away`: its bytes count on both sides until it arrives.
Job &depart(sn_mover &m, int direction, Jobs &away);
// The first of `away` has ended, as its `moved` says.
void arrive(sn_mover &m, int direction, Jobs &away);
// `job` of `from` is over, and its result can be fetched.
void finish(sn_mover &m, Jobs &from, Jobs::iterator job);
// `job` of `queue` never starts.
void drop(sn_mover &m, Jobs &queue, Jobs::iterator job);

// The two workers; 0 or a negative errno. They end when the mover is `stopping`.
int start_workers(sn_mover &m);

}  // namespace sn
