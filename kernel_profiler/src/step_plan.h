// Where in a recorded step a job is, and which granule is needed when. Steps follow one another without end: a use has an
// index that counts on from step to step.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "step_record.h"

namespace sn {

class StepPlan {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  static constexpr uint64_t kSearch = 32;     // operators that may be left out
  static constexpr uint32_t kPatience = 128;  // operators in a row that are not found, before the place is lost

  // A step with a use at least. May throw for want of memory. The job is at the begin of a step.
  StepPlan(StepUses uses, uint32_t granules);

  const StepUses &recorded() const { return step_; }
  void begin_step();
  // An operator begins. Whether it is the expected one, or one soon after; else the place stays as it is.
  bool follow(uint64_t signature);
  bool lost() const { return strange_ >= kPatience; }

  uint64_t matched() const { return matched_; }  // operators
  uint64_t missed() const { return missed_; }    // that were not found, and those left out
  // Whether the step before the last `begin_step` was another than the recorded one, by more than an eighth.
  bool was_another() const { return another_; }

  // Of the operator that runs, the first use.
  uint64_t now() const { return index_of(place_); }
  uint64_t after() const { return index_of(place_ + 1); }  // of the one after it
  uint64_t uses() const { return step_.uses(); }           // of a step
  uint64_t place() const { return place_ % operators(); }  // of the operator that runs, in the record
  uint64_t place_of(uint64_t index) const;                 // of the one that such a use is of
  uint32_t granule(uint64_t index) const { return step_.granule[index % uses()]; }
  uint8_t kind(uint64_t index) const { return step_.kind[index % uses()]; }
  // Index of the next use from `now` on; kNever: there is none.
  uint64_t next(uint32_t granule) const { return next_[granule]; }
  // Each use in [from, to) in which a granule is born or dies, as far as the `most` first ones: granule and kind.
  template <typename Visit>
  void each_turn(uint64_t from, uint64_t to, uint64_t most, Visit visit) const;
  // Whether its bytes are needed at `index`.
  bool needs_bytes(uint64_t index) const {
    return (kind(index) & (kBorn | kZeroed)) == 0 && (kind(index) & (kReads | kWrites)) != 0;
  }

 private:
  uint64_t operators() const { return step_.operators(); }
  uint64_t index_of(uint64_t place) const {
    return place / operators() * uses() + step_.first_use[place % operators()];
  }
  void go_to(uint64_t place);
  bool find_again(uint64_t signature);

  StepUses step_;
  std::vector<uint64_t> gap_;   // of each use, to the granule's next one
  std::vector<uint64_t> next_;  // of each granule
  std::vector<uint64_t> turns_;  // uses in which a granule is born or dies, in order
  std::vector<uint64_t> by_signature_;  // operators but the first, which is none; of equal ones the first comes first
  uint64_t place_ = 0;          // operators since the plan was made
  uint64_t candidate_ = kNever;
  uint32_t strange_ = 0;        // operators in a row
  uint64_t matched_ = 0, missed_ = 0, missed_before_ = 0;
  bool another_ = false;
};

template <typename Visit>
void StepPlan::each_turn(uint64_t from, uint64_t to, uint64_t most, Visit visit) const {
  if (turns_.empty()) return;
  const uint64_t within = from % uses();
  auto turn = std::lower_bound(turns_.begin(), turns_.end(), within);
  for (uint64_t begin = from - within; most-- > 0; ++turn) {
    if (turn == turns_.end()) {
      turn = turns_.begin();
      begin += uses();
    }
    if (begin + *turn >= to) return;
    visit(step_.granule[*turn], step_.kind[*turn]);
  }
}

}  // namespace sn
