// Time, the order of events and the current layer.
#pragma once

#include <stdint.h>

#include <atomic>

#include "sentinel.h"

namespace sn {
extern std::atomic<int32_t> layer;  // written by sn_tick only

uint64_t computed_ns();  // by this thread
}
