#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace sn_shim {

// Python objects, as id() gives them; as in sentinel/migration/adopt.py. Python's headers are not needed to build this.
struct Interpreter {
  uint64_t get_objects, get_referents, getrefcount;  // functions of gc and sys
  uint64_t tuple, dict;                              // types
  const uint64_t *never;                             // types whose references explain nothing
  uint64_t never_count;
  const uint64_t *slots;  // what local variables of the caller's own functions refer to, once for each reference
  uint64_t slot_count;
};

// How many references to each of `wanted` nothing explains: neither an object that the collector knows nor a local
// variable of the caller's. What only an argument tuple or a dict of keywords of a call under way refers to counts as
// unexplained too. Empty if it could not be found out. No other Python thread runs from its begin to its end, nor after
// it until the caller returns. The GIL is held.
std::unordered_map<uint64_t, int64_t> unexplained(const Interpreter &python, const std::vector<uint64_t> &wanted);

}  // namespace sn_shim
