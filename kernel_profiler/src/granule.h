// Large tensors watched in granules of a huge page: one fault maps one granule, instead of 512.
#pragma once

#include <stdint.h>

#include "arm.h"

namespace sn {

constexpr uint64_t kGranulePages = kHugeBytes / kArmPage;

// From the next granules_start on; 0: every page for itself.
void granules_want(uint64_t tensor_bytes);

// Those whole granules that lie in a tensor of at least `tensor_bytes` (a range that is not the exclusive arena
// counts as one tensor) may be mapped by one fault from now on. Needs memory: 0 or -ENOMEM.
int granules_start();
void granules_stop();

// The owner's thread, while touches are watched or not.
void granules_born(uint64_t address, uint64_t nbytes);
void granules_died(uint64_t address, uint64_t nbytes);

// Was the granule of this page of a range one at any time since the last granules_marked?
bool in_granule(int range, uint64_t page);
bool granule_within(uint64_t address, uint64_t nbytes);  // the same for any page of a stretch of one range
void granules_marked();

}  // namespace sn
