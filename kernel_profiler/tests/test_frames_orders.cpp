// Threads that turn over the same granules at once: no store is lost, no frame is lost, and who needs room gets it.
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

// Transfers of a granule's region are made, and then do not return before they are let. Granules have the regions of
// their own numbers until a child reads them.
constexpr uint32_t kMost = 12;
std::atomic<bool> held[kMost];
std::atomic<int> begun[kMost];

long holds(long number, const long a[6]) {
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const long told = result == -1 ? -errno : result;
  if (number != SYS_preadv && number != SYS_pwritev) return told;
  const uint64_t region = static_cast<uint64_t>(a[3]) / kGranule;
  CHECK(region < kMost);
  begun[region]++;
  while (held[region].load()) sched_yield();
  return told;
}

void hold(uint32_t granule) {
  begun[granule] = 0;
  held[granule] = true;
}

void wait_until_begun(uint32_t granule) {
  while (begun[granule].load() == 0) sched_yield();
}

// A thread that says who it is, calls, and can be seen to sleep in what it called.
class Caller {
 public:
  template <typename Body>
  explicit Caller(Body body)
      : thread_([this, body] {
          tid_ = static_cast<int>(syscall(SYS_gettid));
          body();
          done_ = true;
        }) {}
  ~Caller() { thread_.join(); }

  void wait_until_asleep() {
    for (int seen = 0; seen < 20 && !done_.load(); usleep(1000)) seen = state() == 'S' ? seen + 1 : 0;
  }

 private:
  char state() {
    char path[64], line[512] = {};
    if (tid_.load() == 0) return '?';
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid_.load());
    FILE *file = fopen(path, "r");
    if (file == nullptr) return '?';
    const char *told = fgets(line, sizeof line, file);
    fclose(file);
    const char *after = told != nullptr ? strrchr(line, ')') : nullptr;
    return after != nullptr ? after[2] : '?';
  }

  std::atomic<int> tid_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

void an_order_that_begins_while_need_waits_is_waited_for() {
  for (const bool arrives : {false, true}) {
    sn_frames *frames = open_frames(request_of(4, 2, 2));
    const uint64_t base = facts(frames).base;
    CHECK(sn_frames_attach(frames, 0, 2) == 0);
    write_marks(base, 2, 1);
    if (arrives) CHECK(leave(frames, 0, 1).moved == 1);
    sn_system_replace(holds);
    hold(1);
    const int64_t behind = sn_frames_leave(frames, 1, 1);
    wait_until_begun(1);
    int64_t other = 0;
    {
      Caller needs([=] {
        CHECK(sn_frames_need(frames, base, 2 * kGranule, 1) == 0);
        *word(base, 0, 9) = 4711;
      });
      needs.wait_until_asleep();  // it has looked at granule 0, and waits for granule 1
      hold(0);
      other = arrives ? sn_frames_arrive(frames, 0, 1, 1) : sn_frames_leave(frames, 0, 1);
      wait_until_begun(0);
      held[1] = false;
      needs.wait_until_asleep();
      held[0] = false;
    }
    collect(frames, behind);
    collect(frames, other);
    sn_system_replace(nullptr);
    CHECK(*word(base, 0, 9) == 4711 && marks_hold(base, 2, 1));
    CHECK(counted(frames).free_frames == 2 && state(frames, 0) == SN_GRANULE_DIRTY);
    close_frames(frames);
  }
}

void need_waits_for_frames_that_are_on_their_way() {
  sn_frames *frames = open_frames(request_of(2, 4, 4));
  const uint64_t base = facts(frames).base;
  for (uint32_t i = 0; i < 4; i++) CHECK(sn_frames_attach(frames, i, 1) == 0);
  write_marks(base, 4, 2);
  CHECK(leave(frames, 0, 4).stayed == 0);
  sn_system_replace(holds);
  hold(0);
  const int64_t arriving = sn_frames_arrive(frames, 0, 2, 0);
  wait_until_begun(0);
  {
    Caller needs([=] { CHECK(sn_frames_need(frames, base + 2 * kGranule, 2 * kGranule, 0) == 0); });
    needs.wait_until_asleep();
    held[0] = false;
  }
  sn_system_replace(nullptr);
  CHECK(collect(frames, arriving).moved == 2);
  CHECK(state(frames, 0) == SN_GRANULE_AWAY && state(frames, 3) == SN_GRANULE_CLEAN && marks_hold(base, 4, 2));
  close_frames(frames);
}

void what_is_released_is_not_written() {
  sn_frames_request request = request_of(12, 12, 12);
  request.readers = request.writers = 1;
  sn_frames *frames = open_frames(request);
  CHECK(sn_frames_attach(frames, 0, 12) == 0);
  write_marks(facts(frames).base, 12, 3);
  sn_system_replace(holds);
  hold(0);
  const int64_t leaving = sn_frames_leave(frames, 0, 12);
  wait_until_begun(0);
  {
    Caller releases([=] { CHECK(sn_frames_release(frames, 1, 8) == 0); });
    releases.wait_until_asleep();
    held[0] = false;
  }
  sn_system_replace(nullptr);
  const sn_frames_result done = collect(frames, leaving);
  // The pieces of granules 0 and 1, 8 and 9, 10 and 11; those between were cut.
  CHECK(done.moved == 6 && done.stayed == 6 && done.error == ECANCELED);
  CHECK(counted(frames).written_bytes == 6 * kGranule && counted(frames).free_regions == 8);
  for (const uint32_t kept : {0u, 9u, 10u, 11u}) {
    CHECK(state(frames, kept) == SN_GRANULE_AWAY);
    for (uint64_t page = kept * 512; page < (kept + 1) * 512; page++)
      CHECK(*word(facts(frames).base, page, 0) == mark(page, 3));
  }
  close_frames(frames);
}

// All at once: some need, some let leave or arrive, some release and attach again, some store.
constexpr uint32_t kFrames = 5, kShared = 6, kOwned = 3;
constexpr int kTurns = 150;

bool is_an_answer(int64_t error) {
  return error >= 0 || error == -EAGAIN || error == -EBUSY || error == -EINVAL || error == -ENOSPC;
}

void turn_over(sn_frames *frames, uint64_t base, uint64_t seed) {
  Random random{seed};
  for (int i = 0; i < kTurns; i++) {
    const uint32_t first = static_cast<uint32_t>(random.below(kShared + kOwned - 1));
    const uint32_t count = 1 + static_cast<uint32_t>(random.below(2));
    const int writes = static_cast<int>(random.below(2));
    if (random.below(2) == 0) {
      CHECK(is_an_answer(sn_frames_need(frames, base + first * kGranule, count * kGranule, writes)));
      continue;
    }
    const int64_t id = random.below(2) == 0 ? sn_frames_leave(frames, first, count)
                                            : sn_frames_arrive(frames, first, count, writes);
    CHECK(is_an_answer(id));
    if (id <= 0) continue;
    if (random.below(4) == 0) CHECK(sn_frames_cancel(frames, static_cast<uint64_t>(id)) == 0);
    collect(frames, id);
  }
}

void count_up(uint64_t base, uint64_t index, const std::atomic<bool> &stop, std::vector<uint64_t> &expected) {
  Random random{index};
  while (!stop.load()) {
    const uint64_t page = random.below(expected.size());
    CHECK(__atomic_load_n(word(base, page, index), __ATOMIC_RELAXED) == expected[page]);
    __atomic_store_n(word(base, page, index), ++expected[page], __ATOMIC_RELAXED);
    if (page % 16 == 0) usleep(500);
  }
}

void live_and_die(sn_frames *frames, uint64_t base, uint32_t granule) {
  const uint64_t at = base + granule * kGranule;
  for (uint64_t life = 0; life < kTurns / 5; life++) {
    for (int error = -EBUSY; error != 0;) {
      error = sn_frames_attach(frames, granule, 1);
      CHECK(is_an_answer(error));
    }
    write_marks(at, 1, life);
    const int error = sn_frames_need(frames, at, kGranule, static_cast<int>(life % 2));
    CHECK(is_an_answer(error) && error != -EINVAL && error != -ENOSPC);
    CHECK(marks_hold(at, 1, life));
    CHECK(sn_frames_release(frames, granule, 1) == 0);
  }
}

void many_threads_turn_over_the_same_granules() {
  sn_frames *frames = open_frames(request_of(kFrames, kShared + kOwned, kShared + kOwned));
  const uint64_t base = facts(frames).base;
  for (uint32_t i = 0; i < kShared; i++) {
    CHECK(sn_frames_attach(frames, i, 1) == 0);
    memset(reinterpret_cast<void *>(base + i * kGranule), 0, kGranule);
  }
  std::atomic<bool> stop{false};
  std::vector<uint64_t> expected[2] = {std::vector<uint64_t>(kShared * 512), std::vector<uint64_t>(kShared * 512)};
  std::thread writers[] = {std::thread([&] { count_up(base, 1, stop, expected[0]); }),
                           std::thread([&] { count_up(base, 2, stop, expected[1]); })};
  std::vector<std::thread> others;
  for (uint64_t seed = 1; seed <= 3; seed++) others.emplace_back([=] { turn_over(frames, base, seed * 7919); });
  for (uint32_t i = kShared; i < kShared + kOwned; i++) others.emplace_back([=] { live_and_die(frames, base, i); });
  for (std::thread &thread : others) thread.join();
  stop = true;
  for (std::thread &thread : writers) thread.join();
  for (uint64_t page = 0; page < kShared * 512; page++)
    for (uint64_t index = 1; index < 3; index++) CHECK(*word(base, page, index) == expected[index - 1][page]);
  const sn_frames_counters now = counted(frames);
  CHECK(now.in_state[SN_GRANULE_ABSENT] == kOwned && now.in_state[SN_GRANULE_LEAVING] + now.in_state[SN_GRANULE_ARRIVING] == 0);
  CHECK(now.free_frames + kShared - now.in_state[SN_GRANULE_AWAY] == kFrames && now.free_regions == kOwned);
  printf("%lu MiB read, %lu MiB written\n", now.read_bytes / kMiB, now.written_bytes / kMiB);
  close_frames(frames);
}

}  // namespace

int main() {
  an_order_that_begins_while_need_waits_is_waited_for();
  need_waits_for_frames_that_are_on_their_way();
  what_is_released_is_not_written();
  many_threads_turn_over_the_same_granules();
  return 0;
}
