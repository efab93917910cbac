// Children forked while other threads allocate and free: none hangs, none disturbs the parent. What a child frees of a
// large block in a hole of the heap is no longer its own.

#include <malloc.h>
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
  alarm(600);  // a deadlock ends by this signal
  if (!holds(inherited, 8192, 6)) return 1;
  sn_free(inherited);  // no-op: the arena is a copy, its lists belong to nobody here
  if (!holds(inherited, 8192, 6)) return 2;
  void *own = sn_allocate(8192);
  if (own == nullptr || sn_memory_contains(reinterpret_cast<uintptr_t>(own)) == 1) return 3;
  sn_free(own);
  if (sn_tick(1) != -EPERM || sn_record() != -EPERM || sn_memory_own() != -ENOTSUP) return 4;
  return sn_memory_create(kArena, kArena) == -ENOTSUP ? 0 : 5;
}

// Bytes in pages that only this process has and has written to.
uint64_t own_bytes() {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  CHECK(file != nullptr);
  char line[256];
  uint64_t kib = 0;
  while (fgets(line, sizeof line, file) != nullptr) sscanf(line, "Private_Dirty: %lu kB", &kib);
  fclose(file);
  return kib << 10;
}

int child_with_a_hole() {
  constexpr uint64_t kBytes = 48 * kMiB, kLittle = 8 * kMiB;
  alarm(600);
  const uint64_t before = own_bytes();
  void *block = sn_allocate(kBytes);
  if (block == nullptr) return 1;
  fill(block, kBytes, 3);
  if (own_bytes() < before + kBytes - kLittle) return 2;  // else what follows could not fail
  sn_free(block);
  return own_bytes() < before + kLittle ? 0 : 3;
}

int in_child(int (*work)()) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) _exit(work());
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

void leave_a_hole() {
  constexpr uint64_t kHole = 128 * kMiB;
  mallopt(M_MMAP_MAX, 0);  // all blocks in the heap
  void *hole = malloc(kHole), *above = malloc(kMiB);
  fill(hole, kHole, 1);
  fill(above, kMiB, 2);
  free(hole);
  CHECK(in_child(child_with_a_hole) == 0);
  free(above);
}

}  // namespace

int main() {
  create();
  leave_a_hole();
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
