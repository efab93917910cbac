// Which tensors a reducer of DistributedDataParallel holds, by the members that it keeps to itself. A library of its own:
// its headers take as long to compile as all of the shim, and only who trains with several processes needs it.

#include <errno.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guarded.h"
#include "sentinel.h"

namespace {

using Tensors = std::vector<at::Tensor>;
using OfBuckets = std::unordered_map<size_t, Tensors> c10d::Reducer::*;

// A private member may be named where a template is instantiated explicitly.
OfBuckets cached_variables();
template <OfBuckets kMember>
struct Reveal {
  friend OfBuckets cached_variables() { return kMember; }
};
template struct Reveal<&c10d::Reducer::cached_variables_for_bucket_>;

// Never made: it may name what is protected.
class Members : public c10d::Reducer {
 public:
  static const Tensors &params(const c10d::Reducer &reducer) { return reducer.*(&Members::params_); }

  // `visit` with each reference that the reducer holds.
  template <typename Visit>
  static void each(const c10d::Reducer &reducer, const Visit &visit) {
    const auto all = [&](const Tensors &held) {
      for (const at::Tensor &tensor : held) visit(tensor);
    };
    all(params(reducer));
    all(reducer.*(&Members::rebuilt_params_));
    visit(reducer.*(&Members::local_used_map_));
    visit(reducer.*(&Members::local_used_map_dev_));
    visit((reducer.*(&Members::forwardPassWorkHandle_)).resultTensor);
    for (const auto &[bucket, variables] : reducer.*cached_variables()) all(variables);
    for (const Bucket &bucket : reducer.*(&Members::buckets_)) {
      visit(bucket.gradients);
      all(bucket.bucket_views_in);
      all(bucket.bucket_views_out);
      all(bucket.variables);
      if (bucket.sparse_tensor_indices.has_value()) visit(*bucket.sparse_tensor_indices);
      if (bucket.future_work && bucket.future_work->hasValue()) each_result(bucket.future_work->constValue(), visit);
    }
  }

  // The last reduction's: it keeps what it gave until the next one.
  template <typename Visit>
  static void each_result(const c10::IValue &value, const Visit &visit) {
    if (value.isTensor()) visit(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor &tensor : value.toTensorVector()) visit(tensor);
  }

  // Buckets are laid out again after the first backward, by the order in which gradients came.
  static bool to_be_rebuilt(const c10d::Reducer &reducer) {
    const bool may = reducer.*(&Members::static_graph_) || !(reducer.*(&Members::find_unused_parameters_));
    return may && !(reducer.*(&Members::has_rebuilt_bucket_));
  }

  template <typename Visit>
  static void each_bucket(const c10d::Reducer &reducer, const Visit &visit) {
    for (const Bucket &bucket : reducer.*(&Members::buckets_)) visit(bucket.gradients);
  }
};

uint64_t word(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }

int64_t written(const std::vector<uint64_t> &found, uint64_t *out, uint64_t room) {
  if (found.size() <= room) std::copy(found.begin(), found.end(), out);
  return static_cast<int64_t>(found.size());
}

}  // namespace

// Writes the TensorImpl of each reference that the reducer holds; returns how many there are, writing none if they exceed
// `room`. -EINVAL where a parameter that it reduces is none of `params` (TensorImpls): then it is not what it seems to be.
// The GIL is held, and no backward runs.
extern "C" SN_API int64_t sn_reducer_references(const c10d::Reducer *reducer, const uint64_t *params, uint64_t count,
                                                uint64_t *out, uint64_t room) {
  return sn::guarded([&]() -> int64_t {
    const std::unordered_set<uint64_t> known(params, params + count);
    const Tensors &reduced = Members::params(*reducer);
    if (reduced.empty() || reduced.size() > count) return -EINVAL;
    for (const at::Tensor &param : reduced)
      if (!known.count(word(param.unsafeGetTensorImpl()))) return -EINVAL;
    std::vector<uint64_t> found;
    Members::each(*reducer, [&](const at::Tensor &tensor) {
      if (tensor.defined()) found.push_back(word(tensor.unsafeGetTensorImpl()));
    });
    return written(found, out, room);
  });
}

// Writes the StorageImpl of each bucket in which gradients lie side by side, as above. To be called after
// sn_reducer_references, which finds out whether this is a reducer.
extern "C" SN_API int64_t sn_reducer_buckets(const c10d::Reducer *reducer, uint64_t *out, uint64_t room) {
  return sn::guarded([&]() -> int64_t {
    std::vector<uint64_t> found;
    Members::each_bucket(*reducer, [&](const at::Tensor &gradients) {
      if (gradients.defined() && gradients.layout() == c10::kStrided && gradients.has_storage())
        found.push_back(word(gradients.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()));
    });
    return written(found, out, room);
  });
}

// 1 where the buckets will be made again, once, else 0. As above.
extern "C" SN_API int sn_reducer_to_be_rebuilt(const c10d::Reducer *reducer) {
  return Members::to_be_rebuilt(*reducer) ? 1 : 0;
}
