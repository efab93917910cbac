// The handlers take what is theirs, and pass on what is not: a wrong access is as visible as ever, also where somebody has
// put a handler above them. They go with the last frames.
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <string>
#include <type_traits>

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
  // One that was put above ours stays. Further frames have one above that, which goes with them.
  sn_frames *frames = open_frames(request_of(1, 1, 1));
  struct sigaction above = {}, ours = {};
  above.sa_handler = SIG_IGN;
  CHECK(sigaction(SIGBUS, &above, &ours) == 0);
  close_frames(frames);
  CHECK(called(SIGBUS) == reinterpret_cast<void *>(SIG_IGN) && called(SIGSEGV) == usual);
  frames = open_frames(request_of(1, 1, 1));
  CHECK(called(SIGBUS) != reinterpret_cast<void *>(SIG_IGN) && called(SIGSEGV) != usual);
  raise(SIGBUS);  // nobody sees it
  close_frames(frames);
  CHECK(called(SIGBUS) == reinterpret_cast<void *>(SIG_IGN) && called(SIGSEGV) == usual);
  frames = open_frames(request_of(1, 1, 1));
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

// In a child of its own: frames that serve, the second granule of which is resident, and a handler that comes after ours.

constexpr int kLeft = 3;  // what the program ends with where its handler saves and leaves
struct sigaction below;   // whom that handler has found
std::atomic<int> *times;  // that it ran, also for the parent
sn_frames *serving = nullptr;
uint64_t store_at = 0;

void leave_program(int) {
  times->fetch_add(1);
  _exit(kLeft);
}
void call_below(int number, siginfo_t *info, void *context) {
  times->fetch_add(1);
  if ((below.sa_flags & SA_SIGINFO) != 0) below.sa_sigaction(number, info, context);
  else _exit(kLeft);
}
// As faulthandler and others do.
void restore_and_raise(int number) {
  times->fetch_add(1);
  sigaction(number, &below, nullptr);
  raise(number);
}

void serve() {
  sn_frames *frames = serving = open_frames(request_of(2, 8, 8));
  const uint64_t base = facts(serving).base;
  CHECK(sn_framed_begin(&frames, kGranule) == 0);
  CHECK(sn_frames_attach(serving, 0, 2) == 0);
  CHECK(sn_frames_need(serving, base + kGranule, kGranule, 1) == 0);
  store_at = base + kGranule + 5;
}

template <typename Function>
void install(Function function, int flags) {
  struct sigaction action = {};
  if constexpr (std::is_same_v<Function, void (*)(int)>) action.sa_handler = function;
  else action.sa_sigaction = function;
  action.sa_flags = flags;
  CHECK(sigaction(SIGSEGV, &action, &below) == 0);
}

// An operator whose operands do not fit.
void begin_overflow() {
  const sn_framed_operand operands[] = {{facts(serving).base, 3 * kGranule, SN_READS, 0}};
  CHECK(sn_framed_need(operands, 1, "aten::large") == 1);
}

// The thread that stores sleeps only where it waits for the end of an instant.
std::atomic<pid_t> storer{0};
std::atomic<bool> shut{false}, met{false};
pthread_t turning;

bool sleeps(pid_t thread) {
  char text[256] = {};
  const int file = open(("/proc/self/task/" + std::to_string(thread) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
  close(file);
  return strstr(text, ") S ") != nullptr;
}

// The instant of the thread that turns over lasts until the other one's store has met it.
long hold_instant(long number, const long arguments[6]) {
  const long done = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  if (done >= 0 && number == SYS_mprotect && arguments[2] == PROT_READ && pthread_equal(pthread_self(), turning) != 0) {
    shut = true;
    while (!sleeps(storer)) sched_yield();
    met = true;
  }
  return done >= 0 ? done : -errno;
}

struct Stores {
  bool blocks;     // all signals, and an operator that does not fit runs
  void (*then)();  // what the same thread does next
};

void *store_in_instant(void *with) {
  const bool blocks = static_cast<Stores *>(with)->blocks;
  void (*const then)() = static_cast<Stores *>(with)->then;
  sigset_t all, now;
  sigfillset(&all);
  if (blocks) {
    CHECK(pthread_sigmask(SIG_BLOCK, &all, nullptr) == 0);
    begin_overflow();
    begin_overflow();
    sn_framed_done();
  }
  storer = static_cast<pid_t>(syscall(SYS_gettid));
  while (!shut) sched_yield();
  store(store_at);
  if (blocks) {
    sn_framed_done();
    CHECK(pthread_sigmask(SIG_BLOCK, nullptr, &now) == 0 && sigismember(&now, SIGSEGV) == 1);
  }
  then();
  return nullptr;
}

void meet_instant(bool blocks = false, void (*then)() = [] {}) {
  Stores with{blocks, then};
  pthread_t thread;
  shut = met = false;
  storer = 0;
  turning = pthread_self();
  CHECK(pthread_create(&thread, nullptr, store_in_instant, &with) == 0);
  while (storer == 0) sched_yield();
  sn_system_replace(hold_instant);
  leave(serving, 1, 1);
  sn_system_replace(nullptr);
  CHECK(met && pthread_join(thread, nullptr) == 0);
  CHECK(*reinterpret_cast<volatile char *>(store_at) == 1 && counted(serving).waited > 0);
}

// How a child ends: its status, or minus its signal. `ran`: how often the handler that came later has run.
template <typename Life>
int end_of(int ran, Life life) {
  *times = 0;
  fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(600);
    signal(SIGSEGV, SIG_DFL);
    serve();
    life();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  const int end = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  if (*times != ran) fprintf(stderr, "the handler ran %d times, not %d; end %d\n", times->load(), ran, end);
  CHECK(*times == ran);
  return end;
}

// As the last frames are closed. What serves is as good as gone then.
void guard_goes() {
  CHECK(sn_framed_end() == 0);
}

void fault() { store(facts(serving).base + 6 * kGranule); }  // nothing is there

// However the later handler passes on: ours sees stores first again, and wrong accesses end the program, seen once by it.
void check_stays_on_top() {
  times = static_cast<std::atomic<int> *>(
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(times != MAP_FAILED);
  const auto begin_step = [] { CHECK(sn_framed_step() == 0); };

  CHECK(end_of(0, [=] { install(leave_program, 0), begin_step(), meet_instant(); }) == 0);
  CHECK(end_of(0, [=] { install(leave_program, 0), begin_overflow(), meet_instant(); }) == 0);
  CHECK(end_of(0, [=] { install(restore_and_raise, SA_NODEFER), begin_step(), meet_instant(); }) == 0);
  CHECK(end_of(1, [=] { install(leave_program, 0), begin_step(), meet_instant(), fault(); }) == kLeft);
  CHECK(end_of(1, [=] { install(leave_program, 0), begin_step(), raise(SIGSEGV); }) == kLeft);
  for (const auto wrong : {+[] { fault(); }, +[] { raise(SIGSEGV); }})
    for (const int flags : {0, SA_NODEFER}) {
      const auto calls = [=] { install(call_below, flags | SA_SIGINFO), begin_step(); };
      const auto raises = [=] { install(restore_and_raise, flags), begin_step(); };
      CHECK(end_of(1, [=] { calls(), wrong(); }) == -SIGSEGV);
      CHECK(end_of(1, [=] { calls(), meet_instant(), wrong(); }) == -SIGSEGV);
      CHECK(end_of(1, [=] { raises(), wrong(); }) == -SIGSEGV);
      CHECK(end_of(1, [=] { raises(), meet_instant(), wrong(); }) == -SIGSEGV);
      // It is put in place again and again, and has ours as the one to pass on to: they do not go on for ever.
      CHECK(end_of(1, [=] { calls(), calls(), wrong(); }) == -SIGSEGV);
      CHECK(end_of(1, [=] { raises(), raises(), wrong(); }) == -SIGSEGV);
      // One after another: the last one is first.
      CHECK(end_of(2, [=] { install(leave_program, 0), begin_step(), calls(), wrong(); }) == kLeft);
      // Without frames ours passes on what it gets.
      CHECK(end_of(1, [=] { calls(), guard_goes(), raise(SIGSEGV); }) == -SIGSEGV);
      CHECK(end_of(1, [=] { raises(), guard_goes(), raise(SIGSEGV); }) == -SIGSEGV);
    }
  // It was uninstalled, and has put back what it had found.
  CHECK(end_of(0, [=] {
          install(leave_program, 0), begin_step();
          CHECK(sigaction(SIGSEGV, &below, nullptr) == 0);
          begin_step(), meet_instant(), fault();
        }) == -SIGSEGV);

  CHECK(end_of(0, [=] { meet_instant(true); }) == 0);
}

// Between its installation and the next step the later handler sees a store first. If it puts ours back and raises the
// signal, the store is tried again; what the program itself raises is not taken for that.
void check_raised_for_a_store() {
#if defined(__x86_64__)
  for (const int flags : {0, SA_NODEFER}) {
    const auto raises = [=] { install(restore_and_raise, flags); };
    CHECK(end_of(1, [=] { raises(), meet_instant(); }) == 0);
    CHECK(end_of(1, [=] { raises(), meet_instant(), raise(SIGSEGV); }) == -SIGSEGV);
    CHECK(end_of(1, [=] { meet_instant(), raises(), raise(SIGSEGV); }) == -SIGSEGV);
    // By the thread whose last fault was such a store.
    CHECK(end_of(1, [=] { raises(), meet_instant(false, [] { raise(SIGSEGV); }); }) == -SIGSEGV);
    CHECK(end_of(1, [=] {
            meet_instant(false, [] { install(restore_and_raise, SA_NODEFER), raise(SIGSEGV); });
          }) == -SIGSEGV);
    CHECK(end_of(1, [=] { raises(), raise(SIGSEGV); }) == -SIGSEGV);
    CHECK(end_of(1, [=] { raises(), fault(); }) == -SIGSEGV);
    CHECK(end_of(2, [=] { raises(), meet_instant(), raises(), fault(); }) == -SIGSEGV);
  }
#endif
}

// What a child that gets a SIGBUS of this code in a granule says.
std::string said_of(int code) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(600);
    CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    signal(SIGBUS, SIG_DFL);
    serve();
    siginfo_t info = {};
    info.si_signo = SIGBUS;
    info.si_code = code;
    info.si_addr = reinterpret_cast<void *>(store_at);
    CHECK(syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, &info) == 0);
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char text[256];
  for (ssize_t got; (got = read(ends[0], text, sizeof text)) > 0;) said.append(text, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return said;
}

void check_lost_bytes_are_named() {
  CHECK(said_of(BUS_ADRERR).find("the disk failed") != std::string::npos);
  for (const int code : {BUS_MCEERR_AR, BUS_MCEERR_AO}) {
    const std::string said = said_of(code);
    CHECK(said.find("a memory module") != std::string::npos && said.find("disk") == std::string::npos);
  }
}

}  // namespace

int main() {
  check_lost_bytes_are_named();
  check_stays_on_top();
  check_raised_for_a_store();
  alarm(600);  // a store that is tried again for ever ends by this signal
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
