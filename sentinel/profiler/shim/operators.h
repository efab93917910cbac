// What an operator's schema and name tell about the bytes that it touches.
#pragma once

#include <ATen/core/function_schema.h>

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
  bool writes_new = true;   // false: results are left as allocated
  bool worded = false;
  Table table = Table::kNone;
  std::vector<Access> arguments;
};

Operator describe(const c10::FunctionSchema &schema);

}  // namespace sn_shim
