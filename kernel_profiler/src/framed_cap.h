// How many frames there may be, so that the whole process stays within a cap.
#pragma once

#include <stdint.h>

#include <atomic>

#include "sentinel.h"

namespace sn {

// Whether it is time to look. Cheap: asked before each operator.
bool cap_is_due();
// Looks at what is taken beside the frames, and makes them fewer or more. `pool`: how many there are. One thread at a
// time; others find that another one looks, and go on.
void cap_follow(sn_frames *frames, std::atomic<uint32_t> &pool);
// There is no cap, for frames that are new.
void cap_forget(const sn_frames_facts &facts);

}  // namespace sn
