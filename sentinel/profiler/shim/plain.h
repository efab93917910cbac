// What kind of tensor it is.
#pragma once

#include <ATen/core/Tensor.h>

namespace sn_shim {

inline bool within(c10::DispatchKeySet keys, c10::DispatchKeySet allowed) {
  return (keys.raw_repr() & ~allowed.raw_repr()) == 0;
}

// Others throw where they are asked for sizes or strides: nested tensors, and those whose sizes are symbols.
inline bool has_sizes(const at::Tensor &tensor) {
  return !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// No subclass, wrapper, negation or name: the CPU's own kernel is what runs.
inline bool is_plain(const at::Tensor &tensor) {
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet kPlain({Key::CPU, Key::ADInplaceOrView, Key::AutogradCPU, Key::AutocastCPU});
  return tensor.defined() && tensor.has_storage() && within(tensor.key_set(), kPlain) && !tensor.is_inference();
}

}  // namespace sn_shim
