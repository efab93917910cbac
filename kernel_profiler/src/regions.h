// Which parts of the away file belong to whom: to a granule, or to forked children that may still read them.
#pragma once

#include <stdint.h>

#include <vector>

#include "frame_pool.h"

namespace sn {

class Regions {
 public:
  ~Regions();
  void open(uint32_t count);  // may throw for want of memory
  void extend(uint32_t more);  // likewise, and then all is as it was

  // `wanted` if it is free, else the next one that is; kNone if none is.
  uint32_t take(uint32_t wanted);
  void give(uint32_t region);   // its granule needs it no more
  void freeze(uint32_t region) { holds_[region]++; }  // for ever
  bool may_write(uint32_t region) const { return holds_[region] == 0; }
  uint32_t free_count();
  bool has_free(uint32_t wanted);  // so many
  uint32_t count() const { return static_cast<uint32_t>(holds_.size()); }

  // A fork: what `read` lists is not written until the child is gone, with all that it forked. Before the fork:
  // 0 or a negative errno; without it `freeze` freezes for ever.
  int hold_begin(uint32_t most);  // room for so many regions
  void hold_add(uint32_t region) { read_.push_back(region); }
  void hold_end_in_parent();
  void hold_end_in_child();
  uint32_t generations();  // forked ones that still live

 private:
  struct Generation {
    int fd;  // of a page that only they have mapped; -1: it could not be made
    std::vector<uint32_t> read;
  };
  void thaw();
  bool is_free(uint32_t region) const { return owned_[region] == 0 && holds_[region] == 0; }

  std::vector<uint8_t> owned_;
  std::vector<uint32_t> holds_;  // generations that may read it
  std::vector<Generation> generations_;
  std::vector<uint32_t> read_;
  uint32_t next_ = 0;
  int page_fd_ = -1;
  uint64_t page_ = 0;
};

}  // namespace sn
