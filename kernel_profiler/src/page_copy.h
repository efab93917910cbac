// Copies of transfers on an emulated link: out of live pages into scratch memory that nobody reads. Nothing is ever
// written to live pages, so no byte of the job is at risk, whatever happens to its memory meanwhile.
#pragma once

#include <stdint.h>

#include "sentinel.h"

namespace sn {

constexpr uint64_t kCopyPiece = 256 << 10;  // bytes between two looks at the clock

// Where copies go: one piece of memory for all movers of the process, as large as a last cache, and gone through in turn,
// so that most of what is written reaches memory. Nobody reads it, so it does not matter who writes where.
namespace scratch {

int hold();          // 0 or a negative errno: it is there until whoever holds it has let go. Forked children do not get it
void let_go();       // the last one frees it
void *next_piece();  // kCopyPiece bytes; the caller holds it
void forget();       // in a forked child, where nobody holds any

}  // namespace scratch

// Copies what there is of [address, address + nbytes), at most kCopyPiece bytes in whole pages, and adds to `told`.
// Pages that were never touched are left so; what cannot be read (no longer mapped, refused) is counted.
void copy_piece(uint64_t address, uint64_t nbytes, void *into, sn_copied &told);

}  // namespace sn
