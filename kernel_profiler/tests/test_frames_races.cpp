// Threads that load and store, in user code and in system calls, while the granules that they touch are turned over: no
// byte is wrong, no store is lost.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

constexpr uint32_t kFrames = 4, kGranules = 6;
constexpr uint64_t kPages = kGranules * kGranule / kPage;
constexpr int kTurns = 300;  // of each kind

uint64_t base;
std::atomic<bool> stop{false}, calm{false};
std::atomic<uint64_t> loads{0}, stores{0}, refused{0};

uint64_t load(uint64_t page, uint64_t index) { return __atomic_load_n(word(base, page, index), __ATOMIC_RELAXED); }

// Words 0 and 511 of a page never change.
void load_on(uint64_t seed) {
  Random random{seed};
  do {
    const uint64_t page = random.below(kPages);
    CHECK(load(page, 0) == mark(page, 1) && load(page, kPage / 8 - 1) == ~mark(page, 1));
    loads++;
  } while (!stop.load());
}

// As the C library would, but ThreadSanitizer does not take it for an access of the whole page.
long raw(long number, int file, const void *at, uint64_t nbytes) { return syscall(number, file, at, nbytes, 0); }

// The kernel reads the page.
void load_by_system_call() {
  const int file = memfd_create("page", MFD_CLOEXEC);
  CHECK(file >= 0);
  Random random{77};
  std::vector<uint64_t> seen(kPage / 8);
  do {
    const uint64_t page = random.below(kPages);
    CHECK(raw(SYS_pwrite64, file, word(base, page, 0), kPage) == static_cast<long>(kPage));
    CHECK(pread(file, seen.data(), kPage, 0) == static_cast<ssize_t>(kPage));
    CHECK(seen.front() == mark(page, 1) && seen.back() == ~mark(page, 1));
    loads++;
  } while (!stop.load());
  close(file);
}

// Each writer has a word of its own in every page, and knows what it holds.
void store_on(uint64_t index, std::vector<uint64_t> &expected) {
  Random random{index};
  do {
    const uint64_t page = random.below(kPages);
    CHECK(load(page, index) == expected[page]);
    __atomic_store_n(word(base, page, index), ++expected[page], __ATOMIC_RELAXED);
    stores++;
    if (calm.load()) usleep(4000);
  } while (!stop.load());
}

// The kernel writes the word. In the instant of a turn it says EFAULT, and has written nothing.
void store_by_system_call(uint64_t index, std::vector<uint64_t> &expected) {
  const int file = memfd_create("word", MFD_CLOEXEC);
  CHECK(file >= 0);
  Random random{index};
  do {
    const uint64_t page = random.below(kPages), wanted = expected[page] + 1;
    CHECK(pwrite(file, &wanted, sizeof wanted, 0) == sizeof wanted);
    while (raw(SYS_pread64, file, word(base, page, index), sizeof wanted) != sizeof wanted) {
      CHECK(errno == EFAULT);
      refused++;
    }
    expected[page] = wanted;
    stores++;
    if (calm.load()) usleep(4000);
  } while (!stop.load());
  close(file);
}

// Under a storm of stores a write-out ends as soon as it began: stores wait, and what they made is carried back.
void turn_over_in_vain(sn_frames *frames) {
  for (int i = 0; i < kTurns; i++) {
    const uint32_t granule = static_cast<uint32_t>(i) % kFrames;
    const int error = sn_frames_need(frames, base + granule * kGranule, 1, i % 2);
    CHECK(error == 0 || error == -EAGAIN);  // all others were written to again and again
    leave(frames, granule, 1);
  }
  const sn_frames_counters now = counted(frames);
  printf("%lu times in vain, %lu pages carried, %lu stores waited\n", now.given_up, now.carried_pages, now.waited);
}

void turn_over(sn_frames *frames) {
  Random random;
  uint64_t moved = 0;
  for (int i = 0; i < kTurns; i++) {
    const uint32_t first = static_cast<uint32_t>(random.below(kGranules - 1));
    const uint32_t count = 1 + static_cast<uint32_t>(random.below(2));
    if (random.below(2) == 0) {
      moved += leave(frames, first, count).moved;
      continue;
    }
    const int error = sn_frames_need(frames, base + first * kGranule, count * kGranule, random.below(2) == 0);
    CHECK(error == 0 || error == -EAGAIN);  // all others were written to again and again
  }
  const sn_frames_counters now = counted(frames);
  printf("%lu left, %lu MiB read, %lu MiB written\n", moved, now.read_bytes / kMiB, now.written_bytes / kMiB);
  CHECK(moved > 0 && now.read_bytes > 0 && now.written_bytes > 0);
}

void no_byte_is_wrong_while_granules_are_turned_over() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, kGranules));
  base = facts(frames).base;
  for (uint32_t i = 0; i < kGranules; i++) {
    CHECK(sn_frames_attach(frames, i, 1) == 0);
    for (uint64_t page = i * kGranule / kPage; page < (i + 1) * kGranule / kPage; page++) {
      for (uint64_t index = 1; index < 3; index++) *word(base, page, index) = 0;
      *word(base, page, 0) = mark(page, 1);
      *word(base, page, kPage / 8 - 1) = ~mark(page, 1);
    }
  }
  std::vector<uint64_t> expected[2] = {std::vector<uint64_t>(kPages), std::vector<uint64_t>(kPages)};
  std::thread threads[] = {std::thread(load_on, 5), std::thread(load_by_system_call),
                           std::thread(store_on, 1, std::ref(expected[0])),
                           std::thread(store_by_system_call, 2, std::ref(expected[1]))};
  turn_over_in_vain(frames);
  calm = true;
  turn_over(frames);
  stop = true;
  for (std::thread &thread : threads) thread.join();
  for (uint64_t page = 0; page < kPages; page++) {
    CHECK(load(page, 0) == mark(page, 1) && load(page, kPage / 8 - 1) == ~mark(page, 1));
    for (uint64_t index = 1; index < 3; index++) CHECK(load(page, index) == expected[index - 1][page]);
  }
  printf("%lu loads, %lu stores, %lu system calls refused and tried again\n", loads.load(), stores.load(), refused.load());
  CHECK(loads.load() > 0 && stores.load() > 0);
  close_frames(frames);
}

// Of one granule, so that the frame that a call has pinned is never another's.
void another_process_would_see_no_hole() {
  sn_frames *frames = open_frames(request_of(1, 1, 1));
  base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 1) == 0);
  write_marks(base, 1, 1);
  stop = false;
  std::thread reader([] {
    Random random{3};
    uint64_t seen[2];
    while (!stop.load()) {
      const uint64_t page = random.below(kGranule / kPage);
      const iovec to = {seen, sizeof seen}, from = {word(base, page, 0), sizeof seen};
      CHECK(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof seen && seen[0] == mark(page, 1));
    }
  });
  for (int i = 0; i < 60; i++) {
    CHECK(leave(frames, 0, 1).moved == 1);
    CHECK(sn_frames_need(frames, base, 1, i % 2) == 0);
  }
  stop = true;
  reader.join();
  close_frames(frames);
}

// A granule that is on its way may only be read for 2 ms more.
long a_slow_instant(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_mprotect && a[2] == PROT_READ) usleep(2000);
  return result == -1 ? -errno : result;
}

// Helpers of the library's own, which have most signals blocked, copy into granules that another thread turns over.
void what_is_filled_in_parts_waits_as_any_store_does() {
  constexpr uint32_t kRoom = 12, kAll = 16;
  sn_frames *frames = open_frames(request_of(kRoom, kAll, kAll));
  base = facts(frames).base;
  for (uint32_t i = 0; i < kAll; i++) CHECK(sn_frames_attach(frames, i, 1) == 0);
  std::vector<uint64_t> source(kAll * kGranule / 8);
  sn_system_replace(a_slow_instant);
  stop = false;
  std::thread turner([&] {
    for (uint32_t i = 0; !stop.load(); i = (i + 1) % kAll) {
      const int error = sn_frames_need(frames, base + i * kGranule, 1, 1);
      CHECK(error == 0 || error == -EAGAIN);
    }
  });
  for (uint64_t salt = 1; salt <= 6; salt++) {
    const uint64_t from = reinterpret_cast<uintptr_t>(source.data());
    for (uint64_t page = 0; page < kAll * kGranule / kPage; page++) *word(from, page, 0) = mark(page, salt);
    for (uint64_t page = 0; page < kAll * kGranule / kPage; page++) *word(from, page, kPage / 8 - 1) = ~mark(page, salt);
    CHECK(sn_exclusive_fill(reinterpret_cast<void *>(base), source.data(), kAll * kGranule) == 0);
    CHECK(marks_hold(base, kAll, salt));
  }
  stop = true;
  turner.join();
  sn_system_replace(nullptr);
  printf("%lu stores waited\n", counted(frames).waited);
  close_frames(frames);
}

// Several threads that need more than there is, at once: each gets its turn, and what it needed is right.
void threads_that_need_room_take_turns() {
  sn_frames *frames = open_frames(request_of(kFrames, 12, 12));
  base = facts(frames).base;
  std::vector<std::thread> threads;
  for (uint32_t own = 0; own < 12; own += 4)
    threads.emplace_back([=] {
      const uint64_t at = base + own * kGranule;
      for (uint32_t i = own; i < own + 4; i++) CHECK(sn_frames_attach(frames, i, 1) == 0);
      write_marks(at, 4, own);
      for (int i = 0; i < 6; i++) {
        CHECK(sn_frames_need(frames, at, 4 * kGranule, i % 2) == 0);
        CHECK(marks_hold(at, 4, own));
      }
      CHECK(sn_frames_release(frames, own, 4) == 0);
    });
  for (std::thread &thread : threads) thread.join();
  close_frames(frames);
}

}  // namespace

int main() {
  no_byte_is_wrong_while_granules_are_turned_over();
  another_process_would_see_no_hole();
  what_is_filled_in_parts_waits_as_any_store_does();
  threads_that_need_room_take_turns();
  return 0;
}
