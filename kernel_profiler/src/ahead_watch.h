// A thread beside operators: what transfers have moved is turned over while an operator runs, and others begin.
#pragma once

struct sn_frames;

namespace sn {

// From now on, of these frames, until the end; where there is no thread to be had, operators do without. May be called
// again.
void ahead_watch_begin(sn_frames *frames);
void ahead_watch_end();  // returns once it does nothing more
void ahead_watch_forget();  // in a forked child

}  // namespace sn
