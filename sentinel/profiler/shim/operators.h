// What an operator's schema and name tell about the bytes that it touches.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace sn_shim {

enum class Table : uint8_t {
  kNone,
  kGather,   // of its first operand it reads as many bytes as it gives
  kRows,     // of its first operand it reads one row for each element of the second
  kScatter,  // of its first operand it touches no more elements than another operand has
};

struct Access {
  bool reads = true;
  bool writes = false;
};

struct Operator {
  bool touches = true;      // false: views and what only asks for sizes
  bool each_alone = false;  // on a CPU it calls an ordinary operator for its tensor, or each of these
  bool zeroes = false;      // all of its only operand
  bool elementwise = false;  // and may run in slices
  bool makes_new = false;   // such a one gives a new tensor
  bool writes_new = true;   // false: results are left as allocated
  bool worded = false;
  Table table = Table::kNone;
  std::vector<Access> arguments;
};

Operator describe(const c10::FunctionSchema &schema);

// Of an argument or a result: the tensor, or those of a list.
template <typename Visit>
void each_tensor(const c10::IValue &value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue &part : value.toListRef()) {
      if (!part.isTensor() && !part.isNone()) return;  // a list of numbers
      if (part.isTensor()) visit(part.toTensor());
    }
  }
}

}  // namespace sn_shim
