// While the memory under an address is replaced by a copy, stores of other threads have to wait: a store between the
// copy and the replacement would go to memory that is thrown away.
#pragma once

#include <stdint.h>

namespace sn {

// 0 if this host can hold threads back, found by trying it on pages of its own; else -errno.
int guard_try();

// A userfaultfd that nobody reads: who faults on what it holds waits until he is woken, and then tries again on
// whatever is mapped there by then. Waiting needs nothing of the thread that copies, neither the GIL nor a lock.
class Guard {
 public:
  int open();
  void close();  // whoever waits goes on
  bool is_open() const { return open_; }

 private:
  friend class Hold;
  bool open_ = false;
  int fd_ = -1;  // -1 while open: it was lost at a failure, and is opened again at the next use
};

// Holds threads back in [base, base + nbytes) until it is destroyed, by one of the two calls; none with a guard that
// is not open. At a failure they go on as before.
class Hold {
 public:
  Hold(Guard &guard, uint64_t base, uint64_t nbytes) : guard_(guard), base_(base), nbytes_(nbytes) {}
  ~Hold();
  Hold(const Hold &) = delete;
  Hold &operator=(const Hold &) = delete;

  int stores();    // to private memory; loads from pages that hold something go on
  int accesses();  // of any kind, to shared memory

 private:
  int register_for(uint64_t mode);
  int protect(uint64_t base, uint64_t nbytes);

  Guard &guard_;
  uint64_t base_, nbytes_;
  bool registered_ = false;
};

}  // namespace sn
