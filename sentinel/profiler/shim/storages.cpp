// Who holds a storage, as far as C++ can tell, and moving one whose holders are all known.

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <errno.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <deque>
#include <new>
#include <unordered_map>
#include <vector>

#include "guarded.h"
#include "referrers.h"
#include "sentinel.h"
#include "shim.h"

namespace {

using c10::StorageImpl;
using c10::TensorImpl;
using torch::autograd::Variable;

enum { kStockMemory = 0, kManagedMemory = 1, kOtherMemory = 2, kNotInHostMemory = 3, kRegisteredMemory = 4 };

// As in sentinel/migration/holders.py.
struct TensorRow {
  uint64_t tensor;
  uint64_t python;  // its PyObject, 0: none
  uint64_t storage;
  uint64_t uses;       // references to the TensorImpl, the PyObject's included
  uint64_t accounted;  // of them, those that autograd explains
};

// What a survey begins with. As in sentinel/migration/holders.py.
struct Known {
  const uint64_t *impls;  // TensorImpls
  uint64_t impl_count;
  const uint64_t *held;  // TensorImpls, once for each reference of a holder that is known: a reducer's
  uint64_t held_count;
};

struct StorageRow {
  uint64_t storage;
  uint64_t python;
  uint64_t address;
  uint64_t nbytes;
  uint64_t uses;
  uint64_t memory;
  uint64_t resizable;  // 0 for ever once a numpy array was made of it
};

struct Move {
  uint64_t storage;
  uint64_t uses;
  uint64_t address;  // out
  int64_t result;    // out
};

template <typename Slot>
auto python_of(const Slot &slot, int) -> decltype(slot.load_pyobj()) {
  return slot.load_pyobj();
}
template <typename Slot>
auto python_of(const Slot &slot, long) -> decltype(slot._unchecked_untagged_pyobj()) {  // before torch 2.12
  return slot._unchecked_untagged_pyobj();
}

template <typename Impl>
uint64_t python(Impl *impl) {
  return reinterpret_cast<uintptr_t>(python_of(*impl->pyobj_slot(), 0));
}

uint64_t uses(c10::intrusive_ptr_target *target) { return c10::raw::intrusive_ptr::use_count(target); }

uint64_t word(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }

uint64_t memory_of(const StorageImpl *storage) {
  static const c10::DeleterFnPtr stock = c10::GetDefaultCPUAllocator()->raw_deleter();
  const c10::DataPtr &data = const_cast<StorageImpl *>(storage)->_mutable_data_ptr_no_checks();
  if (storage->sym_nbytes().is_heap_allocated() || !data.device().is_cpu()) return kNotInHostMemory;
  if (data.get() == nullptr || data.get() != data.get_context()) return kOtherMemory;
  if (data.get_deleter() == &sn_shim::release) return kManagedMemory;
  if (data.get_deleter() != stock) return kOtherMemory;
  return sn_device_pins(word(data.get()), storage->nbytes()) != 0 ? kRegisteredMemory : kStockMemory;
}

// All tensors to be found from those given: their gradients and the bases of views too.
class Survey {
 public:
  explicit Survey(const Known &known) {
    for (uint64_t i = 0; i < known.impl_count; i++) add(reinterpret_cast<TensorImpl *>(known.impls[i]));
    for (uint64_t i = 0; i < known.held_count; i++) {
      TensorImpl *impl = reinterpret_cast<TensorImpl *>(known.held[i]);
      add(impl);
      rows_[impl]++;
    }
  }

  void add(TensorImpl *impl) {
    if (impl == at::UndefinedTensorImpl::singleton() || !rows_.emplace(impl, 0).second) return;
    // The copy raises no count for longer than this function, and the caller keeps the GIL.
    const Variable tensor(c10::intrusive_ptr<TensorImpl, at::UndefinedTensorImpl>::reclaim_copy(impl));
    if (const auto *meta = torch::autograd::impl::get_autograd_meta(tensor)) {
      account(meta->grad_);
      if (const auto node = meta->grad_accumulator_.lock()) {
        const auto *accumulate = dynamic_cast<const torch::autograd::AccumulateGrad *>(&*node);
        if (accumulate != nullptr) account(accumulate->variable);
      }
    }
    if (const auto *view = torch::autograd::impl::get_view_autograd_meta(tensor)) {
      if (view->has_bw_view()) account(view->get_backward_view().base_);
      if (view->has_fw_view() && !view->shared_view_info()) account(view->get_forward_view().base_);
    }
  }

  std::vector<TensorRow> tensors() const {
    std::vector<TensorRow> out;
    for (const auto &[impl, accounted] : rows_)
      out.push_back({word(impl), python(impl), word(storage_of(impl)), uses(impl), accounted});
    return out;
  }

  static StorageImpl *storage_of(TensorImpl *impl) {
    if (!impl->has_storage()) return nullptr;
    return impl->unsafe_storage().unsafeGetStorageImpl();
  }

 private:
  // `reference` holds its tensor once.
  void account(const Variable &reference) {
    if (!reference.defined()) return;
    TensorImpl *impl = reference.unsafeGetTensorImpl();
    add(impl);
    rows_[impl]++;
  }

  std::unordered_map<TensorImpl *, uint64_t> rows_;
};

StorageRow describe(StorageImpl *storage) {
  const c10::DataPtr &data = storage->_mutable_data_ptr_no_checks();
  const bool known = !storage->sym_nbytes().is_heap_allocated();
  return {word(storage),
          python(storage),
          word(data.get()),
          known ? storage->nbytes() : 0,
          uses(storage),
          memory_of(storage),
          storage->resizable() ? 1u : 0u};
}

// Memory that moved storages have left, oldest first: a thread that reads it at that moment then reads stale bytes,
// not unmapped ones. Immortal: static destructors run before the last storages die. The GIL is held.
struct Left {
  c10::DataPtr data;
  size_t nbytes;
};
std::deque<Left> &left() {
  static auto *const kept = new std::deque<Left>;
  return *kept;
}

uint64_t left_bytes = 0;

void give_back_oldest() {
  left_bytes -= left().front().nbytes;
  left().pop_front();
}

// The last one is kept even if it exceeds `most_bytes` alone: its reader has had no time at all.
void keep(c10::DataPtr data, size_t nbytes, uint64_t most_bytes) {
  if (most_bytes == 0) return;
  try {
    left().push_back({std::move(data), nbytes});
  } catch (const std::bad_alloc &) {
    return;  // no room to remember it: it is given back at once
  }
  left_bytes += nbytes;
  while (left_bytes > most_bytes && left().size() > 1) give_back_oldest();
}

// Which of the storages nothing holds but what is known; with no other Python thread running until the caller returns.
std::vector<char> held_as_known(const Move *moves, uint64_t count, const Known &known,
                                const sn_shim::Interpreter &python) {
  const Survey survey(known);
  std::unordered_map<uint64_t, std::vector<TensorRow>> of;
  for (uint64_t i = 0; i < count; i++) of[moves[i].storage];
  std::vector<uint64_t> wanted;
  for (const TensorRow &row : survey.tensors()) {
    const auto tensors = of.find(row.storage);
    if (tensors == of.end()) continue;
    tensors->second.push_back(row);
    if (row.python != 0) wanted.push_back(row.python);
  }
  for (const auto &[storage, tensors] : of)
    if (const StorageRow row = describe(reinterpret_cast<StorageImpl *>(storage)); row.python != 0)
      wanted.push_back(row.python);
  const auto unexplained = sn_shim::unexplained(python, wanted);
  const auto as_known = [&](uint64_t object, uint64_t uses) {
    if (object == 0) return true;
    const auto found = unexplained.find(object);  // while C++ holds a tensor too, that holds the object, once
    return found != unexplained.end() && found->second == (uses > 1 ? 1 : 0);
  };
  std::vector<char> may;
  for (uint64_t i = 0; i < count; i++) {
    const StorageRow row = describe(reinterpret_cast<StorageImpl *>(moves[i].storage));
    const std::vector<TensorRow> &tensors = of[moves[i].storage];
    bool fine = row.uses == tensors.size() + (row.python != 0) && row.memory <= kManagedMemory &&
                as_known(row.python, row.uses);
    for (const TensorRow &tensor : tensors)
      fine = fine && tensor.uses == tensor.accounted + (tensor.python != 0) && as_known(tensor.python, tensor.uses);
    may.push_back(fine);
  }
  return may;
}

// 1: moved; 0: its count of holders is no longer `uses`; or -errno.
int move(Move *asked, uint64_t keep_bytes) {
  StorageImpl *impl = reinterpret_cast<StorageImpl *>(asked->storage);
  if (::uses(impl) != asked->uses) return 0;
  const size_t nbytes = impl->nbytes();
  void *moved = sn_allocate_exclusive(nbytes);
  if (moved == nullptr) return -ENOMEM;
  int error = sn_exclusive_fill(moved, impl->_mutable_data_ptr_no_checks().get(), nbytes);
  if (error == 0) {
    error = sn::guarded([&] {  // torch's profiler keeps a table of what lives
      c10::profiledCPUMemoryReporter().New(moved, nbytes);
      return 0;
    });
  }
  if (error != 0) {
    sn_free(moved);
    return error;
  }
  c10::DataPtr old = impl->set_data_ptr({moved, moved, &sn_shim::release, c10::Device(c10::DeviceType::CPU)});
  impl->set_allocator(sn_shim::managed_allocator());
  asked->address = word(moved);
  keep(std::move(old), nbytes, keep_bytes);
  return 1;
}

}  // namespace

// Writes one row for each tensor found from `known`; returns how many there are, writing none if they exceed `room`; or
// -errno. The GIL is held.
extern "C" SN_API int64_t sn_shim_tensors(const Known *known, TensorRow *out, uint64_t room) {
  return sn::guarded([&] {
    const std::vector<TensorRow> rows = Survey(*known).tensors();
    if (rows.size() <= room) std::copy(rows.begin(), rows.end(), out);
    return static_cast<int64_t>(rows.size());
  });
}

extern "C" SN_API void sn_shim_storages(const uint64_t *storages, uint64_t count, StorageRow *out) {
  for (uint64_t i = 0; i < count; i++) out[i] = describe(reinterpret_cast<StorageImpl *>(storages[i]));
}

// Moves each storage's bytes into the exclusive arena, if its holders are what they were: `uses` references, and, where
// other Python threads may run (`python`), nothing that a call of theirs under way could be using. `known`: all tensors
// that are. Writes of each storage the new address or 0, and 1: moved; 0: it is held otherwise; or -errno. Of what storages
// have left, up to `keep_bytes` stay until sn_shim_give_back(). 0 or -errno. The GIL is held, and kept.
extern "C" SN_API int sn_shim_move(Move *moves, uint64_t count, const Known *known, uint64_t keep_bytes,
                                   const sn_shim::Interpreter *python) {
  return sn::guarded([&] {
    std::vector<char> may(count, 1);
    if (python != nullptr) may = held_as_known(moves, count, *known, *python);
    for (uint64_t i = 0; i < count; i++)
      moves[i].result = may[i] != 0 ? move(&moves[i], keep_bytes) : 0;
    return 0;
  });
}

// Gives back all that storages have left; how many bytes that were. The GIL is held.
extern "C" SN_API uint64_t sn_shim_give_back(void) {
  const uint64_t nbytes = left_bytes;
  while (!left().empty()) give_back_oldest();
  return nbytes;
}
