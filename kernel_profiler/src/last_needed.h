// Which granules are needed last: without a look at all of them for each choice.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <vector>

namespace sn {

// A heap, in which what was said of a granule before stays until it is met, or until there is too much of that.
class LastNeeded {
 public:
  LastNeeded() = default;
  // Of granules up to this one, of none of which anything was said. May throw for want of memory: nothing else does.
  explicit LastNeeded(uint32_t granules) : next_(granules, kUnsaid) {
    heap_.reserve(most());
    aside_.reserve(granules);
  }

  // It is needed next at `next`, which is not before what was said earlier; UINT64_MAX: never.
  void put(uint32_t granule, uint64_t next) {
    if (next_[granule] == next) return;
    if (heap_.size() == most()) tidy();
    next_[granule] = next;
    push({next, granule});
  }

  enum Answer { kStays, kGoes, kEnough };
  // Each of which something was said, the one needed last first, until `visit(granule, next)` has enough. It stays, or is as
  // one of which nothing was said.
  template <typename Visit>
  void each(Visit visit) {
    aside_.clear();
    for (Answer answer = kStays; answer != kEnough && !heap_.empty();) {
      const Entry last = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      if (next_[last.granule] != last.next) continue;
      next_[last.granule] = kUnsaid;
      answer = visit(last.granule, last.next);
      if (answer != kGoes) aside_.push_back(last);
    }
    for (const Entry &entry : aside_) {
      next_[entry.granule] = entry.next;
      push(entry);
    }
  }

  size_t size() const { return heap_.size(); }
  size_t most() const { return 2 * next_.size(); }

 private:
  static constexpr uint64_t kUnsaid = UINT64_MAX - 1;
  struct Entry {
    uint64_t next;
    uint32_t granule;
    bool operator<(const Entry &other) const {
      return next != other.next ? next < other.next : granule > other.granule;
    }
  };

  void push(const Entry &entry) {
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end());
  }

  // One entry for a granule: half of the room is free then.
  void tidy() {
    heap_.clear();
    for (uint32_t granule = 0; granule < next_.size(); granule++)
      if (next_[granule] != kUnsaid) heap_.push_back({next_[granule], granule});
    std::make_heap(heap_.begin(), heap_.end());
  }

  std::vector<Entry> heap_, aside_;
  std::vector<uint64_t> next_;  // as last said
};

}  // namespace sn
