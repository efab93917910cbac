// Tensors that the CPU's own kernels take as they are.
#pragma once

#include <ATen/core/Tensor.h>

namespace sn_shim {

inline bool within(c10::DispatchKeySet keys, c10::DispatchKeySet allowed) {
  return (keys.raw_repr() & ~allowed.raw_repr()) == 0;
}

// No subclass, wrapper, negation or name: the CPU's own kernel is what runs.
inline bool is_plain(const at::Tensor &tensor) {
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet kPlain({Key::CPU, Key::ADInplaceOrView, Key::AutogradCPU, Key::AutocastCPU});
  return tensor.defined() && tensor.has_storage() && within(tensor.key_set(), kPlain) && !tensor.is_inference();
}

}  // namespace sn_shim
