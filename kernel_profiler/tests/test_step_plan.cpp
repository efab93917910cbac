// A recorded step: what is used when, where a job is in it, and which use of a granule is the next one.
#include <algorithm>
#include <random>
#include <vector>

#include "../src/step_plan.cpp"
#include "../src/step_record.cpp"
#include "memory_check.h"

namespace {

using sn::StepPlan;
using sn::StepRecord;
using sn::StepUses;

void uses_of_an_operator_are_one_for_each_granule() {
  StepRecord record;
  record.use(1, sn::kReads);  // nothing is recorded yet
  CHECK(!record.recording());
  record.begin(8, 100);
  record.use(3, sn::kDied);
  record.operator_begins(77, 130);
  record.use(1, sn::kReads);
  record.use(2, sn::kReads);
  record.use(1, sn::kReads | sn::kWrites);
  record.runs(150);
  record.waited(5);
  record.use(4, sn::kWrites | sn::kBorn);
  record.use(4, sn::kDied);
  record.use(4, sn::kWrites | sn::kBorn);  // another tensor
  record.operator_begins(78, 175);
  record.runs(180);
  const StepUses step = record.end(190);
  CHECK(!record.recording() && step.operators() == 3 && step.uses() == 5);
  CHECK((step.signature == std::vector<uint64_t>{0, 77, 78}));
  CHECK((step.compute_ns == std::vector<uint64_t>{30, 20, 10}));
  CHECK((step.first_use == std::vector<uint64_t>{0, 1, 5, 5}));
  CHECK((step.granule == std::vector<uint32_t>{3, 1, 2, 4, 4}));
  CHECK(step.kind[1] == (sn::kReads | sn::kWrites) && step.kind[3] == (sn::kWrites | sn::kBorn | sn::kDied));
  CHECK(step.kind[4] == (sn::kWrites | sn::kBorn));
}

void a_step_without_end_is_not_kept() {
  StepRecord record;
  record.begin(2, 0);
  for (size_t i = 0; i <= StepRecord::kMostUses; i++) {
    record.operator_begins(i, i);
    record.use(i % 2, sn::kReads);
  }
  CHECK(!record.recording() && record.too_long());
  record.begin(2, 0);
  CHECK(record.recording() && !record.too_long());
}

// Operators 1 to `count`, with any granules; the number is the signature.
StepUses any_step(std::mt19937 &random, uint32_t count, uint32_t granules) {
  StepRecord record;
  record.begin(granules, 0);
  for (uint32_t i = 1; i <= count; i++) {
    record.operator_begins(i, 0);
    for (uint32_t used = random() % 4; used-- > 0;)
      record.use(random() % granules, static_cast<uint8_t>(1 + random() % 15));
  }
  record.use(0, sn::kReads);
  return record.end(0);
}

// By looking through all uses.
uint64_t next_of(const StepPlan &plan, uint32_t granule) {
  for (uint64_t index = plan.now(); index < plan.now() + plan.uses(); index++)
    if (plan.granule(index) == granule) return index;
  return StepPlan::kNever;
}

using Turns = std::vector<std::pair<uint32_t, uint8_t>>;

Turns turns_between(const StepPlan &plan, uint64_t from, uint64_t to, uint64_t most) {
  Turns found;
  for (uint64_t index = from; index < to && found.size() < most; index++)
    if ((plan.kind(index) & (sn::kBorn | sn::kDied)) != 0) found.emplace_back(plan.granule(index), plan.kind(index));
  return found;
}

void check(const StepPlan &plan, uint32_t granules) {
  for (uint32_t i = 0; i < granules; i++) CHECK(plan.next(i) == next_of(plan, i));
  for (uint64_t ahead = 0; ahead < plan.uses(); ahead += 7) {
    const uint64_t from = plan.now() + ahead, to = from + plan.uses() + ahead;
    Turns found;
    plan.each_turn(from, to, 9, [&](uint32_t granule, uint8_t kind) { found.emplace_back(granule, kind); });
    CHECK(found == turns_between(plan, from, to, 9));
  }
}

// Steps of which some operators are left out, and others come that were not recorded.
void the_next_use_is_known_wherever_the_job_is() {
  constexpr uint32_t kGranules = 24;
  for (uint32_t seed = 0; seed < 40; seed++) {
    std::mt19937 random(seed);
    const uint32_t count = 1 + random() % 80;
    StepPlan plan(any_step(random, count, kGranules), kGranules);
    check(plan, kGranules);
    for (int step = 0; step < 5; step++) {
      for (uint32_t at = 1; at <= count; at++) {
        if (random() % 8 == 0) continue;
        if (random() % 8 == 0) CHECK(!plan.follow(1000000));
        const uint64_t before = plan.now();
        CHECK(plan.follow(at) && plan.now() >= before);
        check(plan, kGranules);
      }
      plan.begin_step();
      check(plan, kGranules);
    }
  }
}

void the_place_is_lost_and_found() {
  std::mt19937 random(1);
  constexpr uint32_t kOperators = 400;
  StepPlan plan(any_step(random, kOperators, 8), 8);
  for (uint32_t at = 1; at <= 10; at++) CHECK(plan.follow(at));
  CHECK(!plan.follow(10 + StepPlan::kSearch + 2));  // too far on
  for (uint32_t i = 0; i < StepPlan::kPatience; i++) plan.follow(1000000 + i);
  CHECK(plan.lost());
  CHECK(!plan.follow(300) && plan.lost());
  CHECK(plan.follow(301) && !plan.lost());  // two in order
  check(plan, 8);
  CHECK(plan.follow(302));
  for (uint32_t i = 0; i < StepPlan::kPatience; i++) plan.follow(1000000 + i);
  CHECK(!plan.follow(5) && plan.follow(6));  // of the next step
  check(plan, 8);
  plan.begin_step();
  CHECK(plan.was_another() && plan.follow(1));
  for (uint32_t at = 2; at <= kOperators; at++) CHECK(plan.follow(at));
  plan.begin_step();
  CHECK(!plan.was_another());
  plan.begin_step();  // at once: all of a step was left out
  CHECK(plan.was_another());
}

// An operator that comes twice in a step is taken for the first one.
void a_place_is_looked_for_at_the_first_of_equal_operators() {
  constexpr uint32_t kOperators = 400, kFirst = 120, kSecond = 300;
  std::mt19937 random(2);
  StepUses step = any_step(random, kOperators, 8);
  step.signature[kSecond] = step.signature[kFirst];
  const uint64_t at_first = step.first_use[kFirst + 1];
  StepPlan plan(std::move(step), 8);
  CHECK(plan.follow(1));
  for (uint32_t i = 0; i < StepPlan::kPatience; i++) plan.follow(0);  // as the operator that is none
  CHECK(plan.lost());
  CHECK(!plan.follow(kFirst) && !plan.follow(kSecond + 1));  // after the second one
  CHECK(!plan.follow(kFirst) && plan.follow(kFirst + 1));
  CHECK(plan.place() == kFirst + 1 && plan.now() == at_first);
  check(plan, 8);
}

}  // namespace

int main() {
  uses_of_an_operator_are_one_for_each_granule();
  a_step_without_end_is_not_kept();
  the_next_use_is_known_wherever_the_job_is();
  the_place_is_lost_and_found();
  a_place_is_looked_for_at_the_first_of_equal_operators();
}
