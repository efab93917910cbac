// The calls. Making room is the manager's: one thread at a time decides who leaves.
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "guarded.h"
#include "system.h"

namespace {

using sn::Granule;
using sn::Lock;
using sn::Order;
using sn::View;

constexpr uint64_t kForever = UINT64_MAX / 4;
constexpr uint32_t kLeaveTogether = 16;  // granules, as the pool shrinks
constexpr int kPatience = 16;            // times that nobody could leave, one after the other

int open_all(sn_frames &f, const sn_frames_request &request, const char **step) {
  int error = sn::check_host(request.granules, step);
  if (error != 0) return error;
  f.directory = request.directory;
  f.count = request.granules;
  f.granules.reset(new Granule[request.granules]);
  f.regions.open(request.regions);
  *step = "opening /proc/self/pagemap, which tells what was written to";
  const long pagemap = sn_system(SYS_openat, AT_FDCWD, sn::arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC, 0, 0, 0);
  if (pagemap < 0) return static_cast<int>(pagemap);
  f.pagemap = sn::out_of_the_way(static_cast<int>(pagemap));
  *step = "opening /proc/self/statm, which tells what the process takes";
  error = sn::open_statm(f);
  if (error != 0) return error;
  const bool direct = (request.flags & SN_FRAMES_BUFFERED) == 0;
  error = f.file.open(request.directory, request.regions * sn::kFrameBytes, direct, request.writers, step);
  const uint32_t filled = request.filled == 0 ? request.frames : request.filled;
  if (error == 0) error = f.pool.open(request.frames, filled, (request.flags & SN_FRAMES_SMALL_PAGES) == 0, step);
  if (error != 0) return error;
  *step = "reserving addresses (mmap)";
  const long base = sn::reserve_addresses(f.count * sn::kFrameBytes);
  if (base < 0) return static_cast<int>(base);
  f.base = static_cast<uint64_t>(base);
  sn::advise(f.base, f.count * sn::kFrameBytes, MADV_DONTFORK);
  *step = "starting threads for transfers";
  error = f.lanes.start(&f.file, request.readers, request.writers);
  if (error != 0) return error;
  *step = "watching signals and forks";
  error = sn::frames_watch_forks();
  if (error == 0) error = sn::guard_add(&f);
  if (error == 0) error = sn::frames_register(&f, true);
  return error;
}

void close_all(sn_frames *f) {
  sn::frames_register(f, false);
  sn::guard_remove(f);
  f->lanes.stop();
  if (f->base != 0) sn::unmap(f->base, f->count * sn::kFrameBytes);
  f->pool.close();
  f->file.close();
  sn::shut(f->pagemap);
  sn::shut(f->statm);
  delete f;
}

bool is_sound(const sn_frames_request &request) {
  const auto lanes = [](uint32_t count) { return count >= 1 && count <= sn::kMostLanes; };
  return request.directory != nullptr && request.frames != 0 && request.filled <= request.frames &&
         request.granules != 0 && request.regions != 0 && lanes(request.readers) && lanes(request.writers);
}

uint64_t deadline_in(uint64_t timeout_ns) {
  return timeout_ns > kForever ? kForever : std::min(kForever, sn_now_ns() + timeout_ns);
}

uint8_t state_of(const Granule &g) {
  switch (g.view) {
    case View::kNothing:
      return SN_GRANULE_ABSENT;
    case View::kShared:
      return SN_GRANULE_DIRTY;
    case View::kPrivate:
      if (g.order != nullptr) return SN_GRANULE_LEAVING;
      return g.saved ? SN_GRANULE_CLEAN : SN_GRANULE_UNSAVED;
    case View::kFile:
      break;
  }
  return g.order != nullptr ? SN_GRANULE_ARRIVING : SN_GRANULE_AWAY;
}

// Waits for the order, and ends it. Its errno, positive.
int finish(sn_frames &f, Order &order) {
  sn::wait_for(f, order, kForever);
  sn::settle(f, order);
  const int error = order.result.error;
  sn::drop_if_unwanted(f, order);
  return error;
}

// What is under way in [first, end) ends: what arrives arrives, what has not left stays. While it waits, other threads may
// begin orders for granules that it has looked at, so it looks at all of them again.
void calm(sn_frames &f, uint32_t first, uint32_t end) {
  // All of it goes before what was asked for earlier: up to 2 GiB may be on their way for later operators.
  for (uint32_t i = end; i-- > first;)  // the first one comes first
    if (Order *order = f.granules[i].order; order != nullptr && order->arrives) f.lanes.hasten(order->transfer);
  for (uint32_t i = first; i < end;) {
    Order *order = f.granules[i].order;
    if (order == nullptr) {
      i++;
      continue;
    }
    if (order->arrives) f.lanes.hasten(order->transfer);
    else f.lanes.cancel(order->transfer);
    finish(f, *order);
    i = first;
  }
}

// What is released need not be moved: pieces that nobody has begun, and that move nothing else.
void cut(sn_frames &f, Order &order, uint32_t first, uint32_t end) {
  const std::vector<sn::Item> &items = order.items;
  for (size_t i = 0, next = 0; i < items.size(); i = next) {
    bool wanted = items[i].piece == SIZE_MAX;
    for (next = i; next < items.size() && items[next].piece == items[i].piece; next++)
      wanted = wanted || items[next].granule < first || items[next].granule >= end;
    if (!wanted) f.lanes.cut(order.transfer, items[i].piece);
  }
}

// Sends them away. Positive errno of the first that stayed, 0 if none did; `moved`: how many left.
int send_away(sn_frames &f, const std::vector<uint32_t> &leaving, uint64_t *moved) {
  Order &order = sn::open_order(f, false, false, static_cast<uint32_t>(leaving.size()));
  order.wanted = false;
  int refused = 0;
  for (const uint32_t granule : leaving) {
    const int error = sn::add_departure(f, order, granule);
    if (error < 0 && refused == 0) refused = -error;
  }
  f.lanes.submit(order.transfer, true);
  sn::wait_for(f, order, kForever);
  sn::settle(f, order);
  *moved = order.result.moved;
  const int error = order.result.error;
  sn::drop_if_unwanted(f, order);
  for (const uint32_t granule : leaving)  // who stayed is not asked again at once
    if (f.granules[granule].view != View::kFile) f.granules[granule].used = f.needs;
  return refused != 0 ? refused : error;
}

bool wait_for_one(sn_frames &f, bool arrives) {
  for (auto &[id, order] : f.orders) {
    if (order->arrives != arrives || order->settled) continue;
    finish(f, *order);
    return true;
  }
  return false;
}

// At least `wanted` frames are free afterwards. The manager's thread only.
int make_room(sn_frames &f, uint32_t wanted, uint32_t first, uint32_t end) {
  for (int in_vain = 0; f.pool.free_count() < wanted;) {
    if (wait_for_one(f, false)) continue;
    const std::vector<uint32_t> leaving = sn::victims(f, wanted - f.pool.free_count(), first, end);
    if (leaving.empty()) {
      if (wait_for_one(f, true)) continue;  // what arrives can leave
      return -ENOSPC;
    }
    uint64_t moved = 0;
    const uint64_t pins = f.pins_seen;
    const int error = send_away(f, leaving, &moved);
    in_vain = moved != 0 || f.pins_seen != pins ? 0 : in_vain + 1;  // who is pinned is not asked again
    if (in_vain == kPatience) return error != 0 ? -error : -EBUSY;
  }
  return 0;
}

void detach(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  sn::forget_ahead(f, g);
  if (g.frame != sn::kNone) f.pool.give(g.frame);
  if (g.region != sn::kNone) f.regions.give(g.region);
  g.frame = g.region = sn::kNone;
  g.saved = false;
  g.unforeseen = 0;
  if (std::exchange(g.kept, false)) f.kept--;
  if (std::exchange(g.pinned, false)) f.pinned--;
}

int attach_one(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  int error = sn::region_for(f, granule);
  const uint32_t frame = error == 0 ? f.pool.take() : sn::kNone;
  if (error == 0 && frame == sn::kNone) error = -ENOSPC;
  if (error == 0) error = sn::show_shared(f, granule, frame);
  if (error != 0) {
    if (frame != sn::kNone) f.pool.give(frame);
    detach(f, granule);
    return error;
  }
  g.used = f.needs;
  g.gate.store(sn::kOpen);
  sn::note_change(f, granule);
  return 0;
}

// Granules whose bytes nobody needs, since each is to be zero. Whoever reads them meanwhile finds old bytes or zeros.
struct Dead {
  uint32_t first = 0, end = 0;
  bool has(uint32_t granule) const { return granule >= first && granule < end; }
};

int fetch(sn_frames &f, uint32_t first, uint32_t end, bool writes, Dead dead = {}) {
  for (;;) {
    calm(f, first, end);
    uint32_t missing = 0;
    for (uint32_t i = first; i < end; i++) missing += f.granules[i].view == View::kFile && !sn::is_pinned(f, i) ? 1 : 0;
    if (missing == 0) return 0;
    if (f.pool.free_count() < missing) {
      const int error = make_room(f, missing, first, end);
      if (error != 0) return error;
      continue;  // the mutex was let go of
    }
    Order &order = sn::open_order(f, true, writes, missing);
    order.wanted = false;
    for (uint32_t i = first; i < end; i++) {
      const bool away = f.granules[i].view == View::kFile && !f.granules[i].pinned;
      if (dead.has(i) && away && sn::show_zeros(f, i) == 0) {
        f.unread_bytes += sn::kFrameBytes;
        sn::note_change(f, i);
      } else if (sn::add_arrival(f, order, i) == 0)
        f.ahead.demanded_bytes += sn::kFrameBytes;
    }
    f.lanes.submit(order.transfer, true);
    const uint64_t pins = f.pins_seen;
    const int error = finish(f, order);
    if (error != 0 && f.pins_seen == pins) return -error;  // who was pinned on its way stays where it is
  }
}

// Pages that stores have made beside the frames are taken into frames, once there may be more than are allowed. What the
// disk or a storm of stores prevents is left for the next time.
void take_in_own_pages(sn_frames &f, bool at_once = false) {
  if (!sn::own_pages_may_have_grown(f) && !at_once) return;
  const int64_t before = f.anonymous;
  const std::vector<sn::Owner> owners = sn::find_owners(f);
  try {
    for (const sn::Owner &owner : owners) {
      if (f.own_pages <= sn::own_pages_allowed(f)) return;
      Granule &g = f.granules[owner.granule];
      if (sn::is_pinned(f, owner.granule)) continue;
      int error = g.view == View::kFile ? fetch(f, owner.granule, owner.granule + 1, true) : 0;
      if (error == 0 && g.view == View::kPrivate && g.order == nullptr) error = sn::turn_shared(f, owner.granule);
      g.used = f.needs;
      if (error != 0) continue;
      f.own_pages -= owner.pages;
      f.anonymous -= owner.pages;  // else as many could come again before the next look
    }
  } catch (...) {  // no memory: the next call looks again
    f.anonymous = std::min(before, f.anonymous);
    throw;
  }
}

int attach(sn_frames &f, uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; i++)
    if (f.granules[i].view != View::kNothing) return -EEXIST;
  if (count > f.pool.count()) return -ENOSPC;
  int error = sn::need_regions(f, count);  // else others would leave in vain
  if (error != 0) return error;
  take_in_own_pages(f);
  error = make_room(f, count, first, first + count);
  f.needs++;
  uint32_t done = first;
  for (; error == 0 && done < first + count; done++) error = attach_one(f, done);
  for (uint32_t i = first; error == 0 && i < done; i++) sn::note_use(f, i, sn::kWrites | sn::kBorn);
  if (error == 0) return 0;
  for (uint32_t i = first; i < done; i++)
    if (f.granules[i].view != View::kNothing && sn::show_nothing(f, i) == 0) detach(f, i);
  return error;
}

int need(sn_frames &f, uint32_t first, uint32_t end, bool writes, Dead dead) {
  f.needs++;
  for (uint32_t i = first; i < end; i++) {
    if (f.granules[i].view == View::kNothing) return -EINVAL;
    f.granules[i].used = f.needs;
    sn::is_needed(f, f.granules[i]);
    sn::note_use(f, i, static_cast<uint8_t>(dead.has(i) ? sn::kWrites | sn::kZeroed : writes ? sn::kReads | sn::kWrites : sn::kReads));
  }
  if (end - first > f.pool.count()) return -ENOSPC;
  take_in_own_pages(f);
  int error = fetch(f, first, end, writes, dead);
  for (uint32_t i = first; i < end && error == 0; i++) {
    if (f.granules[i].view == View::kNothing) return -EINVAL;  // released meanwhile
    if (writes && f.granules[i].view == View::kPrivate && !sn::is_pinned(f, i)) error = sn::turn_shared(f, i);
  }
  return error;
}

// Of fewer frames fewer stay: else all others would take turns in what is left, and operands push out one another.
void keep_at_most(sn_frames &f, uint32_t most) {
  for (uint32_t i = f.count; f.kept > most && i-- > 0;) {
    if (!std::exchange(f.granules[i].kept, false)) continue;
    f.kept--;
    sn::note_change(f, i);
  }
}

// Memory goes back, or comes, frame by frame; what has left, or come, stays so where the next one cannot.
int resize(sn_frames &f, uint32_t frames) {
  keep_at_most(f, sn::most_kept(frames));
  int error = 0;
  while (error == 0 && f.pool.count() > frames) {
    if (f.pool.free_count() == 0) error = make_room(f, std::min(f.pool.count() - frames, kLeaveTogether), 0, 0);
    if (error == 0 && f.pool.free_count() != 0) error = f.pool.retire();  // the mutex was let go of
  }
  while (error == 0 && f.pool.count() < frames) error = f.pool.restore();
  return error;
}

// Those in which any of these bytes lie; false where there are none, or not all bytes are in the arena.
bool find_granules(const sn_frames &f, uint64_t address, uint64_t nbytes, uint32_t *first, uint32_t *end) {
  const uint64_t arena = f.count * sn::kFrameBytes, from = address - f.base;
  if (nbytes == 0 || address < f.base || from >= arena || nbytes > arena - from) return false;
  *first = static_cast<uint32_t>(from / sn::kFrameBytes);
  *end = static_cast<uint32_t>((from + nbytes - 1) / sn::kFrameBytes + 1);
  return true;
}

int64_t start(sn_frames &f, uint32_t first, uint32_t count, bool arrives, bool writes) {
  uint32_t missing = 0;
  for (uint32_t i = first; i < first + count; i++) {
    if (f.granules[i].view == View::kNothing) return -EINVAL;
    if (f.granules[i].order != nullptr) return -EBUSY;
    missing += f.granules[i].view == View::kFile && !sn::is_pinned(f, i) ? 1 : 0;
  }
  if (arrives && f.pool.free_count() < missing) return -ENOSPC;
  Order &order = sn::open_order(f, arrives, writes, count);
  for (uint32_t i = first; i < first + count; i++) {
    const int error = arrives ? sn::add_arrival(f, order, i) : sn::add_departure(f, order, i);
    if (error >= 0) continue;
    order.result.stayed++;
    if (order.result.error == 0) order.result.error = -error;
  }
  f.lanes.submit(order.transfer);
  return static_cast<int64_t>(order.id);
}

}  // namespace

namespace sn {

void frames_stream(sn_frames &f, uint64_t address, uint64_t nbytes) {
  uint32_t first = 0, end = 0;
  if (f.inert || !find_granules(f, address, nbytes, &first, &end)) return;
  Lock lock(&f.mutex);
  f.needs++;
  for (uint32_t i = first; i < end; i++) {
    Granule &g = f.granules[i];
    if (g.view != View::kNothing) g.used = f.needs;  // as it leaves, it is of a recent operator
    if (g.view == View::kFile) expect_stream(f, i);
  }
}

}  // namespace sn

extern "C" int sn_frames_create(const sn_frames_request *request, sn_frames **out, const char **step) {
  *step = "reading what is asked for";
  if (!is_sound(*request)) return -EINVAL;
  sn_frames *f = nullptr;
  const int error = sn::guarded([&] {
    f = new sn_frames;
    return open_all(*f, *request, step);
  });
  if (error != 0) {
    if (f != nullptr) close_all(f);
    return error;
  }
  *out = f;
  return 0;
}

extern "C" int sn_frames_destroy(sn_frames *f) {
  if (f == nullptr) return 0;
  if (f->inert) return -ECHILD;  // its memory stays, like what it shows
  {
    Lock lock(&f->mutex);
    for (uint32_t i = 0; i < f->count; i++)
      if (f->granules[i].view != View::kNothing) return -EBUSY;
  }
  close_all(f);
  return 0;
}

extern "C" int sn_frames_facts_of(sn_frames *f, sn_frames_facts *out) {
  if (f->inert) return -ECHILD;
  struct stat pool = {};
  if (fstat(f->pool.descriptor(), &pool) != 0) return -errno;
  Lock lock(&f->mutex);
  *out = {};
  out->base = f->base;
  out->pool_bytes = static_cast<uint64_t>(pool.st_blocks) * 512;
  out->frames = f->pool.count();
  out->granules = f->count;
  out->regions = f->regions.count();
  out->huge_frames = f->pool.huge_count();
  out->direct = f->file.direct() ? 1 : 0;
  out->unnamed = f->file.unnamed() ? 1 : 0;
  out->promised = f->file.promised() ? 1 : 0;
  return 0;
}

extern "C" int sn_frames_count(sn_frames *f, sn_frames_counters *out) {
  if (f->inert) return -ECHILD;
  Lock lock(&f->mutex);
  *out = {};
  out->generations = f->regions.generations();
  out->free_frames = f->pool.free_count();
  out->free_regions = f->regions.free_count();
  for (uint32_t i = 0; i < f->count; i++) out->in_state[state_of(f->granules[i])]++;
  out->read_bytes = f->read_bytes;
  out->written_bytes = f->written_bytes;
  out->carried_pages = f->carried_pages;
  out->given_up = f->given_up;
  out->waited = f->waited.load();
  out->dropped = f->dropped;
  out->fork_bytes = f->fork_bytes;
  out->own_pages = f->own_pages;
  out->most_own_pages = f->most_own_pages;
  out->unread_bytes = f->unread_bytes;
  out->kept = f->kept;
  out->pinned = f->pinned;
  out->failed_reads = f->failed_reads;
  out->failed_writes = f->failed_writes;
  out->read_failure = static_cast<uint64_t>(f->read_failure);
  out->write_failure = static_cast<uint64_t>(f->write_failure);
  out->file_full = f->file_full;
  return 0;
}

extern "C" int sn_frames_states(sn_frames *f, uint32_t first, uint32_t count, uint8_t *out) {
  if (f->inert) return -ECHILD;
  if (!f->has(first, count)) return -EINVAL;
  Lock lock(&f->mutex);
  for (uint32_t i = 0; i < count; i++) out[i] = state_of(f->granules[first + i]);
  return 0;
}

extern "C" int sn_frames_attach(sn_frames *f, uint32_t first, uint32_t count) {
  if (f->inert) return -ECHILD;
  if (!f->has(first, count)) return -EINVAL;
  Lock manager(&f->manager);
  Lock lock(&f->mutex);
  return sn::guarded([&] { return attach(*f, first, count); });
}

extern "C" int sn_frames_release(sn_frames *f, uint32_t first, uint32_t count) {
  if (!f->has(first, count)) return -EINVAL;
  if (f->inert) return -ECHILD;
  Lock lock(&f->mutex);
  for (uint32_t i = first; i < first + count; i++) {
    while (Order *order = f->granules[i].order) {
      cut(*f, *order, first, first + count);
      f->lanes.hasten(order->transfer);
      finish(*f, *order);
    }
    if (f->granules[i].view == View::kNothing) continue;
    const int error = sn::show_nothing(*f, i);
    if (error != 0) return error;
    detach(*f, i);
    sn::note_use(*f, i, sn::kDied);
  }
  return 0;
}

extern "C" int sn_frames_need(sn_frames *f, uint64_t address, uint64_t nbytes, int writes) {
  if (f->inert) return -ECHILD;
  uint32_t first = 0, end = 0;
  if (!find_granules(*f, address, nbytes, &first, &end)) return nbytes == 0 ? 0 : -EINVAL;
  Dead dead;
  if (writes == SN_ZEROES) {
    const uint64_t from = address - f->base;
    dead.first = static_cast<uint32_t>((from + sn::kFrameBytes - 1) / sn::kFrameBytes);
    dead.end = static_cast<uint32_t>((from + nbytes) / sn::kFrameBytes);
  }
  Lock manager(&f->manager);
  Lock lock(&f->mutex);
  return sn::guarded([&] { return need(*f, first, end, writes != SN_READS, dead); });
}

extern "C" int sn_frames_tidy(sn_frames *f, int at_once) {
  if (f->inert) return -ECHILD;
  Lock manager(&f->manager);
  Lock lock(&f->mutex);
  f->foreseen = true;
  f->needs++;
  const int error = sn::guarded([&] {
    take_in_own_pages(*f, at_once != 0);
    return 0;
  });
  f->foreseen = false;
  return error;
}

extern "C" int sn_frames_keep(sn_frames *f, uint32_t most) {
  if (f->inert) return -ECHILD;
  Lock lock(&f->mutex);
  keep_at_most(*f, most);
  return 0;
}

extern "C" int sn_frames_resize(sn_frames *f, uint32_t frames) {
  if (f->inert) return -ECHILD;
  if (frames == 0) return -EINVAL;
  Lock manager(&f->manager);
  Lock lock(&f->mutex);
  return sn::guarded([&] { return resize(*f, frames); });
}

extern "C" int64_t sn_frames_leave(sn_frames *f, uint32_t first, uint32_t count) {
  if (f->inert) return -ECHILD;
  if (!f->has(first, count)) return -EINVAL;
  Lock lock(&f->mutex);
  return sn::guarded([&] { return start(*f, first, count, false, false); });
}

extern "C" int64_t sn_frames_arrive(sn_frames *f, uint32_t first, uint32_t count, int writes) {
  if (f->inert) return -ECHILD;
  if (!f->has(first, count)) return -EINVAL;
  Lock lock(&f->mutex);
  return sn::guarded([&] { return start(*f, first, count, true, writes != 0); });
}

extern "C" int sn_frames_cancel(sn_frames *f, uint64_t id) {
  if (f->inert) return -ECHILD;
  Lock lock(&f->mutex);
  const auto found = f->orders.find(id);
  if (found == f->orders.end() || !found->second->wanted) return -ENOENT;
  f->lanes.cancel(found->second->transfer);
  return 0;
}

extern "C" int sn_frames_collect(sn_frames *f, uint64_t id, uint64_t timeout_ns, sn_frames_result *out) {
  if (f->inert) return -ECHILD;
  Lock lock(&f->mutex);
  const auto found = f->orders.find(id);
  if (found == f->orders.end() || !found->second->wanted) return -ENOENT;
  Order &order = *found->second;
  if (!sn::wait_for(*f, order, deadline_in(timeout_ns))) {
    sn::drop_if_unwanted(*f, order);
    return -ETIMEDOUT;
  }
  sn::settle(*f, order);
  *out = order.result;
  sn::drop_order(*f, order);
  return 0;
}
