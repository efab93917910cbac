// The handlers take what is theirs, and pass on what is not: a wrong access is as visible as ever. They go with the last
// frames.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <initializer_list>

#include "frames_check.h"

namespace {

sigjmp_buf back;
volatile sig_atomic_t seen = 0;

// Whoever was there before.
void on_signal(int number) {
  seen = number;
  siglongjmp(back, 1);
}

void handle(int number) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_NODEFER;
  CHECK(sigaction(number, &action, nullptr) == 0);
}

// The signal that an access ends with; 0: with none.
template <typename Access>
int signal_of(Access access) {
  seen = 0;
  if (sigsetjmp(back, 1) == 0) access();
  return seen;
}

// What the kernel calls at a signal; nullptr: it ends the program.
void *called(int number) {
  struct sigaction now = {};
  CHECK(sigaction(number, nullptr, &now) == 0);
  return (now.sa_flags & SA_SIGINFO) != 0 ? reinterpret_cast<void *>(now.sa_sigaction)
                                          : reinterpret_cast<void *>(now.sa_handler);
}

// Handlers are there as long as frames are, of whichever pool; then what was there before is there again.
void check_put_back() {
  void *const usual = reinterpret_cast<void *>(on_signal);
  for (const int number : {SIGSEGV, SIGBUS}) CHECK(called(number) == usual);
  for (int i = 0; i < 2; i++) {
    sn_frames *first = open_frames(request_of(1, 1, 1)), *second = open_frames(request_of(1, 1, 1));
    for (const int number : {SIGSEGV, SIGBUS}) CHECK(called(number) != usual);
    close_frames(first);
    for (const int number : {SIGSEGV, SIGBUS}) CHECK(called(number) != usual);
    close_frames(second);
    for (const int number : {SIGSEGV, SIGBUS}) CHECK(called(number) == usual);
  }
  // One that was put above ours passes on to it: both stay, and ours is not put above that one, also for other frames.
  sn_frames *frames = open_frames(request_of(1, 1, 1));
  struct sigaction above = {}, ours = {};
  above.sa_handler = SIG_IGN;
  CHECK(sigaction(SIGBUS, &above, &ours) == 0);
  close_frames(frames);
  CHECK(called(SIGBUS) == reinterpret_cast<void *>(SIG_IGN) && called(SIGSEGV) == usual);
  frames = open_frames(request_of(1, 1, 1));
  CHECK(called(SIGBUS) == reinterpret_cast<void *>(SIG_IGN) && called(SIGSEGV) != usual);
  CHECK(sigaction(SIGBUS, &ours, nullptr) == 0);
  close_frames(frames);
  for (const int number : {SIGSEGV, SIGBUS}) CHECK(called(number) == usual);
  // Put back by somebody who had kept it, after it had gone: it is not put above itself, to pass on for ever.
  CHECK(sigaction(SIGBUS, &ours, nullptr) == 0);
  frames = open_frames(request_of(1, 1, 1));
  CHECK(signal_of([] { raise(SIGBUS); }) == SIGBUS);
  close_frames(frames);
  for (const int number : {SIGSEGV, SIGBUS}) CHECK(called(number) == usual);
}

void store(uint64_t address) { *reinterpret_cast<volatile char *>(address) = 1; }
void load(uint64_t address) { (void)*reinterpret_cast<volatile char *>(address); }

}  // namespace

int main() {
  alarm(60);  // a store that is tried again for ever ends by this signal
  handle(SIGSEGV);
  handle(SIGBUS);
  sn_frames *frames = open_frames(request_of(2, 4, 4));
  const uint64_t base = facts(frames).base;

  void *elsewhere = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(elsewhere != MAP_FAILED);
  CHECK(signal_of([=] { store(reinterpret_cast<uintptr_t>(elsewhere)); }) == SIGSEGV);
  CHECK(signal_of([=] { load(reinterpret_cast<uintptr_t>(elsewhere)); }) == SIGSEGV);
  CHECK(signal_of([] { raise(SIGSEGV); }) == SIGSEGV);

  CHECK(signal_of([=] { store(base); }) == SIGSEGV);  // nothing is there yet
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  CHECK(signal_of([=] { store(base); }) == 0);
  leave(frames, 0, 2);
  CHECK(signal_of([=] { load(base), store(base); }) == 0);
  // What the program itself has forbidden is its own affair, wherever the granule is.
  for (const bool away : {true, false}) {
    if (!away) CHECK(sn_frames_need(frames, base, kGranule, 1) == 0);
    CHECK(mprotect(reinterpret_cast<void *>(base), kPage, PROT_READ) == 0);
    CHECK(signal_of([=] { store(base + 5); }) == SIGSEGV);
    CHECK(signal_of([=] { load(base + 5), store(base + kPage); }) == 0);
    CHECK(mprotect(reinterpret_cast<void *>(base), kPage, PROT_READ | PROT_WRITE) == 0);
    CHECK(signal_of([=] { store(base + 5); }) == 0);
  }
  CHECK(sn_frames_release(frames, 0, 1) == 0);
  CHECK(signal_of([=] { load(base); }) == SIGSEGV);  // nor any more
  CHECK(signal_of([=] { store(base + kGranule - 1); }) == SIGSEGV);
  CHECK(signal_of([=] { store(base + kGranule); }) == 0);
  CHECK(counted(frames).waited >= 2 && counted(frames).waited <= 4);  // it looked at stores that met nothing, too

  CHECK(munmap(elsewhere, kPage) == 0);
  close_frames(frames);
  CHECK(signal_of([=] { store(base); }) == SIGSEGV);
  check_put_back();
  return 0;
}
