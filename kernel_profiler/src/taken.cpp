// Pages that several processes map are divided among them (Pss), so that the sum over a family counts each once.
#include "taken.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr int kMostProcesses = 4096;  // of a family

struct Account {
  uint64_t others = 0, shared = 0;  // bytes: of shared memory, and of all else
};

// What /proc tells of a process, added. False: nothing, as of one that has ended or is somebody else's.
bool add_process(long pid, Account *sum) {
  char path[64], text[4096];
  snprintf(path, sizeof path, "/proc/%ld/smaps_rollup", pid);
  if (sn::read_small(path, text, sizeof text) <= 0) return false;
  const int64_t anonymous = sn::number_after(text, "Pss_Anon:"), files = sn::number_after(text, "Pss_File:");
  const int64_t shared = sn::number_after(text, "Pss_Shmem:");
  if (anonymous < 0 || files < 0 || shared < 0) return false;
  snprintf(path, sizeof path, "/proc/%ld/status", pid);
  const int64_t tables = sn::read_small(path, text, sizeof text) > 0 ? sn::number_after(text, "VmPTE:") : 0;
  sum->others += static_cast<uint64_t>(anonymous + files + std::max<int64_t>(tables, 0)) << 10;
  sum->shared += static_cast<uint64_t>(shared) << 10;
  return true;
}

void add_children(long pid, Account *sum, int *left);

// The children of one thread.
void add_listed(const char *path, Account *sum, int *left) {
  char text[4096];
  if (sn::read_small(path, text, sizeof text) <= 0) return;
  char *at = text;
  for (char *end = at;; at = end) {
    const long child = strtol(at, &end, 10);
    if (end == at || *end != ' ' || *left == 0) return;  // each ends with a blank: else it is cut short
    (*left)--;
    add_process(child, sum);
    add_children(child, sum, left);
  }
}

void add_children(long pid, Account *sum, int *left) {
  char path[128];
  snprintf(path, sizeof path, "/proc/%ld/task", pid);
  DIR *const tasks = opendir(path);
  if (tasks == nullptr) return;
  while (const dirent *entry = readdir(tasks)) {
    const long thread = strtol(entry->d_name, nullptr, 10);
    if (thread == 0) continue;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", pid, thread);
    add_listed(path, sum, left);
  }
  closedir(tasks);
}

}  // namespace

namespace sn {

long read_small(const char *path, char *text, size_t room) {
  const long fd = sn_system(SYS_openat, AT_FDCWD, arg(path), O_RDONLY | O_CLOEXEC, 0, 0, 0);
  if (fd < 0) return fd;
  size_t filled = 0;
  long got = 0;
  while (filled < room - 1) {  // some files of the kernel come in pieces
    got = sn_system(SYS_read, fd, arg(text + filled), static_cast<long>(room - 1 - filled), 0, 0, 0);
    if (got == -EINTR) continue;
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  text[filled] = 0;
  ::close(static_cast<int>(fd));
  return got < 0 ? got : static_cast<long>(filled);
}

int64_t number_after(const char *text, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = strstr(text, name); at != nullptr; at = strstr(at + 1, name))
    if (at == text || at[-1] == '\n') return strtoll(at + length, nullptr, 10);
  return -1;
}

ResidentPages resident_pages(const char *statm) {
  char *at = nullptr;
  strtoll(statm, &at, 10);  // the size of its addresses
  const int64_t all = strtoll(at, &at, 10);
  return {strtoll(at, nullptr, 10), all};
}

int64_t taken_bytes(uint64_t frames_bytes) {
  Account own;
  if (!add_process(getpid(), &own)) return -EOPNOTSUPP;
  own.shared -= std::min(own.shared, frames_bytes);
  int left = kMostProcesses;
  add_children(getpid(), &own, &left);
  return static_cast<int64_t>(own.others + own.shared);
}

int64_t anonymous_bytes() {
  char text[128];
  if (read_small("/proc/self/statm", text, sizeof text) <= 0) return -1;
  return resident_pages(text).anonymous() * static_cast<int64_t>(kPage);
}

}  // namespace sn

extern "C" int64_t sn_taken_bytes(uint64_t frames_bytes) { return sn::taken_bytes(frames_bytes); }
