// The allocation log: appended by any thread, read at rest.
#pragma once

#include <stdint.h>

#include "sentinel.h"

namespace sn {

int log_open();    // maps the log at its first use
void log_clear();  // empties it
void log_release();  // and gives its pages back
void log_append(uint8_t kind, const void *address, uint64_t nbytes, int32_t ordinal, uint32_t flags);

}  // namespace sn
