// Shared memory would show a forked child its parent's later writes, and the parent its own. So before a fork the
// parent takes its memory back into private pages, once, and the kernel copies on write as ever: the watch is over. Where
// that can't be done, the child gets a private copy before its parent goes on.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "arm.h"
#include "exclusive.h"
#include "parts.h"
#include "system.h"

namespace {

int ready[2] = {-1, -1};  // the child writes one byte when it has its copy

// Another thread may fork than the one that allocates: that one goes on meanwhile, so it has to be held back, and where
// its memory ends is not to be known.
void take_back() {
  const bool owner = sn_memory_is_owner() != 0;
  if (!owner && !sn::armed.guard.is_open()) return;
  sn::touch_break();
  for (; sn::armed.count != 0; sn::armed.count--) {
    sn::ArmRange &range = sn::armed.ranges[sn::armed.count - 1];
    if (owner && range.exclusive) sn_exclusive_release();
    if (sn::arm_unback(range, owner) != 0) return;
  }
  sn::armed.guard.close();
}

void before() {
  sn::arm_lock();
  if (sn::armed.count != 0) take_back();
  if (sn::armed.count == 0) return;
  // Without a pipe the parent can't wait, so the child's copy would be of no moment: the child ends itself.
  if (sn_system(SYS_pipe2, sn::arg(ready), O_CLOEXEC, 0, 0, 0, 0) != 0) ready[0] = ready[1] = -1;
  sn::touch_hold();
}

void parent() {
  if (sn::armed.count != 0) sn::touch_go_on();
  sn::shut(ready[1]);
  char byte;
  // Ends with the byte, or at the death of the child, or at once if there is none.
  while (ready[0] >= 0 && sn_system(SYS_read, ready[0], sn::arg(&byte), 1, 0, 0, 0) == -EINTR) {
  }
  sn::shut(ready[0]);
  sn::arm_unlock();
}

[[noreturn]] void give_up() {
  static const char text[] = "sentinel: a forked child could not get its copy of profiled memory; it ends here\n";
  sn_system(SYS_write, STDERR_FILENO, sn::arg(text), sizeof text - 1, 0, 0, 0);
  _exit(EXIT_FAILURE);
}

void child() {
  const bool must_copy = sn::armed.count != 0;
  sn::watching_anew();
  sn::work_alone();
  if (must_copy && ready[1] < 0) give_up();
  sn::shut(ready[0]);
  sn::shut(sn::armed.uffd);
  sn::armed.guard.close();  // it would hold back the parent's threads
  for (; sn::armed.count != 0; sn::armed.count--) {
    sn::ArmRange &range = sn::armed.ranges[sn::armed.count - 1];
    if (sn::arm_to_private(range, false, true) != 0) give_up();
    sn::shut(range.fd);
    if (range.exclusive) sn::exclusive_set_shared(false);
  }
  if (must_copy) sn::touch_forget();
  const char byte = 1;
  if (ready[1] >= 0) sn_system(SYS_write, ready[1], sn::arg(&byte), 1, 0, 0, 0);
  sn::shut(ready[1]);
  sn::arm_unlock();
}

}  // namespace

namespace sn {

int arm_watch_forks() {
  static const int watched = pthread_atfork(before, parent, child);
  return -watched;
}

}  // namespace sn
