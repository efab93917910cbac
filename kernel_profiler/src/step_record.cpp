#include "step_record.h"

#include <utility>

namespace sn {

void StepRecord::begin(uint32_t granules, uint64_t now_ns) {
  give_up();
  latest_.assign(granules, kNone);
  open(0);
  since_ns_ = now_ns;
  recording_ = true;
}

void StepRecord::open(uint64_t signature) {
  uses_.signature.push_back(signature);
  uses_.compute_ns.push_back(0);
  uses_.first_use.push_back(uses_.uses());
}

void StepRecord::operator_begins(uint64_t signature, uint64_t now_ns) {
  if (!recording_) return;
  if (now_ns > since_ns_) uses_.compute_ns.back() += now_ns - since_ns_;
  since_ns_ = now_ns;
  open(signature);
}

void StepRecord::use(uint32_t granule, uint8_t kind) {
  if (!recording_) return;
  const uint32_t latest = latest_[granule];
  const bool merges = latest != kNone && latest >= uses_.first_use.back() &&
                      !((uses_.kind[latest] & kDied) != 0 && (kind & kBorn) != 0);
  if (merges) {
    uses_.kind[latest] |= kind;
    return;
  }
  if (uses_.uses() == kMostUses) {
    give_up();
    too_long_ = true;
    return;
  }
  latest_[granule] = static_cast<uint32_t>(uses_.uses());
  uses_.granule.push_back(granule);
  uses_.kind.push_back(kind);
}

StepUses StepRecord::end(uint64_t now_ns) {
  if (now_ns > since_ns_) uses_.compute_ns.back() += now_ns - since_ns_;
  uses_.first_use.push_back(uses_.uses());
  StepUses told = std::move(uses_);
  give_up();
  return told;
}

void StepRecord::give_up() {
  recording_ = too_long_ = false;
  uses_ = {};
  latest_ = {};
}

}  // namespace sn
