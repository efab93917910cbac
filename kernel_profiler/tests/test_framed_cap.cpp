// Frames become fewer as the rest of the process grows, and more again; tensors keep their bytes meanwhile.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "frames_check.h"

namespace {

constexpr uint64_t kTensor = 3 * kMiB;
constexpr int kCalm = 10;  // looks with room before there are more frames

class Tensors {
 public:
  Tensors(uint32_t most, uint32_t filled, int count, uint32_t flags = 0) {
    sn_frames_request request = request_of(most, 64, 64);
    request.flags = flags;
    request.filled = filled;
    sn_frames *frames = open_frames(request);
    CHECK(sn_framed_begin(&frames, SN_FRAMED_LEAST_BYTES) == 0);
    for (int i = 0; i < count; i++) {
      held_.push_back(static_cast<uint8_t *>(sn_allocate(kTensor)));
      fill(held_.back(), kTensor, i);
    }
  }

  // One operator, which looks.
  void look() {
    sn_framed_look();
    need(turn_++ % held_.size());
  }

  // Each is brought in before: what the kernel reads where it is away would be taken beside the frames.
  void hold() {
    for (size_t i = 0; i < held_.size(); i++) {
      need(i);
      CHECK(holds(held_[i], kTensor, static_cast<int>(i)));
    }
  }

  ~Tensors() {
    hold();
    for (uint8_t *tensor : held_) sn_free(tensor);
    CHECK(sn_framed_end() == 0);
  }

 private:
  void need(size_t which) {
    const sn_framed_operand operand = {reinterpret_cast<uintptr_t>(held_[which]), kTensor, 1, 0};
    sn_framed_need(&operand, 1, "aten::test");
  }

  std::vector<uint8_t *> held_;
  size_t turn_ = 0;
};

sn_framed_cap_counters told() {
  sn_framed_cap_counters now;
  CHECK(sn_framed_cap_count(&now) == 0);
  return now;
}

uint64_t taken(uint32_t frames) {
  const int64_t bytes = sn_taken_bytes(frames * kGranule);
  CHECK(bytes > 0);
  return static_cast<uint64_t>(bytes);
}

void *populated(uint64_t nbytes) {
  void *const at = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

// A child that holds so much of its own until it is killed.
pid_t child_with(uint64_t nbytes) {
  int ready[2];
  CHECK(pipe(ready) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    populated(nbytes);
    CHECK(write(ready[1], "", 1) == 1);
    pause();
    _exit(0);
  }
  char byte;
  CHECK(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  close(ready[1]);
  return pid;
}

void end_child(pid_t pid) {
  CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, nullptr, 0) == pid);
}

void what_a_family_takes_is_counted_once() {
  void *const shared = populated(32 * kMiB);  // by a child too, which copies none of it
  const uint64_t before = taken(0);
  const pid_t pid = child_with(48 * kMiB);
  const uint64_t with = taken(0);
  CHECK(with >= before + 48 * kMiB && with < before + (48 + 28) * kMiB);
  end_child(pid);
  CHECK(taken(0) < before + 16 * kMiB);
  munmap(shared, 32 * kMiB);
  CHECK(taken(0) < before - 16 * kMiB);
}

long populates_nothing(long number, const long a[6]) {
  if (number == SYS_madvise && a[2] == 23) return -EINVAL;  // MADV_POPULATE_WRITE, as before Linux 5.14
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// What the frames take is left out; other shared memory is not, though nobody has used a frame yet.
void shared_memory_is_not_taken_for_frames(sn_system_call system) {
  sn_system_replace(system);
  sn_frames_request request = request_of(24, 24, 24);
  request.flags = SN_FRAMES_SMALL_PAGES;
  sn_frames *frames = open_frames(request);
  sn_system_replace(nullptr);
  const uint64_t before = taken(24);
  void *const shared = mmap(nullptr, 32 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(shared != MAP_FAILED && taken(24) >= before + 28 * kMiB);
  munmap(shared, 32 * kMiB);
  close_frames(frames);
}

void the_pool_follows_the_process() {
  Tensors tensors(24, 24, 14);
  tensors.look();  // there is no cap yet
  CHECK(told().looks == 0 && told().frames == 24 && told().least_frames == 24);
  sn_framed_cap cap{};
  cap.spare_bytes = 8 * kMiB;
  cap.cap_bytes = taken(24) + 24 * kGranule + cap.spare_bytes + 4 * kMiB;
  cap.least_frames = 4;
  cap.most_frames = 24;
  CHECK(sn_framed_follow(&cap) == 0);
  tensors.look();
  CHECK(told().looks == 1 && told().frames >= 20 && told().over_bytes == 0);
  void *const other = populated(28 * kMiB);
  tensors.look();
  CHECK(told().frames <= 14 && told().frames > 4 && told().least_frames == told().frames);
  tensors.hold();
  const pid_t pid = child_with(40 * kMiB);
  tensors.look();
  CHECK(told().frames == 4 && told().over_bytes > 0 && told().most_taken_bytes >= told().taken_bytes);
  end_child(pid);
  munmap(other, 28 * kMiB);
  for (int i = 1; i < kCalm; i++) tensors.look();
  CHECK(told().frames == 4);
  tensors.look();
  CHECK(told().frames >= 18 && told().failed == 0);
  const uint64_t looks = told().looks;
  sn_framed_look();
  CHECK(sn_framed_need(nullptr, 0, "aten::test") == 0 && told().looks == looks + 1);  // it has no operand in frames
  const uint32_t frames = told().frames;
  for (int i = 0; i <= kCalm; i++) {  // what is taken is not known
    sn_system_fail(SYS_openat, 1, EMFILE);
    tensors.look();
  }
  CHECK(told().frames == frames && told().looks == looks + 1);
}

void put(const char *name, const std::string &text) {
  FILE *const file = fopen(name, "w");
  CHECK(file != nullptr && fputs(text.c_str(), file) >= 0 && fclose(file) == 0);
}

std::string mib(uint64_t count) { return std::to_string(count * kMiB) + "\n"; }

constexpr sn_framed_group kGroup = {"cap.limit", "cap.used", "cap.stat", "inactive_file", "active_file"};

void the_pool_follows_a_cgroup() {
  put("cap.limit", mib(1000));
  put("cap.used", mib(990));
  put("cap.stat", "anon 5\ntotal_inactive_file 7\ninactive_file " + mib(4) + "active_file " + mib(100));
  sn_framed_cap cap{};
  cap.least_frames = 2;
  cap.most_frames = 24;
  cap.groups = &kGroup;
  cap.n_groups = 1;
  cap.sharers = 1;
  Tensors tensors(24, 10, 12);
  CHECK(sn_framed_follow(&cap) == 0);
  for (int i = 0; i < kCalm; i++) {
    CHECK(told().frames == 10);
    tensors.look();
  }
  CHECK(told().frames == 17);  // 14 MiB of room
  put("cap.used", mib(1010));  // 6 too much
  tensors.look();
  CHECK(told().frames == 14 && told().taken_bytes == (1010 - 4 - 34) * kMiB);
  cap.sharers = 2;
  CHECK(sn_framed_follow(&cap) == 0);
  put("cap.used", mib(1012));  // 8 too much, of two processes
  tensors.look();
  CHECK(told().frames == 12);
  put("cap.limit", "max\n");
  tensors.look();
  CHECK(told().frames == 12);
  put("cap.limit", mib(1000));
  put("cap.used", mib(1088));  // 80 of them in the page cache, by files that are read again and again
  put("cap.stat", "inactive_file " + mib(4) + "active_file " + mib(180));
  tensors.look();
  CHECK(told().frames == 11);
  put("cap.limit", mib(10));
  tensors.look();
  CHECK(told().frames == 2 && told().over_bytes > 0);
  for (const char *name : {"cap.limit", "cap.used", "cap.stat"}) CHECK(unlink(name) == 0);
  tensors.look();
  CHECK(told().frames == 2 && told().most_frames == 17 && told().least_frames == 2);
}

// A neighbour fills the group around ours, which had more room than ours at the start.
void the_cgroup_that_allows_least_counts() {
  put("cap.limit", mib(1000));
  put("cap.used", mib(1000));
  put("cap.stat", "inactive_file 0\nactive_file 0\n");
  put("around.limit", mib(5000));
  put("around.used", mib(4000));
  put("around.stat", "inactive_file " + mib(4) + "active_file 0\n");
  const sn_framed_group groups[] = {kGroup, {"around.limit", "around.used", "around.stat", "inactive_file", "active_file"}};
  sn_framed_cap cap{};
  cap.least_frames = 2;
  cap.most_frames = 24;
  cap.groups = groups;
  cap.n_groups = 2;
  Tensors tensors(24, 10, 12);
  CHECK(sn_framed_follow(&cap) == 0);
  tensors.look();
  CHECK(told().frames == 10 && told().taken_bytes == (1000 - 20) * kMiB);
  put("around.used", mib(5010));  // 6 too much
  tensors.look();
  CHECK(told().frames == 7 && told().taken_bytes == (5010 - 4 - 20) * kMiB);
  put("around.limit", "max\n");
  put("cap.used", mib(1004));
  tensors.look();
  CHECK(told().frames == 5);
  for (const char *name : {"cap.limit", "cap.used", "cap.stat", "around.limit", "around.used", "around.stat"})
    CHECK(unlink(name) == 0);
}

void refused_memory_is_told_and_asked_for_again() {
  put("cap.limit", mib(1000));
  put("cap.used", mib(900));
  sn_framed_cap cap{};
  cap.least_frames = 2;
  cap.most_frames = 8;
  const sn_framed_group group = {"cap.limit", "cap.used", "cap.none", "inactive_file", "active_file"};
  cap.groups = &group;
  cap.n_groups = 1;
  Tensors tensors(8, 4, 4, SN_FRAMES_SMALL_PAGES);
  CHECK(sn_framed_follow(&cap) == 0);
  for (int i = 1; i < kCalm; i++) tensors.look();
  sn_system_fail(SYS_fallocate, 1, ENOMEM);
  tensors.look();
  CHECK(told().frames == 4 && told().failed == 1 && told().failure == ENOMEM);
  for (int i = 0; i < kCalm; i++) tensors.look();
  CHECK(told().frames == 8);
  unlink("cap.limit");
  unlink("cap.used");
}

void what_means_nothing_is_refused() {
  sn_framed_cap cap{};
  cap.cap_bytes = 10;
  CHECK(sn_framed_follow(&cap) == -EINVAL);
  cap.least_frames = 2;
  cap.most_frames = 1;
  CHECK(sn_framed_follow(&cap) == -EINVAL);
  cap.most_frames = 2;
  cap.spare_bytes = 11;
  CHECK(sn_framed_follow(&cap) == -EINVAL);
}

}  // namespace

int main() {
  create();
  what_a_family_takes_is_counted_once();
  shared_memory_is_not_taken_for_frames(nullptr);
  shared_memory_is_not_taken_for_frames(populates_nothing);
  the_pool_follows_the_process();
  the_pool_follows_a_cgroup();
  the_cgroup_that_allows_least_counts();
  refused_memory_is_told_and_asked_for_again();
  what_means_nothing_is_refused();
}
