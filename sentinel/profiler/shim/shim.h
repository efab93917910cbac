// What the files of the shim share.
#pragma once

#include <c10/core/Allocator.h>

namespace sn_shim {

void release(void *address);  // the deleter of every storage whose memory the library gave
c10::Allocator *managed_allocator();

}  // namespace sn_shim
