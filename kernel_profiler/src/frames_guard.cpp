// Handlers of signals, while there are frames: a store that meets an instant waits for its end, and bytes that the disk has
// lost are named before the program ends. Whatever else comes goes to whoever handled it before.
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

constexpr int kMost = 8;

struct Watched {
  std::atomic<uint64_t> base{0}, end{0};
  std::atomic<sn_frames *> frames{nullptr};
};
Watched watched[kMost];
struct sigaction before_segv, before_bus;

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

void pass_on(const struct sigaction &before, int number, siginfo_t *info, void *context) {
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    signal(number, SIG_DFL);  // the faulting instruction runs again, and ends the program
    if (info->si_code <= 0) raise(number);  // there is none: somebody sent the signal
  }
}

void on_segv(int number, siginfo_t *info, void *context) {
  const int kept = errno;
  const uint64_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  sn_frames *f = info->si_code == SEGV_ACCERR && stores(context) ? frames_at(address) : nullptr;
  if (f == nullptr || !waited_for(*f, address)) pass_on(before_segv, number, info, context);
  errno = kept;
}

void say(const char *text) {
  const ssize_t written = write(STDERR_FILENO, text, strlen(text));
  (void)written;
}

void on_bus(int number, siginfo_t *info, void *context) {
  const int kept = errno;
  const sn_frames *f = info->si_code > 0 ? frames_at(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  if (f != nullptr) {
    say("sentinel: bytes of a tensor that are in a file in ");
    say(f->directory.c_str());
    say(" could not be read back: the disk failed, or is full where its file system had promised room (see dmesg)\n");
  }
  pass_on(before_bus, number, info, context);
  errno = kept;
}

struct Handler {
  int number;
  void (*ours)(int, siginfo_t *, void *);
  struct sigaction *before;
  bool there;  // in place, or somewhere below one that passes on to it
};
pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
Handler handlers[] = {{SIGSEGV, on_segv, &before_segv, false}, {SIGBUS, on_bus, &before_bus, false}};

bool is_ours(const Handler &handler, const struct sigaction &action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handler.ours;
}

// A second time would put it above others that pass on to it; or above itself, where somebody has put it back since.
int install(Handler &handler) {
  struct sigaction now;
  if (sigaction(handler.number, nullptr, &now) != 0) return -errno;
  if (handler.there || is_ours(handler, now)) {
    handler.there = true;
    return 0;
  }
  struct sigaction action = {};
  action.sa_sigaction = handler.ours;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  *handler.before = now;  // before it is replaced: the handler may run at once
  if (sigaction(handler.number, &action, nullptr) != 0) return -errno;
  handler.there = true;
  return 0;
}

// What was there before is there again. Where somebody has put another one above ours, all stay.
void restore(Handler &handler) {
  struct sigaction now;
  if (!handler.there || sigaction(handler.number, nullptr, &now) != 0) return;
  if (!is_ours(handler, now)) return;
  if (sigaction(handler.number, handler.before, nullptr) == 0) handler.there = false;
}

}  // namespace

namespace sn {

int guard_add(sn_frames *f) {
  Lock lock(&changing);
  for (Handler &handler : handlers)
    if (const int error = install(handler); error != 0) return error;
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

void guard_hold() { pthread_mutex_lock(&changing); }

void guard_let_go() { pthread_mutex_unlock(&changing); }

}  // namespace sn
