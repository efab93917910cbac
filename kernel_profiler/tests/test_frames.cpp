// Frames: what is resident, clean, away; room made by whoever was needed longest ago; what is refused.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "frames_check.h"

namespace {

int page_size = 4096;

}  // namespace

// The library asks this one; so does ThreadSanitizer, before it can look at anything.
extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) int getpagesize() noexcept { return page_size; }

namespace {

void nothing_is_there_before_it_is_attached() {
  sn_frames *frames = open_frames(request_of(4, 8, 8));
  const sn_frames_facts told = facts(frames);
  CHECK(told.base % kGranule == 0 && told.frames == 4 && told.granules == 8 && told.regions == 8);
  const sn_frames_counters now = counted(frames);
  CHECK(now.free_frames == 4 && now.free_regions == 8 && now.in_state[SN_GRANULE_ABSENT] == 8);
  CHECK(now.read_bytes == 0 && now.written_bytes == 0 && now.waited == 0);
  CHECK(sn_frames_need(frames, told.base, 1, 0) == -EINVAL);
  CHECK(sn_frames_need(frames, told.base - 1, 1, 0) == -EINVAL);
  CHECK(sn_frames_need(frames, told.base, 8 * kGranule + 1, 0) == -EINVAL);
  CHECK(sn_frames_leave(frames, 0, 1) == -EINVAL && sn_frames_attach(frames, 7, 2) == -EINVAL);
  CHECK(sn_frames_cancel(frames, 1) == -ENOENT);
  close_frames(frames);
}

void the_kernel_has_given_what_was_promised() {
  sn_frames *frames = open_frames(request_of(13, 13, 13));
  const uint64_t promised = 13 * kGranule;
  const uint64_t given = facts(frames).pool_bytes;
  CHECK(given >= promised && given - promised <= promised / 100);
  CHECK(sn_frames_attach(frames, 0, 13) == 0);
  write_marks(facts(frames).base, 13, 1);
  CHECK(facts(frames).pool_bytes == given);
  close_frames(frames);
}

void bytes_leave_and_come_back(uint32_t flags) {
  sn_frames_request request = request_of(4, 4, 4);
  request.flags = flags;
  sn_frames *frames = open_frames(request);
  const uint64_t base = facts(frames).base;
  if ((flags & SN_FRAMES_BUFFERED) != 0) CHECK(facts(frames).direct == 0);
  if ((flags & SN_FRAMES_SMALL_PAGES) != 0) CHECK(facts(frames).huge_frames == 0);
  CHECK(sn_frames_attach(frames, 0, 4) == 0);
  write_marks(base, 4, 7);
  CHECK(sn_frames_destroy(frames) == -EBUSY);
  sn_frames_result done = leave(frames, 0, 4);
  CHECK(done.moved == 4 && done.stayed == 0 && done.error == 0);
  CHECK(counted(frames).free_frames == 4 && counted(frames).written_bytes == 4 * kGranule);
  CHECK(marks_hold(base, 4, 7));  // by the kernel's own reading
  CHECK(state(frames, 2) == SN_GRANULE_AWAY);
  done = arrive(frames, 0, 4, 1);
  CHECK(done.moved == 4 && done.error == 0 && counted(frames).read_bytes == 4 * kGranule);
  CHECK(state(frames, 2) == SN_GRANULE_DIRTY && counted(frames).free_frames == 0);
  CHECK(marks_hold(base, 4, 7));
  close_frames(frames);
}

void what_the_file_holds_is_not_written_again() {
  sn_frames *frames = open_frames(request_of(2, 2, 2));
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(base, 2, 3);
  leave(frames, 0, 2);
  for (int i = 0; i < 5; i++) {
    CHECK(sn_frames_need(frames, base, 2 * kGranule, 0) == 0);
    CHECK(state(frames, 0) == SN_GRANULE_CLEAN && marks_hold(base, 2, 3));
    CHECK(leave(frames, 0, 2).moved == 2);
  }
  CHECK(counted(frames).written_bytes == 2 * kGranule && counted(frames).dropped == 10);
  // A store that nobody announced: found by fact, so the granule stays, and is written when it leaves.
  CHECK(sn_frames_need(frames, base, kGranule, 0) == 0);
  *word(base, 5, 9) = 4711;
  const sn_frames_result done = leave(frames, 0, 1);
  CHECK(done.moved == 0 && done.stayed == 1 && done.error == EAGAIN && state(frames, 0) == SN_GRANULE_DIRTY);
  CHECK(counted(frames).carried_pages == 1 && counted(frames).given_up == 1);
  CHECK(*word(base, 5, 9) == 4711 && leave(frames, 0, 1).moved == 1);
  CHECK(*word(base, 5, 9) == 4711 && marks_hold(base, 2, 3));
  close_frames(frames);
}

void a_store_into_what_is_away_is_kept() {
  sn_frames *frames = open_frames(request_of(2, 2, 2));
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(base, 2, 5);
  leave(frames, 0, 2);
  for (uint64_t page = 0; page < 2 * kGranule / kPage; page += 7) *word(base, page, 11) = page;
  CHECK(sn_frames_need(frames, base, 2 * kGranule, 0) == 0);
  CHECK(state(frames, 0) == SN_GRANULE_DIRTY && counted(frames).carried_pages == (2 * kGranule / kPage + 6) / 7);
  for (int round = 0; round < 2; round++) {
    CHECK(marks_hold(base, 2, 5));
    for (uint64_t page = 0; page < 2 * kGranule / kPage; page += 7) CHECK(*word(base, page, 11) == page);
    leave(frames, 0, 2);
  }
  close_frames(frames);
}

// Stores that nobody announced, into what is away and into what is clean, make pages that no frame gives. They do not add
// up: the next need takes them into frames.
void pages_beside_the_frames_are_bounded() {
  constexpr uint32_t kGranules = 12;
  sn_frames *frames = open_frames(request_of(4, kGranules, kGranules));
  const uint64_t base = facts(frames).base, end = base + kGranules * kGranule;
  for (uint32_t i = 0; i < kGranules; i++) CHECK(sn_frames_attach(frames, i, 1) == 0);
  write_marks(base, kGranules, 5);
  for (uint64_t salt = 6; salt < 8; salt++) {
    for (uint32_t i = 0; i < kGranules; i++) CHECK(sn_frames_need(frames, base + i * kGranule, 1, 1) == 0);
    CHECK(leave(frames, 0, kGranules).stayed == 0);
    CHECK(sn_frames_need(frames, base, 2 * kGranule, 0) == 0);
    write_marks(base, kGranules, salt);
    CHECK(anonymous_kib(base, end) > 16 * 1024);
    CHECK(sn_frames_need(frames, base, 1, 0) == 0);
    CHECK(anonymous_kib(base, end) <= 2 * 1024 && counted(frames).own_pages <= 512);
    CHECK(marks_hold(base, kGranules, salt));
  }
  close_frames(frames);
}

uint32_t looks = 0;

// The kernel as it is, but for how long a look at one granule's pages takes: 50 ms of computing.
long looks_slowly(long number, const long a[6]) {
  if (number == SYS_pread64 && a[2] == kGranule / kPage * 8) {
    looks++;
    for (const clock_t began = clock(); clock() - began < CLOCKS_PER_SEC / 20;) {
    }
  }
  const long told = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return told == -1 ? -errno : told;
}

// Memory of the program's own grows, and nothing beside the frames does: the second look would come 5 s after the first.
void looks_in_vain_do_not_follow_each_other() {
  sn_frames *frames = open_frames(request_of(2, 2, 2));
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(base, 2, 3);
  leave(frames, 0, 2);
  CHECK(sn_frames_need(frames, base, 1, 1) == 0);
  sn_system_replace(looks_slowly);
  for (int round = 0; round < 3; round++) {
    void *const more = mmap(nullptr, 16 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, round + 1, 16 * kMiB);
    CHECK(sn_frames_need(frames, base, 1, 1) == 0);
    CHECK(looks == 1 && counted(frames).own_pages == 0);
  }
  sn_system_replace(nullptr);
  CHECK(marks_hold(base, 2, 3));
  close_frames(frames);
}

// More tensors than memory, used in every order: none is ever wrong, and no more is resident than there are frames.
void a_budget_holds_whatever_is_needed() {
  constexpr uint32_t kFrames = 5, kGranules = 23;
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, kGranules));
  const uint64_t base = facts(frames).base;
  Random random;
  uint64_t salts[kGranules];
  for (uint32_t i = 0; i < kGranules; i++) {
    CHECK(sn_frames_attach(frames, i, 1) == 0);  // others leave for it
    write_marks(base + i * kGranule, 1, salts[i] = i);
  }
  for (int i = 0; i < 60; i++) {
    const uint32_t first = static_cast<uint32_t>(random.below(kGranules - 2)), count = 1 + static_cast<uint32_t>(random.below(3));
    const bool writes = random.below(2) == 0;
    CHECK(sn_frames_need(frames, base + first * kGranule + 100, count * kGranule - 200, writes) == 0);
    for (uint32_t g = first; g < first + count; g++) {
      CHECK(state(frames, g) == SN_GRANULE_DIRTY || (!writes && state(frames, g) == SN_GRANULE_CLEAN));
      CHECK(marks_hold(base + g * kGranule, 1, salts[g]));
      if (writes) write_marks(base + g * kGranule, 1, salts[g] += 1000);
    }
    const sn_frames_counters now = counted(frames);
    CHECK(now.in_state[SN_GRANULE_AWAY] + kFrames - now.free_frames == kGranules);
  }
  CHECK(counted(frames).dropped > 0);
  for (uint32_t g = 0; g < kGranules; g++) CHECK(marks_hold(base + g * kGranule, 1, salts[g]));
  CHECK(sn_frames_need(frames, base, (kFrames + 1) * kGranule, 0) == -ENOSPC);
  CHECK(sn_frames_need(frames, base, kFrames * kGranule, 0) == 0);
  close_frames(frames);
}

void there_is_no_more_than_was_asked_for() {
  sn_frames *frames = open_frames(request_of(3, 6, 4));
  CHECK(sn_frames_attach(frames, 0, 4) == -ENOSPC);  // more than all frames
  CHECK(sn_frames_attach(frames, 0, 3) == 0 && sn_frames_attach(frames, 2, 1) == -EEXIST);
  CHECK(counted(frames).file_full == 0);
  CHECK(sn_frames_attach(frames, 3, 2) == -ENOSPC);  // the file has four regions
  CHECK(counted(frames).in_state[SN_GRANULE_ABSENT] == 3 && counted(frames).file_full == 1);
  CHECK(counted(frames).in_state[SN_GRANULE_DIRTY] == 3 && counted(frames).written_bytes == 0);  // nobody left in vain
  CHECK(sn_frames_attach(frames, 3, 1) == 0);
  CHECK(sn_frames_need(frames, facts(frames).base, 3 * kGranule, 1) == 0);
  CHECK(sn_frames_arrive(frames, 3, 1, 1) == -ENOSPC);  // nobody leaves for it
  CHECK(sn_frames_release(frames, 1, 1) == 0 && sn_frames_release(frames, 1, 1) == 0);
  CHECK(arrive(frames, 3, 1, 1).moved == 1);
  CHECK(sn_frames_attach(frames, 1, 1) == 0);
  close_frames(frames);
}

int refused(sn_frames_request request) {
  sn_frames *frames = nullptr;
  const char *step = nullptr;
  const uint64_t descriptors = entries_in("/proc/self/fd");
  const int error = sn_frames_create(&request, &frames, &step);
  CHECK(error < 0 && frames == nullptr && step != nullptr && strlen(step) > 10);
  CHECK(entries_in("/proc/self/fd") == descriptors);
  return error;
}

void bad_places_are_named() {
  sn_frames_request request = request_of(2, 2, 2);
  request.directory = "./no such folder";
  CHECK(refused(request) == -ENOENT);
  request.directory = "/proc/self/exe";
  CHECK(refused(request) == -ENOTDIR);
  struct statfs kind;
  request.directory = "/dev/shm";
  if (statfs("/dev/shm", &kind) == 0 && kind.f_type == 0x01021994) CHECK(refused(request) == -EMEDIUMTYPE);
  if (geteuid() != 0) {
    request.directory = "/";
    CHECK(refused(request) == -EACCES);
  }
  request = request_of(2, 2, 0);
  CHECK(refused(request) == -EINVAL);
  request = request_of(2, 2, 2);
  request.readers = 17;
  CHECK(refused(request) == -EINVAL);
  request.readers = 1;
  rlimit before;
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit little = {kGranule, before.rlim_max};
  CHECK(setrlimit(RLIMIT_FSIZE, &little) == 0);
  CHECK(refused(request) == -EFBIG);  // and no SIGXFSZ
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
}

// The kernel as it is, but for how many mappings it allows, and its pages.
long allows_few_mappings(long number, const long a[6]) {
  const bool asks = number == SYS_openat && strcmp(reinterpret_cast<const char *>(a[1]), "/proc/sys/vm/max_map_count") == 0;
  const long told = asks ? open("few-mappings", O_RDONLY | O_CLOEXEC) : syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return told == -1 ? -errno : told;
}

void hosts_that_will_not_do_are_refused() {
  FILE *few = fopen("few-mappings", "w");
  CHECK(few != nullptr && fputs("80\n", few) >= 0 && fclose(few) == 0);
  sn_system_replace(allows_few_mappings);
  CHECK(refused(request_of(2, 71, 2)) == -E2BIG);
  close_frames(open_frames(request_of(2, 70, 2)));
  sn_system_replace(nullptr);
  CHECK(unlink("few-mappings") == 0);
  page_size = 65536;
  CHECK(refused(request_of(2, 2, 2)) == -EOPNOTSUPP);
  page_size = 4096;
}

uint64_t mappings() {
  FILE *file = fopen("/proc/self/maps", "r");
  CHECK(file != nullptr);
  uint64_t count = 0;
  for (char line[512]; fgets(line, sizeof line, file) != nullptr;)
    count += strstr(line, "sentinel-frames") != nullptr ? 1 : 0;
  fclose(file);
  return count;
}

void creation_survives_each_failing_call() {
  const uint64_t descriptors = entries_in("/proc/self/fd");
  uint64_t n = 1, failed = 0;
  for (;; n++) {
    const sn_frames_request request = request_of(2, 2, 2);
    sn_frames *frames = nullptr;
    const char *step = "";
    sn_system_fail(-1, n, ENOMEM);
    const int error = sn_frames_create(&request, &frames, &step);
    const bool used_up = sn_system_fail(-1, 0, 0) == 0;
    CHECK(error == 0 || error == -ENOMEM);
    if (error == 0) close_frames(frames);
    failed += error != 0 ? 1 : 0;
    CHECK(entries_in("/proc/self/fd") == descriptors && mappings() == 0);
    if (!used_up) break;
  }
  CHECK(failed > 8 && n < 200);
}

// Where a file cannot be born without a name, it loses it before anything is written.
long without_unnamed_files(long number, const long a[6]) {
  if (number == SYS_openat && (a[2] & O_TMPFILE) == O_TMPFILE) return -EOPNOTSUPP;
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// A file system that makes the file, and then refuses to open it for direct transfers.
long without_direct_transfers(long number, const long a[6]) {
  const long result = without_unnamed_files(number, a);
  if (number != SYS_openat || (a[2] & O_DIRECT) == 0 || result < 0) return result;
  close(static_cast<int>(result));
  return -EINVAL;
}

void a_named_file_loses_its_name(sn_system_call system, uint32_t direct) {
  CHECK(mkdir("frames-test", 0700) == 0 || errno == EEXIST);
  const uint64_t before = entries_in("frames-test");
  sn_frames_request request = request_of(2, 2, 2);
  request.directory = "frames-test";
  sn_system_replace(system);
  sn_frames *frames = open_frames(request);
  CHECK(facts(frames).unnamed == 0 && facts(frames).direct <= direct);
  CHECK(entries_in("frames-test") == before);
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(facts(frames).base, 2, 9);
  CHECK(leave(frames, 0, 2).moved == 2 && marks_hold(facts(frames).base, 2, 9));
  close_frames(frames);
  sn_system_replace(nullptr);
  CHECK(rmdir("frames-test") == 0);
}

// One that is too busy for the first direct transfer, however often that is tried.
long always_busy(long number, const long a[6]) {
  if (number == SYS_pread64 && a[2] == 4096 && (fcntl(static_cast<int>(a[0]), F_GETFL) & O_DIRECT) != 0) return -EAGAIN;
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

void a_disk_that_is_too_busy_is_used_through_the_page_cache() {
  sn_system_replace(always_busy);
  sn_frames *frames = open_frames(request_of(2, 2, 2));
  CHECK(facts(frames).direct == 0);
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(facts(frames).base, 2, 9);
  CHECK(leave(frames, 0, 2).moved == 2 && marks_hold(facts(frames).base, 2, 9));
  close_frames(frames);
  sn_system_replace(nullptr);
}

void two_in_one_directory_do_not_know_each_other() {
  sn_frames *one = open_frames(request_of(2, 2, 2)), *other = open_frames(request_of(2, 2, 2));
  for (sn_frames *frames : {one, other}) {
    CHECK(sn_frames_attach(frames, 0, 2) == 0);
    write_marks(facts(frames).base, 2, facts(frames).base);
    CHECK(leave(frames, 0, 2).moved == 2);
  }
  for (sn_frames *frames : {one, other}) CHECK(marks_hold(facts(frames).base, 2, facts(frames).base));
  close_frames(one);
  close_frames(other);
}

}  // namespace

int main() {
  nothing_is_there_before_it_is_attached();
  the_kernel_has_given_what_was_promised();
  bytes_leave_and_come_back(0);
  bytes_leave_and_come_back(SN_FRAMES_SMALL_PAGES);
  bytes_leave_and_come_back(SN_FRAMES_BUFFERED);
  what_the_file_holds_is_not_written_again();
  a_store_into_what_is_away_is_kept();
  pages_beside_the_frames_are_bounded();
  looks_in_vain_do_not_follow_each_other();
  a_budget_holds_whatever_is_needed();
  there_is_no_more_than_was_asked_for();
  bad_places_are_named();
  hosts_that_will_not_do_are_refused();
  creation_survives_each_failing_call();
  a_named_file_loses_its_name(without_unnamed_files, 1);
  a_named_file_loses_its_name(without_direct_transfers, 0);
  a_disk_that_is_too_busy_is_used_through_the_page_cache();
  two_in_one_directory_do_not_know_each_other();
  return 0;
}
