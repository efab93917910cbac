// Handlers of SIGSEGV and SIGBUS, from the first frames until the last ones are removed.
#pragma once

struct sn_frames;

namespace sn {

int guard_add(sn_frames *f);  // -ENFILE: too many
void guard_remove(sn_frames *f);  // also where it was not added
// Where somebody has put a handler above ours since, ours goes above that one and passes on to it.
void guard_stay_on_top();
// Around a fork: no thread is between two of these then, whose lock a child would never get.
void guard_hold();
void guard_let_go();

}  // namespace sn
