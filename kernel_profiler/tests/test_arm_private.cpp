// Memory that becomes private again: no more of it is writable than before, whatever another thread opens meanwhile, and
// nothing that a failed change left behind is taken for the program's bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "memory_check.h"

namespace {

constexpr uint64_t kPage = 4096;

int guarded;  // whether stores of other threads wait while memory changes its backing

long real_call(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// As /proc/self/maps has them, such as "---p".
std::string rights_at(uint64_t address) {
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != nullptr);
  char line[512], rights[8] = {}, found[8] = {};
  uint64_t from = 0, to = 0;
  while (fgets(line, sizeof line, maps) != nullptr)
    if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && from <= address && address < to) strcpy(found, rights);
  fclose(maps);
  return found;
}

// What counts against RLIMIT_DATA.
uint64_t private_bytes() {
  FILE *file = fopen("/proc/self/status", "r");
  CHECK(file != nullptr);
  char line[256];
  uint64_t kib = 0;
  while (fgets(line, sizeof line, file) != nullptr) sscanf(line, "VmData: %lu kB", &kib);
  fclose(file);
  return kib << 10;
}

void what_no_tensor_was_given_has_no_access() {
  create();
  const sn_range arena = exclusive();
  const uint64_t last = arena.base + arena.reserved_bytes - kPage;
  CHECK(rights_at(last) == "---p");
  void *before = sn_allocate_exclusive(kMiB);
  fill(before, kMiB, 1);
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
  void *meanwhile = sn_allocate_exclusive(70 * kMiB);
  fill(meanwhile, 70 * kMiB, 2);
  CHECK(sn_arm_unback() == 0);
  CHECK(rights_at(last) == "---p" && rights_at(arena.base + exclusive().used_bytes - kPage) == "rw-p");
  void *afterwards = sn_allocate_exclusive(70 * kMiB);
  fill(afterwards, 70 * kMiB, 3);
  CHECK(holds(before, kMiB, 1) && holds(meanwhile, 70 * kMiB, 2) && holds(afterwards, 70 * kMiB, 3));
  CHECK(rights_at(last) == "---p");
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);  // and once more
  CHECK(holds(before, kMiB, 1) && holds(meanwhile, 70 * kMiB, 2) && holds(afterwards, 70 * kMiB, 3));
  CHECK(sn_arm_unback() == 0 && rights_at(last) == "---p");
  for (void *each : {before, meanwhile, afterwards}) sn_free(each);
  CHECK(sn_memory_destroy() == 0);
}

// As after `ulimit -d`. Much less than the arena reserves.
void a_limit_on_private_memory_allows_afterwards_what_it_did_before() {
  constexpr uint64_t kLeft = 256 * kMiB;
  create();
  const sn_range arena = exclusive();
  void *tensor = sn_allocate_exclusive(kMiB);
  fill(tensor, kMiB, 4);
  rlimit had, few;
  CHECK(getrlimit(RLIMIT_DATA, &had) == 0);
  few = had;
  few.rlim_cur = private_bytes() + kLeft;
  CHECK(setrlimit(RLIMIT_DATA, &few) == 0);
  CHECK(sn_arm_back(arena.base, arena.reserved_bytes, guarded) == 0);
  CHECK(sn_arm_unback() == 0);
  void *block = mmap(nullptr, kLeft / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(block != MAP_FAILED);
  munmap(block, kLeft / 2);
  CHECK(setrlimit(RLIMIT_DATA, &had) == 0);
  CHECK(holds(tensor, kMiB, 4));
  sn_free(tensor);
  CHECK(sn_memory_destroy() == 0);
}

std::atomic<pthread_t> forking;
std::atomic<bool> closing{false};

// The thread that forks is slow as it closes what is not open: the owner has time to open more.
long closes_late(long number, const long a[6]) {
  if (number == SYS_mmap && a[2] == PROT_NONE && (a[3] & MAP_FIXED) != 0 &&
      pthread_equal(pthread_self(), forking) != 0) {
    closing = true;
    usleep(20000);
  }
  return real_call(number, a);
}

void more_is_opened_while_another_thread_forks() {
  constexpr int kRounds = 3;  // each changes all that the ones before opened
  constexpr uint64_t kPiece = 4 * kMiB, kPieces = 20;  // more than is opened at once
  if (guarded == 0) return;  // the owner could not be held back: then a child copies by itself
  create();
  const sn_range arena = exclusive();
  std::vector<char *> pieces;
  for (int round = 0; round < kRounds; round++) {
    CHECK(sn_arm_back(arena.base, arena.reserved_bytes, 1) == 0);
    closing = false;
    sn_system_replace(closes_late);
    std::thread other([] {
      forking = pthread_self();
      const pid_t child = fork();
      if (child == 0) _exit(0);
      int status = -1;
      CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
      closing = true;
    });
    while (!closing) usleep(100);
    for (uint64_t i = 0; i < kPieces; i++) {
      pieces.push_back(static_cast<char *>(sn_allocate_exclusive(kPiece)));
      CHECK(sn_memory_contains(reinterpret_cast<uint64_t>(pieces.back())) == 1);
      pieces.back()[0] = pieces.back()[kPiece - 1] = static_cast<char>(pieces.size());
    }
    other.join();
    sn_system_replace(nullptr);
    CHECK(sn_arm_unback() == 0);
    for (size_t i = 0; i < pieces.size(); i++)
      CHECK(pieces[i][0] == static_cast<char>(i + 1) && pieces[i][kPiece - 1] == static_cast<char>(i + 1));
  }
  for (char *piece : pieces) sn_free(piece);
  CHECK(sn_memory_destroy() == 0);
}

constexpr uint64_t kFails = 64 * kMiB, kCopied = 68 * kMiB;
std::atomic<bool> copied{false};

// Of what is written at [kFails, kCopied) nothing arrives, but what lies beyond does, if another thread copies it.
long fails_in_part(long number, const long a[6]) {
  if (number != SYS_pwrite64 || static_cast<uint64_t>(a[3]) < kFails) return real_call(number, a);
  if (static_cast<uint64_t>(a[3]) < kCopied) {
    for (int i = 0; i < 1000 && !copied; i++) usleep(1000);
    return -ENOSPC;
  }
  const long result = real_call(number, a);
  copied = true;
  return result;
}

void what_was_copied_in_vain_replaces_nothing(int held_back) {
  constexpr uint64_t kBytes = 128 * kMiB + kPage;  // which no huge pages fit, so it is written by system calls
  uint64_t base = 0;
  CHECK(sn_arm_map(kBytes, &base) == 0);
  auto *first = reinterpret_cast<volatile char *>(base + kFails + kMiB);
  auto *second = reinterpret_cast<volatile char *>(base + kCopied + 2 * kMiB);
  *first = 5;
  *second = 6;
  copied = false;
  sn_system_replace(fails_in_part);
  CHECK(sn_arm_back(base, kBytes, held_back) == -ENOSPC);
  sn_system_replace(nullptr);
  CHECK(*first == 5 && *second == 6);
  CHECK(sn_arm_unback() == 0 && *first == 5 && *second == 6);
  CHECK(sn_arm_unmap(base) == 0);
}

// Each call for the memory's policy fails in turn, and the program goes on with what is private by then.
void what_is_stored_after_a_failed_end_stays() {
  constexpr uint64_t kBytes = 6 * kMiB + kPage;  // which no huge pages fit, so nothing is prepared and all is a hole
  constexpr long kPreferred = 1;  // MPOL_PREFERRED
  uint64_t base = 0, failed = 0;
  CHECK(sn_arm_map(kBytes, &base) == 0);
  const unsigned long node = 1;  // the first
  if (syscall(SYS_mbind, base, kBytes, kPreferred, &node, 64, 0) == 0) {
    auto *word = reinterpret_cast<volatile uint64_t *>(base + kMiB);
    for (uint64_t n = 1, unused = 0; unused == 0; n++) {
      CHECK(madvise(reinterpret_cast<void *>(base), kBytes, MADV_DONTNEED) == 0);
      CHECK(sn_arm_back(base, kBytes, guarded) == 0);
      sn_system_fail(SYS_mbind, n, ENOMEM);
      failed += sn_arm_unback() != 0 ? 1 : 0;
      unused = sn_system_fail(-1, 0, 0);
      *word = n;
      CHECK(sn_arm_unback() == 0 && *word == n);
    }
    CHECK(failed > 0);
  }
  CHECK(sn_arm_unmap(base) == 0);
}

}  // namespace

int main() {
  guarded = sn_arm_guarded() == 0 ? 1 : 0;
  what_no_tensor_was_given_has_no_access();
  a_limit_on_private_memory_allows_afterwards_what_it_did_before();
  more_is_opened_while_another_thread_forks();
  what_was_copied_in_vain_replaces_nothing(0);
  if (guarded != 0) what_was_copied_in_vain_replaces_nothing(1);
  what_is_stored_after_a_failed_end_stays();
  return 0;
}
