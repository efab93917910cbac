// Which tensors will be freed in the layer of their birth? Layers resemble each other (blocks of a model), so the guess
// is what became of the last one of the same length that was born at the same place in a layer; of the first one: no.
#pragma once

#include <stdint.h>
#include <string.h>

namespace sn {

class Births {
 public:
  void reset() {
    memset(cells_, 0, sizeof cells_);
    end_layer();
  }

  void end_layer() {
    layer_ = static_cast<uint16_t>(layer_ + 1);
    place_ = 0;
  }

  // The next tensor is born, `*ticket` is to be given back when it dies. Is it expected to die in this layer?
  bool born(uint64_t nbytes, uint32_t *ticket) {
    const uint64_t mixed = (nbytes * 0x9e3779b97f4a7c15u ^ ++place_) * 0xff51afd7ed558ccdu;
    const uint16_t index = static_cast<uint16_t>(mixed >> 48);
    const uint16_t key = static_cast<uint16_t>(mixed >> 31) | 3;  // never 0, with kLasting or without
    const bool brief = cells_[index] == (key & ~kLasting);
    cells_[index] = key;  // until it dies in time
    *ticket = uint32_t{index} << 16 | layer_;
    return brief;
  }

  // Was it born in this layer?
  bool died(uint32_t ticket) {
    if (static_cast<uint16_t>(ticket) != layer_) return false;
    cells_[ticket >> 16] &= static_cast<uint16_t>(~kLasting);
    return true;
  }

 private:
  static constexpr uint16_t kLasting = 1;  // bit of a cell: what was born there last did not die in its layer

  uint64_t place_ = 0;  // births in this layer so far
  uint16_t layer_ = 0;
  uint16_t cells_[1 << 16] = {};  // by length and place; 0 (and never born): no guess
};

}  // namespace sn
