// Huge pages of the exclusive arena, while nothing watches its pages: only inside one live tensor, for the kernel moves a
// huge page between nodes as one.
#pragma once

#include <stdint.h>

namespace sn {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

int huge_create(uint64_t base, uint64_t nbytes);  // of the arena, a multiple of huge pages
void huge_destroy();

// A tensor got, or gives up, these whole pages. `advise`: they may be huge pages at once. At its end those of `unshared`
// memory go back to the system, and what comes to lie there has small ones again.
void huge_born(uint64_t address, uint64_t nbytes, bool advise);
void huge_died(uint64_t address, uint64_t nbytes, bool unshared);

// The first stretch of whole huge pages in [address, end) that live tensors fill, each page one of them: its address, and
// where it ends; or `end` for both. Any thread may ask, but what it is told may be over by then.
uint64_t huge_stretch(uint64_t address, uint64_t end, uint64_t *stop);

// Lets [at, at + nbytes), private memory that takes the place of such a stretch at `address`, be huge pages. Each stretch
// takes a mapping or two of the 65,530 that a process may have: beyond 8,192 of them pages stay small.
void huge_advise(uint64_t at, uint64_t nbytes, uint64_t address);

}  // namespace sn
