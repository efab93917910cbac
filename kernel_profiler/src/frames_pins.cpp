// Pages that a device has: memory that a driver has pinned (cudaHostRegister) is read and written at the pages that it had
// then. A granule whose pages are pinned keeps them.
#include <errno.h>

#include "frames.h"

namespace sn {

bool is_pinned(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  if (g.pinned || f.pins == nullptr || f.pins(f.address(granule), kFrameBytes) == 0) return g.pinned;
  g.pinned = true;
  f.pinned++;
  f.pins_seen++;
  note_change(f, granule);
  return true;
}

}  // namespace sn

extern "C" int sn_frames_ask_pins(sn_frames *f, sn_pinned pins) {
  if (f->inert) return -ECHILD;
  sn::Lock lock(&f->mutex);
  f->pins = pins;
  return 0;
}
