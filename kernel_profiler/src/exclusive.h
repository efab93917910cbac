// The exclusive arena: page ranges, one tensor each. All is the owner's alone, but for
// exclusive_push, exclusive_committed_end, and exclusive_set_shared, which any thread calls that forks.
#pragma once

#include <stdint.h>

namespace sn {

int exclusive_create(uint64_t base, uint64_t nbytes);
void exclusive_destroy();

void *exclusive_allocate(uint64_t nbytes);    // nullptr: no room
uint64_t exclusive_free(uint64_t address);    // bytes as requested
void exclusive_push(uint64_t address);        // any thread: freed at the owner's next drain, its pages earlier
uint64_t exclusive_drain();                   // bytes as requested
bool exclusive_pending();                     // is there anything to drain
uint64_t exclusive_committed_end();           // beyond this address nothing is accessible; it grows under `watching`
void exclusive_set_shared(bool shared);       // backed by shared memory now: free pages go by MADV_REMOVE
void exclusive_keep_free_pages(bool keep);    // false: what is freed from now on goes back to the system

// While touches are watched, what is freed rests until exclusive_settle, so that no page has two tenants in a layer. But
// pages of a tensor that was born, written and freed in one layer may go to another that will be, as far as that can
// be guessed: they fault no more. Where all this would take more than `percent` over the peak of live pages, some are
// free earlier. 0: nothing rests.
void exclusive_rest(uint64_t percent);
void exclusive_settle();
void exclusive_each(void (*visit)(uint64_t address, uint64_t nbytes));  // live blocks, whole pages

struct Rested {
  uint64_t live_peak_bytes;   // whole pages
  uint64_t held_peak_bytes;   // live, resting and kept for tensors of the same layer
  uint64_t given_up_bytes;    // what was free again before its layer ended
};
Rested exclusive_rested();    // since exclusive_rest

}  // namespace sn
