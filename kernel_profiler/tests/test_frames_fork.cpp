// Forked children see what was there at the fork while their parent goes on, and hold nothing of its frames.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

constexpr uint32_t kFrames = 4, kGranules = 6;
uint64_t base;

// A child that says by its exit whether it saw `salt` everywhere, once the parent has let it.
struct Child {
  pid_t pid;
  int go[2];

  template <typename Body>
  explicit Child(Body body) {
    CHECK(pipe(go) == 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) return;
    alarm(600);  // a deadlock ends by this signal
    char byte;
    close(go[1]);
    if (read(go[0], &byte, 1) != 1) _exit(3);
    _exit(body() ? 0 : 2);
  }
  int end() {
    CHECK(write(go[1], "x", 1) == 1);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    close(go[0]);
    close(go[1]);
    return status;
  }
};

void attach_all(sn_frames *frames) {
  base = facts(frames).base;
  for (uint32_t i = 0; i < kGranules; i++) CHECK(sn_frames_attach(frames, i, 1) == 0);
}

void turn_all_over(sn_frames *frames) {
  for (uint32_t i = 0; i < kGranules; i++) CHECK(sn_frames_need(frames, base + i * kGranule, 1, 1) == 0);
  CHECK(leave(frames, 0, kGranules).stayed == 0);
}

// The file is sealed no more once the last process that looked at a child's memory, as `ps` does, has let go of it.
void no_generation_is_left(sn_frames *frames) {
  while (counted(frames).generations != 0) usleep(1000);
}

// Whoever stands in any state at the fork: dirty, clean, away, written to while clean or away.
void mix(sn_frames *frames, uint64_t salt) {
  write_marks(base, kGranules, salt);
  turn_all_over(frames);
  CHECK(sn_frames_need(frames, base, 2 * kGranule, 0) == 0);  // clean
  *word(base, 1, 7) = salt;
  CHECK(sn_frames_need(frames, base + 2 * kGranule, 2 * kGranule, 1) == 0);  // dirty
  *word(base, 3 * 512, 7) = salt;
  *word(base, 5 * 512 + 9, 7) = salt;  // away
}

bool holds(uint64_t salt) {
  return marks_hold(base, kGranules, salt) && *word(base, 1, 7) == salt && *word(base, 3 * 512, 7) == salt &&
         *word(base, 5 * 512 + 9, 7) == salt;
}

uint64_t pool_mapped() {
  FILE *file = fopen("/proc/self/maps", "r");
  uint64_t count = 0;
  for (char line[512]; file != nullptr && fgets(line, sizeof line, file) != nullptr;)
    count += strstr(line, "sentinel-frames") != nullptr ? 1 : 0;
  if (file != nullptr) fclose(file);
  return count;
}

void children_see_the_moment_of_their_fork() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, 4 * kGranules));
  attach_all(frames);
  for (uint64_t salt = 1; salt <= 3; salt++) {
    mix(frames, salt);
    const uint64_t before = counted(frames).fork_bytes;
    Child child([=] {
      if (!holds(salt) || pool_mapped() != 0) return false;
      if (sn_frames_release(frames, 0, 1) != -ECHILD || sn_frames_need(frames, base, 1, 1) != -ECHILD) return false;
      write_marks(base, kGranules, salt + 1000);  // its own affair
      return marks_hold(base, kGranules, salt + 1000);
    });
    CHECK(counted(frames).fork_bytes - before <= kFrames * kGranule && counted(frames).generations == 1);
    CHECK(holds(salt));
    mix(frames, salt + 100);  // and all of it is turned over
    const int status = child.end();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(holds(salt + 100));
  }
  turn_all_over(frames);
  no_generation_is_left(frames);
  CHECK(counted(frames).free_regions == 3 * kGranules);
  close_frames(frames);
}

// What a child takes is what stores had made beside the frames, not whole granules.
void children_copy_pages_not_granules() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, 2 * kGranules));
  attach_all(frames);
  mix(frames, 4);
  CHECK(sn_frames_need(frames, base, 2 * kGranule, 0) == 0);
  for (uint64_t page = 0; page < 1024; page += 100) *word(base, page, 5) = page;  // clean
  const uint64_t beside = anonymous_kib(base, base + kGranules * kGranule);
  CHECK(beside >= 11 * 4);
  Child child([=] {
    for (uint64_t page = 0; page < 1024; page += 100)
      if (*word(base, page, 5) != page) return false;
    return holds(4) && anonymous_kib(base, base + kGranules * kGranule) <= beside;
  });
  const int status = child.end();
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close_frames(frames);
}

// Each generation reads regions of its own: the file grows by them.
void generations_that_live_at_once_find_room() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, kGranules));
  attach_all(frames);
  std::vector<std::unique_ptr<Child>> children;
  for (uint64_t salt = 1; salt <= 4; salt++) {
    mix(frames, salt);
    children.push_back(std::make_unique<Child>([=] { return holds(salt); }));
  }
  mix(frames, 5);
  turn_all_over(frames);
  CHECK(counted(frames).generations == 4 && facts(frames).regions > kGranules);
  for (const auto &child : children) {
    const int status = child->end();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(holds(5));
  no_generation_is_left(frames);
  close_frames(frames);
}

long full(long number, const long a[6]) {
  if (number == SYS_fallocate) return -ENOSPC;
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// As eight workers of a DataLoader are: the file takes the frames once, also where it has no room for a second time.
void forks_in_a_row_write_once() {
  sn_frames *frames = open_frames(request_of(kFrames, kFrames, kFrames));
  base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, kFrames) == 0);
  write_marks(base, kFrames, 11);
  Child first([] { return marks_hold(base, kFrames, 11); });
  const uint64_t written = counted(frames).fork_bytes;
  CHECK(written == kFrames * kGranule);
  sn_system_replace(full);
  Child second([] { return marks_hold(base, kFrames, 11) && anonymous_kib(base, base + kFrames * kGranule) == 0; });
  sn_system_replace(nullptr);
  Child third([] { return marks_hold(base, kFrames, 11); });
  CHECK(counted(frames).fork_bytes == written && facts(frames).regions == kFrames);
  CHECK(counted(frames).generations == 3 && counted(frames).in_state[SN_GRANULE_CLEAN] == kFrames);
  for (Child *child : {&first, &second, &third}) {
    const int status = child->end();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(marks_hold(base, kFrames, 11));
  close_frames(frames);
}

// What stays private has stores found by its own pages, whoever makes them: they go to the file, come back, and are what
// the next child sees. None of them is the first child's affair.
void a_store_after_a_fork_is_not_lost() {
  sn_frames *frames = open_frames(request_of(kFrames, kFrames, 4 * kFrames));
  base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, kFrames) == 0);
  write_marks(base, kFrames, 12);
  for (uint64_t granule = 0; granule < kFrames; granule++) *word(base, granule * 512 + 7, 3) = 1;
  const auto sees = [](uint64_t value) {
    bool right = marks_hold(base, kFrames, 12);
    for (uint64_t granule = 0; granule < kFrames; granule++) right = right && *word(base, granule * 512 + 7, 3) == value;
    return right;
  };
  Child first([=] { return sees(1); });
  CHECK(counted(frames).in_state[SN_GRANULE_CLEAN] == kFrames);
  *word(base, 7, 3) = 2;  // by user code that announces nothing
  *word(base, 512 + 7, 3) = 2;
  std::thread([] { *word(base, 2 * 512 + 7, 3) = *word(base, 3 * 512 + 7, 3) = 2; }).join();
  Child second([=] { return sees(2); });
  CHECK(leave(frames, 0, kFrames).stayed == kFrames);  // each was written to
  CHECK(leave(frames, 0, kFrames).moved == kFrames);
  CHECK(sn_frames_need(frames, base, kFrames * kGranule, 0) == 0 && sees(2));
  for (Child *child : {&first, &second}) {
    const int status = child->end();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(sees(2));
  close_frames(frames);
}

// Where the disk has no more room for children, what cannot leave stays, and what cannot come is read where it is.
void a_full_disk_beside_children_costs_no_byte() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, kGranules));
  attach_all(frames);
  mix(frames, 1);
  turn_all_over(frames);
  Child child([=] { return holds(1); });
  sn_system_replace(full);
  write_marks(base, kGranules, 2);
  CHECK(sn_frames_need(frames, base, kFrames * kGranule, 1) == 0);
  CHECK(sn_frames_need(frames, base + kFrames * kGranule, 2 * kGranule, 1) == -ENOSPC);
  CHECK(marks_hold(base, kGranules, 2));
  sn_system_replace(nullptr);
  CHECK(sn_frames_need(frames, base + kFrames * kGranule, 2 * kGranule, 1) == 0);
  CHECK(marks_hold(base, kGranules, 2));
  const int status = child.end();
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close_frames(frames);
}

void regions_are_kept_for_grandchildren_too() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, 2 * kGranules));
  attach_all(frames);
  mix(frames, 5);
  int go[2], told[2];
  CHECK(pipe(go) == 0 && pipe(told) == 0);
  Child child([&] {  // it ends at once; its own child, which closes all else that it has inherited, lives on
    if (fork() != 0) return holds(5);
    for (int fd = 3; fd < 256; fd++)
      if (fd != go[0] && fd != told[1]) close(fd);
    char byte;
    const char right = read(go[0], &byte, 1) == 1 && holds(5) ? 'y' : 'n';
    _exit(write(told[1], &right, 1) == 1 ? 0 : 1);
  });
  const int status = child.end();
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (int i = 0; i < 4; i++) mix(frames, 6);  // what is free is written
  CHECK(counted(frames).generations == 1);
  char right = 0;
  CHECK(write(go[1], "x", 1) == 1 && read(told[0], &right, 1) == 1 && right == 'y');
  no_generation_is_left(frames);  // nor are they kept when it is gone
  for (const int fd : {go[0], go[1], told[0], told[1]}) close(fd);
  close_frames(frames);
}

long fails_at = -1;           // the place of the file that cannot be written, once it is known
std::vector<long> written_at;

// The first place that is written is a bad one, and it is so at the fork only.
long bad_once(long number, const long a[6]) {
  if (number == SYS_pwritev && fails_at < 0) {
    fails_at = a[3];
    return -EIO;
  }
  if (number == SYS_pwritev) written_at.push_back(a[3]);
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

void a_place_that_a_fork_could_not_write_is_not_written_again() {
  sn_frames_request request = request_of(kFrames, kGranules, 4 * kGranules);
  request.writers = 1;  // the hook is called by one thread
  sn_frames *frames = open_frames(request);
  base = facts(frames).base;
  CHECK(sn_frames_attach(frames, 0, 1) == 0);
  write_marks(base, 1, 7);
  sn_system_replace(bad_once);
  Child child([=] { return marks_hold(base, 1, 7); });
  CHECK(fails_at >= 0);
  CHECK(leave(frames, 0, 1).moved == 1);
  sn_system_replace(nullptr);
  CHECK(!written_at.empty());
  for (const long at : written_at) CHECK(at != fails_at);
  CHECK(marks_hold(base, 1, 7));
  const int status = child.end();
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close_frames(frames);
}

// Other threads store while a fork is under way: each word that the child sees is one that was there, and the parent
// loses none.
void threads_store_while_others_fork() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, 6 * kGranules));
  attach_all(frames);
  write_marks(base, kGranules, 8);
  for (uint64_t page = 0; page < kGranules * 512; page++) *word(base, page, 1) = 0;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> round{0};
  std::thread writer([&] {
    while (!stop.load()) {
      const uint64_t now = ++round;
      for (uint64_t page = 0; page < kGranules * 512; page += 3)
        __atomic_store_n(word(base, page, 1), now, __ATOMIC_RELAXED);
    }
  });
  for (int i = 0; i < 4; i++) {
    const uint64_t least = round.load();
    Child child([=] {
      uint64_t last = UINT64_MAX, steps = 0;  // a snapshot: one place at which the round changes
      for (uint64_t page = 0; page < kGranules * 512; page += 3) {
        const uint64_t now = __atomic_load_n(word(base, page, 1), __ATOMIC_RELAXED);
        if (now + 1 < least || now > last) return false;
        steps += last != UINT64_MAX && now != last ? 1 : 0;
        last = now;
      }
      return steps <= 1 && marks_hold(base, kGranules, 8);
    });
    for (uint32_t g = 0; g < kGranules; g++) {
      const int error = sn_frames_need(frames, base + g * kGranule, 1, 1);
      CHECK(error == 0 || error == -EAGAIN);
    }
    const int status = child.end();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  writer.join();
  for (uint64_t page = 0; page < kGranules * 512; page += 3) CHECK(*word(base, page, 1) == round.load());
  close_frames(frames);
}

void a_thread_forks_while_another_turns_over() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, 6 * kGranules));
  attach_all(frames);
  write_marks(base, kGranules, 9);
  std::atomic<bool> stop{false};
  std::thread turner([&] {
    for (uint32_t i = 0; !stop.load(); i = (i + 1) % kGranules)
      CHECK(sn_frames_need(frames, base + i * kGranule, 1, static_cast<int>(i % 2)) == 0);
  });
  for (int i = 0; i < 3; i++) {
    Child child([] { return marks_hold(base, kGranules, 9); });
    const int status = child.end();
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  turner.join();
  CHECK(marks_hold(base, kGranules, 9));
  close_frames(frames);
}

// Each call at a fork fails in turn. The parent is always right; a child is, or ends itself and says so.
void a_fork_survives_each_failing_call() {
  uint64_t right = 0, ended = 0;
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, 12 * kGranules));
  attach_all(frames);
  uint64_t n = 1;
  for (;; n += n < 24 ? 1 : 7) {
    mix(frames, n);
    sn_system_fail(-1, n, EIO);
    const pid_t pid = fork();
    if (pid == 0) {
      sn_system_fail(-1, 0, 0);
      alarm(600);
      _exit(holds(n) ? 0 : 2);
    }
    const bool used_up = sn_system_fail(-1, 0, 0) == 0;
    CHECK(pid > 0);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) fprintf(stderr, "call %lu: status %x\n", n, status);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    (WEXITSTATUS(status) == 0 ? right : ended)++;
    CHECK(holds(n));
    if (!used_up) break;
  }
  printf("%lu children were right, %lu ended themselves, up to call %lu\n", right, ended, n);
  CHECK(n > 20 && right > ended);
  close_frames(frames);
}

// The sanitizers' own handlers would be in the way of a process that the C library knows nothing of.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void a_bare_clone_faults() {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, kGranules));
  attach_all(frames);
  write_marks(base, kGranules, 3);
  leave(frames, 0, 1);
  for (const uint64_t granule : {uint64_t{0}, uint64_t{5}}) {
    const long pid = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    CHECK(pid >= 0);
    if (pid == 0) syscall(SYS_exit_group, *word(base, granule * 512, 0) == mark(granule * 512, 3) ? 0 : 1);
    int status = 0;
    CHECK(waitpid(static_cast<pid_t>(pid), &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  }
  CHECK(marks_hold(base, kGranules, 3));
  close_frames(frames);
}
#else
void a_bare_clone_faults() {}
#endif

}  // namespace

int main() {
  children_see_the_moment_of_their_fork();
  children_copy_pages_not_granules();
  generations_that_live_at_once_find_room();
  forks_in_a_row_write_once();
  a_store_after_a_fork_is_not_lost();
  a_full_disk_beside_children_costs_no_byte();
  regions_are_kept_for_grandchildren_too();
  a_place_that_a_fork_could_not_write_is_not_written_again();
  threads_store_while_others_fork();
  a_thread_forks_while_another_turns_over();
  a_fork_survives_each_failing_call();
  a_bare_clone_faults();
  return 0;
}
