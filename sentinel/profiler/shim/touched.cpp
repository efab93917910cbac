// Operators nest. Those are told of that have a kernel of their own, as below autograd, not those that are made of others
// (composite ones), nor what a kernel runs within: what it needs meanwhile is no tensor of the program's.

#include "touched.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <errno.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guarded.h"
#include "operators.h"
#include "plain.h"

namespace {

using sn_shim::each_tensor;
using sn_shim::has_sizes;
using sn_shim::Operator;

constexpr size_t kNoRows = static_cast<size_t>(-1);

struct Touched {
  sn_touched told;
  size_t rows = kNoRows;  // which of the frame's lists of rows
};

struct Frame {  // of an operator that is told of
  const Operator *about;
  bool writes;
  std::vector<Touched> operands;
  std::vector<std::vector<int64_t>> rows;
  std::unordered_set<uint64_t> given;  // storages of the arguments
};

struct Numbered {
  c10::weak_intrusive_ptr<c10::StorageImpl> alive;  // no other storage is made at its place meanwhile
  uint64_t number;
};

struct Known {
  Operator about;
  bool composite;
  bool reads_rows;  // of its first argument those that the second one names
};

struct Watched {
  sn_touched_tell tell = nullptr;
  std::optional<Frame> frame;
  size_t depth = 0;  // of operators within that of `frame`
  std::unordered_map<const char *, Known> known;  // by the schema's own string: one for each overload
  std::unordered_map<const c10::StorageImpl *, Numbered> storages;
  uint64_t numbers = 0;
  bool telling = false;
  int error = 0;
};

Watched *watched = new Watched;  // immortal: operators run while the program ends; null in a child that left it to its parent
std::atomic<int> watchers{0};  // threads that may be changing it
at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
thread_local bool mine = false;

bool is_composite(const at::RecordFunction &fn) {
  const auto name = fn.operator_name();
  const auto found = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  return found && found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

const Known *lookup(const at::RecordFunction &fn) {
  const auto found = watched->known.find(fn.name());
  if (found != watched->known.end()) return &found->second;
  const auto schema = fn.operator_schema();
  if (!schema) return nullptr;  // not an operator; its name may not outlive it
  const std::string_view name = schema->name();
  const bool rows = name == "aten::embedding" || name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only";
  Known known{sn_shim::describe(*schema), is_composite(fn), rows};
  return &watched->known.emplace(fn.name(), std::move(known)).first->second;
}

uint64_t number_of(const at::Tensor &tensor) {
  const c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
  const auto found = watched->storages.find(storage);
  if (found != watched->storages.end()) return found->second.number;
  const uint64_t number = ++watched->numbers;
  watched->storages.emplace(storage, Numbered{tensor.storage().getWeakStorageImpl(), number});
  return number;
}

bool measure(const at::Tensor &tensor, sn_touched *out) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu()) return false;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return false;  // the 2 of `x * 2`
  const bool sized = has_sizes(tensor);
  if (sized && tensor.numel() == 0) return false;
  const c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
  const auto address = reinterpret_cast<uint64_t>(storage->data());  // const: makes no copy-on-write copy
  if (address == 0 || storage->nbytes() == 0) return false;
  *out = {number_of(tensor), address, storage->nbytes(), 0, storage->nbytes(), nullptr, 0, 0, 0};
  if (!sized) return true;  // it counts for all of its storage
  const auto each = static_cast<uint64_t>(tensor.itemsize());
  uint64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    extent += static_cast<uint64_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  out->first = static_cast<uint64_t>(tensor.storage_offset()) * each;
  out->end = std::min(out->first + extent * each, out->nbytes);
  return out->first < out->end;
}

// A dimension of `sizes` and `strides` after the other, as an odometer turns.
template <typename Number>
void walk(const Number *first, at::IntArrayRef sizes, at::IntArrayRef strides, std::vector<int64_t> *out) {
  std::vector<int64_t> at(sizes.size(), 0);
  int64_t place = 0;
  for (;;) {
    out->push_back(static_cast<int64_t>(first[place]));
    size_t turned = sizes.size();
    while (turned > 0) {
      --turned;
      place += strides[turned];
      if (++at[turned] < sizes[turned]) break;
      place -= sizes[turned] * strides[turned];
      at[turned] = 0;
      if (turned == 0) return;
    }
    if (sizes.empty()) return;
  }
}

// The numbers in a tensor of them; false if it is none that can be read here.
bool numbers_in(const at::Tensor &tensor, std::vector<int64_t> *out) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu() || !has_sizes(tensor)) return false;
  if (tensor.numel() == 0) return true;
  const c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->data() == nullptr) return false;
  const auto *first = static_cast<const char *>(storage->data()) + tensor.storage_offset() * tensor.itemsize();
  if (tensor.scalar_type() == at::kLong) {
    walk(reinterpret_cast<const int64_t *>(first), tensor.sizes(), tensor.strides(), out);
  } else if (tensor.scalar_type() == at::kInt) {
    walk(reinterpret_cast<const int32_t *>(first), tensor.sizes(), tensor.strides(), out);
  } else {
    return false;
  }
  return true;
}

// Of `table`, which is told as a whole, only the rows are; one that it has not is the operator's to refuse.
void narrow_to(const at::Tensor &table, std::vector<int64_t> rows, Frame &frame, Touched *out) {
  std::erase_if(rows, [&](int64_t row) { return row < 0 || row >= table.size(0); });
  const auto each = static_cast<uint64_t>(table.itemsize());
  uint64_t extent = 1;
  for (int64_t i = 1; i < table.dim(); ++i) extent += static_cast<uint64_t>((table.size(i) - 1) * table.stride(i));
  out->told.row_stride = static_cast<uint64_t>(table.stride(0)) * each;
  out->told.row_bytes = extent * each;
  out->rows = frame.rows.size();
  frame.rows.push_back(std::move(rows));
}

at::SparseTensorImpl *sparse_of(const at::Tensor &tensor) {
  if (!tensor.defined() || tensor.layout() != at::kSparse || !tensor.device().is_cpu()) return nullptr;
  return dynamic_cast<at::SparseTensorImpl *>(tensor.unsafeGetTensorImpl());
}

void put(const at::Tensor &tensor, Frame &frame) {
  Touched touched{};
  if (measure(tensor, &touched.told)) frame.operands.push_back(touched);
}

// Whether it is sparse: then its parts count.
bool put_sparse(const at::Tensor &tensor, Frame &frame) {
  const at::SparseTensorImpl *sparse = sparse_of(tensor);
  if (sparse == nullptr) return false;
  put(sparse->indices(), frame);
  put(sparse->values(), frame);
  return true;
}

bool is_table(const at::Tensor &tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && has_sizes(tensor) && tensor.dim() > 0;
}

// Which rows of a table an operator touches: by the argument that names them, or those that a sparse operand of the
// table's shape has.
class RowsOf {
 public:
  RowsOf(const Known &known, c10::ArrayRef<const c10::IValue> inputs) : known_(known), inputs_(inputs) {
    for (const c10::IValue &value : inputs) {
      each_tensor(value, [&](const at::Tensor &tensor) {
        const at::SparseTensorImpl *sparse = sparse_of(tensor);
        if (sparse != nullptr && sparse->sparse_dim() == 1 && sparse_ == nullptr) sparse_ = sparse;
      });
    }
  }

  bool of(const at::Tensor &tensor, int position, std::vector<int64_t> *out) const {
    if (!is_table(tensor)) return false;
    if (known_.reads_rows && position == 0 && inputs_.size() > 1 && inputs_[1].isTensor()) {
      return numbers_in(inputs_[1].toTensor(), out);
    }
    if (sparse_ == nullptr || tensor.sizes() != sparse_->sizes()) return false;
    return numbers_in(sparse_->indices(), out);  // (1, rows)
  }

 private:
  const Known &known_;
  c10::ArrayRef<const c10::IValue> inputs_;
  const at::SparseTensorImpl *sparse_ = nullptr;
};

void take_inputs(const Known &known, c10::ArrayRef<const c10::IValue> inputs, Frame &frame) {
  const RowsOf rows_of(known, inputs);
  int position = 0;
  for (const c10::IValue &value : inputs) {
    sn_shim::Access access;
    const auto index = static_cast<size_t>(position);
    if (index < known.about.arguments.size()) access = known.about.arguments[index];
    frame.writes |= access.writes;
    each_tensor(value, [&](const at::Tensor &tensor) {
      if (put_sparse(tensor, frame)) return;
      Touched touched{};
      if (!measure(tensor, &touched.told)) return;
      frame.given.insert(touched.told.storage);
      if (!access.reads && !access.writes) return;  // it is asked for its size only
      std::vector<int64_t> rows;
      if (rows_of.of(tensor, position, &rows)) narrow_to(tensor, std::move(rows), frame, &touched);
      frame.operands.push_back(touched);
    });
    ++position;
  }
}

// Whether a result is an operand passed on.
bool take_outputs(const std::vector<c10::IValue> &outputs, Frame &frame) {
  bool passed_on = false;
  for (const c10::IValue &value : outputs) {
    each_tensor(value, [&](const at::Tensor &tensor) {
      if (put_sparse(tensor, frame)) return;
      Touched touched{};
      if (!measure(tensor, &touched.told)) return;
      if (frame.given.count(touched.told.storage) != 0) {
        passed_on = true;
        return;
      }
      frame.writes = true;
      frame.operands.push_back(touched);
    });
  }
  return passed_on;
}

void begin(const at::RecordFunction &fn) {
  if (watched->frame) {
    ++watched->depth;
    return;
  }
  const Known *known = lookup(fn);
  if (known == nullptr || known->composite) return;
  watched->depth = 0;
  Frame &frame = watched->frame.emplace(Frame{&known->about, false, {}, {}, {}});
  if (known->about.touches) take_inputs(*known, fn.inputs(), frame);
}

void end(const at::RecordFunction &fn) {
  if (!watched->frame) return;  // of one that is not told of
  if (watched->depth > 0) {
    --watched->depth;
    return;
  }
  Frame frame = std::move(*watched->frame);
  watched->frame.reset();
  if (!frame.about->touches) return;
  const bool passed_on = take_outputs(fn.outputs(), frame);
  if (passed_on && !frame.writes) return;  // it gave back what it got, as a view does
  std::vector<sn_touched> told;
  for (Touched &touched : frame.operands) {
    if (touched.rows != kNoRows) {
      const std::vector<int64_t> &rows = frame.rows[touched.rows];
      static const int64_t none = 0;
      touched.told.rows = rows.empty() ? &none : rows.data();
      touched.told.n_rows = rows.size();
    }
    told.push_back(touched.told);
  }
  if (told.empty()) return;
  Watched &here = *watched;
  here.telling = true;  // what is run by whom it is told to, such as a finalizer, is none of the program's operators
  here.tell(told.data(), told.size());
  here.telling = false;
}

class Watcher {
 public:
  Watcher() { watchers.fetch_add(1); }
  ~Watcher() { watchers.fetch_sub(1); }
  Watcher(const Watcher &) = delete;
  Watcher &operator=(const Watcher &) = delete;
};

// Runs in each forked child, which watches nothing. What another thread was changing cannot be freed there.
void leave_to_parent() {
  mine = false;
  if (watchers.exchange(0) != 0) watched = nullptr;
}

template <typename Body>
void watch(Body body) {
  if (!mine || watched->telling) return;
  const Watcher within;
  Watched &here = *watched;
  const int error = sn::guarded([&] {
    body();
    return 0;
  });
  if (error != 0 && here.error == 0) here.error = error;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &fn) {
  watch([&] { begin(fn); });
  return nullptr;
}

void on_end(const at::RecordFunction &fn, at::ObserverContext *) {
  watch([&] { end(fn); });
}

}  // namespace

extern "C" {

int sn_touched_start(sn_touched_tell tell) {
  if (handle != at::INVALID_CALLBACK_HANDLE) return -EBUSY;
  return sn::guarded([&] {
    static const int at_fork = pthread_atfork(nullptr, nullptr, leave_to_parent);
    if (at_fork != 0) return -at_fork;
    if (watched == nullptr) watched = new Watched;
    *watched = Watched{};
    watched->tell = tell;
    handle = at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
    mine = true;
    return 0;
  });
}

int sn_touched_stop(void) {
  mine = false;
  if (handle == at::INVALID_CALLBACK_HANDLE) return 0;
  return sn::guarded([&] {
    at::removeCallback(std::exchange(handle, at::INVALID_CALLBACK_HANDLE));
    if (watched != nullptr) *watched = Watched{};
    return 0;
  });
}

int sn_touched_forget(void) {
  if (watched == nullptr) return 0;
  watched->storages.clear();
  return std::exchange(watched->error, 0);
}

}  // extern "C"
