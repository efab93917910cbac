// Classification of operators, once per operator.

#include "operators.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace sn_shim {
namespace {

using Names = std::initializer_list<std::string_view>;

bool among(std::string_view name, Names names) { return std::find(names.begin(), names.end(), name) != names.end(); }

bool starts(std::string_view name, std::string_view with) { return name.substr(0, with.size()) == with; }

bool ends(std::string_view name, std::string_view with) {
  return name.size() >= with.size() && name.substr(name.size() - with.size()) == with;
}

bool holds(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// They ask for sizes, kinds or room only, or change how an operand is seen. (A result that oneDNN has made in its own
// layout goes through as_strided_ on its way out.)
bool asks_only(std::string_view name) {
  return starts(name, "empty") || starts(name, "new_empty") || starts(name, "sym_") ||
         among(name, {"resize_", "resize_as_", "set_", "result_type", "is_same_size", "size", "stride", "numel",
                      "requires_grad_", "retain_grad", "record_stream", "is_floating_point", "is_complex", "is_signed",
                      "_version", "output_nr", "is_leaf", "_has_compatible_shallow_copy_type", "can_cast", "lift_fresh",
                      "is_nonzero", "item", "_assert_tensor_metadata", "as_strided_", "t_", "transpose_", "swapdims_",
                      "swapaxes_", "squeeze_", "unsqueeze_", "detach_"});
}

// Their tensor arguments give a size and kind, not a value.
bool reads_nothing(std::string_view name) {
  return starts(name, "new_") || ends(name, "_like") ||
         among(name, {"zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_",
                      "cauchy_", "log_normal_"});
}

Table table_of(std::string_view name) {
  if (among(name, {"index_select", "gather", "index", "take", "take_along_dim", "embedding", "masked_select"})) {
    return Table::kGather;
  }
  if (among(name, {"_embedding_bag", "_embedding_bag_forward_only"})) return Table::kRows;
  if (among(name, {"index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_fill_", "scatter_",
                   "scatter_add_", "scatter_reduce_", "put_", "embedding_renorm_"})) {
    return Table::kScatter;
  }
  return Table::kNone;
}

bool is_view(const c10::FunctionSchema &schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument &value) {
    return value.alias_info() != nullptr && !value.alias_info()->isWrite();
  });
}

}  // namespace

Operator describe(const c10::FunctionSchema &schema) {
  const std::string &full = schema.name();
  const auto colons = full.find("::");
  const std::string_view name = std::string_view(full).substr(colons == std::string::npos ? 0 : colons + 2);
  Operator op;
  op.touches = !is_view(schema) && !asks_only(name);
  op.each_alone = starts(name, "_foreach_");
  op.zeroes = full == "aten::zero_";
  op.table = table_of(name);
  const bool blind = reads_nothing(name);
  const bool fused_step = starts(name, "_fused_");
  const bool statistics = holds(name, "batch_norm") && !holds(name, "backward");
  const bool in_place = ends(name, "_");
  for (const c10::Argument &argument : schema.arguments()) {
    Access access;
    access.writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    access.reads = !(blind && (access.writes || !in_place)) && !argument.is_out();  // bernoulli_ reads probabilities
    if (name == "copy_" && access.writes) access.reads = false;
    // Only a gradient scaler makes a fused step write gradients, whatever its schema says.
    if (fused_step && argument.name() == "grads") access.writes = false;
    // Written in training, though older schemas do not say so.
    if (statistics && starts(argument.name(), "running_")) access.writes = true;
    op.arguments.push_back(access);
  }
  return op;
}

}  // namespace sn_shim
