// Elementwise operators whose operands are too large for the frames run slice by slice.
#pragma once

#include <ATen/core/ivalue.h>

#include "operators.h"

namespace sn_shim {

// Sets what `about` says of slices.
void describe_slices(const c10::FunctionSchema &schema, Operator &about);

// Called before each operator of that kind, on its thread: whether it is about to run in slices. They are operators that
// bring in what they need, so nothing has to be brought in for the whole.
bool in_slices(const Operator &about, c10::ArrayRef<const c10::IValue> inputs);

// From now on operators that `in_slices` has answered for run so. May be called again.
void watch_slices();

}  // namespace sn_shim
