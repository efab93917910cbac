// The pool follows what else the process takes: at once where that grows, and back only once there has been room for a
// while, since memory that comes and goes would have frames filled and emptied all the time.
#include "framed_cap.h"

#include <errno.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "frame_pool.h"
#include "guarded.h"
#include "immortal.h"
#include "lock.h"
#include "taken.h"

namespace {

using sn::Lock;

constexpr uint64_t kNever = UINT64_MAX;
constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 of cgroups has a number for that
constexpr uint64_t kBetweenNs = 100000000;
constexpr uint64_t kPause = 99;       // times what a look has computed: looks take at most a hundredth of the time
constexpr uint32_t kCalmLooks = 10;   // with room, before the pool grows into it

struct Group {
  explicit Group(const sn_framed_group &of)
      : limit(of.limit), used(of.used), stat(of.stat), idle(of.idle), busy(of.busy) {}
  std::string limit, used, stat, idle, busy;
  int64_t busy_at_first = -1;
};

struct Following {
  sn_framed_cap asked{};
  std::vector<Group> groups;            // none: this process
  int64_t seen = 0, anonymous = 0;      // at the last whole look, and its anonymous part
  uint64_t whole_look_ns = 0;           // the next one is not before
  uint32_t calm = 0, room = UINT32_MAX; // looks with room, and the least frames that they allowed
};

std::atomic<uint64_t> look_ns{kNever};  // the next look is not before
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // of all below
pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;  // taken before `mutex`, for as long as frames move
sn::Immortal<Following> kept;
Following &now = kept.value;
sn_framed_cap_counters told{};

// -1: not known.
int64_t number_in(const std::string &path) {
  char text[64];
  if (sn::read_small(path.c_str(), text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9') return -1;
  return strtoll(text, nullptr, 10);
}

// What the frames of this process may take by the group that allows least; INT64_MIN: not known.
int64_t allowed_in_groups(int64_t pool_bytes) {
  int64_t allowed = INT64_MAX;
  for (Group &group : now.groups) {
    char stat[16384];
    const int64_t limit = number_in(group.limit), used = number_in(group.used);
    if (limit < 0 || used < 0) continue;  // that limit is gone
    int64_t idle = 0;
    if (sn::read_small(group.stat.c_str(), stat, sizeof stat) > 0) {
      const int64_t busy = std::max<int64_t>(sn::number_after(stat, group.busy.c_str()), 0);
      if (group.busy_at_first < 0) group.busy_at_first = busy;
      idle = std::max<int64_t>(sn::number_after(stat, group.idle.c_str()), 0) +
             std::max<int64_t>(busy - group.busy_at_first, 0);
    }
    const int64_t room = std::min(limit, kNoLimit) - (used - idle) - static_cast<int64_t>(now.asked.spare_bytes);
    const int64_t here = pool_bytes + room / std::max(1u, now.asked.sharers);
    if (here >= allowed) continue;
    allowed = here;
    told.taken_bytes = static_cast<uint64_t>(std::max<int64_t>(used - idle - pool_bytes, 0));
  }
  return allowed == INT64_MAX ? INT64_MIN : allowed;  // without any limit the pool stays as it is
}

// Between whole looks, what this process has taken or given back of its own is added. INT64_MIN: not known.
int64_t allowed_in_process(int64_t pool_bytes) {
  const int64_t anonymous = sn::anonymous_bytes();
  if (anonymous < 0) return INT64_MIN;  // no file can be opened, say: the pool stays as it is
  if (sn_now_ns() >= now.whole_look_ns) {
    const uint64_t began = sn::computed_ns();
    const int64_t seen = sn::taken_bytes(static_cast<uint64_t>(pool_bytes));
    now.whole_look_ns = sn_now_ns() + kPause * (sn::computed_ns() - began);
    if (seen < 0) return INT64_MIN;
    now.seen = seen;
    now.anonymous = anonymous;
  }
  const int64_t taken = now.seen + anonymous - now.anonymous;
  told.taken_bytes = static_cast<uint64_t>(std::max<int64_t>(taken, 0));
  return static_cast<int64_t>(now.asked.cap_bytes - now.asked.spare_bytes) - taken;
}

// How many frames there are to be; 0: as many as there are.
uint32_t wanted(uint32_t pool) {
  constexpr auto kFrame = static_cast<int64_t>(sn::kFrameBytes);
  const int64_t allowed = now.groups.empty() ? allowed_in_process(pool * kFrame) : allowed_in_groups(pool * kFrame);
  if (allowed == INT64_MIN) return 0;
  told.looks++;
  told.most_taken_bytes = std::max(told.most_taken_bytes, told.taken_bytes);
  const int64_t least = now.asked.least_frames, most = now.asked.most_frames;
  const int64_t over = least * kFrame - allowed - static_cast<int64_t>(now.asked.spare_bytes);
  told.over_bytes = std::max(told.over_bytes, static_cast<uint64_t>(std::max<int64_t>(over, 0)));
  const auto frames = static_cast<uint32_t>(std::clamp(allowed / kFrame, least, most));
  if (frames <= pool) {
    now.calm = 0;
    now.room = UINT32_MAX;
    return frames;
  }
  now.room = std::min(now.room, frames);
  if (++now.calm < kCalmLooks) return 0;
  now.calm = 0;
  return std::exchange(now.room, UINT32_MAX);
}

void follow(sn_frames *frames, std::atomic<uint32_t> &pool) {
  const uint64_t began = sn::computed_ns();
  uint32_t aim;
  {
    Lock lock(&mutex);
    aim = wanted(pool);
  }
  const uint64_t pause = std::max(kBetweenNs, now.groups.empty() ? 0 : kPause * (sn::computed_ns() - began));
  const int error = aim == 0 || aim == pool ? 0 : sn_frames_resize(frames, aim);
  sn_frames_facts facts{};
  const bool known = aim != 0 && sn_frames_facts_of(frames, &facts) == 0;
  if (known) pool = facts.frames;
  {
    Lock lock(&mutex);
    told.failed += error != 0 ? 1 : 0;
    told.failure = error != 0 ? -error : told.failure;
    told.frames = pool;
    told.huge_frames = known ? facts.huge_frames : told.huge_frames;
    told.least_frames = std::min(told.least_frames, told.frames);
    told.most_frames = std::max(told.most_frames, told.frames);
  }
  look_ns = sn_now_ns() + pause;
}

}  // namespace

namespace sn {

bool cap_is_due() {
  const uint64_t at = look_ns.load(std::memory_order_relaxed);
  return at != kNever && sn_now_ns() >= at;
}

void cap_follow(sn_frames *frames, std::atomic<uint32_t> &pool) {
  if (pthread_mutex_trylock(&looking) != 0) return;
  if (cap_is_due()) follow(frames, pool);
  pthread_mutex_unlock(&looking);
}

void cap_forget(const sn_frames_facts &facts) {
  look_ns = kNever;
  Lock lock(&mutex);
  told = {};
  told.frames = told.least_frames = told.most_frames = facts.frames;
  told.huge_frames = facts.huge_frames;
}

}  // namespace sn

extern "C" int sn_framed_follow(const sn_framed_cap *cap) {
  if (cap->least_frames == 0 || cap->most_frames < cap->least_frames || cap->spare_bytes > cap->cap_bytes) return -EINVAL;
  Lock at_rest(&looking);
  Lock lock(&mutex);
  return sn::guarded([&] {
    Following following;
    following.asked = *cap;
    for (uint32_t i = 0; i < cap->n_groups; i++) following.groups.emplace_back(cap->groups[i]);
    now = std::move(following);
    look_ns = 0;
    return 0;
  });
}

extern "C" void sn_framed_look(void) {
  Lock lock(&mutex);
  now.whole_look_ns = 0;
  if (look_ns != kNever) look_ns = 0;
}

extern "C" int sn_framed_cap_count(sn_framed_cap_counters *out) {
  Lock lock(&mutex);
  *out = told;
  return 0;
}
