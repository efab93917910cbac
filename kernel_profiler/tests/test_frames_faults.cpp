// A disk and a kernel that refuse: the bytes stay right, and whoever waits is told.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include <initializer_list>

#include "frames_check.h"

namespace {

constexpr uint32_t kFrames = 4;

long real(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

bool is_transfer(long number) { return number == SYS_preadv || number == SYS_pwritev; }

// Out, in to be read, out again, in to be written; whatever happens on the way, in the end all is as it was.
int there_and_back(sn_frames *frames, uint64_t salt) {
  const uint64_t base = facts(frames).base;
  int error = 0;
  const auto note = [&](int told) { error = error == 0 ? told : error; };
  const auto turn = [&](int64_t id) {
    if (id < 0) note(static_cast<int>(-id));
    else note(collect(frames, id).error);
  };
  write_marks(base, kFrames, salt);
  turn(sn_frames_leave(frames, 0, kFrames));
  *word(base, 3, 5) = salt;  // nobody announced it
  turn(sn_frames_arrive(frames, 0, kFrames, 0));
  *word(base, 4, 5) = salt;
  turn(sn_frames_leave(frames, 0, kFrames));
  note(-sn_frames_need(frames, base, kFrames * kGranule, 1));
  return error;
}

void check_all(sn_frames *frames, uint64_t salt) {
  const uint64_t base = facts(frames).base;
  CHECK(marks_hold(base, kFrames, salt) && *word(base, 3, 5) == salt && *word(base, 4, 5) == salt);
}

// For each kind of call, the n-th fails, for n = 1, 2, 3 ... until none is left to fail.
void each_failing_call_leaves_the_bytes_right() {
  // Regions in reserve: where the disk fails once, it is not asked again.
  sn_frames *frames = open_frames(request_of(kFrames, kFrames, kFrames + 40));
  CHECK(sn_frames_attach(frames, 0, kFrames) == 0);
  uint64_t salt = 1, failed = 0, told = 0;
  for (const long number : {SYS_mmap, SYS_mprotect, SYS_madvise, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev}) {
    const bool transfer = is_transfer(number);
    for (const int error : {transfer ? EIO : ENOMEM, transfer ? ENOSPC : EAGAIN}) {
      for (uint64_t n = 1;; n++, salt++) {
        sn_system_fail(number, n, error);
        const int seen = there_and_back(frames, salt);
        const bool used_up = sn_system_fail(-1, 0, 0) == 0;
        check_all(frames, salt);
        CHECK(seen == 0 || seen == error || seen == EAGAIN);
        CHECK(sn_frames_need(frames, facts(frames).base, kFrames * kGranule, 1) == 0);
        check_all(frames, salt);
        failed += used_up ? 1 : 0;
        told += seen == error ? 1 : 0;
        if (!used_up) break;
        CHECK(n < 100);
      }
    }
  }
  CHECK(failed > 40 && told > 10);
  const sn_frames_counters now = counted(frames);
  CHECK(now.failed_reads > 0 && now.failed_writes > 0 && now.read_failure == ENOSPC && now.write_failure == ENOSPC);
  for (uint32_t i = 0; i < kFrames; i++) CHECK(state(frames, i) == SN_GRANULE_DIRTY);
  CHECK(counted(frames).free_frames == 0);
  close_frames(frames);
}

// Transfers that stop short, in odd places, or have to be asked again.
std::atomic<uint64_t> turn{0};

long fitful(long number, const long a[6]) {
  if (!is_transfer(number)) return real(number, a);
  const uint64_t now = turn.fetch_add(1);
  if (now % 5 == 1) return -EINTR;
  if (now % 5 == 2) return -EAGAIN;
  const iovec whole = *reinterpret_cast<const iovec *>(a[1]);
  const size_t part = now % 5 == 3 ? 3 * kPage : whole.iov_len > kPage ? whole.iov_len / 2 / kPage * kPage : whole.iov_len;
  const iovec some = {whole.iov_base, part < whole.iov_len ? part : whole.iov_len};
  const long b[6] = {a[0], reinterpret_cast<long>(&some), 1, a[3], a[4], a[5]};
  const long moved = real(number, b);
  // It did more than it says: what it says counts.
  return now % 5 == 4 && moved > 100 ? moved - 100 : moved;
}

void short_transfers_go_on() {
  sn_frames *frames = open_frames(request_of(kFrames, kFrames, kFrames));
  CHECK(sn_frames_attach(frames, 0, kFrames) == 0);
  sn_system_replace(fitful);
  const int error = there_and_back(frames, 99);
  sn_system_replace(nullptr);
  CHECK(error == 0 || error == EAGAIN);
  CHECK(counted(frames).failed_reads == 0 && counted(frames).failed_writes == 0);
  check_all(frames, 99);
  CHECK(turn.load() > 30);
  close_frames(frames);
}

// The page cache, whose disk loses the first piece after its write has returned. That is told by the next call that asks,
// once to each opening of the file.
std::atomic<int> lost{0}, asked{0};
std::atomic<bool> was_told[4096];

long loses_what_is_cached(long number, const long a[6]) {
  if (number == SYS_pwritev && a[3] == 0) {
    lost = 1;
    while (asked.load() == 0) sched_yield();  // another thread's call asks before its own
    return kGranule;
  }
  if (number != SYS_sync_file_range) return real(number, a);
  while (lost.load() == 0) sched_yield();
  asked = 1;
  return was_told[a[0]].exchange(true) ? 0 : -EIO;
}

void each_writer_is_told_of_bytes_that_the_cache_has_lost() {
  sn_frames_request request = request_of(2, 2, 8);
  request.flags = SN_FRAMES_BUFFERED;
  sn_frames *frames = open_frames(request);
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(base, 2, 8);
  sn_system_replace(loses_what_is_cached);
  const int64_t ids[] = {sn_frames_leave(frames, 0, 1), sn_frames_leave(frames, 1, 1)};
  for (const int64_t id : ids) CHECK(collect(frames, id).error == EIO);
  sn_system_replace(nullptr);
  CHECK(marks_hold(base, 2, 8) && leave(frames, 0, 2).moved == 2 && marks_hold(base, 2, 8));
  close_frames(frames);
}

long at_its_end(long number, const long a[6]) { return number == SYS_preadv ? 0 : real(number, a); }
long says_more(long number, const long a[6]) { return is_transfer(number) ? int64_t{1} << 40 : real(number, a); }

void a_file_that_has_ended_is_an_error() {
  sn_frames *frames = open_frames(request_of(kFrames, kFrames, 3 * kFrames));
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, kFrames) == 0);
  write_marks(base, kFrames, 5);
  CHECK(leave(frames, 0, kFrames).moved == kFrames);
  sn_system_replace(at_its_end);
  CHECK(sn_frames_need(frames, base, kGranule, 0) == -EIO);
  const sn_frames_result done = arrive(frames, 0, kFrames, 0);
  CHECK(done.moved == 0 && done.stayed == kFrames && done.error == EIO);
  CHECK(counted(frames).free_frames == kFrames);
  sn_system_replace(nullptr);
  CHECK(marks_hold(base, kFrames, 5) && sn_frames_need(frames, base, kFrames * kGranule, 1) == 0);
  sn_system_replace(says_more);
  CHECK(leave(frames, 0, 1).error == EIO && state(frames, 0) == SN_GRANULE_DIRTY);
  sn_system_replace(nullptr);
  CHECK(marks_hold(base, kFrames, 5));
  close_frames(frames);
}

std::atomic<bool> blocked{false};
std::atomic<int> begun{0};

long waits(long number, const long a[6]) {
  if (!is_transfer(number)) return real(number, a);
  begun++;
  while (blocked.load()) sched_yield();
  return real(number, a);
}

void what_is_cancelled_stays() {
  sn_frames_request request = request_of(12, 12, 12);
  request.readers = request.writers = 1;
  sn_frames *frames = open_frames(request);
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 12) == 0);
  write_marks(base, 12, 6);
  for (const bool arrives : {false, true}) {
    begun.store(0);
    blocked.store(true);
    sn_system_replace(waits);
    const int64_t id = arrives ? sn_frames_arrive(frames, 0, 12, 0) : sn_frames_leave(frames, 0, 12);
    CHECK(id > 0);
    while (begun.load() == 0) sched_yield();
    sn_frames_result done;
    CHECK(sn_frames_collect(frames, static_cast<uint64_t>(id), 1000, &done) == -ETIMEDOUT);
    CHECK(marks_hold(base, 12, 6));
    CHECK(sn_frames_cancel(frames, static_cast<uint64_t>(id)) == 0);
    blocked.store(false);
    done = collect(frames, id);
    sn_system_replace(nullptr);
    CHECK(done.error == ECANCELED && done.moved > 0 && done.stayed > 0 && done.moved + done.stayed == 12);
    CHECK(sn_frames_collect(frames, static_cast<uint64_t>(id), 0, &done) == -ENOENT);
    CHECK(marks_hold(base, 12, 6));
    CHECK(leave(frames, 0, 12).stayed == 0);
  }
  // Tensors die while they are under way.
  blocked.store(false);
  const int64_t id = sn_frames_arrive(frames, 0, 12, 0);
  CHECK(sn_frames_release(frames, 3, 5) == 0);
  const sn_frames_result done = collect(frames, id);
  CHECK(done.moved >= 7 && done.moved + done.stayed == 12);  // of what died, some may not have been begun
  CHECK(counted(frames).free_frames == 5 && counted(frames).free_regions == 5);
  close_frames(frames);
}

// Huge pages refused, one by one: small ones do the same.
long no_huge_pages(long number, const long a[6]) {
  return number == SYS_madvise && a[2] == 25 ? -EINVAL : real(number, a);  // MADV_COLLAPSE
}

void small_pages_do_where_huge_ones_are_refused() {
  sn_system_replace(no_huge_pages);
  sn_frames *frames = open_frames(request_of(kFrames, kFrames, kFrames));
  sn_system_replace(nullptr);
  CHECK(facts(frames).huge_frames == 0 && facts(frames).pool_bytes >= kFrames * kGranule);
  CHECK(sn_frames_attach(frames, 0, kFrames) == 0);
  there_and_back(frames, 12);
  check_all(frames, 12);
  close_frames(frames);
}

int collapses = 0;

long counts_collapses(long number, const long a[6]) {
  collapses += number == SYS_madvise && a[2] == 25 ? 1 : 0;
  return real(number, a);
}

// Each call asks something of all CPUs first.
void huge_pages_are_made_several_at_once() {
  constexpr uint32_t kMany = 20;
  sn_system_replace(counts_collapses);
  sn_frames *frames = open_frames(request_of(kMany, kMany, kMany));
  sn_system_replace(nullptr);
  if (facts(frames).huge_frames == kMany) CHECK(collapses == 3);
  CHECK(sn_frames_resize(frames, 4) == 0 && sn_frames_resize(frames, kMany) == 0);
  CHECK(facts(frames).pool_bytes >= kMany * kGranule);
  close_frames(frames);
}

}  // namespace

int main() {
  each_failing_call_leaves_the_bytes_right();
  short_transfers_go_on();
  each_writer_is_told_of_bytes_that_the_cache_has_lost();
  a_file_that_has_ended_is_an_error();
  what_is_cancelled_stays();
  small_pages_do_where_huge_ones_are_refused();
  huge_pages_are_made_several_at_once();
  return 0;
}
