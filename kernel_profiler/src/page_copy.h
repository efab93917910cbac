// Copies of transfers on an emulated link: out of live pages into scratch memory that nobody reads. Nothing is ever
// written to live pages, so no byte of the job is at risk, whatever happens to its memory meanwhile.
#pragma once

#include <stdint.h>

#include "sentinel.h"

namespace sn {

constexpr uint64_t kCopyPiece = 256 << 10;  // bytes between two looks at the clock

// Where copies go: as large as a last cache, and gone through in turn, so that most of what is written reaches memory.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;

  int map();          // once; 0 or a negative errno. Forked children do not get it
  void *next_piece();  // kCopyPiece bytes; `map` has succeeded

 private:
  uint64_t base_ = 0;
  uint64_t at_ = 0;
};

// Copies what there is of [address, address + nbytes), at most kCopyPiece bytes in whole pages, and adds to `told`.
// Pages that were never touched are left so; what cannot be read (no longer mapped, refused) is counted.
void copy_piece(uint64_t address, uint64_t nbytes, void *into, sn_copied &told);

}  // namespace sn
