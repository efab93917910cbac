// Operands that live in frames are brought into memory before their operator runs, on whatever thread that is.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "guarded.h"
#include "operators.h"
#include "plain.h"
#include "sentinel.h"
#include "slices.h"

namespace {

using sn_shim::Access;
using sn_shim::has_sizes;
using sn_shim::is_plain;
using sn_shim::Operator;
using sn_shim::within;

// Immortal: operators run while the program ends.
struct Known {
  std::shared_mutex mutex;
  std::unordered_map<const char *, Operator> operators;  // by the schema's own string: one for each overload
};
Known *const known = new Known;

std::mutex changing;
at::CallbackHandle watching = at::INVALID_CALLBACK_HANDLE;

// nullptr: not an operator. What it points to stays.
const Operator *lookup(const at::RecordFunction &fn) {
  const char *key = fn.name();
  {
    std::shared_lock lock(known->mutex);
    const auto found = known->operators.find(key);
    if (found != known->operators.end()) return &found->second;
  }
  const auto schema = fn.operator_schema();
  if (!schema) return nullptr;
  Operator about = sn_shim::describe(*schema);
  sn_shim::describe_slices(*schema, about);
  std::unique_lock lock(known->mutex);
  return &known->operators.emplace(key, std::move(about)).first->second;
}

// From its first element to its last one; false if that is not in frames.
bool span_of(const at::Tensor &tensor, sn_framed_operand *out) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu()) return false;
  const bool sized = has_sizes(tensor);
  if (sized && tensor.numel() == 0) return false;
  const c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
  const auto address = reinterpret_cast<uint64_t>(storage->data());  // const: makes no copy-on-write copy
  if (address == 0 || sn_framed_contains(address) == 0) return false;
  if (!sized) {  // all of its storage
    *out = {address, storage->nbytes(), 0, 0};
    return storage->nbytes() != 0;
  }
  const auto itemsize = static_cast<uint64_t>(tensor.itemsize());
  uint64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    extent += static_cast<uint64_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  const uint64_t offset = static_cast<uint64_t>(tensor.storage_offset()) * itemsize;
  if (offset >= storage->nbytes()) return false;
  *out = {address + offset, std::min<uint64_t>(extent * itemsize, storage->nbytes() - offset), 0, 0};
  return true;
}

// Whether each byte of the operand is surely zeroed before it is read. An operator that fails, or that something between
// it and its kernel looks at, would find that its bytes are gone: so nothing may refuse it, and nobody may stand between.
bool zeroes(const at::Tensor &to, const sn_framed_operand &operand) {
  if (!is_plain(to) || !to.is_non_overlapping_and_dense()) return false;
  if (static_cast<uint64_t>(to.numel()) * static_cast<uint64_t>(to.itemsize()) != operand.nbytes) return false;
  if (at::GradMode::is_enabled() && to.requires_grad()) return false;
  if (!within(c10::impl::tls_local_dispatch_key_set().included_, c10::default_included_set)) return false;
  return !c10::impl::cow::is_cow_data_ptr(to.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
}

// As long as an operator that has to say when it ends.
struct Running : at::ObserverContext {
  explicit Running(void (*ended)()) : ended_(ended) {}
  ~Running() override { ended_(); }

 private:
  void (*const ended_)();
};

// What lives as long as an operator; nothing where nobody has to know.
std::unique_ptr<at::ObserverContext> bring_in(const at::RecordFunction &fn) {
  const Operator *about = lookup(fn);
  if (about == nullptr || !about->touches || about->each_alone) return nullptr;
  if (about->elementwise)
    if (std::unique_ptr<at::ObserverContext> sliced = sn_shim::in_slices(*about, fn.inputs())) return sliced;
  std::vector<sn_framed_operand> operands;
  size_t position = 0;
  for (const c10::IValue &value : fn.inputs()) {
    const Access access = position < about->arguments.size() ? about->arguments[position] : Access{};
    ++position;
    if (!access.reads && !access.writes) continue;  // its sizes are asked for
    sn_shim::each_tensor(value, [&](const at::Tensor &tensor) {
      sn_framed_operand operand;
      if (!span_of(tensor, &operand)) return;
      operand.writes = access.writes ? SN_WRITES : SN_READS;
      if (about->zeroes && zeroes(tensor, operand)) operand.writes = SN_ZEROES;
      operands.push_back(operand);
    });
  }
  const int found = sn_framed_need(operands.data(), operands.size(), fn.name());
  if (found == 0) return nullptr;
  void (*const ended)() = found == 1 ? sn_framed_done : sn_framed_ran;
  std::unique_ptr<at::ObserverContext> begun(new (std::nothrow) Running(ended));
  if (begun == nullptr) ended();
  return begun;
}

void remove() {
  if (watching != at::INVALID_CALLBACK_HANDLE) at::removeCallback(watching);
  watching = at::INVALID_CALLBACK_HANDLE;
}

// Nothing may be thrown into an operator of the program's: without memory for a list it runs as it finds its operands.
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &fn) {
  std::unique_ptr<at::ObserverContext> begun;
  sn::guarded([&] {
    if (sn_framed_any() != 0) {
      begun = bring_in(fn);
    } else if (const std::unique_lock lock(changing, std::try_to_lock); lock.owns_lock() && sn_framed_any() == 0) {
      remove();  // the last tensor has died, or this is a forked child
    }
    return 0;
  });
  return begun;
}

}  // namespace

extern "C" {

// Until there are no frames any more: sn_framed_begin() comes first. 0 or -errno.
SN_API int sn_operands_watch(void) {
  return sn::guarded([&] {
    const std::lock_guard lock(changing);
    if (watching != at::INVALID_CALLBACK_HANDLE) return 0;
    sn_shim::watch_slices();
    watching = at::addGlobalCallback(
        at::RecordFunctionCallback(on_start).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    return 0;
  });
}

}  // extern "C"
