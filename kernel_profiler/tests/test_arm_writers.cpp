// Threads that store into memory while it changes its backing lose nothing, wherever their stores come from.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <thread>

#include "sentinel.h"

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 20011;  // a prime, and beyond one chunk of 64 MiB
constexpr uint64_t kBytes = kPages * kPage;
constexpr int kWriters = 3;
constexpr int kRounds = 6;

uint64_t base;
std::atomic<bool> stop{false};

// Each writer has a word of its own in every page.
uint64_t *word(uint64_t page, int writer) { return reinterpret_cast<uint64_t *>(base + page * kPage) + writer; }

void store(uint64_t page, int writer) { (*word(page, writer))++; }

// The kernel writes the word: read(2) of a file that holds what it is to be.
void store_by_system_call(uint64_t page, int writer, int file) {
  const uint64_t wanted = *word(page, writer) + 1;
  CHECK(pwrite(file, &wanted, sizeof wanted, 0) == sizeof wanted);
  CHECK(pread(file, word(page, writer), sizeof wanted, 0) == sizeof wanted);
}

// As a debugger or another process would.
void store_from_outside(uint64_t page, int writer) {
  uint64_t wanted = *word(page, writer) + 1;
  const iovec from = {&wanted, sizeof wanted}, to = {word(page, writer), sizeof wanted};
  CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == sizeof wanted);
}

// One page of each `stride` is written to.
void write_on(int writer, uint64_t stride, uint64_t *rounds) {
  const int file = memfd_create("word", MFD_CLOEXEC);
  CHECK(file >= 0);
  do {
    const uint64_t reach = *rounds % 2 == 0 ? kPages : kPages / 2;
    for (uint64_t page = 0; page < reach; page += stride) {
      if (writer == 0)
        store(page, writer);
      else if (writer == 1)
        store_by_system_call(page, writer, file);
      else
        store_from_outside(page, writer);
    }
    ++*rounds;
  } while (!stop.load());
  close(file);
}

uint64_t expected(uint64_t page, uint64_t rounds) {
  return page < kPages / 2 ? rounds : rounds - rounds / 2;
}

// Every third page holds something from the start; the others are first touched by a writer, at some moment.
void no_store_is_lost() {
  CHECK(sn_arm_map(kBytes, &base) == 0);
  for (uint64_t page = 0; page < kPages; page += 3) *word(page, kWriters) = page;
  uint64_t rounds[kWriters] = {};
  std::thread writers[kWriters];
  for (int i = 0; i < kWriters; i++) writers[i] = std::thread(write_on, i, 1, &rounds[i]);
  for (int i = 0; i < kRounds; i++) {
    CHECK(sn_arm_back(base, kBytes, 1) == 0);
    if (i % 2 == 0) CHECK(madvise(reinterpret_cast<void *>(base), kBytes, MADV_DONTNEED) == 0);
    CHECK(sn_arm_unback() == 0);
  }
  stop = true;
  for (std::thread &writer : writers) writer.join();
  for (uint64_t page = 0; page < kPages; page++) {
    for (int i = 0; i < kWriters; i++) CHECK(*word(page, i) == expected(page, rounds[i]));
    CHECK(*word(page, kWriters) == (page % 3 == 0 ? page : 0));
  }
  for (int i = 0; i < kWriters; i++) CHECK(rounds[i] > 0);
}

// Whichever call fails, whoever waits goes on, and what was written stays. Some 80 times there and back, so few pages hold
// anything.
void nobody_is_left_waiting() {
  constexpr uint64_t kStride = 16;
  stop = false;
  uint64_t rounds = 0;
  CHECK(madvise(reinterpret_cast<void *>(base), kBytes, MADV_DONTNEED) == 0);
  std::thread writer(write_on, 0, kStride, &rounds);
  uint64_t failed = 0;
  for (const long call : {SYS_userfaultfd, SYS_ioctl, SYS_mmap, SYS_mremap, SYS_madvise, SYS_pwrite64, SYS_pread64}) {
    for (uint64_t n = 1, unused = 0; unused == 0 && n < 20; n++) {
      sn_system_fail(call, n, ENOMEM);
      int result = sn_arm_back(base, kBytes, 1);
      if (result == 0) result = sn_arm_unback();
      unused = sn_system_fail(-1, 0, 0);
      failed += result != 0 ? 1 : 0;
      CHECK(sn_arm_unback() == 0);
    }
  }
  stop = true;
  writer.join();  // hangs if it was forgotten
  for (uint64_t page = 0; page < kPages; page++)
    CHECK(*word(page, 0) == (page % kStride == 0 ? expected(page, rounds) : 0));
  CHECK(failed > 20);
}

}  // namespace

int main() {
  if (sn_arm_guarded() != 0) return 77;
  no_store_is_lost();
  nobody_is_left_waiting();
  CHECK(sn_arm_unmap(base) == 0);
  return 0;
}
