// The kernels that slice stand at the dispatch key BackendSelect, just before those of the CPU. PyTorch has kernels there
// only for operators that make tensors from nothing, and each thread goes through it, so that none of its kernels is
// replaced; autograd and counts of versions lie before. They are never taken away again: other threads may be in them.

#include "slices.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "plain.h"
#include "sentinel.h"

namespace sn_shim {
namespace {

using torch::jit::Stack;

// Elementwise, and of one kind: each element of the result is the correctly rounded one, or a copy. `out`: the overload
// that writes where it is told, of an operator that gives a new tensor.
struct Elementwise {
  const char *name, *overload, *out;
};
constexpr Elementwise kElementwise[] = {
    {"abs", "", "out"},         {"abs_", "", nullptr},        {"abs", "out", nullptr},
    {"add", "Tensor", "out"},   {"add_", "Tensor", nullptr},  {"add", "out", nullptr},
    {"add_", "Scalar", nullptr},
    {"addcdiv", "", "out"},     {"addcdiv_", "", nullptr},    {"addcdiv", "out", nullptr},
    {"addcmul", "", "out"},     {"addcmul_", "", nullptr},    {"addcmul", "out", nullptr},
    {"copy_", "", nullptr},
    {"div", "Tensor", "out"},   {"div_", "Tensor", nullptr},  {"div", "out", nullptr},
    {"div_", "Scalar", nullptr},
    {"fill_", "Scalar", nullptr},
    {"lerp", "Scalar", "Scalar_out"}, {"lerp_", "Scalar", nullptr}, {"lerp", "Scalar_out", nullptr},
    {"maximum", "", "out"},     {"maximum", "out", nullptr},
    {"minimum", "", "out"},     {"minimum", "out", nullptr},
    {"mul", "Tensor", "out"},   {"mul_", "Tensor", nullptr},  {"mul", "out", nullptr},
    {"mul_", "Scalar", nullptr},
    {"neg", "", "out"},         {"neg_", "", nullptr},        {"neg", "out", nullptr},
    {"sign", "", "out"},        {"sign_", "", nullptr},       {"sign", "out", nullptr},
    {"sqrt", "", "out"},        {"sqrt_", "", nullptr},       {"sqrt", "out", nullptr},
    {"sub", "Tensor", "out"},   {"sub_", "Tensor", nullptr},  {"sub", "out", nullptr},
    {"sub_", "Scalar", nullptr},
    {"zero_", "", nullptr},
};

class Sliced;
thread_local Sliced *innermost = nullptr;  // of the operators that are under way on this thread and are to be sliced
thread_local bool slicing = false;  // what begins on this thread is a slice, or part of one

using Inputs = c10::ArrayRef<const c10::IValue>;
using Span = std::pair<uint64_t, uint64_t>;  // addresses

constexpr uint64_t kGranule = 2 << 20;

Span span_of(const at::Tensor &tensor) {
  const auto begin = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
  return {begin, begin + static_cast<uint64_t>(tensor.numel() * tensor.itemsize())};
}

// As long as an operator that is to run in slices: others may run within it before its own kernel is reached.
class Sliced final : public at::ObserverContext {
 public:
  Sliced(const at::Tensor &first, uint64_t nbytes)
      : first_(first.const_data_ptr()), elements_(first.numel()), nbytes_(nbytes), outer_(innermost) {
    innermost = this;
  }
  ~Sliced() override { innermost = outer_; }

  // Bytes of each operand to be used at a time; 0: it is about another operator.
  uint64_t bytes_of(const at::Tensor &first) const {
    return first.const_data_ptr() == first_ && first.numel() == elements_ ? nbytes_ : 0;
  }

 private:
  const void *const first_;
  const int64_t elements_;
  const uint64_t nbytes_;
  Sliced *const outer_;
};

// What an operator's tensors have in common, those without a dimension apart, which each slice takes whole.
struct Alike {
  at::Tensor first;         // undefined: they are not alike
  std::vector<Span> spans;  // of those in frames, each once
};

// As a new tensor of its sizes has them, also in dimensions of one element, where any would be contiguous.
bool has_usual_strides(const at::Tensor &tensor) {
  int64_t stride = 1;
  for (int64_t i = tensor.dim() - 1; i >= 0; --i) {
    if (tensor.stride(i) != stride) return false;
    stride *= std::max<int64_t>(tensor.size(i), 1);
  }
  return true;
}

// Of one kind and shape, dense and of one order, and none written that overlaps with another but itself.
Alike alike(const Operator &about, Inputs inputs) {
  Alike found;
  std::vector<Span> written, all;
  for (size_t i = 0; i < inputs.size(); i++) {
    if (!inputs[i].isTensor()) continue;
    const at::Tensor &tensor = inputs[i].toTensor();
    const bool writes = i < about.arguments.size() && about.arguments[i].writes;
    if (!is_plain(tensor)) return {};
    if (tensor.dim() == 0) {
      if (writes || tensor.is_complex()) return {};
      all.push_back(span_of(tensor));  // it may be an element of what is written
      continue;
    }
    if (!found.first.defined()) {
      const bool dense = about.makes_new ? has_usual_strides(tensor) : tensor.is_non_overlapping_and_dense();
      if (!dense || !tensor.is_floating_point() || tensor.numel() == 0) return {};
      found.first = tensor;
    }
    const at::Tensor &first = found.first;
    if (tensor.scalar_type() != first.scalar_type() || tensor.sizes() != first.sizes()) return {};
    if (tensor.strides() != first.strides()) return {};
    const Span span = span_of(tensor);
    all.push_back(span);
    if (writes) written.push_back(span);
    const bool known = std::find(found.spans.begin(), found.spans.end(), span) != found.spans.end();
    if (!known && sn_framed_contains(span.first) != 0) found.spans.push_back(span);
  }
  for (const Span &each : written)
    for (const Span &other : all)
      if (each != other && each.first < other.second && other.first < each.second) return {};
  return found;
}

// Elements of which each thread gets as many, all whole vectors.
int64_t unit_of_slices() { return at::internal::GRAIN_SIZE * at::get_num_threads(); }

// Slices so that what is left over from whole vectors is what it is in one piece, where some operators round in another
// way: PyTorch gives each thread a chunk, and what is left over is at the end of each.
template <typename Visit>
void each_slice(int64_t elements, int64_t most, Visit visit) {
  constexpr int64_t kGrain = at::internal::GRAIN_SIZE;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), at::divup(elements, kGrain));
  const int64_t chunk = at::divup(elements, threads), unit = unit_of_slices();
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    const int64_t end = std::min(elements, begin + chunk);
    for (int64_t at = begin, length = 0; at < end; at += length) {
      const int64_t left = std::min(most, end - at);
      for (const int64_t each : {unit, kGrain, int64_t{1}})  // fewer grains than threads: one each
        if (length = left / each * each; length != 0) break;
      visit(at, length);
    }
  }
}

struct InSlices {
  InSlices() { slicing = true; }
  ~InSlices() { slicing = false; }
};

at::Tensor slice_of(const at::Tensor &tensor, int64_t at, int64_t length) {
  return tensor.as_strided({length}, {1}, tensor.storage_offset() + at);
}

c10::OperatorHandle handle_of(const std::string &name, const char *overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload);
}

class Slicing final : public c10::OperatorKernel {
 public:
  Slicing(c10::OperatorHandle op, c10::OperatorHandle runs) : runs_(runs), about_(describe(op.schema())) {
    describe_slices(op.schema(), about_);
  }

  void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) {
    const size_t count = about_.arguments.size();
    const Inputs inputs(stack->data() + (stack->size() - count), count);
    if (innermost != nullptr && !slicing)
      if (const Alike found = alike(about_, inputs); found.first.defined())
        if (const uint64_t nbytes = innermost->bytes_of(found.first); nbytes != 0) return run(found.first, nbytes, stack);
    constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    c10::DispatchKeySet below = keys & kBelow;
    if (below.empty())  // called for this key alone, as Python's dispatcher does
      for (const c10::IValue &value : inputs)
        each_tensor(value, [&](const at::Tensor &tensor) { below = below | (tensor.key_set() & kBelow); });
    op.redispatchBoxed(below, stack);
  }

 private:
  void run(const at::Tensor &first, uint64_t nbytes, Stack *stack) const {
    sn_framed_sliced();
    const at::AutoDispatchBelowADInplaceOrView below;
    const Stack given(stack->end() - static_cast<std::ptrdiff_t>(about_.arguments.size()), stack->end());
    at::Tensor result;
    for (size_t i = 0; i < given.size(); i++)
      if (about_.arguments[i].writes) result = given[i].toTensor();
    if (about_.makes_new) result = at::empty(first.sizes(), first.options());  // may fill it, in slices of its own
    const InSlices here;
    each_slice(first.numel(), static_cast<int64_t>(nbytes) / first.itemsize(), [&](int64_t at, int64_t length) {
      Stack part = given;
      if (about_.makes_new) part.emplace_back(result);
      for (c10::IValue &value : part)
        if (value.isTensor() && value.toTensor().dim() != 0) value = slice_of(value.toTensor(), at, length);
      runs_.callBoxed(part);
    });
    torch::jit::drop(*stack, about_.arguments.size());
    stack->emplace_back(std::move(result));
  }

  const c10::OperatorHandle runs_;
  Operator about_;
};

}  // namespace

void describe_slices(const c10::FunctionSchema &schema, Operator &about) {
  if (schema.name() == "aten::clone") about.each_alone = true;  // it calls copy_
  for (const Elementwise &each : kElementwise) {
    if (schema.name() != std::string("aten::") + each.name || schema.overload_name() != each.overload) continue;
    about.elementwise = true;
    about.makes_new = each.out != nullptr;
  }
}

std::unique_ptr<at::ObserverContext> in_slices(const Operator &about, Inputs inputs) {
  if (slicing) return nullptr;
  const Alike found = alike(about, inputs);
  if (!found.first.defined() || found.spans.empty()) return nullptr;
  const auto itemsize = static_cast<uint64_t>(found.first.itemsize());
  const uint64_t made = about.makes_new ? static_cast<uint64_t>(found.first.numel()) * itemsize : 0;
  uint64_t granules = (made + kGranule - 1) / kGranule;
  for (const auto &[begin, end] : found.spans) granules += (end - 1) / kGranule - begin / kGranule + 1;
  const auto operands = static_cast<uint32_t>(found.spans.size()) + (about.makes_new ? 1u : 0u);
  const uint64_t nbytes = sn_framed_slice(granules, operands, static_cast<uint64_t>(unit_of_slices()) * itemsize);
  return nbytes == 0 ? nullptr : std::make_unique<Sliced>(found.first, nbytes);
}

void watch_slices() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto *const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    for (const Elementwise &each : kElementwise) {
      const std::string name = std::string("aten::") + each.name;
      const c10::OperatorHandle op = handle_of(name, each.overload);
      const c10::OperatorHandle runs = each.out == nullptr ? op : handle_of(name, each.out);
      const std::string full = each.overload[0] == 0 ? name : name + "." + each.overload;
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Slicing>(op, runs)));
    }
  });
}

}  // namespace sn_shim
