// Children forked while other threads allocate and free: none hangs, none disturbs the parent.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "memory_check.h"

namespace {

constexpr int kForks = 200;

int child(void *inherited) {
  alarm(20);  // a deadlock ends by this signal
  if (!holds(inherited, 8192, 6)) return 1;
  sn_free(inherited);  // no-op: the arena is a copy, its lists belong to nobody here
  if (!holds(inherited, 8192, 6)) return 2;
  void *own = sn_allocate(8192);
  if (own == nullptr || sn_memory_contains(reinterpret_cast<uintptr_t>(own)) == 1) return 3;
  sn_free(own);
  if (sn_tick(1) != -EPERM || sn_record() != -EPERM || sn_memory_own() != -ENOTSUP) return 4;
  return sn_memory_create(kArena, kArena) == -ENOTSUP ? 0 : 5;
}

}  // namespace

int main() {
  create();
  CHECK(sn_record() == 0);
  auto *held = static_cast<unsigned char *>(sn_allocate(8192));
  fill(held, 8192, 6);
  std::atomic<bool> stop{false};
  std::atomic<void *> handed{nullptr};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; i++)
    others.emplace_back([&] {
      while (!stop.load()) {
        sn_free(sn_allocate(4096));
        if (void *address = handed.exchange(nullptr)) sn_free(address);
        std::this_thread::yield();
      }
    });
  for (int i = 0; i < kForks; i++) {
    void *expected = nullptr, *next = sn_allocate(4096);
    if (!handed.compare_exchange_strong(expected, next)) sn_free(next);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) _exit(child(held));
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop.store(true);
  for (std::thread &other : others) other.join();
  sn_free(handed.exchange(nullptr));
  CHECK(holds(held, 8192, 6));
  sn_free(held);
  CHECK(sn_tick(0) == 0 && counters().live_bytes == 0);
  return 0;
}
