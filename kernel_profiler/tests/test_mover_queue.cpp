// The end of a job: who waits for it learns of it, and where nobody waits no queue is looked through. Under
// AddressSanitizer a look at what is poisoned ends the program.
#include <sanitizer/asan_interface.h>

#include "../src/mover_queue.cpp"
#include "memory_check.h"

namespace sn {
std::atomic<uint64_t> generation{0};
Workbench::Workbench() = default;
}  // namespace sn

namespace {

// Promotions 1 to `count` of 10 bytes from tier 1, all in the queue.
void queue_up(sn_mover &m, uint64_t count) {
  for (uint64_t id = 1; id <= count; id++) {
    sn::Job &job = m.queue[SN_PROMOTE].emplace_back();
    job.id = id;
    job.spec.nbytes = job.spec.held[1] = 10;
    job.spec.source = 1;
    m.unfinished.insert(id);
  }
}

sn::Jobs::iterator at(sn_mover &m, uint64_t id) {
  sn::Jobs &queue = m.queue[SN_PROMOTE];
  return std::find_if(queue.begin(), queue.end(), [id](const sn::Job &job) { return job.id == id; });
}

void wait_for(sn_mover &m, uint64_t id, uint64_t other) {
  at(m, id)->spec.after = other;
  m.followers++;
}

// Ends the first job while nobody may look at those behind it.
void end_first_alone(sn_mover &m) {
  sn::Jobs &queue = m.queue[SN_PROMOTE];
  for (auto job = std::next(queue.begin()); job != queue.end(); ++job) ASAN_POISON_MEMORY_REGION(&*job, sizeof *job);
  sn::finish(m, queue, queue.begin());
  for (sn::Job &job : queue) ASAN_UNPOISON_MEMORY_REGION(&job, sizeof job);
}

void an_end_that_nobody_waits_for_looks_at_no_queue() {
  sn_mover m{};
  queue_up(m, 4);
  end_first_alone(m);
  CHECK(m.ended_jobs.size() == 1 && m.queue[SN_PROMOTE].size() == 3 && m.ended.load() == 1);
}

void an_end_is_told_to_who_waits_for_it_once() {
  sn_mover m{};
  queue_up(m, 4);
  wait_for(m, 3, 1);
  CHECK(!sn::ready(m, *at(m, 3)));
  at(m, 1)->moved.held[0] = 4;
  at(m, 1)->moved.held[2] = 6;
  at(m, 1)->moved.stop_ns = 77;
  sn::finish(m, m.queue[SN_PROMOTE], at(m, 1));
  const sn::Job &next = *at(m, 3);
  CHECK(sn::ready(m, next) && next.ready_ns == 77 && next.spec.source == 2);
  CHECK(next.spec.held[0] == 4 && next.spec.held[1] == 0 && next.spec.held[2] == 6);
  end_first_alone(m);
  CHECK(m.ended_jobs.size() == 2);
}

// It was submitted before the mover chose where the block goes.
void a_promotion_takes_the_time_from_where_the_job_before_has_left_its_block() {
  for (const uint8_t left_in : {1, 2}) {
    sn_mover m{};
    queue_up(m, 2);
    at(m, 1)->spec.spare = 2;
    at(m, 1)->moved.held[left_in] = 10;
    at(m, 2)->spec.duration_ns = 7;
    at(m, 2)->spec.spare_duration_ns = 9;
    wait_for(m, 2, 1);
    sn::finish(m, m.queue[SN_PROMOTE], at(m, 1));
    CHECK(at(m, 2)->spec.source == left_in && at(m, 2)->spec.duration_ns == (left_in == 1 ? 7u : 9u));
  }
}

void who_is_dropped_waits_no_more() {
  sn_mover m{};
  queue_up(m, 4);
  wait_for(m, 3, 2);
  sn::drop(m, m.queue[SN_PROMOTE], at(m, 3));
  CHECK(m.ended_jobs.back().id == 3 && m.ended_jobs.back().moved.outcome == SN_MOVE_CANCELLED);
  end_first_alone(m);
  CHECK(m.ended_jobs.size() == 2);
}

}  // namespace

int main() {
  an_end_that_nobody_waits_for_looks_at_no_queue();
  an_end_is_told_to_who_waits_for_it_once();
  a_promotion_takes_the_time_from_where_the_job_before_has_left_its_block();
  who_is_dropped_waits_no_more();
  return 0;
}
