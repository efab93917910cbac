// What this host's memory takes: streams, dependent loads, and moves between nodes, each by a thread on its CPU.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "clock.h"
#include "guarded.h"
#include "sentinel.h"

namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kChunk = 64 << 10;  // streamed between two looks at the clock
constexpr uint64_t kHops = 256;        // dependent loads between two looks at the clock
constexpr uint32_t kMostThreads = 4096;
constexpr uint64_t kHour = 3600 * 1000000000ull;

// 16 bytes, which every CPU we build for loads and stores at once; any memory may be seen as these.
typedef uint64_t Lane __attribute__((vector_size(16), may_alias));
typedef uint64_t Word __attribute__((may_alias));

void read_lanes(const Lane *from, uint64_t count) {
  Lane a{}, b{}, c{}, d{};
  for (uint64_t i = 0; i < count; i += 4) {
    a ^= from[i];
    b ^= from[i + 1];
    c ^= from[i + 2];
    d ^= from[i + 3];
  }
  a ^= b ^ c ^ d;
  asm volatile("" : : "m"(a));  // it is used, as far as the compiler knows
}

void write_lanes(Lane *to, uint64_t count, uint64_t value) {
  const Lane both = {value, ~value};  // two unlike words: no memset, which may store past the cache
  for (uint64_t i = 0; i < count; ++i) to[i] = both;
  asm volatile("" : : : "memory");
}

void update_lanes(Lane *at, uint64_t count, uint64_t value) {
  const Lane both = {value, ~value};
  for (uint64_t i = 0; i < count; ++i) at[i] ^= both;
  asm volatile("" : : : "memory");
}

void stream(const sn_work &work, uint64_t deadline_ns, sn_pace &pace) {
  const uint64_t bytes_a_pass = work.kind == SN_MEASURE_UPDATE ? 2 : 1;
  uint64_t offset = 0, value = 1;
  do {  // once at least, also by a thread that gets its CPU late
    const uint64_t nbytes = std::min(kChunk, work.nbytes - offset);
    Lane *const at = reinterpret_cast<Lane *>(work.base + offset);
    const uint64_t lanes = nbytes / sizeof(Lane);
    if (work.kind == SN_MEASURE_READ) read_lanes(at, lanes);
    if (work.kind == SN_MEASURE_WRITE) write_lanes(at, lanes, value);
    if (work.kind == SN_MEASURE_UPDATE) update_lanes(at, lanes, value);
    pace.bytes += bytes_a_pass * nbytes;
    offset = offset + nbytes < work.nbytes ? offset + nbytes : 0;
    value += 1;
  } while ((pace.stop_ns = sn_now_ns()) < deadline_ns);
}

void chase(const sn_work &work, uint64_t deadline_ns, sn_pace &pace) {
  uint64_t at = work.start != 0 ? work.start : work.base;
  do {
    for (uint64_t i = 0; i < kHops; ++i) at = *reinterpret_cast<const volatile Word *>(at);
    pace.loads += kHops;
  } while ((pace.stop_ns = sn_now_ns()) < deadline_ns);
  pace.at = at;
}

// By the mover that migrations of a plan go through; its workers inherit this thread's CPU.
void move(const sn_work &work, sn_mover *mover, sn_pace &pace) {
  const sn_span span{work.base, work.nbytes};
  sn_job job{};
  job.nbytes = job.held[0] = work.nbytes;
  job.spans = &span;
  job.span_count = 1;
  job.node = work.node;
  job.target = 1;  // which needs no room
  job.kind = SN_MOVE_NODE;
  sn_moved moved{};
  const int64_t id = sn_mover_submit(mover, &job);
  pace.error = id < 0 ? static_cast<int32_t>(-id) : -sn_mover_wait(mover, static_cast<uint64_t>(id), kHour);
  if (pace.error == 0 && sn_mover_results(mover, &moved, 1) == 1) {
    pace.error = moved.error;
    pace.bytes = moved.moved_bytes;
    pace.start_ns = moved.start_ns;
    pace.stop_ns = moved.stop_ns;
  }
}

enum class Stage { kWait, kGo, kGiveUp };

struct Crew {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  uint32_t ready = 0;
  Stage stage = Stage::kWait;
  uint64_t start_ns = 0;
  uint64_t duration_ns = 0;
};

struct Member {
  Crew *crew;
  sn_work work;
  sn_mover *mover;
  sn_pace pace;
  pthread_t thread;
};

int run_on(int32_t cpu) {
  if (cpu < 0) return 0;
  cpu_set_t *set = CPU_ALLOC(static_cast<size_t>(cpu) + 1);
  if (set == nullptr) return ENOMEM;
  const size_t nbytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpu) + 1);
  CPU_ZERO_S(nbytes, set);
  CPU_SET_S(static_cast<size_t>(cpu), nbytes, set);
  const int error = pthread_setaffinity_np(pthread_self(), nbytes, set);
  CPU_FREE(set);
  return error;
}

int prepare(Member &member) {
  const int error = run_on(member.work.cpu);
  if (error != 0 || member.work.kind != SN_MEASURE_MOVE) return error;
  return -sn_mover_create(UINT64_MAX / 2, 0, &member.mover);
}

void *work(void *argument) {
  Member &member = *static_cast<Member *>(argument);
  Crew &crew = *member.crew;
  const int error = prepare(member);
  pthread_mutex_lock(&crew.mutex);
  member.pace.error = error;
  crew.ready += 1;
  pthread_cond_broadcast(&crew.changed);
  while (crew.stage == Stage::kWait) pthread_cond_wait(&crew.changed, &crew.mutex);
  const bool goes = crew.stage == Stage::kGo;
  const uint64_t start_ns = crew.start_ns, deadline_ns = start_ns + crew.duration_ns;
  pthread_mutex_unlock(&crew.mutex);
  if (goes) {
    member.pace.start_ns = start_ns;
    if (member.work.kind == SN_MEASURE_MOVE) {
      move(member.work, member.mover, member.pace);
    } else {
      const uint64_t before_ns = sn::computed_ns();
      if (member.work.kind == SN_MEASURE_CHASE) chase(member.work, deadline_ns, member.pace);
      else stream(member.work, deadline_ns, member.pace);
      member.pace.busy_ns = sn::computed_ns() - before_ns;
    }
  }
  sn_mover_destroy(member.mover);
  return nullptr;
}

int start_threads(std::vector<Member> &members, uint32_t &started) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  int error = 0;
  for (started = 0; started < members.size() && error == 0; ++started)
    error = pthread_create(&members[started].thread, nullptr, work, &members[started]);
  if (error != 0) --started;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

// The first error of those that are ready once all that started are.
int await_all(Crew &crew, const std::vector<Member> &members, uint32_t started) {
  while (crew.ready < started) pthread_cond_wait(&crew.changed, &crew.mutex);
  for (uint32_t i = 0; i < started; ++i)
    if (members[i].pace.error != 0) return members[i].pace.error;
  return 0;
}

bool is_sound(const sn_work &work) {
  if (work.kind > SN_MEASURE_MOVE || work.base % kLine != 0 || work.nbytes == 0 || work.nbytes % kLine != 0) return false;
  return work.start == 0 || (work.start >= work.base && work.start < work.base + work.nbytes);
}

uint64_t random_below(uint64_t limit, uint64_t &state) {  // xorshift64*, scaled without division
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(state * 0x2545F4914F6CDD1Dull) * limit) >> 64);
}

}  // namespace

extern "C" int sn_chase_link(uint64_t base, uint64_t nbytes, uint64_t seed) {
  const uint64_t count = nbytes / kLine;
  if (base % kLine != 0 || nbytes % kLine != 0 || count < 2) return -EINVAL;
  const auto line = [base](uint64_t i) -> Word & { return *reinterpret_cast<Word *>(base + i * kLine); };
  for (uint64_t i = 0; i < count; ++i) line(i) = base + i * kLine;
  uint64_t state = seed | 1;
  for (uint64_t i = count - 1; i > 0; --i) std::swap(line(i), line(random_below(i, state)));  // Sattolo: one cycle
  return 0;
}

extern "C" int sn_measure(const sn_work *works, uint32_t count, uint64_t duration_ns, sn_pace *out) {
  if (count == 0 || count > kMostThreads || duration_ns > kHour) return -EINVAL;
  if (!std::all_of(works, works + count, is_sound)) return -EINVAL;
  Crew crew;
  crew.duration_ns = duration_ns;
  std::vector<Member> members;
  const int made = sn::guarded([&] {  // all the memory that the rest needs
    for (uint32_t i = 0; i < count; ++i) members.push_back(Member{&crew, works[i], nullptr, sn_pace{}, pthread_t{}});
    return 0;
  });
  if (made != 0) return made;
  uint32_t started = 0;
  int error = start_threads(members, started);
  pthread_mutex_lock(&crew.mutex);
  const int unready = await_all(crew, members, started);
  if (error == 0) error = unready;
  crew.stage = error == 0 ? Stage::kGo : Stage::kGiveUp;
  crew.start_ns = sn_now_ns();
  pthread_cond_broadcast(&crew.changed);
  pthread_mutex_unlock(&crew.mutex);
  for (uint32_t i = 0; i < started; ++i) pthread_join(members[i].thread, nullptr);
  if (error != 0) return -error;
  for (uint32_t i = 0; i < count; ++i) out[i] = members[i].pace;
  return 0;
}
