// The mover between several tiers: the accounts of each, and who waits for room in which, or goes to another one.
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "mover_check.h"

namespace {

// A block of 60 bytes in three tiers, to be moved in no time.
sn_job in_three_parts(uint8_t source, uint8_t target) {
  sn_job job{};
  job.nbytes = 60;
  job.held[0] = 10, job.held[2] = 20, job.held[SN_TIERS - 1] = 30;
  job.source = source;
  job.target = target;
  return job;
}

void each_tier_has_accounts_of_its_own() {
  sn_mover *mover = make(100);
  const int last = SN_TIERS - 1;
  const auto hold = [&] {
    return sn_mover_force(mover, 10) == 0 && sn_mover_hold(mover, 2, 20) == 0 && sn_mover_hold(mover, last, 30) == 0;
  };
  CHECK(hold());
  CHECK(*sn_mover_changes(mover) == 3);
  CHECK(held(mover).bytes[0] == 10 && held(mover).bytes[1] == 0 && held(mover).bytes[2] == 20);
  CHECK(sn_mover_wait(mover, submit(mover, in_three_parts(0, 2)), kForever) == 0);
  CHECK(results(mover)[0].held[2] == 60 && *sn_mover_changes(mover) > 3);
  CHECK(held(mover).bytes[0] == 0 && held(mover).bytes[2] == 60 && held(mover).bytes[last] == 0);
  sn_job across{};  // between two slower tiers: fast memory has no part in it
  across.nbytes = across.held[2] = 60;
  across.source = 2, across.target = 1;
  CHECK(sn_mover_wait(mover, submit(mover, across), kForever) == 0);
  CHECK(held(mover).bytes[1] == 60 && held(mover).bytes[2] == 0 && held(mover).most_fast_bytes == 10);
  CHECK(held(mover).high_bytes[2] == 60 && held(mover).slow_high_bytes == 120);  // in flight it counts twice
  CHECK(sn_mover_hold(mover, 1, -60) == 0 && hold());
  CHECK(sn_mover_wait(mover, submit(mover, in_three_parts(last, 0)), kForever) == 0);
  CHECK(held(mover).bytes[0] == 60 && held(mover).bytes[2] == 0 && held(mover).bytes[last] == 0);
  CHECK(held(mover).in_flight_bytes == 0 && held(mover).overflows == 0);
  sn_mover_destroy(mover);
}

void a_demotion_waits_for_room_that_a_promotion_is_making() {
  sn_mover *mover = make(200);
  CHECK(sn_mover_set_capacity(mover, 1, 60) == 0 && sn_mover_set_capacity(mover, SN_TIERS, 60) == -EINVAL);
  CHECK(sn_mover_reserve(mover, 60, 0) == 0 && sn_mover_hold(mover, 1, 60) == 0);
  submit(mover, emulated(SN_PROMOTE, 60, 8 * kMs));
  CHECK(sn_mover_wait(mover, submit(mover, emulated(SN_DEMOTE, 60, kMs)), kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[0].held[0] == 60);
  CHECK(held(mover).high_bytes[1] == 60 && held(mover).bytes[1] == 60);  // never both of them
  sn_mover_destroy(mover);
}

// The promotion that makes room takes a minute; what dies makes room at once.
void a_demotion_that_waits_for_a_promotion_takes_the_room_of_what_dies() {
  sn_mover *mover = make(200);
  CHECK(sn_mover_set_capacity(mover, 1, 120) == 0);
  CHECK(sn_mover_reserve(mover, 60, 0) == 0 && sn_mover_hold(mover, 1, 120) == 0);
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 60, 60000 * kMs));
  while (held(mover).in_flight_bytes == 0) sched_yield();
  const uint64_t down = submit(mover, emulated(SN_DEMOTE, 60, kMs));
  CHECK(sn_mover_wait(mover, down, 50 * kMs) == -ETIMEDOUT);
  CHECK(sn_mover_hold(mover, 1, -60) == 0);
  CHECK(sn_mover_wait(mover, down, 10000 * kMs) == 0 && sn_mover_wait(mover, up, 0) == -ETIMEDOUT);
  CHECK(held(mover).high_bytes[1] == 120 && held(mover).slow_overflow_bytes == 0);
  sn_mover_destroy(mover);
}

void a_demotion_that_a_promotion_waits_for_goes_at_once() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_set_capacity(mover, 1, 60) == 0);
  CHECK(sn_mover_reserve(mover, 100, 0) == 0 && sn_mover_hold(mover, 1, 60) == 0);
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 60, kMs));
  submit(mover, emulated(SN_DEMOTE, 100, kMs));
  CHECK(sn_mover_wait(mover, up, kForever) == 0);
  CHECK(held(mover).high_bytes[1] == 160 && held(mover).bytes[1] == 100 && held(mover).overflows == 0);
  CHECK(held(mover).slow_overflow_bytes == 100);  // it had no spare tier
  sn_mover_destroy(mover);
}

void a_demotion_without_room_goes_to_its_spare_tier() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_set_capacity(mover, 1, 60) == 0);
  CHECK(sn_mover_reserve(mover, 100, 0) == 0 && sn_mover_hold(mover, 1, 60) == 0);
  const uint64_t up = submit(mover, emulated(SN_PROMOTE, 60, kMs));
  sn_job down = emulated(SN_DEMOTE, 100, 2000 * kMs);
  down.spare = 2, down.spare_duration_ns = 3 * kMs;
  const uint64_t away = submit(mover, down);
  sn_job back = emulated(SN_PROMOTE, 100, kMs);  // it expects the block in tier 1
  back.after = away, back.spare_duration_ns = 5 * kMs;
  CHECK(sn_mover_wait(mover, up, kForever) == 0);
  CHECK(sn_mover_release(mover, 60) == 0);
  const uint64_t last = submit(mover, back);
  CHECK(sn_mover_wait(mover, last, kForever) == 0);
  for (const sn_moved &moved : results(mover)) {
    CHECK(moved.outcome == SN_MOVE_DONE && moved.target == (moved.id == away ? 2u : 0u));
    if (moved.id == away) CHECK(moved.stop_ns - moved.start_ns == 3 * kMs && moved.held[2] == 100);
    if (moved.id == last) CHECK(moved.stop_ns - moved.start_ns == 5 * kMs);
  }
  const sn_held now = held(mover);
  CHECK(now.high_bytes[1] == 60 && now.bytes[1] == 0 && now.high_bytes[2] == 100 && now.bytes[2] == 0);
  CHECK(now.bytes[0] == 100 && now.overflows == 0 && now.slow_overflow_bytes == 0);
  // With room it goes where it was to go.
  down.nbytes = down.held[0] = 50;
  down.duration_ns = kMs;
  CHECK(sn_mover_wait(mover, submit(mover, down), kForever) == 0);
  CHECK(held(mover).bytes[1] == 50 && held(mover).bytes[2] == 0 && results(mover)[0].target == 1);
  sn_mover_destroy(mover);
}

// From one slower tier to another: what would be beyond its capacity stays, and who follows finds it there.
void a_job_whose_spare_tier_is_its_source_stays_without_room() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_set_capacity(mover, 1, 60) == 0);
  CHECK(sn_mover_hold(mover, 1, 10) == 0 && sn_mover_hold(mover, 2, 100) == 0);
  sn_job across = emulated(SN_DEMOTE, 50, kMs);
  across.held[0] = 0, across.held[2] = 50, across.source = across.spare = 2;
  submit(mover, across);
  const uint64_t stays = submit(mover, across);
  sn_job up = emulated(SN_PROMOTE, 50, kMs);  // from tier 1, as whoever asks believes
  up.after = stays;
  CHECK(sn_mover_wait(mover, stays, kForever) == 0);
  CHECK(held(mover).bytes[1] == 60 && held(mover).high_bytes[1] == 60 && held(mover).bytes[2] == 50);
  CHECK(sn_mover_wait(mover, submit(mover, up), kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 3 && all[0].outcome == SN_MOVE_DONE && all[0].held[1] == 50);
  CHECK(all[1].outcome == SN_MOVE_CANCELLED && all[1].start_ns == 0 && all[1].held[2] == 50 && all[1].held[1] == 0);
  CHECK(all[2].outcome == SN_MOVE_DONE && all[2].held[0] == 50);
  const sn_held now = held(mover);
  CHECK(now.bytes[0] == 50 && now.bytes[1] == 60 && now.bytes[2] == 0);
  CHECK(now.slow_overflow_bytes == 0 && now.in_flight_bytes == 0);
  sn_mover_destroy(mover);
}

// Both could share a system call. But what leaves the tier counts there until it has ended: the second one waits.
void a_job_waits_for_the_room_of_the_one_before_it_rather_than_go_to_its_spare_tier() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_set_capacity(mover, 1, 100) == 0);
  CHECK(sn_mover_hold(mover, 1, 100) == 0 && sn_mover_reserve(mover, 50, 0) == 0);
  sn_job jobs[2] = {};  // node jobs without pages
  for (sn_job &job : jobs) job.kind = SN_MOVE_NODE;
  jobs[0].nbytes = jobs[0].held[1] = 100, jobs[0].source = 1, jobs[0].target = 2;
  jobs[1].nbytes = jobs[1].held[0] = 50, jobs[1].target = 1, jobs[1].spare = 2;
  const int64_t first = sn_mover_submit_all(mover, jobs, 2);
  CHECK(first > 0 && sn_mover_wait(mover, static_cast<uint64_t>(first) + 1, kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2);
  for (const sn_moved &moved : all) CHECK(moved.target == (moved.id == static_cast<uint64_t>(first) ? 2u : 1u));
  CHECK(held(mover).bytes[0] == 0 && held(mover).bytes[1] == 50 && held(mover).bytes[2] == 100);
  CHECK(held(mover).slow_overflow_bytes == 0);
  sn_mover_destroy(mover);
}

// What an interrupted move of it leaves is counted where the block was.
void a_job_behind_one_that_went_to_its_spare_tier_counts_what_stays_there() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_set_capacity(mover, 1, 10) == 0 && sn_mover_reserve(mover, 100, 0) == 0);
  sn_job down{}, back{};  // node jobs without pages
  down.kind = back.kind = SN_MOVE_NODE;
  down.nbytes = back.nbytes = down.held[0] = back.held[1] = 100;
  down.source = 0, down.target = 1, down.spare = 2;
  back.source = 1, back.target = 0;
  back.after = submit(mover, down);
  CHECK(sn_mover_wait(mover, submit(mover, back), kForever) == 0);
  const std::vector<sn_moved> all = results(mover);
  CHECK(all.size() == 2 && all[0].target == 2 && all[0].held[2] == 100 && all[1].held[0] == 100);
  CHECK(held(mover).bytes[1] == 0 && held(mover).bytes[2] == 0 && held(mover).high_bytes[1] == 0);
  sn_mover_destroy(mover);
}

// Whatever comes in which order, while every demotion has a spare tier.
void no_tier_ever_holds_more_than_it_has() {
  sn_mover *mover = make(1000);
  CHECK(sn_mover_set_capacity(mover, 1, 300) == 0);
  uint64_t born = 0, below[3] = {}, last_down = 0;
  unsigned seed = 99;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t nbytes = static_cast<uint64_t>(rand_r(&seed) % 200) + 1;
    const int from = 1 + rand_r(&seed) % 2;
    if (rand_r(&seed) % 3 == 0 && below[from] >= nbytes) {
      sn_job up = emulated(SN_PROMOTE, nbytes, 10000);
      up.held[1] = 0, up.held[from] = nbytes, up.source = static_cast<uint8_t>(from);
      below[from] -= nbytes;
      submit(mover, up);
    } else if (born >= nbytes) {
      sn_job down = emulated(SN_DEMOTE, nbytes, 10000);
      down.spare = 2, down.spare_duration_ns = 20000;
      born -= nbytes;
      last_down = submit(mover, down);
    } else if (sn_mover_reserve(mover, nbytes, 0) == 0) {
      born += nbytes;
    } else if (sn_mover_take_in(mover, 1, nbytes) == 0) {
      below[1] += nbytes;
    }
    for (const sn_moved &moved : results(mover)) {
      born += moved.held[0];
      for (int tier = 1; tier < 3; ++tier) below[tier] += moved.held[tier];
    }
    if (i % 8 == 0) usleep(50);
    const sn_held now = held(mover);
    CHECK(now.high_bytes[1] <= 300 && now.most_fast_bytes <= 1000 && now.slow_overflow_bytes == 0);
  }
  CHECK(sn_mover_wait(mover, last_down, kForever) == 0 && held(mover).high_bytes[2] > 0);
  sn_mover_destroy(mover);
}

void births_in_a_slower_tier_are_told_that_it_is_full() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_set_capacity(mover, 1, 60) == 0);
  CHECK(sn_mover_take_in(mover, 1, 40) == 0 && sn_mover_take_in(mover, 1, 21) == -ENOSPC);
  CHECK(sn_mover_take_in(mover, 0, 1) == -EINVAL && sn_mover_take_in(mover, SN_TIERS, 1) == -EINVAL);
  CHECK(held(mover).bytes[1] == 40 && held(mover).slow_overflow_bytes == 0);
  CHECK(sn_mover_hold(mover, 1, 21) == 0 && held(mover).bytes[1] == 61 && held(mover).slow_overflow_bytes == 1);
  CHECK(sn_mover_hold(mover, 1, 5) == 0 && held(mover).slow_overflow_bytes == 6);
  sn_mover_destroy(mover);
}

// Births that wait for demotions that wait for promotions that wait for births would never end.
void no_two_directions_wait_for_each_other() {
  sn_mover *mover = make(1000);
  CHECK(sn_mover_set_capacity(mover, 1, 500) == 0 && sn_mover_hold(mover, 1, 1 << 20) == 0);
  std::atomic<uint64_t> born{0};
  std::thread births([&] {
    for (int i = 0; i < 400; ++i)
      if (sn_mover_reserve(mover, 100, kForever) == 0) born += 100;
  });
  unsigned seed = 4321;
  for (int i = 0; i < 800; ++i) {
    const uint64_t nbytes = static_cast<uint64_t>(rand_r(&seed) % 200) + 1;
    if (rand_r(&seed) % 2 == 0) {
      submit(mover, emulated(SN_PROMOTE, nbytes, 20000));
    } else if (born >= nbytes) {
      born -= nbytes;
      submit(mover, emulated(SN_DEMOTE, nbytes, 20000));
    }
    for (const sn_moved &moved : results(mover)) born += moved.held[0];
    if (i % 8 == 0) usleep(100);
  }
  births.join();
  CHECK(held(mover).most_fast_bytes <= 1000);
  sn_mover_destroy(mover);
}

void a_move_that_fails_leaves_every_part_where_it_was() {
  sn_mover *mover = make(100);
  CHECK(sn_mover_force(mover, 10) == 0 && sn_mover_hold(mover, 2, 20) == 0);
  CHECK(sn_mover_hold(mover, SN_TIERS - 1, 30) == 0);
  const sn_held before = held(mover);
  sn_system_replace(sleeps_fail);
  held_up.store(false);
  for (const uint8_t target : {0, 1, 2}) {
    CHECK(sn_mover_wait(mover, submit(mover, in_three_parts(SN_TIERS - 1, target)), kForever) == 0);
    const sn_moved moved = results(mover)[0];
    CHECK(moved.outcome == SN_MOVE_FAILED && moved.moved_bytes == 0);
    CHECK(moved.held[0] == 10 && moved.held[1] == 0 && moved.held[2] == 20 && moved.held[SN_TIERS - 1] == 30);
    for (int tier = 0; tier < SN_TIERS; ++tier) CHECK(held(mover).bytes[tier] == before.bytes[tier]);
  }
  sn_system_replace(nullptr);
  sn_mover_destroy(mover);
}

void a_job_whose_parts_are_not_the_whole_is_refused() {
  sn_mover *mover = make(100);
  const auto refused = [&](void (*spoil)(sn_job &)) {
    sn_job job = in_three_parts(0, 2);
    spoil(job);
    return sn_mover_submit(mover, &job) == -EINVAL;
  };
  CHECK(refused([](sn_job &job) { job.held[1] = 1; }));
  CHECK(refused([](sn_job &job) { job.held[0] = 9; }));
  CHECK(refused([](sn_job &job) { job.held[1] = UINT64_MAX; }));
  CHECK(refused([](sn_job &job) { job.target = job.source; }));
  CHECK(refused([](sn_job &job) { job.target = SN_TIERS; }));
  CHECK(refused([](sn_job &job) { job.source = SN_TIERS; }));
  CHECK(refused([](sn_job &job) { job.kind = SN_MOVE_BACKEND + 1; }));
  CHECK(refused([](sn_job &job) { job.spare = job.target; }));
  CHECK(refused([](sn_job &job) { job.source = 1, job.target = 0, job.spare = 1; }));
  CHECK(refused([](sn_job &job) { job.spare = SN_TIERS; }));
  CHECK(refused([](sn_job &job) { job.source = 2, job.target = 0, job.spare = 1; }));
  for (const int tier : {-1, 0, SN_TIERS}) CHECK(sn_mover_hold(mover, tier, 1) == -EINVAL);
  CHECK(sn_mover_hold(mover, 1, -1) == -EINVAL);
  sn_mover_destroy(mover);
}

}  // namespace

int main() {
  each_tier_has_accounts_of_its_own();
  a_demotion_waits_for_room_that_a_promotion_is_making();
  a_demotion_that_waits_for_a_promotion_takes_the_room_of_what_dies();
  a_demotion_that_a_promotion_waits_for_goes_at_once();
  a_demotion_without_room_goes_to_its_spare_tier();
  a_job_whose_spare_tier_is_its_source_stays_without_room();
  a_job_waits_for_the_room_of_the_one_before_it_rather_than_go_to_its_spare_tier();
  a_job_behind_one_that_went_to_its_spare_tier_counts_what_stays_there();
  no_tier_ever_holds_more_than_it_has();
  births_in_a_slower_tier_are_told_that_it_is_full();
  no_two_directions_wait_for_each_other();
  a_move_that_fails_leaves_every_part_where_it_was();
  a_job_whose_parts_are_not_the_whole_is_refused();
  return 0;
}
