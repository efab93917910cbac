#include "step_plan.h"

#include <numeric>
#include <utility>

namespace sn {

StepPlan::StepPlan(StepUses uses, uint32_t granules) : step_(std::move(uses)), next_(granules, kNever) {
  const uint64_t count = step_.uses();
  gap_.resize(count);
  for (uint64_t index = 2 * count; index-- > 0;) {  // of the next step and of this one
    const uint32_t used = step_.granule[index % count];
    if (index < count) gap_[index] = next_[used] - index;
    next_[used] = index;
  }
  for (uint64_t index = 0; index < count; index++)
    if ((step_.kind[index] & (kBorn | kDied)) != 0) turns_.push_back(index);
  by_signature_.resize(step_.operators() - 1);
  std::iota(by_signature_.begin(), by_signature_.end(), 1);
  const std::vector<uint64_t> &all = step_.signature;
  std::sort(by_signature_.begin(), by_signature_.end(),
            [&](uint64_t a, uint64_t b) { return std::make_pair(all[a], a) < std::make_pair(all[b], b); });
}

uint64_t StepPlan::place_of(uint64_t index) const {
  const std::vector<uint64_t> &first = step_.first_use;
  return static_cast<uint64_t>(std::upper_bound(first.begin(), first.end(), index % uses()) - first.begin()) - 1;
}

void StepPlan::go_to(uint64_t place) {
  for (uint64_t index = now(), end = index_of(place); index < end; index++)
    next_[granule(index)] = index + gap_[index % uses()];
  place_ = place;
}

void StepPlan::begin_step() {
  const uint64_t within = place_ % operators(), left_out = operators() - 1 - within;
  missed_ += left_out;
  another_ = missed_ - missed_before_ > operators() / 8 + 4;
  go_to(place_ - within + operators());
  missed_before_ = missed_;
  strange_ = 0;
  candidate_ = kNever;
}

bool StepPlan::follow(uint64_t signature) {
  const uint64_t within = place_ % operators(), begin = place_ - within;
  const uint64_t end = std::min(operators(), within + 1 + kSearch);
  for (uint64_t at = within + 1; at < end; at++) {
    if (step_.signature[at] != signature) continue;
    missed_ += at - within - 1;
    matched_++;
    strange_ = 0;
    go_to(begin + at);
    return true;
  }
  missed_++;
  strange_++;
  return lost() && find_again(signature);
}

// Two operators that follow one another in the record are the place.
bool StepPlan::find_again(uint64_t signature) {
  const std::vector<uint64_t> &all = step_.signature;
  if (candidate_ != kNever && candidate_ + 1 < all.size() && all[candidate_ + 1] == signature) {
    const uint64_t within = place_ % operators(), at = candidate_ + 1;
    go_to(place_ - within + at + (at < within ? operators() : 0));
    candidate_ = kNever;
    strange_ = 0;
    return true;
  }
  const auto found = std::lower_bound(by_signature_.begin(), by_signature_.end(), signature,
                                      [&](uint64_t at, uint64_t sought) { return all[at] < sought; });
  candidate_ = found != by_signature_.end() && all[*found] == signature ? *found : kNever;
  return false;
}

}  // namespace sn
