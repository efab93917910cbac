// The placement arena: planned slots over a bitmap that alone says what is free.
#pragma once

#include <stdint.h>

#include "sentinel.h"

namespace sn {

int placement_create(uint64_t base, uint64_t nbytes);
void placement_destroy();

// Owner only. As in sn_place (`alone`) or sn_place_also: then the index of the table.
int placement_plan(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
                   const uint64_t *nbytes, uint64_t extent_bytes, bool alone);
void placement_enter(int32_t layer);
// nullptr, and why, if the allocation must come from elsewhere.
void *placement_allocate(uint64_t nbytes, int32_t ordinal, int *why);

uint64_t placement_free(uint64_t address);  // any thread; bytes as requested

void placement_keep_free_pages(bool keep);  // false: what is freed from now on goes back to the system
void placement_after_fork();                // in the child: nobody is claiming

}  // namespace sn

// For tests, from any thread; multiples of SN_GRANULE_BYTES, else -EINVAL.
extern "C" {
// Claims [offset, offset + nbytes) if all of it is free, as whoever discards its pages does: 0 or -EBUSY.
SN_API int sn_reserve(uint64_t offset, uint64_t nbytes);
SN_API int sn_release(uint64_t offset, uint64_t nbytes);
// Bytes of the range that are taken now, by tenants or reservations.
SN_API uint64_t sn_placement_taken(uint64_t offset, uint64_t nbytes);
}
