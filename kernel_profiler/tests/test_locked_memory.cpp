// A process that locks all that it maps (mlockall with MCL_FUTURE): no arena is made, and none becomes shared, for the
// kernel would fill a memfd as long as the reservation, and un-map no page that is to fault again.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "memory_check.h"

namespace {

constexpr int kCannot = 77;

// By number: the sanitizers make nothing of the functions.
long lock_all(int flags) { return syscall(SYS_mlockall, flags); }
long unlock_all() { return syscall(SYS_munlockall); }

int no_arena_is_made() {
  if (lock_all(MCL_FUTURE | MCL_ONFAULT) != 0) return kCannot;
  CHECK(sn_memory_create(kArena, kArena) == -ENOLCK);
  CHECK(unlock_all() == 0);
  create();
  return 0;
}

int no_arena_becomes_shared() {
  create();
  const sn_range arena = exclusive();
  void *tensor = sn_allocate_exclusive(kMiB);
  fill(tensor, kMiB, 5);
  if (lock_all(MCL_FUTURE | MCL_ONFAULT) != 0) return kCannot;
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, 0) == -ENOLCK);
  CHECK(sn_memory_create(kArena, kArena) == 0);  // it is there
  CHECK(holds(tensor, kMiB, 5) && sn_arm_unback() == 0);
  CHECK(unlock_all() == 0);
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, 0) == 0 && holds(tensor, kMiB, 5));
  CHECK(sn_arm_unback() == 0 && holds(tensor, kMiB, 5));
  return 0;
}

// What is there already may be locked: it says nothing of what comes.
int present_memory_may_be_locked() {
  if (lock_all(MCL_CURRENT | MCL_ONFAULT) != 0) return kCannot;
  return no_arena_becomes_shared();
}

int in_child(int (*work)()) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(work());
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kCannot));
  return WEXITSTATUS(status);
}

}  // namespace

int main() {
  int status = 0;
  for (int (*work)() : {no_arena_is_made, no_arena_becomes_shared, present_memory_may_be_locked})
    status |= in_child(work);
  return status;
}
