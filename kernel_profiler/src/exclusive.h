// The exclusive arena: page ranges, one tensor each. All but exclusive_push is the owner's alone.
#pragma once

#include <stdint.h>

namespace sn {

int exclusive_create(uint64_t base, uint64_t nbytes);
void exclusive_destroy();

void *exclusive_allocate(uint64_t nbytes);    // nullptr: no room
uint64_t exclusive_free(uint64_t address);    // bytes as requested
void exclusive_push(uint64_t address);        // any thread: freed at the owner's next drain
uint64_t exclusive_drain();                   // bytes as requested
bool exclusive_pending();                     // is there anything to drain
void exclusive_keep_free_pages(bool keep);    // false: what is freed from now on goes back to the system

}  // namespace sn
