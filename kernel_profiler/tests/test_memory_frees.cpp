// Tensors that another thread frees than the one that allocates: what becomes of their pages.
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "memory_check.h"

namespace {

constexpr uint64_t kBytes = 8 * kMiB;

uint64_t resident_pages(const void *address, uint64_t nbytes) {
  std::vector<unsigned char> pages(nbytes / 4096);
  CHECK(mincore(const_cast<void *>(address), nbytes, pages.data()) == 0);
  uint64_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

// The thread that allocated it has ended, and nobody takes its place: no drain will come.
void what_another_thread_frees_goes_back_at_once(bool shared) {
  void *tensor = nullptr, *kept = nullptr;
  std::thread([&] {
    create();
    tensor = sn_allocate_exclusive(kBytes);
    kept = sn_allocate_exclusive(4096);
    fill(tensor, kBytes, 1);
    fill(kept, 4096, 2);
    if (shared) CHECK(sn_arm_back(exclusive().base, exclusive().reserved_bytes, 0) == 0);
  }).join();
  CHECK(holds(tensor, kBytes, 1) && resident_pages(tensor, kBytes) == kBytes / 4096);
  sn_free(tensor);
  CHECK(resident_pages(tensor, kBytes) == 0);
  CHECK(holds(kept, 4096, 2));
  CHECK(sn_arm_unback() == 0);
  CHECK(counters().live_bytes == kBytes + 4096);
  CHECK(sn_memory_own() == 0 && sn_tick(0) == 0);
  CHECK(counters().live_bytes == 4096);
  void *next = sn_allocate_exclusive(kBytes);
  CHECK(next == tensor && holds(next, kBytes, 0));
  sn_free(next);
  sn_free(kept);
  CHECK(sn_memory_destroy() == 0);
}

// While a step is recorded the pages of a tensor are kept for the next one, whoever frees it.
void pages_of_a_recorded_step_are_kept() {
  create();
  CHECK(sn_record() == 0);
  void *tensor = sn_allocate(kBytes);
  fill(tensor, kBytes, 3);
  std::thread([=] { sn_free(tensor); }).join();
  CHECK(holds(tensor, kBytes, 3));
  CHECK(sn_pass_through() == 0);
  CHECK(resident_pages(tensor, kBytes) == 0);
  CHECK(sn_memory_destroy() == 0);
}

}  // namespace

int main() {
  what_another_thread_frees_goes_back_at_once(false);
  what_another_thread_frees_goes_back_at_once(true);
  pages_of_a_recorded_step_are_kept();
  return 0;
}
