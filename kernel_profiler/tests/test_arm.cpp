// Memory that changes its backing under live addresses: its bytes never change, whichever call fails.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "memory_check.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 16411;  // a prime, and just beyond one chunk of 64 MiB
constexpr uint64_t kBytes = kPages * kPage;

constexpr uint64_t kArmedArena = 256 * kMiB;  // of 1 GiB, to be mapped and scanned anew takes the longest

uint64_t base;
int guarded;  // whether stores of other threads would have to wait

uint64_t *word(uint64_t page) { return reinterpret_cast<uint64_t *>(base + page * kPage + 8 * (page % 512)); }

// Every third page holds something; the others were never touched.
UNSANITIZED void fill(uint64_t salt) {
  for (uint64_t page = 0; page < kPages; page += 3) *word(page) = page * 2654435761u + salt;
}

UNSANITIZED bool holds(uint64_t salt) {
  for (uint64_t page = 0; page < kPages; page++)
    if (*word(page) != (page % 3 == 0 ? page * 2654435761u + salt : 0)) return false;
  return true;
}

// At the start, where one thread's part ends, and across the end of a chunk: all that a change of backing does is done
// there, and what lies between is never touched.
constexpr uint64_t kWindows[][2] = {{0, 90}, {1000, 1060}, {16350, kPages}};

UNSANITIZED void windows_only(uint64_t salt) {
  // where it was not known what holds something, all of it was copied, and holds something since
  CHECK(madvise(reinterpret_cast<void *>(base), kBytes, MADV_DONTNEED) == 0);
  for (const auto &window : kWindows)
    for (uint64_t page = window[0]; page < window[1]; page += 3) *word(page) = page * 2654435761u + salt;
}

UNSANITIZED bool windows_hold(uint64_t salt) {
  for (const auto &window : kWindows)
    for (uint64_t page = window[0]; page < window[1]; page++)
      if (*word(page) != ((page - window[0]) % 3 == 0 ? page * 2654435761u + salt : 0)) return false;
  return true;
}

bool is_shared() {
  char line[512], wanted[64];
  snprintf(wanted, sizeof wanted, "%lx-", static_cast<unsigned long>(base));
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != nullptr);
  bool shared = false;
  while (fgets(line, sizeof line, maps) != nullptr)
    if (strncmp(line, wanted, strlen(wanted)) == 0) shared = strstr(line, " rw-s ") != nullptr;
  fclose(maps);
  return shared;
}

void there_and_back() {
  CHECK(sn_arm_map(kBytes, &base) == 0);
  fill(1);
  CHECK(!is_shared());
  CHECK(sn_arm_back(base, kBytes, guarded) == 0);
  CHECK(is_shared() && holds(1));
  CHECK(sn_arm_back(base, kBytes, guarded) == -EEXIST);
  CHECK(sn_arm_unmap(base) == -EBUSY);
  fill(2);
  CHECK(madvise(reinterpret_cast<void *>(base), kBytes, MADV_DONTNEED) == 0);  // what arming does: nothing is lost
  CHECK(holds(2));
  CHECK(sn_arm_unback() == 0);
  CHECK(!is_shared() && holds(2));
  fill(3);
  CHECK(holds(3));
}

void refuses_what_is_not_its_own() {
  void *foreign = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(foreign != MAP_FAILED);
  memset(foreign, 7, kBytes);
  CHECK(sn_arm_back(reinterpret_cast<uint64_t>(foreign), kBytes, guarded) == -EPERM);
  CHECK(static_cast<char *>(foreign)[kBytes - 1] == 7);
  munmap(foreign, kBytes);
  CHECK(sn_arm_back(base + kPage, kPage, guarded) == -EPERM);  // a part of it
  CHECK(sn_arm_back(base + 1, kPage, guarded) == -EINVAL);
  CHECK(sn_arm_back(base, 0, guarded) == -EINVAL);
  CHECK(sn_arm_unmap(base + kPage) == -EPERM);
  CHECK(sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, 1) == -ENODEV);
  CHECK(sn_touch_mark(0) == -ENODEV);
}

// The n-th system call fails, for n = 1, 2, 3, ... until none does.
template <typename Change>
uint64_t survives_failures(Change change, uint64_t salt) {
  for (uint64_t n = 1;; n++) {
    windows_only(salt);
    sn_system_fail(-1, n, ENOMEM);
    const int result = change();
    const bool unused = sn_system_fail(-1, 0, 0) != 0;
    CHECK(windows_hold(salt));
    CHECK(sn_arm_unback() == 0);
    CHECK(windows_hold(salt) && !is_shared());
    if (unused) {
      CHECK(result == 0);
      return n - 1;
    }
  }
}

// Each time there and back, so the range holds little. The other tests hold it whole.
void any_call_may_fail() {
  const uint64_t backing = survives_failures([] { return sn_arm_back(base, kBytes, guarded); }, 4);
  const uint64_t both = survives_failures(
      [] {
        const int result = sn_arm_back(base, kBytes, guarded);
        return result != 0 ? result : sn_arm_unback();
      },
      4);
  CHECK(backing > 5 && both > backing + 5);
  CHECK(madvise(reinterpret_cast<void *>(base), kBytes, MADV_DONTNEED) == 0);
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 4096; fd++) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// What it does not know are descriptors below 256; what it opens next has their numbers.
void a_program_may_close_what_it_does_not_know() {
  constexpr int kBelow = 256;
  rlimit limit = {};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_cur / 4 * 3 < kBelow) return;
  for (const int kind : {SN_TOUCH_PAGEMAP, SN_TOUCH_PERF, SN_TOUCH_UFFD}) {
    fill(11);
    CHECK(sn_arm_back(base, kBytes, guarded) == 0);
    const bool watched = sn_touch_start(kind, nullptr, kPages) == 0;
    for (int fd = 3; fd < kBelow; fd++) close(fd);
    for (int fd = 3; fd < kBelow; fd++) {
      CHECK(memfd_create("theirs", MFD_CLOEXEC) == fd);
      CHECK(write(fd, "theirs", 6) == 6 && lseek(fd, 0, SEEK_SET) == 0);
    }
    if (watched) CHECK(sn_touch_mark(0) == 0);
    fill(12);
    if (watched) CHECK(sn_touch_stop() == 0);
    CHECK(sn_arm_unback() == 0);
    CHECK(holds(12) && !is_shared());
    for (int fd = 3; fd < kBelow; fd++) {
      char text[8];
      CHECK(read(fd, text, sizeof text) == 6 && memcmp(text, "theirs", 6) == 0 && close(fd) == 0);
    }
  }
}

// Node 0, which the policy of the memory names, has 64 MiB free, whatever the host has; what is asked for is counted.
constexpr uint64_t kNodeFree = uint64_t{64} << 20;
std::atomic<uint64_t> asked_for{0};

long a_full_node(long number, const long a[6]) {
  static constexpr char kVmstat[] = "/sys/devices/system/node/node0/vmstat", kTold[] = "nr_free_pages 16384\n";
  if (number == SYS_openat && strcmp(reinterpret_cast<const char *>(a[1]), kVmstat) == 0) {
    static_assert(kNodeFree == 16384 * kPage, "as told");
    const long fd = syscall(SYS_memfd_create, "told", MFD_CLOEXEC);
    CHECK(pwrite(static_cast<int>(fd), kTold, sizeof kTold - 1, 0) == sizeof kTold - 1);
    return fd;
  }
  constexpr long kCollapse = 25;
  if (number == SYS_madvise && a[2] == kCollapse) asked_for += static_cast<uint64_t>(a[1]);
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// Else it would fill the fast node, of which the host's free memory is many times as much.
void memory_prepared_ahead_is_bounded_by_its_node() {
  constexpr int kPreferred = 1;
  const unsigned long node = 1;
  CHECK(sn_memory_create(kArmedArena, kArmedArena) == 0);
  const sn_range arena = exclusive();
  const bool named = syscall(SYS_mbind, arena.base, arena.reserved_bytes, kPreferred, &node, 64, 0) == 0;
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
  asked_for = 0;
  sn_system_replace(a_full_node);
  if (sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, arena.reserved_bytes / kPage) == 0) CHECK(sn_touch_stop() == 0);
  sn_system_replace(nullptr);
  if (named) CHECK(asked_for <= kNodeFree / 4);
  CHECK(sn_arm_unback() == 0 && sn_memory_destroy() == 0);
}

// Of a range that huge pages fit, the trial of them included: it leaves nothing open, and the range works without.
void huge_pages_may_fail() {
  constexpr uint64_t kNbytes = uint64_t{6} << 20;
  uint64_t at = 0, failed = 0;
  CHECK(sn_arm_map(kNbytes, &at) == 0);
  memset(reinterpret_cast<void *>(at), 9, kNbytes);
  const int before = open_descriptors();
  // any but close, whose failure would leave something open
  constexpr long kCalls[] = {SYS_memfd_create, SYS_ftruncate, SYS_mmap,   SYS_userfaultfd, SYS_ioctl,
                             SYS_fallocate,    SYS_madvise,   SYS_openat, SYS_pread64,     SYS_pwrite64};
  for (const long call : kCalls) {
    for (uint64_t n = 1, unused = 0; unused == 0; n++) {
      CHECK(n < 100);
      sn_system_fail(call, n, ENOMEM);
      failed += sn_arm_back(at, kNbytes, guarded) != 0 ? 1 : 0;
      unused = sn_system_fail(-1, 0, 0);
      CHECK(sn_arm_unback() == 0 && open_descriptors() == before);
      for (uint64_t page = 0; page < kNbytes; page += kPage) CHECK(*reinterpret_cast<char *>(at + page) == 9);
    }
  }
  CHECK(failed > 3);
  CHECK(sn_arm_unmap(at) == 0);
}

// A page that is swapped out is not present, and yet it holds something. Here the kernel says so of every page.
long pagemap = -1;
std::atomic<uint64_t> swapped{0};  // several threads copy

long all_swapped_out(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_openat && strcmp(reinterpret_cast<const char *>(a[1]), "/proc/self/pagemap") == 0) pagemap = result;
  if (number != SYS_pread64 || a[0] != pagemap) return result < 0 ? -errno : result;
  uint64_t *entries = reinterpret_cast<uint64_t *>(a[1]);
  for (long i = 0; i < result / 8; i++) {
    if ((entries[i] >> 63) == 0) continue;
    entries[i] = uint64_t{1} << 62;
    swapped++;
  }
  return result;
}

void swapped_pages_come_along() {
  fill(8);
  sn_system_replace(all_swapped_out);
  swapped = 0;
  CHECK(sn_arm_back(base, kBytes, guarded) == 0);
  sn_system_replace(nullptr);
  CHECK(swapped > kPages / 4);
  CHECK(holds(8));
  CHECK(sn_arm_unback() == 0);
  CHECK(holds(8));
}

void a_child_has_its_own_bytes() {
  fill(5);
  CHECK(sn_arm_back(base, kBytes, guarded) == 0);
  int go[2];
  CHECK(pipe(go) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char byte;
    if (read(go[0], &byte, 1) != 1) _exit(2);  // by now the parent has written
    if (!holds(5) || is_shared()) _exit(3);
    fill(7);
    _exit(holds(7) ? 0 : 4);
  }
  fill(6);
  CHECK(write(go[1], "x", 1) == 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(holds(6) && !is_shared());  // one copy, the parent's: from then on the kernel copies on write
  CHECK(sn_arm_unback() == 0);
  CHECK(holds(6));
}

long no_remapping(long number, const long a[6]) {
  if (number == SYS_mremap) return -ENOMEM;
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

int status_of(pid_t child) {
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

void a_child_copies_where_its_parent_could_not() {
  CHECK(sn_arm_back(base, kBytes, guarded) == 0);
  sn_system_fail(SYS_mremap, 1, ENOMEM);
  const pid_t child = fork();
  if (child == 0) _exit(holds(6) && !is_shared() ? 0 : 1);
  sn_system_fail(-1, 0, 0);
  CHECK(status_of(child) == 0);
  CHECK(holds(6) && is_shared());
  CHECK(sn_arm_unback() == 0);
}

void a_child_without_its_copy_ends() {
  CHECK(sn_arm_back(base, kBytes, guarded) == 0);
  const int errors = dup(STDERR_FILENO);
  CHECK(freopen("/dev/null", "w", stderr) != nullptr);
  sn_system_replace(no_remapping);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  sn_system_replace(nullptr);
  dup2(errors, STDERR_FILENO);
  CHECK(status_of(child) == EXIT_FAILURE);
  CHECK(holds(6) && is_shared());
  CHECK(sn_arm_unback() == 0);
}

void a_fork_ends_the_watch() {
  for (const int kind : {SN_TOUCH_PAGEMAP, SN_TOUCH_UFFD}) {
    if (kind == SN_TOUCH_UFFD && guarded == 0) continue;  // it needs the same right
    CHECK(sn_arm_back(base, kBytes, guarded) == 0);
    if (sn_touch_start(kind, nullptr, kPages) == 0) {
      CHECK(sn_touch_mark(0) == 0);
      const pid_t child = fork();
      if (child == 0) _exit(holds(6) && !is_shared() ? 0 : 1);
      CHECK(status_of(child) == 0);
      CHECK(holds(6) && !is_shared());
      CHECK(sn_touch_mark(1) == -ECANCELED && sn_touch_mark(2) == -ECANCELED);
      CHECK(sn_touch_stop() == -ECANCELED && sn_touch_stop() == 0);
    }
    CHECK(sn_arm_unback() == 0);
  }
}

bool is_mapped(const void *address) {
  uint64_t entry = 0;
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  CHECK(pread(pagemap, &entry, sizeof entry, static_cast<off_t>(reinterpret_cast<uintptr_t>(address) / kPage * 8)) == 8);
  close(pagemap);
  return (entry >> 62) != 0;
}

UNSANITIZED void fill_with_all_bytes(char *bytes, uint64_t nbytes) {
  for (uint64_t i = 0; i < nbytes; i++) bytes[i] = static_cast<char>(i * 31 >> 3);
}

UNSANITIZED bool same(const char *left, const char *right, uint64_t nbytes) {
  uint64_t i = 0;
  for (; i + kWord <= nbytes; i += kWord)
    if (*reinterpret_cast<const AnyWord *>(left + i) != *reinterpret_cast<const AnyWord *>(right + i)) return false;
  for (; i < nbytes; i++)
    if (left[i] != right[i]) return false;
  return true;
}

// What is moved into the arena goes straight to the memfd: no page is mapped under its address. Where a call fails,
// too.
void what_is_moved_in_is_copied_once() {
  constexpr uint64_t kMoved = (uint64_t{21} << 20) + 5;
  CHECK(sn_memory_create(kArmedArena, kArmedArena) == 0);
  sn_range arena;
  CHECK(sn_exclusive_range(&arena) == 0);
  char *source = static_cast<char *>(malloc(kMoved));
  fill_with_all_bytes(source, kMoved);
  char *before = static_cast<char *>(sn_allocate_exclusive(kMoved));
  CHECK(sn_exclusive_fill(before, source, kMoved) == 0 && same(before, source, kMoved));
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
  char *moved = static_cast<char *>(sn_allocate_exclusive(kMoved));
  CHECK(sn_exclusive_fill(moved, source, kMoved) == 0);
  CHECK(!is_mapped(moved) && !is_mapped(moved + kMoved / 2) && !is_mapped(moved + kMoved - 1));
  CHECK(same(moved, source, kMoved) && is_mapped(moved));
  for (const long call : {SYS_fallocate, SYS_madvise, SYS_sysinfo}) {  // without huge pages
    CHECK(sn_arm_unback() == 0 && sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
    char *again = static_cast<char *>(sn_allocate_exclusive(6 * kMoved));
    sn_system_fail(call, 1, ENOMEM);
    CHECK(sn_exclusive_fill(again + 5 * kMoved, source, kMoved) == 0);
    sn_system_fail(-1, 0, 0);
    CHECK(same(again + 5 * kMoved, source, kMoved));
    sn_free(again);
  }
  CHECK(sn_arm_unback() == 0);
  CHECK(same(moved, source, kMoved) && same(before, source, kMoved));
  sn_free(before);
  sn_free(moved);
  free(source);
  CHECK(sn_memory_destroy() == 0);
}

// What is allocated after the change is shared too; what was freed costs nothing on the way back.
void the_exclusive_arena_changes_whole() {
  CHECK(sn_memory_create(kArmedArena, kArmedArena) == 0);
  sn_range arena;
  CHECK(sn_exclusive_range(&arena) == 0);
  char *old = static_cast<char *>(sn_allocate_exclusive(17 * kPage + 5));
  memset(old, 11, 17 * kPage + 5);
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
  CHECK(sn_record() == 0);
  sn_tick(0);
  char *freed = static_cast<char *>(sn_allocate(101 * kPage));
  memset(freed, 12, 101 * kPage);
  char *young = static_cast<char *>(sn_allocate(19 * kPage));
  memset(young, 13, 19 * kPage);
  CHECK(sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, arena.reserved_bytes / kPage) == 0);
  CHECK(sn_touch_mark(-1) == 0 && sn_touch_mark(3) == 0);
  old[0]++, young[18 * kPage]++;
  CHECK(sn_touch_stop() == 0);
  sn_touch_run runs[4];
  CHECK(sn_touch_runs(0, 4, runs) == 2);
  CHECK(runs[0].page == reinterpret_cast<uint64_t>(old) / kPage && runs[0].npages == 1 && runs[0].layer == 3);
  CHECK(runs[1].page == reinterpret_cast<uint64_t>(young) / kPage + 18 && runs[1].npages == 1);
  sn_free(freed);
  CHECK(sn_pass_through() == 0);
  CHECK(sn_arm_unback() == 0);
  CHECK(old[0] == 12 && old[17 * kPage + 4] == 11 && young[0] == 13 && young[18 * kPage] == 14);
  unsigned char resident[101];
  CHECK(mincore(freed, sizeof resident * kPage, resident) == 0);
  for (unsigned char page : resident) CHECK((page & 1) == 0);
  CHECK(sn_exclusive_range(&arena) == 0);
  CHECK(mincore(reinterpret_cast<void *>(arena.base + arena.used_bytes), sizeof resident * kPage, resident) == 0);
  for (unsigned char page : resident) CHECK((page & 1) == 0);  // nor is what was prepared in vain
  sn_free(old);
  sn_free(young);
  CHECK(sn_memory_destroy() == 0);
}

constexpr uint64_t kPieces[] = {5 * kMiB + 3, kPage, 9 * kMiB, 66 * kMiB, 700 * kPage};
uint64_t *pieces[5];

constexpr uint64_t piece_word(uint64_t i, uint64_t at) { return (at + 1) * 2654435761u + i; }

UNSANITIZED void fill_pieces() {
  for (uint64_t i = 0; i < 5; i++)
    for (uint64_t at = 0; at < kPieces[i] / 8; at++) pieces[i][at] = piece_word(i, at);
}

UNSANITIZED bool pieces_hold() {
  for (uint64_t i = 0; i < 5; i++)
    for (uint64_t at = 0; at < kPieces[i] / 8; at += 61)
      if (pieces[i][at] != piece_word(i, at)) return false;
  return true;
}

// Large tensors of the exclusive arena come back in pieces, those that may be huge pages apart from the others.
void pieces_may_fail() {
  CHECK(sn_memory_create(kArmedArena, kArmedArena) == 0);
  sn_range arena;
  CHECK(sn_exclusive_range(&arena) == 0);
  for (int i = 0; i < 5; i++) pieces[i] = static_cast<uint64_t *>(sn_allocate_exclusive(kPieces[i]));
  fill_pieces();
  uint64_t failed = 0;
  for (const long call : {SYS_mremap, SYS_mmap, SYS_madvise, SYS_pread64, SYS_lseek}) {
    uint64_t unused = 0;
    for (const uint64_t n : {1, 2, 5, 11}) {  // each takes long, so not all
      if (unused != 0) break;
      CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
      CHECK(pieces_hold());
      sn_system_fail(call, n, ENOMEM);
      failed += sn_arm_unback() != 0 ? 1 : 0;
      unused = sn_system_fail(-1, 0, 0);
      CHECK(pieces_hold());
      CHECK(sn_arm_unback() == 0 && pieces_hold());
    }
  }
  CHECK(failed > 10);
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
  const pid_t child = fork();
  if (child == 0) _exit(pieces_hold() ? 0 : 1);
  CHECK(status_of(child) == 0 && pieces_hold());
  for (uint64_t *piece : pieces) sn_free(piece);
  CHECK(sn_arm_unback() == 0 && sn_memory_destroy() == 0);
}

uint64_t lowest = 0;
std::atomic<uint64_t> beyond{0};

long sees_low_advice(long number, const long a[6]) {
  if (number == SYS_madvise && static_cast<uint64_t>(a[0]) < lowest) beyond++;
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// What could not be taken back is used on as it is, until that is tried again.
void a_range_that_stays_shared_is_filled_and_watched_on() {
  constexpr uint64_t kNbytes = uint64_t{6} << 20, kPart = uint64_t{3} << 20;
  uint64_t at = 0;
  CHECK(sn_arm_map(kNbytes, &at) == 0);
  memset(reinterpret_cast<void *>(at), 1, kNbytes);
  CHECK(sn_arm_back(at, kNbytes, guarded) == 0);
  if (sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, kNbytes / kPage) == 0) CHECK(sn_touch_stop() == 0);  // in huge pages now
  sn_system_fail(SYS_mmap, 1, ENOMEM);
  const int failed = sn_arm_unback();
  sn_system_fail(-1, 0, 0);
  CHECK(failed == -ENOMEM);
  static char bytes[kPart];
  memset(bytes, 2, kPart);
  lowest = uint64_t{1} << 32;
  sn_system_replace(sees_low_advice);
  CHECK(sn_exclusive_fill(reinterpret_cast<void *>(at + kNbytes - kPart), bytes, kPart) == 0);
  if (sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, kNbytes / kPage) == 0) CHECK(sn_touch_stop() == 0);
  sn_system_replace(nullptr);
  CHECK(beyond == 0);
  CHECK(sn_arm_unback() == 0);
  const char *const found = reinterpret_cast<const char *>(at);
  for (uint64_t i = 0; i < kNbytes; i += 512) CHECK(found[i] == (i < kNbytes - kPart ? 1 : 2));
  CHECK(sn_arm_unmap(at) == 0);
}

// Each call of the way back fails in turn, wherever the range is private by then; watched again, it has all its bytes.
void a_range_that_is_half_private_keeps_its_bytes() {
  bool half = false, whole = false;
  for (int call = 1; !whole; call++) {
    fill(static_cast<uint64_t>(call));
    CHECK(sn_arm_back(base, kBytes, guarded) == 0);
    sn_system_fail(SYS_mremap, call, ENOMEM);
    whole = sn_arm_unback() == 0;
    sn_system_fail(-1, 0, 0);
    half = half || (!whole && !is_shared());
    if (!whole && sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, kPages) == 0) {
      CHECK(sn_touch_mark(0) == 0);
      CHECK(holds(static_cast<uint64_t>(call)));
      CHECK(sn_touch_stop() == 0);
    }
    CHECK(holds(static_cast<uint64_t>(call)));
    CHECK(whole || sn_arm_unback() == 0);
    CHECK(holds(static_cast<uint64_t>(call)));
  }
  CHECK(half);
}

}  // namespace

int main() {
  there_and_back();
  refuses_what_is_not_its_own();
  any_call_may_fail();
  huge_pages_may_fail();
  swapped_pages_come_along();
  a_range_that_stays_shared_is_filled_and_watched_on();
  a_range_that_is_half_private_keeps_its_bytes();
  a_program_may_close_what_it_does_not_know();
  guarded = sn_arm_guarded() == 0 ? 1 : 0;  // test_arm_writers fails its calls
  swapped_pages_come_along();
  a_program_may_close_what_it_does_not_know();
  fill(5);
  a_child_has_its_own_bytes();
  a_child_copies_where_its_parent_could_not();
  a_child_without_its_copy_ends();
  a_fork_ends_the_watch();
  CHECK(sn_arm_unmap(base) == 0);
  the_exclusive_arena_changes_whole();
  what_is_moved_in_is_copied_once();
  pieces_may_fail();
  memory_prepared_ahead_is_bounded_by_its_node();
  return 0;
}
