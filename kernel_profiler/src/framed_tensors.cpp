// Tensors whose memory is a pool of frames, without a plan: who is about to be used is brought in, and the frames push out
// what was needed longest ago. A tensor is whole pages; neighbours share a granule, which is attached as long as one of
// them lives.
#include "framed_tensors.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>
#include <vector>

#include "ahead_watch.h"
#include "device_pins.h"
#include "frame_pool.h"
#include "framed_cap.h"
#include "framed_steps.h"
#include "frames.h"
#include "frames_guard.h"
#include "guarded.h"
#include "lock.h"
#include "overflow_watch.h"
#include "sentinel.h"

namespace {

using sn::Lock;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kNowhere = UINT64_MAX;
constexpr uint64_t kMostSlice = 16 << 20;  // a larger transfer is no faster

// Offsets that no tensor has. The lowest hole that is large enough is taken, so that few granules are in use.
class Holes {
 public:
  explicit Holes(uint64_t nbytes) { holes_.emplace(0, nbytes); }

  // At a multiple of `step`.
  uint64_t find(uint64_t nbytes, uint64_t step) const {
    for (const auto &[at, there] : holes_) {
      const uint64_t skipped = (step - at % step) % step;
      if (there >= skipped && there - skipped >= nbytes) return at + skipped;
    }
    return kNowhere;
  }

  // As found: all of it lies in one hole.
  void take(uint64_t at, uint64_t nbytes) {
    const auto hole = std::prev(holes_.upper_bound(at));
    const uint64_t before = at - hole->first, rest = hole->second - before - nbytes;
    if (rest != 0) holes_.emplace(at + nbytes, rest);
    if (before != 0)
      hole->second = before;
    else
      holes_.erase(hole);
  }

  void give(uint64_t at, uint64_t nbytes) {
    auto hole = holes_.emplace(at, nbytes).first;
    const auto after = std::next(hole);
    if (after != holes_.end() && hole->first + hole->second == after->first) {
      hole->second += after->second;
      holes_.erase(after);
    }
    if (hole == holes_.begin()) return;
    const auto before = std::prev(hole);
    if (before->first + before->second != hole->first) return;
    before->second += hole->second;
    holes_.erase(hole);
  }

 private:
  std::map<uint64_t, uint64_t> holes_;  // offset -> bytes
};

// What is in use. Whoever changes it holds `mutex`.
struct Framed {
  explicit Framed(uint32_t granules) : holes(granules * sn::kFrameBytes), tenants(granules) {}

  Holes holes;
  std::vector<uint32_t> tenants;                  // of each granule: 0: it is absent
  std::unordered_map<uint64_t, uint64_t> nbytes;  // by offset, in whole pages
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t words = PTHREAD_MUTEX_INITIALIZER;  // of `too_large_by`
Framed *framed = nullptr;
sn_framed_counters told{};  // by those who hold `mutex`
char too_large_by[128];

std::atomic<sn_frames *> frames{nullptr};
std::atomic<uint64_t> base{0}, extent{0}, least{SN_FRAMED_LEAST_BYTES};
std::atomic<uint32_t> pool{0};  // frames
std::atomic<bool> serving{false}, in_child{false};
std::atomic<uint32_t> asking{0};  // threads that may be using `frames`
std::atomic<uint64_t> needs{0}, need_ns{0}, birth_ns{0}, too_large{0}, too_large_bytes{0}, sliced{0}, failed{0};
std::atomic<int32_t> failure{0};
std::atomic<uint64_t> driver_look_ns{0};  // the next look for a driver is not before

// glibc locks its list of libraries for each look. A driver that was just loaded takes longer than this to find its devices,
// and can register nothing before.
constexpr uint64_t kBetweenLooksNs = 1000000;

// Frames become fewer or more, if it is time to look, and a driver that was loaded is asked from now on. Without `mutex`.
void look_around() {
  if (const uint64_t now = sn_now_ns(); now >= driver_look_ns.load(std::memory_order_relaxed)) {
    driver_look_ns.store(now + kBetweenLooksNs, std::memory_order_relaxed);
    sn::find_device_driver();
  }
  if (!sn::cap_is_due()) return;
  asking++;
  if (sn_frames *const there = frames.load(); there != nullptr) sn::cap_follow(there, pool);
  asking--;
}

uint32_t first_of(uint64_t at) { return static_cast<uint32_t>(at / sn::kFrameBytes); }
uint32_t end_of(uint64_t at, uint64_t nbytes) { return first_of(at + nbytes - 1) + 1; }

void leave_granules(uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end; i++) {
    if (--framed->tenants[i] != 0) continue;
    // Where the kernel refuses, the granule stays attached, and is as good as one that another tensor keeps.
    if (sn_frames_release(frames, i, 1) != 0) framed->tenants[i] = 1;
  }
}

// Each has a frame or another tensor's bytes beside its own. `shared`: some have those.
int enter_granules(uint32_t first, uint32_t end, bool *shared) {
  for (uint32_t i = first; i < end;) {
    uint32_t run = i;
    while (run < end && framed->tenants[run] == 0) run++;
    if (run == i) {
      framed->tenants[i++]++;
      *shared = true;
      continue;
    }
    const int error = sn_frames_attach(frames, i, run - i);
    if (error != 0) {
      leave_granules(first, i);
      return error;
    }
    std::fill(framed->tenants.begin() + i, framed->tenants.begin() + run, 1u);
    i = run;
  }
  return 0;
}

int allocate(uint64_t nbytes, uint64_t *offset) {
  if (nbytes > pool * sn::kFrameBytes) return -ENOSPC;
  uint64_t at = framed->holes.find(nbytes, kPage);
  if (at != kNowhere && end_of(at, nbytes) - first_of(at) > pool) at = framed->holes.find(nbytes, sn::kFrameBytes);
  if (at == kNowhere) return -ENOMEM;
  const uint32_t first = first_of(at), end = end_of(at, nbytes);
  framed->nbytes.emplace(at, nbytes);
  const uint64_t began = sn_now_ns();
  bool shared = false;
  int error = enter_granules(first, end, &shared);
  if (error == 0) {
    error = sn::guarded([&] {
      framed->holes.take(at, nbytes);
      return 0;
    });
    if (error != 0) leave_granules(first, end);
  }
  if (error != 0) {
    framed->nbytes.erase(at);
    return error;
  }
  // What is away would be faulted in page by page as the tensor is written. If it stays away, that is slow only.
  if (shared) sn_frames_need(frames, base + at, nbytes, SN_ZEROES);
  const uint64_t waited = sn_now_ns() - began;
  birth_ns += waited;
  sn::framed_birth_waited(frames, waited);
  *offset = at;
  return 0;
}

// Once no tensor is left and none may come: memory and file go back.
void close_if_empty() {
  if (framed == nullptr || serving || !framed->nbytes.empty()) return;
  sn_frames *const closing = frames.exchange(nullptr);
  base = extent = 0;
  while (asking != 0) sched_yield();
  sn_frames_count(closing, &told.frames);
  sn::framed_steps_keep(closing);
  sn_frames_release(closing, 0, static_cast<uint32_t>(framed->tenants.size()));
  sn_frames_destroy(closing);  // where the kernel refused to let go of a granule, it stays until the process ends
  delete framed;
  framed = nullptr;
}

// How many granules the operands lie in, each counted once.
uint64_t granules_of(const sn_framed_operand *operands, uint64_t count) {
  std::vector<std::pair<uint32_t, uint32_t>> spans;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t at = operands[i].address - base;
    spans.emplace_back(first_of(at), end_of(at, operands[i].nbytes));
  }
  std::sort(spans.begin(), spans.end());
  uint64_t granules = 0;
  uint32_t counted = 0;
  for (const auto &[first, end] : spans) {
    granules += std::max(end, counted) - std::max(first, counted);
    counted = std::max(end, counted);
  }
  return granules;
}

void note_too_large(uint64_t nbytes, const char *name) {
  too_large++;
  uint64_t most = too_large_bytes.load();
  while (nbytes > most && !too_large_bytes.compare_exchange_weak(most, nbytes)) {
  }
  Lock lock(&words);
  if (too_large_by[0] == 0) strncpy(too_large_by, name, sizeof too_large_by - 1);
}

void need_all(sn_frames *there, const sn_framed_operand *operands, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    const int error = sn_frames_need(there, operands[i].address, operands[i].nbytes, operands[i].writes);
    if (error == 0) continue;
    failed++;
    failure = -error;
  }
}

// 1: they do not fit. 2: sn_framed_ran is to be called.
int ask(sn_frames *there, const sn_framed_operand *operands, uint64_t count, const char *name) {
  const uint64_t granules = granules_of(operands, count);
  const uint32_t most = pool;
  const uint64_t began = sn_now_ns();
  sn::framed_operator_begins(there, sn::signature_of(operands, count, name));
  if (granules > most) {
    note_too_large(granules * sn::kFrameBytes, name);
    sn::guard_stay_on_top();
    for (uint64_t i = 0; i < count; i++) sn::frames_stream(*there, operands[i].address, operands[i].nbytes);
    if (sn::framed_operator_runs(there)) sn::framed_operator_ended(there);
    return 1;
  }
  // Where too many others stay, the operands would push out one another.
  if (count > 1 && granules > most - most / 4) sn_frames_keep(there, most - static_cast<uint32_t>(granules));
  need_all(there, operands, count);
  // Room for the last ones is made in large transfers, which may have taken the first ones along.
  if (count > 1 && granules > most / 2) need_all(there, operands, count);
  const bool tells = sn::framed_operator_runs(there);
  need_ns += sn_now_ns() - began;
  needs++;
  return tells ? 2 : 0;
}

void tidy(bool last) {
  asking++;
  if (sn_frames *const there = frames.load(); there != nullptr) sn_frames_tidy(there, last ? 1 : 0);
  asking--;
}

}  // namespace

namespace sn {

FramedInUse::FramedInUse() : frames_(nullptr) {
  asking++;
  if (!in_child) frames_ = ::frames.load();
}

FramedInUse::~FramedInUse() { asking--; }

uint64_t framed_waited_ns() { return need_ns + birth_ns; }

bool framed_in_use() { return serving.load(std::memory_order_relaxed); }

void framed_after_fork() {
  ahead_watch_forget();
  in_child = true;
  serving = false;
}

void *framed_allocate(uint64_t nbytes) {
  if (!framed_in_use() || nbytes < least.load(std::memory_order_relaxed)) return nullptr;
  look_around();
  Lock lock(&mutex);
  if (!serving) return nullptr;
  uint64_t at = 0;
  const uint64_t whole = (nbytes + kPage - 1) / kPage * kPage;
  const int error = guarded([&] { return allocate(whole, &at); });
  if (error != 0) {
    told.refused++;
    told.refused_bytes += nbytes;
    told.refused_error = -error;
    return nullptr;
  }
  told.tensors++;
  told.live_bytes += whole;
  told.peak_live_bytes = std::max(told.peak_live_bytes, told.live_bytes);
  return reinterpret_cast<void *>(base + at);
}

bool framed_free(uint64_t address) {
  if (address - base.load(std::memory_order_relaxed) >= extent.load(std::memory_order_relaxed)) return false;
  if (in_child) return true;
  Lock lock(&mutex);
  // Both may have changed meanwhile, or between the two loads: then it is no tensor of these frames.
  if (framed == nullptr) return false;
  const uint64_t at = address - base;
  const auto found = framed->nbytes.find(at);
  if (found == framed->nbytes.end()) return false;
  const uint64_t nbytes = found->second;
  framed->nbytes.erase(found);
  leave_granules(first_of(at), end_of(at, nbytes));
  guarded([&] {  // without memory for it, these addresses are not used again
    framed->holes.give(at, nbytes);
    return 0;
  });
  told.live_bytes -= nbytes;
  close_if_empty();
  return true;
}

}  // namespace sn

extern "C" int sn_framed_begin(sn_frames **with, uint64_t least_bytes) {
  if (least_bytes == 0) return -EINVAL;
  sn_frames_facts facts;
  int error = sn_frames_facts_of(*with, &facts);
  if (error == 0) error = sn_frames_ask_pins(*with, sn::device_pins);
  if (error != 0) return error;
  Lock lock(&mutex);
  if (framed != nullptr) return -EBUSY;
  return sn::guarded([&] {
    framed = new Framed(facts.granules);
    pool = facts.frames;
    least = least_bytes;
    told = {};
    needs = need_ns = birth_ns = too_large = too_large_bytes = sliced = failed = 0;
    failure = 0;
    too_large_by[0] = 0;
    sn::cap_forget(facts);
    sn::framed_steps_forget();
    base = facts.base;
    extent = facts.granules * sn::kFrameBytes;
    frames = *with;
    *with = nullptr;
    serving = true;
    return 0;
  });
}

extern "C" int sn_framed_end(void) {
  if (in_child) return -ECHILD;
  Lock lock(&mutex);
  serving = false;
  close_if_empty();
  return framed == nullptr ? 0 : 1;
}

extern "C" int sn_framed_any(void) { return frames.load(std::memory_order_relaxed) != nullptr && !in_child ? 1 : 0; }

extern "C" int sn_framed_contains(uint64_t address) { return address - base < extent ? 1 : 0; }

extern "C" int sn_framed_need(const sn_framed_operand *operands, uint64_t count, const char *name) {
  if (in_child) return 0;
  look_around();
  if (count == 0) return 0;
  asking++;
  int found = 0;
  if (sn_frames *const there = frames.load(); there != nullptr)
    found = sn::guarded([&] { return ask(there, operands, count, name); });
  asking--;
  if (found < 0) {  // they come page by page, as they are touched
    failed++;
    failure = -found;
    return 0;
  }
  if (found == 1) sn::overflow_begin(tidy);
  return found;
}

extern "C" uint64_t sn_framed_slice(uint64_t granules, uint32_t operands, uint64_t unit) {
  if (sn_framed_any() == 0) return 0;
  const uint64_t there = pool, most = there * sn::kFrameBytes;
  // Both ends of each may lie in granules of others.
  const uint64_t least = operands * (unit / sn::kFrameBytes + 2);
  if (granules <= there / 2 || least > there) return 0;
  uint64_t slice = unit;
  while (slice < kMostSlice && 2 * operands * slice <= most / 8) slice *= 2;
  return slice;
}

extern "C" void sn_framed_sliced(void) { sliced++; }

extern "C" void sn_framed_ran(void) {
  const sn::FramedInUse used;
  if (used.frames() != nullptr) sn::framed_operator_ended(used.frames());
}

extern "C" void sn_framed_done(void) {
  if (!in_child) sn::overflow_end();
}

extern "C" int sn_framed_count(sn_framed_counters *out) {
  if (in_child) return -ECHILD;
  Lock lock(&mutex);
  if (framed != nullptr) {
    const int error = sn_frames_count(frames, &told.frames);
    if (error != 0) return error;
  }
  *out = told;
  out->needs = needs;
  out->need_ns = need_ns;
  out->too_large = too_large;
  out->too_large_bytes = too_large_bytes;
  out->sliced = sliced;
  out->failed = failed;
  out->failure = failure;
  Lock words_lock(&words);
  memcpy(out->too_large_by, too_large_by, sizeof out->too_large_by);
  return 0;
}
