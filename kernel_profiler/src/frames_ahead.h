// One step is recorded; from the next one on, what it is about to need is read while earlier operators run.
#pragma once

#include <stdint.h>

#include <memory>
#include <vector>

#include "last_needed.h"
#include "step_plan.h"
#include "step_record.h"

struct sn_frames;

namespace sn {

struct Granule;

// A granule that was touched while it was away, as the operator at that place of the record was the last to begin.
struct Unforeseen {
  uint32_t granule;
  uint64_t place;
  bool used;  // in the last step, too
};

// Whoever looks at it holds the frames' mutex.
struct Ahead {
  StepRecord record;
  std::unique_ptr<StepPlan> plan;
  LastNeeded last;                  // of granules that may leave, and some that may not, but for those in `changed`
  std::vector<uint32_t> changed;    // granules that are needed at another time than before, or may leave only now
  uint64_t sure = 0;  // index up to which all that the plan needs is there, on its way, or about to be born
  uint64_t recents[2] = {};  // the count of needs as the latest operators began, a ring
  uint64_t operators = 0;
  uint32_t unused = 0;  // granules read ahead, or being so, and not used yet
  uint64_t steps = 0, recorded = 0;
  bool too_long = false;             // the last step that was to be recorded had too many uses
  uint32_t pause = 0, paused = 0;    // steps until another one is tried then, and how many of these are over
  uint64_t hit_bytes = 0, late_bytes = 0, vain_bytes = 0, demanded_bytes = 0;
  uint64_t matched = 0, missed = 0;  // by plans before
  uint64_t waited_ns = 0;            // at the begin of this step
  uint64_t wait_before_ns = 0, wait_after_ns = 0;  // of the last step without a plan, and with one
  bool planned = false;              // this step
  uint32_t running = 0;              // operators that were told to say when they have ended
  std::vector<Unforeseen> expected, found;  // in the plan, by place; to be in that of the next step
  uint64_t unforeseen_uses = 0;
  int64_t major_faults = 0;    // of the process, as the latest operator began
  uint64_t look_after_ns = 0;  // the next look for what was touched is not before

  bool follows() const { return plan != nullptr && !plan->lost(); }
};

// A step begins; until now operators and allocations have waited for `waited_ns`.
void step_begins(sn_frames &f, uint64_t waited_ns);
// An operator begins: finds its place, and turns over what has come or left meanwhile.
void operator_begins(sn_frames &f, uint64_t signature);
// Its operands are there. Begins what can be begun: for the manager's thread.
void read_ahead(sn_frames &f);
// Whether it has to say when it ends: until then, others may turn granules over.
bool operator_runs(sn_frames &f);
void operator_ended(sn_frames &f);

// From the begin of a step on.
void follow_plan(sn_frames &f, StepUses uses);

// frames_unforeseen.cpp: what no operator announced. As one begins, what was touched since the one before is noted.
void look_for_unforeseen(sn_frames &f);
// The job is past that use of the plan: if it was expected since it was unforeseen before, whether it came is noted.
void pass_unforeseen(sn_frames &f, uint64_t index);
// A step begins: the plan gets what was found, and loses what did not come again.
void expect_unforeseen(sn_frames &f);

// It may leave now, or is needed at another time.
void note_change(sn_frames &f, uint32_t granule);
// A granule has left for the file, or has not come from there.
void has_left(sn_frames &f, uint32_t granule);
// Whether it was read ahead and is not used yet; what it was before.
bool set_ahead(sn_frames &f, Granule &g, bool ahead);
// A granule is needed, or leaves before it was.
void is_needed(sn_frames &f, Granule &g);
void forget_ahead(sn_frames &f, Granule &g);
// Of the step that is recorded.
void note_use(sn_frames &f, uint32_t granule, uint8_t kind);

}  // namespace sn
