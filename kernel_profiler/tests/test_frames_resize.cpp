// Frames that give their memory back to the kernel, and get memory again: what they held is elsewhere then, and right.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

// Memory by the kernel's own account, within 1 %.
bool has_memory_for(sn_frames *frames, uint64_t count) {
  const sn_frames_facts told = facts(frames);
  const uint64_t wanted = count * kGranule;
  return told.frames == count && told.pool_bytes >= wanted && told.pool_bytes - wanted <= wanted / 100;
}

void memory_goes_back_and_bytes_stay(uint32_t flags) {
  sn_frames_request request = request_of(8, 12, 12);
  request.flags = flags;
  sn_frames *frames = open_frames(request);
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 8) == 0);
  write_marks(base, 8, 5);
  CHECK(sn_frames_need(frames, base, kGranule, 0) == 0);  // the first one is needed again, and stays
  CHECK(sn_frames_resize(frames, 3) == 0 && has_memory_for(frames, 3));
  CHECK(counted(frames).written_bytes == 5 * kGranule && counted(frames).free_frames == 0);
  CHECK(state(frames, 0) == SN_GRANULE_DIRTY && state(frames, 1) == SN_GRANULE_AWAY && marks_hold(base, 8, 5));
  CHECK(sn_frames_need(frames, base, 4 * kGranule, 0) == -ENOSPC && sn_frames_attach(frames, 8, 4) == -ENOSPC);
  CHECK(sn_frames_need(frames, base + 5 * kGranule, 3 * kGranule, 1) == 0);
  CHECK(sn_frames_resize(frames, 8) == 0 && has_memory_for(frames, 8));
  CHECK(sn_frames_need(frames, base, 8 * kGranule, 1) == 0 && marks_hold(base, 8, 5));
  if ((flags & SN_FRAMES_SMALL_PAGES) != 0) CHECK(facts(frames).huge_frames == 0);
  CHECK(facts(frames).huge_frames <= 8);
  close_frames(frames);
}

void free_frames_go_first() {
  sn_frames *frames = open_frames(request_of(6, 6, 6));
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 2) == 0);
  write_marks(base, 2, 6);
  CHECK(sn_frames_resize(frames, 2) == 0 && counted(frames).written_bytes == 0 && has_memory_for(frames, 2));
  CHECK(sn_frames_resize(frames, 2) == 0 && state(frames, 1) == SN_GRANULE_DIRTY && marks_hold(base, 2, 6));
  close_frames(frames);
}

void some_may_have_no_memory_at_first() {
  sn_frames_request request = request_of(6, 8, 8);
  request.filled = 2;
  sn_frames *frames = open_frames(request);
  CHECK(has_memory_for(frames, 2) && counted(frames).free_frames == 2);
  CHECK(sn_frames_attach(frames, 0, 3) == -ENOSPC && sn_frames_attach(frames, 0, 2) == 0);
  CHECK(sn_frames_resize(frames, 7) == -ENOSPC && has_memory_for(frames, 6));  // as many as were asked for
  CHECK(sn_frames_resize(frames, 0) == -EINVAL && sn_frames_attach(frames, 2, 4) == 0);
  write_marks(facts(frames).base, 6, 8);
  CHECK(marks_hold(facts(frames).base, 6, 8));
  close_frames(frames);
  request.filled = 7;
  const char *step = "";
  CHECK(sn_frames_create(&request, &frames, &step) == -EINVAL);
}

void what_the_kernel_refuses_leaves_as_many_as_could() {
  sn_frames_request request = request_of(4, 4, 4);
  request.flags = SN_FRAMES_SMALL_PAGES;
  sn_frames *frames = open_frames(request);
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 4) == 0);
  write_marks(base, 4, 9);
  sn_system_fail(SYS_fallocate, 2, EIO);
  CHECK(sn_frames_resize(frames, 1) == -EIO && has_memory_for(frames, 3) && marks_hold(base, 4, 9));
  CHECK(sn_frames_resize(frames, 1) == 0 && has_memory_for(frames, 1));
  sn_system_fail(SYS_fallocate, 2, ENOMEM);
  CHECK(sn_frames_resize(frames, 4) == -ENOMEM && has_memory_for(frames, 2));
  sn_system_fail(SYS_fallocate, 1, EINTR);
  CHECK(sn_frames_resize(frames, 4) == 0 && has_memory_for(frames, 4));
  CHECK(sn_frames_need(frames, base, 4 * kGranule, 1) == 0 && marks_hold(base, 4, 9));
  close_frames(frames);
}

void a_child_sees_what_has_left() {
  sn_frames *frames = open_frames(request_of(6, 6, 6));
  const uint64_t base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 6) == 0);
  write_marks(base, 6, 4);
  CHECK(sn_frames_resize(frames, 2) == 0);
  const pid_t pid = fork();
  if (pid == 0) _exit(sn_frames_resize(frames, 4) == -ECHILD && marks_hold(base, 6, 4) ? 0 : 1);
  CHECK(sn_frames_resize(frames, 5) == 0);
  write_marks(base, 6, 3);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(has_memory_for(frames, 5) && marks_hold(base, 6, 3));
  close_frames(frames);
}

void others_go_on_meanwhile() {
  constexpr uint32_t kOf = 3, kThreads = 3;
  sn_frames *frames = open_frames(request_of(8, kOf * kThreads, kOf * kThreads));
  const uint64_t base = facts(frames).base;
  for (uint32_t i = 0; i < kThreads; i++) CHECK(sn_frames_attach(frames, i * kOf, kOf) == 0);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < kThreads; id++)
    threads.emplace_back([&, id] {
      const uint64_t mine = base + id * kOf * kGranule;
      write_marks(mine, kOf, id);
      for (uint64_t turn = 0; !done; turn++) {
        CHECK(sn_frames_need(frames, mine + turn % kOf * kGranule, kGranule, static_cast<int>(turn % 2)) == 0);
        CHECK(marks_hold(mine, kOf, id + turn * 8));
        write_marks(mine, kOf, id + (turn + 1) * 8);
      }
    });
  for (uint32_t turn = 0; turn < 30; turn++) CHECK(sn_frames_resize(frames, turn % 2 == 0 ? 2 : 8) == 0);
  done = true;
  for (std::thread &thread : threads) thread.join();
  CHECK(has_memory_for(frames, 8));
  close_frames(frames);
}

}  // namespace

int main() {
  memory_goes_back_and_bytes_stay(0);
  memory_goes_back_and_bytes_stay(SN_FRAMES_SMALL_PAGES);
  free_frames_go_first();
  some_may_have_no_memory_at_first();
  what_the_kernel_refuses_leaves_as_many_as_could();
  a_child_sees_what_has_left();
  others_go_on_meanwhile();
}
