// The n-th system call fails, for n = 1, 2, 3 ... until all succeed; wrong callers are told so.

#include <sys/syscall.h>

#include <thread>

#include "memory_check.h"

namespace {

void creation_survives_each_failing_call() {
  uint64_t n = 1;
  for (;; n++) {
    sn_system_fail(-1, n, ENOMEM);
    const int result = sn_memory_create(kArena, kArena);
    const bool used_up = sn_system_fail(-1, 0, 0) == 0;
    CHECK(result == 0 || result == -ENOMEM);
    if (result == 0) CHECK(sn_record() == 0 && sn_allocate_exclusive(1) != nullptr);
    if (result == 0) {
      sn_free(reinterpret_cast<void *>(exclusive().base));
      CHECK(sn_memory_destroy() == 0);
    }
    if (!used_up) break;
  }
  CHECK(n > 4);  // one reservation and three tables at least
}

void refused_pages_fall_back_to_malloc() {
  create();
  CHECK(sn_record() == 0);
  sn_system_fail(SYS_mprotect, 1, ENOMEM);
  void *address = sn_allocate(8192);
  CHECK(address != nullptr && sn_memory_contains(reinterpret_cast<uintptr_t>(address)) == 0);
  CHECK(counters().fallback[SN_WHY_NO_MEMORY] == 1);
  fill(address, 8192, 1);
  void *next = sn_allocate(8192);  // and the arena is as good as before
  CHECK(sn_memory_contains(reinterpret_cast<uintptr_t>(next)) == 1);
  void *huge = sn_allocate(2 * kArena);  // more than there is
  CHECK(huge != nullptr && sn_memory_contains(reinterpret_cast<uintptr_t>(huge)) == 0);
  CHECK(sn_allocate(UINT64_MAX - 4096) == nullptr);
  sn_free(address);
  sn_free(next);
  sn_free(huge);
}

void a_plan_that_gets_no_pages_is_refused() {
  const int32_t zero = 0;
  const uint64_t offset = 0, nbytes = 4096;
  sn_system_fail(SYS_mprotect, 1, ENOMEM);
  CHECK(sn_place(1, &zero, &zero, &offset, &nbytes, 4096, 0) == -ENOMEM);
  CHECK(sn_memory_mode() == SN_RECORD);
  CHECK(sn_place(1, &zero, &zero, &offset, &nbytes, 4096, 0) == 0);
}

void a_failed_release_is_reported_and_harmless() {
  CHECK(sn_record() == 0);
  void *block = sn_allocate(kMiB), *held = sn_allocate(4096);
  fill(held, 4096, 4);
  sn_free(block);
  sn_system_fail(SYS_madvise, 1, EAGAIN);
  CHECK(sn_exclusive_release() == -EAGAIN);
  CHECK(sn_exclusive_release() > 0);
  CHECK(holds(held, 4096, 4));
  sn_free(held);
}

void other_threads_may_not_change_modes() {
  std::thread([] {
    CHECK(sn_record() == -EPERM && sn_pass_through() == -EPERM && sn_exclusive_release() == -EPERM);
    CHECK(sn_place(0, nullptr, nullptr, nullptr, nullptr, 0, 0) == -EPERM);
    CHECK(sn_tick(1) == -EPERM && sn_allocate_exclusive(4096) == nullptr && sn_memory_is_owner() == 0);
  }).join();
  CHECK(sn_memory_is_owner() == 1);
}

void an_arena_with_tenants_is_not_destroyed() {
  void *held = sn_allocate(4096);
  CHECK(sn_memory_destroy() == -EBUSY);
  sn_free(held);
  CHECK(sn_memory_destroy() == 0);
  CHECK(sn_record() == -ENODEV && sn_memory_destroy() == 0);
}

}  // namespace

int main() {
  CHECK(sn_tick(5) == 0 && sn_current_layer() == 5);  // before there is memory
  creation_survives_each_failing_call();
  refused_pages_fall_back_to_malloc();
  a_plan_that_gets_no_pages_is_refused();
  a_failed_release_is_reported_and_harmless();
  other_threads_may_not_change_modes();
  an_arena_with_tenants_is_not_destroyed();
  return 0;
}
