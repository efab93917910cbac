// Which host memory a GPU's driver has registered, and so reads and writes by the pages that it had then.
#pragma once

#include <stdint.h>

namespace sn {

// Looks for a driver among what was loaded since the last look. Not with a lock of ours held: who loads a library may
// allocate tensors.
void find_device_driver();

// Around a fork: no thread counts libraries. glibc leaves the lock of their list to the child as it was, which would wait
// for it for ever as it loads one.
void driver_hold();
void driver_let_go();

// Of sn_pinned. From any thread; nothing is loaded or initialised.
int device_pins(uint64_t address, uint64_t nbytes);

}  // namespace sn
