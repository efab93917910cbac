// Steps of tensors in frames: one is recorded, and what the next ones are about to need is read ahead.
#pragma once

#include <stdint.h>

#include "sentinel.h"

namespace sn {

uint64_t signature_of(const sn_framed_operand *operands, uint64_t count, const char *name);
// An operator has begun; its operands are there, all that fit.
void framed_operator_begins(sn_frames *frames, uint64_t signature);
// Whether it has to say when it ends, by the last of these.
bool framed_operator_runs(sn_frames *frames);
void framed_operator_ended(sn_frames *frames);
// A tensor's memory took so long.
void framed_birth_waited(sn_frames *frames, uint64_t ns);
void framed_steps_forget();                  // as frames begin to serve
void framed_steps_keep(sn_frames *frames);  // what they have counted, before they go

// framed_tensors.cpp: what operators and allocations have waited, and whoever uses the frames meanwhile keeps them.
uint64_t framed_waited_ns();
class FramedInUse {
 public:
  FramedInUse();
  ~FramedInUse();
  FramedInUse(const FramedInUse &) = delete;
  FramedInUse &operator=(const FramedInUse &) = delete;
  sn_frames *frames() const { return frames_; }  // nullptr: there are none

 private:
  sn_frames *frames_;
};

}  // namespace sn
