// What one training step used of each granule, operator after operator.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "frame_pool.h"

namespace sn {

// Bits. Born: it gets memory, with any bytes. Died: it has none from then on. Zeroed: each byte of it, before any is read.
// Unforeseen: no operator announced it, in a step after the recorded one.
enum UseKind : uint8_t { kReads = 1, kWrites = 2, kBorn = 4, kDied = 8, kZeroed = 16, kUnforeseen = 32 };

// The first operator is none: what happens between the begin of the step and its first operator.
struct StepUses {
  std::vector<uint64_t> signature, compute_ns;  // by operator
  std::vector<uint64_t> first_use;              // by operator, into the next two; one more at the end
  std::vector<uint32_t> granule;                // in the order of their uses; one that died may be born again
  std::vector<uint8_t> kind;

  uint64_t operators() const { return signature.size(); }
  uint64_t uses() const { return granule.size(); }
};

class StepRecord {
 public:
  static constexpr size_t kMostUses = size_t{4} << 20;

  // A step begins at `now_ns`. May throw for want of memory, like all calls here but `recording`.
  void begin(uint32_t granules, uint64_t now_ns);
  bool recording() const { return recording_; }
  bool too_long() const { return too_long_; }  // the step had more uses: nothing of it is kept
  // The operator before has ended; until `runs` what passes is waiting.
  void operator_begins(uint64_t signature, uint64_t now_ns);
  void runs(uint64_t now_ns) { since_ns_ = now_ns; }
  void waited(uint64_t ns) { since_ns_ += ns; }  // within an operator, for the memory of a tensor
  void use(uint32_t granule, uint8_t kind);
  StepUses end(uint64_t now_ns);
  void give_up();

 private:
  void open(uint64_t signature);

  bool recording_ = false, too_long_ = false;
  uint64_t since_ns_ = 0;
  std::vector<uint32_t> latest_;  // of each granule, in `uses_`
  StepUses uses_;
};

}  // namespace sn
