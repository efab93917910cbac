// Which line of the program called an operator.
#pragma once

#include <stdint.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace sn_shim {

// On one thread. What it takes is bounded: see kShare in lines.cpp.
class Lines {
 public:
  // Frames whose path begins with one of `skipped` tell nothing; a path with one of `libraries` in it is no program's.
  // With the GIL, as forget.
  void note(std::vector<std::string> skipped, std::vector<std::string> libraries);
  void forget();

  // The number, from 1, of the line that is calling now; 0: unknown, or not looked for. Takes the GIL.
  uint16_t here();

  // PATH:LINE of the program, and in a line of its own PATH:LINE of the library that it called.
  const std::vector<std::string> &seen() const { return seen_; }

 private:
  enum class Kind : uint8_t { kSkipped, kLibrary, kProgram };
  struct Code {
    Kind kind;
    std::string path;
  };

  const Code *code_of(void *code);
  uint16_t look();

  bool on_ = false;
  uint64_t began_ns_ = 0, spent_ns_ = 0;
  std::vector<std::string> skipped_, libraries_;
  std::unordered_map<void *, Code> codes_;  // each holds a reference to its code object, so that no other has its address
  std::unordered_map<std::string, uint16_t> numbers_;
  std::unordered_map<uint64_t, uint16_t> known_;  // by code objects and lines
  std::vector<std::string> seen_;
};

}  // namespace sn_shim
