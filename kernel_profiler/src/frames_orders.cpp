// Transfers: which granules take part, what each needs before, and what becomes of it after.
#include <errno.h>

#include <algorithm>
#include <utility>

#include "frames.h"
#include "guarded.h"

namespace {

using sn::Granule;
using sn::Item;
using sn::Order;
using sn::View;

constexpr uint32_t kGrowTogether = 16;

// Neighbours in the file share a system call.
size_t add_piece(Order &order, uint32_t region, uint64_t address) {
  std::vector<sn::Piece> &pieces = order.transfer.pieces;
  const uint64_t offset = region * sn::kFrameBytes;
  const bool follows = !pieces.empty() && pieces.back().count < sn::kPieceFrames &&
                       pieces.back().offset + pieces.back().count * sn::kFrameBytes == offset;
  if (!follows) pieces.push_back({offset, {}, 0, 0});
  pieces.back().addresses[pieces.back().count++] = address;
  return pieces.size() - 1;
}

// What forked children read is not written while they live: until then the file may take more than was asked for.
int grow_file(sn_frames &f) {
  const uint32_t now = f.regions.count(), more = std::max(f.pool.count(), kGrowTogether);
  if (f.regions.generations() == 0 || now >= sn::kNone - more) {
    f.file_full++;
    return -ENOSPC;
  }
  return sn::guarded([&] {
    const int error = f.file.grow((uint64_t{now} + more) * sn::kFrameBytes);
    if (error == 0) f.regions.extend(more);
    return error;
  });
}

// A positive errno, or 0: it has left.
int settle_departure(sn_frames &f, const Order &order, const Item &item) {
  Granule &g = f.granules[item.granule];
  const int failed = sn::error_of(order, item);
  if (failed == EIO) sn::forsake_region(g);
  // Since it began to leave: it stays private, with pages of its own.
  if (sn::is_pinned(f, item.granule)) return failed != 0 ? failed : EBUSY;
  if (failed != 0) {
    sn::turn_shared(f, item.granule);  // where that fails too, it stays private and unsaved, with all its bytes
    return failed;
  }
  const int error = -sn::turn_away(f, item.granule);
  if (error == EAGAIN) f.given_up++;
  if (error == 0 && item.piece == SIZE_MAX) f.dropped++;
  if (error == 0) sn::has_left(f, item.granule);
  return error;
}

int settle_arrival(sn_frames &f, const Order &order, const Item &item) {
  int error = sn::error_of(order, item);
  if (error == 0 && sn::is_pinned(f, item.granule)) error = EBUSY;
  if (error == 0) error = -sn::turn_resident(f, item.granule, item.frame, order.writes);
  if (error != 0) {
    f.pool.give(item.frame);
    set_ahead(f, f.granules[item.granule], false);
    if (error == ECANCELED) sn::has_left(f, item.granule);  // a fork called it off: it is read ahead once more
  }
  return error;
}

}  // namespace

namespace sn {

int error_of(const Order &order, const Item &item) {
  return item.piece == SIZE_MAX ? 0 : order.transfer.pieces[item.piece].error;
}

void forsake_region(Granule &g) { g.region = kNone; }

int need_regions(sn_frames &f, uint32_t count) { return f.regions.has_free(count) ? 0 : grow_file(f); }

int region_for(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  if (g.region != kNone && f.regions.may_write(g.region)) return 0;
  uint32_t region = f.regions.take(granule);
  if (region == kNone) {
    const int error = grow_file(f);
    if (error != 0) return error;
    region = f.regions.take(granule);
  }
  if (g.region != kNone) f.regions.give(g.region);
  g.region = region;
  return 0;
}

Order &open_order(sn_frames &f, bool arrives, bool writes, uint32_t granules) {
  auto order = std::make_unique<Order>();
  order->items.reserve(granules);
  order->transfer.pieces.reserve(granules);
  order->transfer.writes = !arrives;
  order->arrives = arrives;
  order->writes = writes;
  order->foreseen = f.foreseen;
  order->id = f.last_id + 1;
  Order &opened = *order;
  f.orders.emplace(order->id, std::move(order));
  f.last_id++;
  return opened;
}

int add_write(sn_frames &f, Order &order, uint32_t granule) {
  Granule &g = f.granules[granule];
  if (g.view == View::kNothing) return -EINVAL;
  if (g.view == View::kFile) return 1;
  if (is_pinned(f, granule)) return -EBUSY;
  size_t piece = SIZE_MAX;
  if (g.view == View::kShared || !g.saved) {
    int error = region_for(f, granule);
    if (error == 0 && g.view == View::kShared) error = show_private(f, granule, g.frame);
    if (error != 0) return error;
    piece = add_piece(order, g.region, f.pool.address(g.frame));
  }
  g.order = &order;
  order.items.push_back({granule, g.frame, piece});
  return 0;
}

int add_departure(sn_frames &f, Order &order, uint32_t granule) {
  const int added = add_write(f, order, granule);
  if (added == 0) forget_ahead(f, f.granules[granule]);
  return added;
}

int add_arrival(sn_frames &f, Order &order, uint32_t granule) {
  Granule &g = f.granules[granule];
  if (g.view == View::kNothing) return -EINVAL;
  if (g.view != View::kFile) return 1;
  if (is_pinned(f, granule)) return -EBUSY;
  const uint32_t frame = f.pool.take();
  if (frame == kNone) return -ENOSPC;
  g.order = &order;
  order.items.push_back({granule, frame, add_piece(order, g.region, f.pool.address(frame))});
  return 0;
}

void note_transferred(sn_frames &f, Order &order) {
  if (std::exchange(order.noted, true)) return;
  for (const Piece &piece : order.transfer.pieces) {
    if (piece.error == 0 || piece.error == ECANCELED) continue;
    (order.arrives ? f.failed_reads : f.failed_writes)++;
    (order.arrives ? f.read_failure : f.write_failure) = piece.error;
  }
  for (const Item &item : order.items) {
    if (error_of(order, item) != 0 || item.piece == SIZE_MAX) continue;
    (order.arrives ? f.read_bytes : f.written_bytes) += kFrameBytes;
    if (!order.arrives) f.granules[item.granule].saved = true;
  }
}

bool wait_for(sn_frames &f, Order &order, uint64_t deadline_ns) {
  order.waiting++;
  const bool foreseen = std::exchange(f.foreseen, false);
  pthread_mutex_unlock(&f.mutex);
  const bool over = f.lanes.wait(order.transfer, deadline_ns);
  pthread_mutex_lock(&f.mutex);
  f.foreseen = foreseen;
  order.waiting--;
  return over;
}

void settle(sn_frames &f, Order &order) {
  if (order.settled) return;
  order.settled = true;
  const bool foreseen = std::exchange(f.foreseen, order.foreseen);  // any thread may settle it
  note_transferred(f, order);
  for (const Item &item : order.items) {
    f.granules[item.granule].order = nullptr;
    const int error = order.arrives ? settle_arrival(f, order, item) : settle_departure(f, order, item);
    order.result.moved += error == 0 ? 1 : 0;
    order.result.stayed += error != 0 ? 1 : 0;
    if (order.result.error == 0) order.result.error = error;
    note_change(f, item.granule);
  }
  f.foreseen = foreseen;
  order.result.start_ns = order.transfer.start_ns;
  order.result.stop_ns = order.transfer.stop_ns;
}

void drop_if_unwanted(sn_frames &f, Order &order) {
  if (!order.wanted && order.waiting == 0 && order.settled) f.orders.erase(order.id);
}

void drop_order(sn_frames &f, Order &order) {
  order.wanted = false;
  drop_if_unwanted(f, order);
}

}  // namespace sn
