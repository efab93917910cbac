// Elementwise operators whose operands are too large for the frames run slice by slice.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <memory>

#include "operators.h"

namespace sn_shim {

// Sets what `about` says of slices.
void describe_slices(const c10::FunctionSchema &schema, Operator &about);

// Called before each operator of that kind, on its thread. What it gives is kept while that operator runs, which then runs in
// slices: operators that bring in what they need, so nothing has to be brought in for the whole. nullptr: it does not.
std::unique_ptr<at::ObserverContext> in_slices(const Operator &about, c10::ArrayRef<const c10::IValue> inputs);

// From now on operators that `in_slices` has answered for run so. May be called again.
void watch_slices();

}  // namespace sn_shim
