// Accesses that no operator announced: by numpy, another thread, the writing of a checkpoint. The kernel serves them page by
// page, and counts what it had to read. Where that count has grown as an operator begins, page tables tell which granules
// were touched since the last one began: from the next step on these are used by the operator before.
#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "clock.h"
#include "frames.h"
#include "guarded.h"

namespace {

using sn::Granule;
using sn::StepPlan;
using sn::StepUses;
using sn::Unforeseen;
using sn::View;

constexpr uint32_t kShare = 8;             // one frame in so many is for such uses

int64_t major_faults() {
  rusage spent{};
  getrusage(RUSAGE_SELF, &spent);
  return spent.ru_majflt;
}

// Since it was looked at last. What the kernel does not tell was not touched.
bool was_touched(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  const sn::Touched now = sn::touched_pages(f.pagemap, f.address(granule));
  const bool before = std::exchange(g.touched, g.touched || now.shown != 0);
  const uint16_t own_before = std::exchange(g.own, now.own);
  return (!before && g.touched) || now.own > own_before;
}

bool uses(const StepUses &step, uint64_t place, uint32_t granule) {
  const auto first = step.granule.begin() + static_cast<std::ptrdiff_t>(step.first_use[place]);
  const auto end = step.granule.begin() + static_cast<std::ptrdiff_t>(step.first_use[place + 1]);
  return std::find(first, end, granule) != end;
}

// The step without the uses that were unforeseen once, and with these.
StepUses with(const StepUses &step, const std::vector<Unforeseen> &expected) {
  StepUses made;
  made.signature = step.signature;
  made.compute_ns = step.compute_ns;
  auto next = expected.begin();  // by place
  for (uint64_t place = 0; place < step.operators(); place++) {
    made.first_use.push_back(made.uses());
    for (uint64_t at = step.first_use[place]; at < step.first_use[place + 1]; at++) {
      if ((step.kind[at] & sn::kUnforeseen) != 0) continue;
      made.granule.push_back(step.granule[at]);
      made.kind.push_back(step.kind[at]);
    }
    for (; next != expected.end() && next->place == place; ++next) {
      made.granule.push_back(next->granule);
      made.kind.push_back(sn::kReads | sn::kUnforeseen);
    }
  }
  made.first_use.push_back(made.uses());
  return made;
}

}  // namespace

namespace sn {

void look_for_unforeseen(sn_frames &f) {
  Ahead &ahead = f.ahead;
  if (!ahead.follows()) return;
  const int64_t faults = major_faults();
  if (std::exchange(ahead.major_faults, faults) == faults) return;
  if (sn_now_ns() < ahead.look_after_ns) return;
  const uint64_t began = computed_ns(), place = ahead.plan->place();
  uint64_t found = 0;
  for (uint32_t i = 0; i < f.count; i++) {
    if (f.granules[i].view != View::kFile || !was_touched(f, i)) continue;
    if (uses(ahead.plan->recorded(), place, i)) continue;  // an operator that does not fit, or whose operands did not come
    ahead.unforeseen_uses++;
    if (ahead.expected.size() + ahead.found.size() >= std::max(1u, f.pool.count() / kShare)) continue;
    found++;
    guarded([&] {
      ahead.found.push_back({i, place, true});
      return 0;
    });
  }
  ahead.look_after_ns = pause_after(computed_ns() - began, found == 0 ? kPauseInVain : kPauseFound);
}

void pass_unforeseen(sn_frames &f, uint64_t index) {
  const StepPlan &plan = *f.ahead.plan;
  if ((plan.kind(index) & kUnforeseen) == 0) return;
  const uint32_t granule = plan.granule(index);
  Granule &g = f.granules[granule];
  if (!g.ahead) return;  // it was here from before, and may have been touched then
  const Touched now = touched_pages(f.pagemap, f.address(granule));
  const bool used = now.shown != 0 || now.own != 0;
  if (used) is_needed(f, g);
  else forget_ahead(f, g);
  const uint64_t place = plan.place_of(index);
  std::vector<Unforeseen> &all = f.ahead.expected;
  auto each = std::lower_bound(all.begin(), all.end(), place, [](const Unforeseen &a, uint64_t at) { return a.place < at; });
  for (; each != all.end() && each->place == place; ++each)
    if (each->granule == granule) each->used = used;
}

void expect_unforeseen(sn_frames &f) {
  Ahead &ahead = f.ahead;
  const auto came = [](const Unforeseen &each) { return each.used; };
  if (ahead.found.empty() && std::all_of(ahead.expected.begin(), ahead.expected.end(), came)) return;
  std::vector<Unforeseen> expected;
  for (const std::vector<Unforeseen> *list : {&ahead.expected, &ahead.found})
    std::copy_if(list->begin(), list->end(), std::back_inserter(expected), came);
  const auto earlier = [](const Unforeseen &a, const Unforeseen &b) { return a.place < b.place; };
  std::stable_sort(expected.begin(), expected.end(), earlier);
  follow_plan(f, with(ahead.plan->recorded(), expected));
  ahead.expected = std::move(expected);
  ahead.found.clear();
}

}  // namespace sn
