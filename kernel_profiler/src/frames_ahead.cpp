// Reading ahead: whoever is needed next among what is away gets a frame, as long as the one who leaves for it is needed
// later. Transfers run meanwhile; what they have moved is turned over as an operator begins.
#include "frames_ahead.h"

#include <algorithm>
#include <utility>

#include "frames.h"
#include "guarded.h"

namespace {

using sn::Ahead;
using sn::Granule;
using sn::Order;
using sn::StepPlan;
using sn::View;

constexpr size_t kArriveTogether = 4;  // granules: whoever waits for one waits for all
constexpr size_t kLeaveTogether = 8;
constexpr size_t kMostLeaving = 64, kMostAhead = 1024;
constexpr uint32_t kWindow = 4;  // one frame in so many holds what was read ahead and not used yet
constexpr uint32_t kMostRounds = 4;
constexpr uint64_t kMostLooked = 4096;  // uses, in one round
constexpr uint64_t kMostTurns = 256;    // births and deaths before them
constexpr uint32_t kMostPause = 1023;   // steps

// What transfers have moved is turned over; what others wait for is theirs.
void settle_what_is_over(sn_frames &f) {
  for (auto at = f.orders.begin(); at != f.orders.end();) {
    Order &order = *(at++)->second;
    if (order.wanted || order.settled || !f.lanes.over(order.transfer)) continue;
    sn::settle(f, order);
    sn::drop_if_unwanted(f, order);
  }
}

size_t count_under_way(const sn_frames &f, bool arriving) {
  size_t count = 0;
  for (const auto &[id, order] : f.orders)
    if (order->arrives == arriving && !order->settled) count += order->items.size();
  return count;
}

// How many more frames there are in use at a time than now, by births and deaths only, and the most until then.
struct Births {
  const sn_frames &f;
  int64_t balance = 0, most = 0;

  // Whether a frame is wanted that was not before.
  bool pass(uint32_t granule, uint8_t kind) {
    const Granule &g = f.granules[granule];
    const bool more = (kind & sn::kBorn) != 0 && ++balance > most;
    if (more) most = balance;
    if ((kind & sn::kDied) != 0 && (g.view != View::kFile || g.order != nullptr)) balance--;
    return more;
  }
};

Births births_until(const sn_frames &f, uint64_t to) {
  const StepPlan &plan = *f.ahead.plan;
  Births births{f};
  plan.each_turn(plan.now(), to, kMostTurns, [&](uint32_t granule, uint8_t kind) { births.pass(granule, kind); });
  return births;
}

// What the next uses want of frames.
struct Wanted {
  std::vector<uint32_t> reads, writes;  // granules that get a free frame
  std::vector<uint64_t> later;          // uses for which there is none
  uint64_t sure;                        // as in Ahead
};

// At most `most_later` of these, and at most `most_reads` that are to be read.
Wanted look_ahead(const sn_frames &f, size_t most_later, size_t most_reads) {
  const StepPlan &plan = *f.ahead.plan;
  const uint64_t first = std::max(f.ahead.sure, plan.after()), end = plan.now() + plan.uses();
  Births births = births_until(f, first);
  const auto born = static_cast<uint64_t>(births.most);
  uint64_t free = f.pool.free_count();
  Wanted wanted;
  for (uint64_t i = free; i < born && wanted.later.size() < most_later; i++) wanted.later.push_back(plan.after());
  free -= std::min(free, born);
  uint64_t at = first;
  wanted.sure = StepPlan::kNever;
  for (; at < end && at - first < kMostLooked && wanted.later.size() < most_later; at++) {
    const uint32_t granule = plan.granule(at);
    const Granule &g = f.granules[granule];
    const bool is_born = births.pass(granule, plan.kind(at));
    const bool away = g.view == View::kFile && g.order == nullptr && !g.pinned && plan.next(granule) == at &&
                      (plan.kind(at) & (sn::kReads | sn::kWrites)) != 0;
    if (!is_born && !away) continue;
    if (away && most_reads-- == 0) break;
    if (free == 0) {
      wanted.sure = std::min(wanted.sure, at);
      wanted.later.push_back(at);
      continue;
    }
    free--;
    if (away && plan.needs_bytes(at)) ((plan.kind(at) & sn::kWrites) != 0 ? wanted.writes : wanted.reads).push_back(granule);
  }
  wanted.sure = std::min(wanted.sure, at);
  return wanted;
}

void arrive(sn_frames &f, std::vector<uint32_t> &granules, bool writes) {
  for (size_t from = 0; from < granules.size(); from += kArriveTogether) {
    const auto begin = granules.begin() + static_cast<std::ptrdiff_t>(from);
    const auto count = std::min(kArriveTogether, granules.size() - from);
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    std::sort(begin, end);  // neighbours in the file share a call
    Order &order = sn::open_order(f, true, writes, static_cast<uint32_t>(count));
    order.wanted = false;
    for (auto each = begin; each != end; ++each)
      if (sn::add_arrival(f, order, *each) == 0) sn::set_ahead(f, f.granules[*each], true);
    f.lanes.submit(order.transfer);
  }
}

void leave(sn_frames &f, std::vector<uint32_t> &granules) {
  std::sort(granules.begin(), granules.end());
  for (size_t from = 0; from < granules.size(); from += kLeaveTogether) {
    const size_t end = std::min(granules.size(), from + kLeaveTogether);
    Order &order = sn::open_order(f, false, false, static_cast<uint32_t>(end - from));
    order.wanted = false;
    for (size_t i = from; i < end; i++) sn::add_departure(f, order, granules[i]);
    f.lanes.submit(order.transfer);
  }
}

// Those who are needed later than what wants their frames. The clean ones have left when it returns: whether any was.
bool make_frames(sn_frames &f, const std::vector<uint64_t> &later, size_t leaving) {
  if (later.size() <= leaving) return false;
  std::vector<uint32_t> clean, dirty;
  size_t served = leaving;  // by those that are leaving already
  for (const sn::Leaver &each : sn::leavers(f, later.size() - leaving)) {
    if (each.next <= later[served]) break;
    served++;
    const Granule &g = f.granules[each.granule];
    (g.view == View::kPrivate && g.saved ? clean : dirty).push_back(each.granule);
  }
  leave(f, dirty);
  leave(f, clean);
  if (!clean.empty()) settle_what_is_over(f);
  return !clean.empty();
}

// All that is resident may leave, by the plan that is about to be followed.
void index_all(sn_frames &f) {
  Ahead &ahead = f.ahead;
  sn::LastNeeded last(f.count);
  ahead.changed.reserve(f.count);
  ahead.last = std::move(last);
  ahead.changed.clear();
  for (uint32_t i = 0; i < f.count; i++) {
    f.granules[i].changed = true;
    ahead.changed.push_back(i);
  }
}

// The place in the plan changes: what was used until there is needed at another time.
template <typename Step>
void move_on(sn_frames &f, Step step) {
  if (f.ahead.plan == nullptr) return;
  const StepPlan &plan = *f.ahead.plan;
  const uint64_t before = plan.now();
  step();
  // Of each granule the uses of one step are enough.
  for (uint64_t at = before, end = std::min(plan.now(), before + plan.uses()); at < end; at++) {
    sn::note_change(f, plan.granule(at));
    sn::pass_unforeseen(f, at);
  }
}

// A step that was too long is followed by a pause, each twice as long as the one before: recording in vain takes time too.
bool may_record_again(Ahead &ahead) {
  if (ahead.record.too_long()) {
    ahead.record.give_up();
    ahead.too_long = true;
    ahead.pause = std::min(2 * ahead.pause + 1, kMostPause);
    ahead.paused = 0;
  }
  return !ahead.too_long || ahead.paused++ >= ahead.pause;
}

bool begin_transfers(sn_frames &f) {
  const size_t most = std::clamp<size_t>(f.pool.count() / 4, 1, kMostLeaving);
  // Frames of what waits for its use are missed by what is used again soon: the more is read ahead, the more is read.
  const size_t window = std::clamp<size_t>(f.pool.count() / kWindow, 1, kMostAhead), ahead = f.ahead.unused;
  Wanted wanted = look_ahead(f, most, window - std::min(window, ahead));
  arrive(f, wanted.reads, false);
  arrive(f, wanted.writes, true);
  f.ahead.sure = wanted.sure;  // not before: where there was no memory for a transfer, it is looked at again
  return make_frames(f, wanted.later, count_under_way(f, false));
}

}  // namespace

namespace sn {

void note_use(sn_frames &f, uint32_t granule, uint8_t kind) {
  if (!f.ahead.record.recording()) return;
  const int error = guarded([&] {
    f.ahead.record.use(granule, kind);
    return 0;
  });
  if (error != 0) f.ahead.record.give_up();
}

void note_change(sn_frames &f, uint32_t granule) {
  if (f.ahead.plan == nullptr || std::exchange(f.granules[granule].changed, true)) return;
  f.ahead.changed.push_back(granule);  // there is room for each
}

void has_left(sn_frames &f, uint32_t granule) {
  if (f.ahead.plan != nullptr) f.ahead.sure = std::min(f.ahead.sure, f.ahead.plan->next(granule));
}

bool set_ahead(sn_frames &f, Granule &g, bool ahead) {
  const bool before = std::exchange(g.ahead, ahead);
  f.ahead.unused += (ahead ? 1u : 0u) - (before ? 1u : 0u);
  return before;
}

void is_needed(sn_frames &f, Granule &g) {
  if (!set_ahead(f, g, false)) return;
  (g.order == nullptr ? f.ahead.hit_bytes : f.ahead.late_bytes) += kFrameBytes;
}

void forget_ahead(sn_frames &f, Granule &g) {
  if (set_ahead(f, g, false)) f.ahead.vain_bytes += kFrameBytes;
}

void follow_plan(sn_frames &f, StepUses uses) {
  Ahead &ahead = f.ahead;
  auto plan = std::make_unique<StepPlan>(std::move(uses), f.count);
  index_all(f);
  if (ahead.plan != nullptr) {
    ahead.matched += ahead.plan->matched();
    ahead.missed += ahead.plan->missed();
  }
  ahead.plan = std::move(plan);
  ahead.sure = 0;
}

void step_begins(sn_frames &f, uint64_t waited_ns) {
  Ahead &ahead = f.ahead;
  look_for_unforeseen(f);
  const uint64_t now_ns = sn_now_ns();
  if (ahead.steps++ != 0) (ahead.planned ? ahead.wait_after_ns : ahead.wait_before_ns) = waited_ns - ahead.waited_ns;
  ahead.waited_ns = waited_ns;
  move_on(f, [&] { ahead.plan->begin_step(); });
  bool again = ahead.plan == nullptr || ahead.plan->was_another();
  const int error = guarded([&] {
    if (ahead.record.recording()) {
      StepUses uses = ahead.record.end(now_ns);
      if (uses.uses() != 0) {
        follow_plan(f, std::move(uses));
        ahead.expected.clear();
        ahead.found.clear();
        ahead.recorded++;
        ahead.too_long = false;
        ahead.pause = 0;
        again = false;
      }
    }
    expect_unforeseen(f);
    if (again && may_record_again(ahead)) ahead.record.begin(f.count, now_ns);
    return 0;
  });
  if (error != 0) ahead.record.give_up();
  ahead.planned = ahead.plan != nullptr;
}

void operator_begins(sn_frames &f, uint64_t signature) {
  Ahead &ahead = f.ahead;
  ahead.recents[ahead.operators++ % std::size(ahead.recents)] = f.needs;
  const int error = guarded([&] {
    ahead.record.operator_begins(signature, sn_now_ns());
    return 0;
  });
  if (error != 0) ahead.record.give_up();
  look_for_unforeseen(f);
  move_on(f, [&] { ahead.plan->follow(signature); });
  settle_what_is_over(f);
}

void read_ahead(sn_frames &f) {
  if (!f.ahead.follows()) return;
  settle_what_is_over(f);
  guarded([&] {
    for (uint32_t round = 0; round < kMostRounds && begin_transfers(f); round++) {
    }
    return 0;
  });
}

bool operator_runs(sn_frames &f) {
  f.ahead.record.runs(sn_now_ns());
  if (!f.ahead.follows()) return false;
  f.ahead.running++;
  return true;
}

void operator_ended(sn_frames &f) {
  if (f.ahead.running != 0) f.ahead.running--;
}

}  // namespace sn
