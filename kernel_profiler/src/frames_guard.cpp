// Handlers of signals, while there are frames: a store that meets an instant waits for its end, and bytes that the disk or
// the memory has lost are named before the program ends. Whatever else comes goes to whoever handled it before.
//
// Where somebody has put a handler above ours since, another function of ours goes above that one. Each has a level of its
// own and passes on to the handler that it was put above, which passes on to the function that it had found. So no two pass
// on to each other, whether they call it, or put it back and raise the signal again.
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>

#include "frames.h"

namespace {

constexpr int kMost = 8, kLevels = 8;

struct Watched {
  std::atomic<uint64_t> base{0}, end{0};
  std::atomic<sn_frames *> frames{nullptr};
};
Watched watched[kMost];

struct Handler {
  int number;
  void (*ours[kLevels])(int, siginfo_t *, void *);
  struct sigaction before[kLevels];  // whom each passes on to
  int levels;                        // that have somebody
};
extern Handler handlers[2];

// Of the last fault of this thread that came to us. In place before a handler runs: none may allocate it.
__attribute__((tls_model("initial-exec"))) thread_local uint64_t last_fault = 0;

// A place in `watched` that is being filled, or emptied, has no base.
sn_frames *frames_at(uint64_t address) {
  for (Watched &each : watched) {
    const uint64_t base = each.base.load();
    if (base == 0 || address < base || address >= each.end.load()) continue;
    sn_frames *found = each.frames.load();
    if (each.base.load() == base) return found;
  }
  return nullptr;
}

bool stores(const void *context) {
#if defined(__x86_64__)
  return (static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  (void)context;
  return true;
#endif
}

// Whether a store there goes through: the kernel makes one that changes nothing, and tells instead of faulting.
bool takes_stores(std::atomic<uint32_t> &turns, uint64_t address) {
  constexpr int kKeep = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0);
  const uint64_t word = address / sizeof(uint32_t) * sizeof(uint32_t);
  return syscall(SYS_futex, &turns, FUTEX_WAKE_OP_PRIVATE, 0, 0, word, kKeep) >= 0 || errno != EFAULT;
}

// Whether the store may be tried again. Signal-safe: it takes no lock, and the instant ends without its help.
bool waited_for(sn_frames &f, uint64_t address) {
  const std::atomic<uint8_t> &gate = f.granules[(address - f.base) / sn::kFrameBytes].gate;
  f.waited.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    const uint32_t turns = f.turns.load();
    const uint8_t now = gate.load();
    if (now == sn::kNothing || now == sn::kStuck) return false;
    if (now == sn::kOpen) {
      if (takes_stores(f.turns, address)) return true;
      // Refused while no instant was under way: by something else, such as the user's own protection.
      if (turns % 2 == 0 && f.turns.load() == turns) return false;
    }
    syscall(SYS_futex, &f.turns, FUTEX_WAIT_PRIVATE, turns, nullptr, nullptr, 0);
  }
}

// The level of a function of ours; -1: it is somebody else's.
int level_of(const Handler &handler, const struct sigaction &action) {
  if ((action.sa_flags & SA_SIGINFO) == 0) return -1;
  for (int level = 0; level < kLevels; level++)
    if (action.sa_sigaction == handler.ours[level]) return level;
  return -1;
}

// The levels that have passed a signal on: at the end of what the kernel tells of it, where it leaves zeros.
class Passed {
 public:
  explicit Passed(siginfo_t *info) : at_(reinterpret_cast<char *>(info) + sizeof *info - sizeof(uint64_t)) {}
  uint64_t levels() const {
    uint64_t there;
    memcpy(&there, at_, sizeof there);
    return (there & ~kMask) == kMagic ? there & kMask : 0;
  }
  void note(int level) {
    const uint64_t noted = kMagic | levels() | uint64_t{1} << level;
    memcpy(at_, &noted, sizeof noted);
  }

 private:
  static constexpr uint64_t kMask = (uint64_t{1} << kLevels) - 1, kMagic = 0x9E3779B97F4A7C00ull;
  char *at_;
};

// Whether the one that it was passed on to has put this very function back and raised the signal: that would go on for ever.
bool comes_back(const Handler &handler, int level) {
  sigset_t pending;
  if (sigpending(&pending) != 0 || sigismember(&pending, handler.number) != 1) return false;
  struct sigaction now;
  return sigaction(handler.number, nullptr, &now) == 0 && level_of(handler, now) == level;
}

void pass_on(const Handler &handler, int level, siginfo_t *info, void *context) {
  const struct sigaction &before = handler.before[level];
  const bool told = (before.sa_flags & SA_SIGINFO) != 0, sent = info->si_code <= 0;
  if (!told && before.sa_handler == SIG_IGN && sent) return;
  const bool anybody = told || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
  Passed passed(info);
  if (anybody && (passed.levels() >> level & 1) == 0) {
    passed.note(level);
    if (told) before.sa_sigaction(handler.number, info, context);
    else before.sa_handler(handler.number);
    if (comes_back(handler, level)) signal(handler.number, SIG_DFL);
    return;
  }
  signal(handler.number, SIG_DFL);  // the faulting instruction runs again, and ends the program
  if (sent) raise(handler.number);  // there is none: somebody sent the signal
}

// Whether a handler above ours was given a store that is for us to wait for, put ours back and raised the signal: the store
// is to be tried again. With each signal the kernel tells what the last fault of the thread was; if that one came to us, or
// was elsewhere, the signal is the program's own.
bool raised_for_a_store(const siginfo_t *info, const void *context) {
#if defined(__x86_64__)
  constexpr greg_t kPageFault = 14;
  if (info->si_code != SI_TKILL || info->si_pid != getpid()) return false;
  const greg_t *registers = static_cast<const ucontext_t *>(context)->uc_mcontext.gregs;
  const auto address = static_cast<uint64_t>(registers[REG_CR2]);
  if (registers[REG_TRAPNO] != kPageFault || !stores(context) || address == last_fault) return false;
  if (frames_at(address) == nullptr) return false;
  last_fault = address;  // once for a fault
  return true;
#else
  (void)info;
  (void)context;
  return false;
#endif
}

void on_segv(const Handler &handler, int level, siginfo_t *info, void *context) {
  const uint64_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code > 0) last_fault = address;
  else if (raised_for_a_store(info, context)) return;
  sn_frames *f = info->si_code == SEGV_ACCERR && stores(context) ? frames_at(address) : nullptr;
  if (f == nullptr || !waited_for(*f, address)) pass_on(handler, level, info, context);
}

void say(const char *text) {
  const ssize_t written = write(STDERR_FILENO, text, strlen(text));
  (void)written;
}

void on_bus(const Handler &handler, int level, siginfo_t *info, void *context) {
  const sn_frames *f = info->si_code > 0 ? frames_at(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  const bool first = f != nullptr && Passed(info).levels() == 0;
  if (first && (info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO)) {
    say("sentinel: bytes of a tensor that were in memory are lost: a memory module has failed (see dmesg, and the");
    say(" machine's log of hardware errors); train on from a checkpoint, on another machine or without that module\n");
  } else if (first) {
    say("sentinel: bytes of a tensor that are in a file in ");
    say(f->directory.c_str());
    say(" could not be read back: the disk failed, or is full where its file system had promised room (see dmesg),");
    say(" or the program has closed a descriptor that was not its own\n");
  }
  pass_on(handler, level, info, context);
}

template <int level>
void segv(int, siginfo_t *info, void *context) {
  const int kept = errno;
  on_segv(handlers[0], level, info, context);
  errno = kept;
}

template <int level>
void bus(int, siginfo_t *info, void *context) {
  const int kept = errno;
  on_bus(handlers[1], level, info, context);
  errno = kept;
}

Handler handlers[2] = {
    {SIGSEGV, {segv<0>, segv<1>, segv<2>, segv<3>, segv<4>, segv<5>, segv<6>, segv<7>}, {}, 0},
    {SIGBUS, {bus<0>, bus<1>, bus<2>, bus<3>, bus<4>, bus<5>, bus<6>, bus<7>}, {}, 0},
};
pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;  // of which handlers are in place

bool same(const struct sigaction &one, const struct sigaction &other) {
  if (((one.sa_flags ^ other.sa_flags) & SA_SIGINFO) != 0) return false;
  return (one.sa_flags & SA_SIGINFO) != 0 ? one.sa_sigaction == other.sa_sigaction : one.sa_handler == other.sa_handler;
}

// The level of the function that passes on to `now`. A level keeps whom it passes on to, since somebody may have found its
// function and kept it. Where all levels are taken the last one changes.
int level_above(Handler &handler, const struct sigaction &now) {
  for (int level = 0; level < handler.levels; level++)
    if (same(handler.before[level], now)) return level;
  if (handler.levels < kLevels) handler.levels++;
  return handler.levels - 1;
}

int put_on_top(Handler &handler) {
  struct sigaction now;
  if (sigaction(handler.number, nullptr, &now) != 0) return -errno;
  if (level_of(handler, now) >= 0) return 0;
  const int level = level_above(handler, now);
  // Before it is replaced: the handler may run at once. What it reads is not written again.
  if (!same(handler.before[level], now)) handler.before[level] = now;
  struct sigaction action = {};
  action.sa_sigaction = handler.ours[level];
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(handler.number, &action, nullptr) == 0 ? 0 : -errno;
}

// What was there before is there again. Where somebody has put another one above ours, that one stays.
void restore(const Handler &handler) {
  struct sigaction now;
  if (sigaction(handler.number, nullptr, &now) != 0) return;
  if (const int level = level_of(handler, now); level >= 0) sigaction(handler.number, &handler.before[level], nullptr);
}

}  // namespace

namespace sn {

int guard_add(sn_frames *f) {
  Lock lock(&changing);
  for (Handler &handler : handlers)
    if (const int error = put_on_top(handler); error != 0) return error;
  for (Watched &each : watched) {
    sn_frames *nobody = nullptr;
    if (!each.frames.compare_exchange_strong(nobody, f)) continue;
    each.end.store(f->base + f->count * kFrameBytes);
    each.base.store(f->base);  // the last
    return 0;
  }
  return -ENFILE;
}

void guard_remove(sn_frames *f) {
  Lock lock(&changing);
  bool others = false;
  for (Watched &each : watched) {
    if (each.frames.load() == f) {
      each.base.store(0);  // the first
      each.end.store(0);
      each.frames.store(nullptr);
    }
    others = others || each.frames.load() != nullptr;
  }
  if (others) return;
  for (Handler &handler : handlers) restore(handler);
}

void guard_stay_on_top() {
  Lock lock(&changing);
  for (const Watched &each : watched) {
    if (each.frames.load() == nullptr) continue;
    for (Handler &handler : handlers) put_on_top(handler);
    return;
  }
}

void guard_hold() { pthread_mutex_lock(&changing); }

void guard_let_go() { pthread_mutex_unlock(&changing); }

}  // namespace sn
