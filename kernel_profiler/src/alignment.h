// Where a step is among the slots of its layer.
//
// The plan expects the allocations of a layer in one order, and a step nearly always asks for them in it. But a line that
// logs a value now and then makes allocations that the plan does not know, or leaves some out. Their number would then be
// wrong for the rest of the layer; so an allocation is first of all looked for by its size, close to where it is expected.
#pragma once

#include <stdint.h>

#include <algorithm>

namespace sn {

// Slots are counted from the layer's first; it has `count` of them.
class Alignment {
 public:
  void begin(int32_t at) {
    at_ = base_ = at;
    last_ = at - 1;
    found_ = 0;
  }

  int32_t at() const { return at_; }

  // The first slot after the last one found that `is_like`, no further than the step can be; -1: none. In nearly all
  // cases there is one candidate, the next slot.
  template <typename IsLike>
  int32_t expected(int32_t count, IsLike is_like) const {
    const int32_t end = std::min(count, at_ + 1);
    for (int32_t i = std::max(last_ + 1, at_ - kAround); i < end; i++)
      if (is_like(i)) return i;
    return -1;
  }

  // Those around that were not found yet in this layer: what was passed over, perhaps for something that the plan does
  // not know, then what comes later. `serves` tells whether it is one, and takes it.
  template <typename Serves>
  int32_t elsewhere(int32_t count, Serves serves) const {
    for (int32_t i = std::max(base_, at_ - 2 * kAround), end = std::min(count, at_ + kAround); i < end; i++)
      if (!was_found(i) && serves(i)) return i;
    return -1;
  }

  // The allocation is the one that slot `i` was planned for.
  void found(int32_t i) {
    at_ = i + 1;
    last_ = i;
    if (i >= base_ + 64) slide(i - 63 + kAround);
    if (i >= base_) found_ |= uint64_t{1} << (i - base_);
  }

  // It is none that was planned, or one of another size: the next one will tell.
  void lost() { at_++; }

 private:
  static constexpr int32_t kAround = 12;

  bool was_found(int32_t i) const { return i - base_ < 64 && (found_ >> (i - base_) & 1) != 0; }

  void slide(int32_t base) {
    found_ = base - base_ < 64 ? found_ >> (base - base_) : 0;
    base_ = base;
  }

  int32_t at_ = 0;     // the slot that comes next, if none was added or left out since the last one found
  int32_t last_ = -1;  // the last one found
  int32_t base_ = 0;   // all before this one are done with
  uint64_t found_ = 0;  // bit i: slot base_ + i was found
};

}  // namespace sn
