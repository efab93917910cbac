// A driver is looked for among what was loaded now and then, not by each operator; and no look is under way at a fork: glibc
// leaves the lock of its list of libraries to the child as it was, which would wait for it at its first dlopen.
#include <dlfcn.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "frames_check.h"

namespace {

using Told = int (*)(dl_phdr_info *info, size_t nbytes, void *with);

uint64_t looks = 0;  // by one thread, while they are counted
thread_local bool lingers = false;

struct Look {
  Told told;
  void *with;
};

UNSANITIZED int tell(dl_phdr_info *info, size_t nbytes, void *look) {
  if (lingers) usleep(1000);
  return static_cast<Look *>(look)->told(info, nbytes, static_cast<Look *>(look)->with);
}

void begin_operator() { CHECK(sn_framed_need(nullptr, 0, "aten::test") == 0); }

void operators_do_not_look_each() {
  constexpr uint64_t kOperators = 10000, kBetweenNs = 1000000;
  begin_operator();
  const uint64_t began = sn_now_ns(), before = looks;
  for (uint64_t i = 0; i < kOperators; i++) begin_operator();
  const uint64_t most = (sn_now_ns() - began) / kBetweenNs + 1;
  CHECK(most < kOperators && looks - before <= most);
  usleep(2000);
  const uint64_t first = looks;
  begin_operator();
  CHECK(looks == first + 1);
}

void no_look_is_under_way_at_a_fork() {
  sn_frames *const frames = open_frames(request_of(1, 1, 1));
  std::atomic<bool> stop{false};
  std::thread other([&] {
    lingers = true;
    while (!stop) {
      begin_operator();
      usleep(200);  // or who forks might never get the lock
    }
  });
  for (int i = 0; i < 20; i++) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(20);
      dl_iterate_phdr([](dl_phdr_info *, size_t, void *) { return 1; }, nullptr);
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
  stop = true;
  other.join();
  close_frames(frames);
}

}  // namespace

// In place of glibc's, also for the library, and for a sanitizer that is not ready yet.
extern "C" __attribute__((visibility("default"))) UNSANITIZED int dl_iterate_phdr(Told told, void *with) {
  const auto real = reinterpret_cast<int (*)(Told, void *)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  Look look{told, with};
  __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED);
  return real(tell, &look);
}

int main() {
  operators_do_not_look_each();
  no_look_is_under_way_at_a_fork();
  return 0;
}
