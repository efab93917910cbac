// Stores that nobody announced, and reads that nobody needs: who stays, who is taken in, who comes unread.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "frames_check.h"

namespace {

sn_frames *with_marks(uint32_t frames, uint32_t granules) {
  sn_frames *made = open_frames(request_of(frames, granules, granules));
  for (uint32_t i = 0; i < granules; i++) {
    CHECK(sn_frames_attach(made, i, 1) == 0);
    write_marks(facts(made).base + i * kGranule, 1, i);
  }
  return made;
}

uint64_t at(sn_frames *frames, uint32_t granule) { return facts(frames).base + granule * kGranule; }

void need(sn_frames *frames, uint32_t granule, uint32_t count, int writes) {
  CHECK(sn_frames_need(frames, at(frames, granule), count * kGranule, writes) == 0);
}

// Into what is away: found when it arrives.
void store_unforeseen(sn_frames *frames, uint32_t granule) {
  leave(frames, granule, 1);
  CHECK(state(frames, granule) == SN_GRANULE_AWAY);
  *word(at(frames, granule), 7, 3) += 1;
  need(frames, granule, 1, SN_READS);
}

// Everybody else leaves, again and again.
void use_all_others(sn_frames *frames, uint32_t granules) {
  for (uint32_t i = 2; i < granules; i++) need(frames, i, 1, static_cast<int>(i % 2));
}

// A receive of another thread's into memory that is never turned over is never refused.
void who_is_written_to_again_and_again_stays() {
  constexpr uint32_t kGranules = 24;
  sn_frames *frames = with_marks(8, kGranules);
  for (uint32_t times = 0; times < 2; times++) {
    CHECK(counted(frames).kept == 0);
    store_unforeseen(frames, 0);
    store_unforeseen(frames, 1);
  }
  store_unforeseen(frames, 2);
  store_unforeseen(frames, 2);
  CHECK(counted(frames).kept == 2);  // a quarter of all frames
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> received{0};
  uint64_t *const place = word(at(frames, 0), 9, 5);
  std::thread receiver([&] {
    const int file = open("/dev/zero", O_RDONLY);
    while (!stop.load()) CHECK(read(file, place, 64) == 64 && ++received != 0);
    close(file);
  });
  const uint64_t written = counted(frames).written_bytes;
  while (received.load() < 1000 || counted(frames).written_bytes - written < 100 * kGranule) {
    use_all_others(frames, kGranules);
    CHECK(state(frames, 0) == SN_GRANULE_DIRTY && state(frames, 1) == SN_GRANULE_DIRTY);
  }
  stop = true;
  receiver.join();
  CHECK(*word(at(frames, 0), 7, 3) == 2 && *word(at(frames, 1), 7, 3) == 2);
  need(frames, 2, 8, SN_READS);  // they leave where nobody else can
  CHECK(state(frames, 0) == SN_GRANULE_AWAY && marks_hold(at(frames, 1), 1, 1));
  CHECK(sn_frames_release(frames, 0, 1) == 0 && counted(frames).kept == 1);
  for (uint32_t i = 1; i < kGranules; i++) CHECK(marks_hold(at(frames, i), 1, i));
  close_frames(frames);
}

// Those that stay would fill what is left, and the operands of an operator push out one another.
void of_fewer_frames_fewer_stay() {
  constexpr uint32_t kGranules = 24;
  sn_frames *frames = with_marks(16, kGranules);
  for (uint32_t granule = 0; granule < 4; granule++) {
    store_unforeseen(frames, granule);
    store_unforeseen(frames, granule);
  }
  CHECK(counted(frames).kept == 4);
  CHECK(sn_frames_resize(frames, 4) == 0 && counted(frames).kept == 1);
  for (uint32_t i = 4; i < 7; i++) need(frames, i, 1, SN_READS);
  for (uint32_t i = 4; i < 7; i++) CHECK(state(frames, i) != SN_GRANULE_AWAY);
  for (uint32_t i = 0; i < kGranules; i++) CHECK(marks_hold(at(frames, i), 1, i));
  close_frames(frames);
}

void what_is_to_be_zero_comes_unread() {
  sn_frames *frames = with_marks(4, 8);
  CHECK(leave(frames, 0, 8).stayed == 0);
  const uint64_t base = at(frames, 0);
  *word(base, 600, 4) = 4711;  // as dead as the rest
  CHECK(sn_frames_need(frames, base + kPage, 3 * kGranule, SN_ZEROES) == 0);  // the first and the last one in part
  CHECK(counted(frames).unread_bytes == 2 * kGranule && counted(frames).read_bytes == 2 * kGranule);
  for (uint32_t i = 0; i < 4; i++) CHECK(state(frames, i) == SN_GRANULE_DIRTY);
  CHECK(holds(reinterpret_cast<void *>(at(frames, 1)), 2 * kGranule, 0));
  memset(reinterpret_cast<void *>(base + kPage), 33, 3 * kGranule);
  for (int turns = 0; turns < 2; turns++) {
    CHECK(holds(reinterpret_cast<void *>(base + kPage), 3 * kGranule, 33));
    CHECK(*word(base, 0, 0) == mark(0, 0));
    const uint64_t last = base + 3 * kGranule;
    for (uint64_t page = 1; page < kGranule / kPage; page++) CHECK(*word(last, page, 0) == mark(page, 3));
    CHECK(marks_hold(at(frames, 4), 1, 4));
    CHECK(leave(frames, 0, 4).moved == (turns == 0 ? 4 : 0));
  }
  // What is resident needs no reading, and less than a granule is read.
  need(frames, 4, 1, SN_READS);
  need(frames, 4, 1, SN_ZEROES);
  CHECK(sn_frames_need(frames, at(frames, 5), kGranule - 1, SN_ZEROES) == 0 && marks_hold(at(frames, 5), 1, 5));
  CHECK(counted(frames).unread_bytes == 2 * kGranule);
  close_frames(frames);
}

// Whatever the kernel refuses, it is as if nobody had said that they are overwritten.
void refused_calls_lose_nothing() {
  sn_frames *frames = with_marks(4, 4);
  for (uint64_t nth = 1; nth < 6; nth++) {
    CHECK(leave(frames, 0, 4).stayed == 0);
    sn_system_fail(SYS_mmap, nth, ENOMEM);
    const int error = sn_frames_need(frames, at(frames, 1), 2 * kGranule, SN_ZEROES);
    sn_system_fail(-1, 0, 0);
    CHECK(error == 0 || error == -ENOMEM);
    need(frames, 0, 4, SN_WRITES);
    if (nth == 1) CHECK(marks_hold(at(frames, 1), 1, 1));  // what could not come unread was read
    CHECK(marks_hold(at(frames, 0), 1, 0) && marks_hold(at(frames, 3), 1, 3));
    write_marks(at(frames, 1), 1, 1);
    write_marks(at(frames, 2), 1, 2);
  }
  CHECK(counted(frames).unread_bytes > 0);
  close_frames(frames);
}

// Pages of a store that was foreseen are taken in, and make nobody stay.
void pages_beside_the_frames_are_taken_in_when_asked() {
  constexpr uint32_t kGranules = 16;
  sn_frames *frames = with_marks(8, kGranules);
  const uint64_t base = at(frames, 0), end = base + kGranules * kGranule;
  for (uint64_t salt = 100; salt < 103; salt++) {
    CHECK(leave(frames, 0, kGranules).stayed == 0);
    CHECK(sn_frames_tidy(frames, 1) == 0);
    write_marks(base, kGranules, salt);
    CHECK(anonymous_kib(base, end) == kGranules * 2048);
    CHECK(sn_frames_tidy(frames, 1) == 0);
    CHECK(anonymous_kib(base, end) <= 2048 && counted(frames).own_pages <= 512);
    CHECK(counted(frames).most_own_pages == kGranules * 512 && counted(frames).kept == 0);
    CHECK(marks_hold(base, kGranules, salt));
  }
  close_frames(frames);
}

std::atomic<int> read_in{0};  // granules
std::atomic<bool> first_waits{true};

// Of reads of granules the first one waits, for at most a minute.
long first_read_waits(long number, const long a[6]) {
  if (number == SYS_preadv && read_in++ == 0)
    for (const uint64_t until = sn_now_ns() + 60000000000; first_waits.load() && sn_now_ns() < until;) usleep(1000);
  const long done = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return done >= 0 ? done : -errno;
}

// While pages of foreseen stores are on their way into frames, others come that nobody foresaw.
void stores_of_others_are_unforeseen_while_foreseen_ones_are_taken_in() {
  sn_frames *frames = with_marks(8, 8);
  CHECK(leave(frames, 0, 2).stayed == 0);
  write_marks(at(frames, 0), 2, 100);
  sn_system_replace(first_read_waits);
  std::thread tidies([&] { CHECK(sn_frames_tidy(frames, 1) == 0); });
  while (read_in.load() == 0) sched_yield();
  for (int times = 0; times < 2; times++) {
    leave(frames, 4, 1);
    *word(at(frames, 4), 7, 3) += 1;
    CHECK(arrive(frames, 4, 1, 0).moved == 1);
  }
  CHECK(counted(frames).kept == 1);
  first_waits = false;
  tidies.join();
  sn_system_replace(nullptr);
  CHECK(counted(frames).kept == 1 && counted(frames).carried_pages >= 512 + 2);
  CHECK(marks_hold(at(frames, 0), 2, 100) && *word(at(frames, 4), 7, 3) == 2);
  close_frames(frames);
}

}  // namespace

int main() {
  who_is_written_to_again_and_again_stays();
  of_fewer_frames_fewer_stay();
  what_is_to_be_zero_comes_unread();
  refused_calls_lose_nothing();
  pages_beside_the_frames_are_taken_in_when_asked();
  stores_of_others_are_unforeseen_while_foreseen_ones_are_taken_in();
  return 0;
}
