// What is needed now overtakes what was to be read ahead, and a fork does not wait for it. The disk stands still until
// whoever is to overtake sleeps, so that nothing hangs on time.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

std::atomic<bool> still{false};
std::atomic<uint32_t> reads{0};
std::mutex mutex;
std::vector<uint64_t> offsets;  // of reads, in order

long system_call(long number, const long a[6]) {
  if (number == SYS_preadv) {
    {
      const std::lock_guard lock(mutex);
      offsets.push_back(static_cast<uint64_t>(a[3]));
    }
    reads++;
    while (still) usleep(100);
  }
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

bool sleeps(pid_t thread) {
  char path[64], text[512] = {};
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  CHECK(read(fd, text, sizeof text - 1) > 0);
  close(fd);
  const char *const name = strrchr(text, ')');
  return name != nullptr && name[2] == 'S';
}

// Sleeps ten times in a row: it does not for anything else.
void wait_until_it_sleeps(const std::atomic<pid_t> &thread) {
  for (int in_a_row = 0; in_a_row < 10; usleep(1000)) in_a_row = thread != 0 && sleeps(thread) ? in_a_row + 1 : 0;
}

void stop_the_disk() {
  {
    const std::lock_guard lock(mutex);
    offsets.clear();
  }
  reads = 0;
  still = true;
}

void what_is_needed_overtakes_what_is_read_ahead() {
  constexpr uint32_t kGranules = 32;
  sn_frames_request request = request_of(2 * kGranules, kGranules, kGranules);
  request.readers = 1;
  sn_frames *const frames = open_frames(request);
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, kGranules) == 0);
  write_marks(base, kGranules, 5);
  CHECK(leave(frames, 0, kGranules).moved == kGranules);
  stop_the_disk();
  std::vector<int64_t> orders;
  for (uint32_t i = 0; i < kGranules; i++) orders.push_back(sn_frames_arrive(frames, i, 1, 0));
  while (reads == 0) usleep(100);
  std::atomic<pid_t> id{0};
  std::thread needs([&] {
    id = gettid();
    CHECK(sn_frames_need(frames, base + (kGranules - 3) * kGranule, 3 * kGranule, SN_READS) == 0);
  });
  wait_until_it_sleeps(id);
  still = false;
  needs.join();
  for (const int64_t order : orders) CHECK(collect(frames, order).moved == 1);
  CHECK(offsets.size() == kGranules);
  const uint64_t first = offsets[0];  // was under way
  CHECK(offsets[1] == first + (kGranules - 3) * kGranule && offsets[2] == offsets[1] + kGranule);
  CHECK(offsets[3] == offsets[2] + kGranule && offsets[4] == first + kGranule);
  CHECK(marks_hold(base, kGranules, 5));
  close_frames(frames);
}

// 80 tensors in 64 frames, of which 16 are read ahead of their use.
void a_fork_does_not_wait_for_what_is_read_ahead() {
  constexpr uint32_t kTensors = 80, kFrames = 64, kReaders = 2, kSome = 6;
  create();
  sn_frames *made = open_frames(request_of(kFrames, 128, 128));
  CHECK(sn_framed_begin(&made, SN_FRAMED_LEAST_BYTES) == 0);
  std::vector<uint8_t *> tensors;
  for (uint32_t i = 0; i < kTensors; i++) {
    tensors.push_back(static_cast<uint8_t *>(sn_allocate(kGranule)));
    fill_ends(tensors[i], kGranule, static_cast<uint8_t>(i));
  }
  sn_framed_ahead told;
  const auto under_way = [&] {
    CHECK(sn_framed_ahead_count(&told) == 0);
    return told.under_way;
  };
  const auto use = [&](uint32_t i, bool slowly) {
    const sn_framed_operand operand = {reinterpret_cast<uintptr_t>(tensors[i]), kGranule, SN_READS, 0};
    const int found = sn_framed_need(&operand, 1, "aten::test");
    while (slowly && under_way() != 0) usleep(100);
    CHECK(ends_hold(tensors[i], kGranule, static_cast<uint8_t>(i)));
    if (found == 2) sn_framed_ran();
  };
  const auto step = [&] {
    CHECK(sn_framed_step() == 0);
    for (uint32_t i = 0; i < kTensors; i++) use(i, true);
  };
  for (int i = 0; i < 4; i++) step();
  CHECK(sn_framed_step() == 0 && under_way() == 0 && told.follows == 1);
  stop_the_disk();
  for (uint32_t i = 0; under_way() < kSome; i++) {  // each lets one more come, and is there itself
    CHECK(i < 2 * kSome);
    use(i, false);
  }
  const uint64_t waiting = told.under_way;
  std::atomic<pid_t> id{gettid()};
  std::thread starts([&] {
    wait_until_it_sleeps(id);
    still = false;
  });
  const pid_t pid = fork();
  if (pid == 0) {
    bool fine = true;
    for (uint32_t i = 0; i < kTensors; i++) fine = fine && ends_hold(tensors[i], kGranule, static_cast<uint8_t>(i));
    _exit(fine ? 0 : 1);
  }
  const uint32_t read = reads;
  starts.join();
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  fprintf(stderr, "%lu granules were under way; %u reads before the fork was over\n", waiting, read);
  CHECK(read <= kReaders);
  for (int i = 0; i < 3; i++) step();  // what was called off comes once more
  for (uint8_t *tensor : tensors) sn_free(tensor);
  CHECK(sn_framed_end() == 0);
}

}  // namespace

int main() {
  sn_system_replace(system_call);
  what_is_needed_overtakes_what_is_read_ahead();
  a_fork_does_not_wait_for_what_is_read_ahead();
  sn_system_replace(nullptr);
}
