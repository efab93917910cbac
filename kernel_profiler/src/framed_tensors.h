// Tensors whose memory is a pool of frames: what the allocator asks.
#pragma once

#include <stdint.h>

namespace sn {

// The memory of a new tensor; nullptr where frames take none as small, have no room, or are not in use.
void *framed_allocate(uint64_t nbytes);
// Whether the address is a tensor's in frames. It is free then, but in a forked child, which leaves it as it is.
bool framed_free(uint64_t address);
bool framed_in_use();
void framed_after_fork();  // in the child

}  // namespace sn
