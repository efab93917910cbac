// Who leaves: what is needed last, where it is known, else what was needed longest ago.
#include <algorithm>

#include "frames.h"

namespace {

using sn::Granule;
using sn::StepPlan;
using sn::View;

constexpr uint32_t kLeaveTogether = 16;  // granules: a large transfer is fast

bool may_leave(const Granule &g) {
  return (g.view == View::kShared || g.view == View::kPrivate) && g.order == nullptr && !g.pinned;
}

// By the operator that begins: its operands would push out one another.
bool is_operand(const sn_frames &f, const Granule &g) {
  return g.used > f.ahead.recents[(f.ahead.operators - 1) % std::size(f.ahead.recents)];
}

bool is_clean(const Granule &g) { return g.view == View::kPrivate && g.saved; }

// Index of the next use that needs its bytes; kNever: they are dead weight.
uint64_t next_use(const StepPlan &plan, uint32_t granule) {
  const uint64_t next = plan.next(granule);
  return next == StepPlan::kNever || !plan.needs_bytes(next) ? StepPlan::kNever : next;
}

struct Order {
  bool operand, recent;
  uint64_t next, used;
  uint32_t granule;

  // Who leaves before.
  bool operator<(const Order &other) const {
    if (operand != other.operand) return other.operand;
    if (recent != other.recent) return other.recent;
    if (next != other.next) return next > other.next;
    return used != other.used ? used < other.used : granule < other.granule;
  }
};

Order order_of(const sn_frames &f, uint32_t granule) {
  const Granule &g = f.granules[granule];
  if (!f.ahead.follows()) return {false, false, 0, g.used, granule};
  return {is_operand(f, g), sn::is_recent(f, g), next_use(*f.ahead.plan, granule), g.used, granule};
}

}  // namespace

namespace sn {

// An operator may have made it for those within it, which the record does not tell apart.
bool is_recent(const sn_frames &f, const Granule &g) {
  return g.used > f.ahead.recents[f.ahead.operators % std::size(f.ahead.recents)];
}

std::vector<uint32_t> victims(const sn_frames &f, uint32_t wanted, uint32_t first, uint32_t end) {
  std::vector<::Order> found, kept;
  for (uint32_t i = 0; i < f.count; i++) {
    const Granule &g = f.granules[i];
    if (may_leave(g) && (i < first || i >= end)) (g.kept ? kept : found).push_back(order_of(f, i));
  }
  if (found.empty()) found.swap(kept);
  const size_t count = std::min<size_t>(found.size(), std::max(wanted, std::min(kLeaveTogether, f.pool.count() / 8)));
  std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), found.end());
  found.resize(count);
  std::vector<uint32_t> leaving;
  for (const ::Order &each : found) leaving.push_back(each.granule);
  std::sort(leaving.begin(), leaving.end());  // neighbours in the file share a call
  return leaving;
}

std::vector<Leaver> leavers(sn_frames &f, size_t most) {
  const StepPlan &plan = *f.ahead.plan;
  for (const uint32_t granule : f.ahead.changed) {
    Granule &g = f.granules[granule];
    g.changed = false;
    if (may_leave(g) && !g.kept) f.ahead.last.put(granule, next_use(plan, granule));
  }
  f.ahead.changed.clear();
  std::vector<Leaver> leaving;
  leaving.reserve(most);
  f.ahead.last.each([&](uint32_t granule, uint64_t next) {
    const Granule &g = f.granules[granule];
    if (!may_leave(g) || g.kept) return LastNeeded::kGoes;  // until that changes
    // It dies before there is a use for its frame: what has died is not written.
    const bool dies = next == StepPlan::kNever && plan.next(granule) < f.ahead.sure && !is_clean(g);
    if (!dies && !is_recent(f, g)) leaving.push_back({granule, next});
    return leaving.size() < most ? LastNeeded::kStays : LastNeeded::kEnough;
  });
  return leaving;
}

}  // namespace sn
