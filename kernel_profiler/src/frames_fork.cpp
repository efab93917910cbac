// A forked child sees every granule as it was at the fork, in the file, and holds no frame. Before the fork the views are
// made private and what the file lacks is written; what other threads store from then on is in pages that the kernel
// copies for the child like any others. The parent goes on when the child shows frames no more. What nobody has written to
// by then stays private, so that the next fork has nothing to write.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <utility>

#include "device_pins.h"
#include "frames.h"
#include "guarded.h"
#include "system.h"

namespace {

using sn::Granule;
using sn::Order;
using sn::View;

constexpr uint64_t kPage = 4096;
constexpr int kMost = 8;
constexpr int kTries = 3;

pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
sn_frames *registered[kMost];
int ready[2] = {-1, -1};  // the child writes one byte when it shows no frame any more

template <typename Body>
bool tried(Body body) {
  for (int i = 0; i < kTries; i++)
    if (body() == 0) return true;
  return false;
}

// Stores after this are in pages of the granule's own, but for those that a device has: the child copies them.
void make_private(sn_frames &f) {
  for (uint32_t i = 0; i < f.count; i++) {
    Granule &g = f.granules[i];
    if (g.view == View::kShared && !sn::is_pinned(f, i)) g.was_shared = tried([&] { return sn::show_private(f, i, g.frame); });
  }
}

// Whatever cannot be written is copied by the child.
void save(sn_frames &f) {
  Order &order = sn::open_order(f, false, false, f.count);
  for (uint32_t i = 0; i < f.count; i++) {
    const Granule &g = f.granules[i];
    if (g.view == View::kPrivate && !g.saved && g.order == nullptr) sn::add_write(f, order, i);
  }
  f.lanes.submit(order.transfer);
  f.lanes.wait(order.transfer, UINT64_MAX / 4);
  const uint64_t before = f.written_bytes;
  sn::note_transferred(f, order);
  f.fork_bytes += f.written_bytes - before;
  for (const sn::Item &item : order.items) {
    Granule &g = f.granules[item.granule];
    g.order = nullptr;
    if (sn::error_of(order, item) == EIO) sn::forsake_region(g);
  }
  f.orders.erase(order.id);
}

bool child_reads(const Granule &g) {
  return g.view == View::kFile || (g.view == View::kPrivate && g.saved);
}

void hold_regions(sn_frames &f) {
  f.regions.hold_begin(f.count);
  for (uint32_t i = 0; i < f.count; i++)
    if (child_reads(f.granules[i])) f.regions.hold_add(f.granules[i].region);
  f.held = true;
}

// What nobody waits for need not come before the child can be there: of reads ahead that may be 2 GiB. What leaves has to.
void call_off(sn_frames &f) {
  for (const auto &[id, order] : f.orders)
    if (order->arrives && !order->wanted && order->waiting == 0) f.lanes.cancel(order->transfer);
}

void prepare(sn_frames &f) {
  call_off(f);
  f.lanes.drain();
  for (auto &[id, order] : f.orders) sn::note_transferred(f, *order);
  make_private(f);
  sn::guarded([&] {
    save(f);
    return 0;
  });
  f.held = false;
  sn::guarded([&] {
    hold_regions(f);
    return 0;
  });
  f.whole_child = tried([&] { return sn::advise(f.base, f.count * sn::kFrameBytes, MADV_DOFORK); });
}

// Whether the file holds all bytes of a granule that shows its frame. A store that comes later makes a page of the
// granule's own, and whoever turns it over looks for those: it needs no instant here.
bool is_clean(const sn_frames &f, uint32_t granule) {
  bool own[sn::kPagesPerGranule];
  return f.granules[granule].saved && sn::own_pages(f.pagemap, f.address(granule), own) == 0;
}

void go_on(sn_frames &f) {
  if (f.held) {
    f.regions.hold_end_in_parent();
  } else {  // there was no memory for a list: so for ever
    for (uint32_t i = 0; i < f.count; i++)
      if (child_reads(f.granules[i])) f.regions.freeze(f.granules[i].region);
  }
  sn::advise(f.base, f.count * sn::kFrameBytes, MADV_DONTFORK);
  for (uint32_t i = 0; i < f.count; i++) {
    const bool was_shared = std::exchange(f.granules[i].was_shared, false);
    if (was_shared && f.granules[i].order == nullptr && !is_clean(f, i)) sn::turn_shared(f, i);  // else it stays private
  }
}

// Other threads of the parent may have written there, which ThreadSanitizer cannot know to be over.
__attribute__((no_sanitize("thread"))) void copy_page(uint64_t to, uint64_t from) {
  volatile uint64_t *target = reinterpret_cast<volatile uint64_t *>(to);
  const volatile uint64_t *source = reinterpret_cast<const volatile uint64_t *>(from);
  for (uint64_t i = 0; i < kPage / sizeof *target; i++) target[i] = source[i];
}

// A copy takes the place of the frame: of the pages of the granule's `own` over what the file holds, else of all.
int copy_out(const sn_frames &f, uint32_t granule, const bool *own) {
  const uint64_t address = f.address(granule);
  const int kind = MAP_PRIVATE | MAP_NORESERVE | (own == nullptr ? MAP_ANONYMOUS : 0);
  const long copy = sn::map(0, sn::kFrameBytes, PROT_READ | PROT_WRITE, kind, own == nullptr ? -1 : f.file.descriptor(),
                            own == nullptr ? 0 : f.granules[granule].region * sn::kFrameBytes);
  if (copy < 0) return static_cast<int>(copy);
  if (own != nullptr) sn::advise(static_cast<uint64_t>(copy), sn::kFrameBytes, MADV_RANDOM);
  for (uint64_t page = 0; page < sn::kPagesPerGranule; page++)
    if (own == nullptr || own[page]) copy_page(static_cast<uint64_t>(copy) + page * kPage, address + page * kPage);
  constexpr long kTo = MREMAP_MAYMOVE | MREMAP_FIXED;
  const long moved = sn_system(SYS_mremap, copy, sn::kFrameBytes, sn::kFrameBytes, kTo, sn::arg(address), 0);
  return moved < 0 ? static_cast<int>(moved) : 0;
}

int let_go(sn_frames &f, uint32_t granule) {
  const Granule &g = f.granules[granule];
  if (g.view == View::kNothing || g.view == View::kFile) return 0;
  bool own[sn::kPagesPerGranule];
  const int found = g.saved ? sn::own_pages(f.pagemap, f.address(granule), own) : -1;
  if (found == 0 && sn::show_file(f, granule) == 0) return 0;
  return copy_out(f, granule, found > 0 ? own : nullptr);
}

template <size_t size>
void say(const char (&text)[size]) {
  sn_system(SYS_write, STDERR_FILENO, sn::arg(text), size - 1, 0, 0, 0);
}

[[noreturn]] void give_up() {
  say("sentinel: a forked child could not get its own view of memory that is in frames; it ends here\n");
  if (ready[1] < 0) say("sentinel: there was no file descriptor for it: allow more open files (ulimit -n)\n");
  _exit(EXIT_FAILURE);
}

void leave_parent(sn_frames &f) {
  f.inert = true;
  f.lanes.forget();
  sn::shut(f.pagemap);  // it tells of the parent's pages
  sn::shut(f.statm);
  const long pagemap = sn_system(SYS_openat, AT_FDCWD, sn::arg("/proc/self/pagemap"), O_RDONLY | O_CLOEXEC, 0, 0, 0);
  f.pagemap = pagemap < 0 ? -1 : static_cast<int>(pagemap);  // without it, all is copied
  if (!f.whole_child || ready[1] < 0) give_up();
  for (uint32_t i = 0; i < f.count; i++)
    if (!tried([&] { return let_go(f, i); })) give_up();
  f.regions.hold_end_in_child();
  f.pool.close_in_child();
  f.file.close();  // what is mapped stays
  sn::shut(f.pagemap);
}

void before() {
  sn::find_device_driver();
  pthread_mutex_lock(&registry);
  sn::guard_hold();
  bool any = false;
  for (sn_frames *f : registered) {
    if (f == nullptr) continue;
    any = true;
    pthread_mutex_lock(&f->mutex);
    prepare(*f);
  }
  if (any && sn_system(SYS_pipe2, sn::arg(ready), O_CLOEXEC, 0, 0, 0, 0) != 0) ready[0] = ready[1] = -1;
  sn::driver_hold();
}

void parent() {
  sn::driver_let_go();
  sn::shut(ready[1]);
  char byte;
  // Ends with the byte, or at the death of the child, or at once if there is none.
  for (int failed = 0; ready[0] >= 0 && failed < kTries;) {
    const long got = sn_system(SYS_read, ready[0], sn::arg(&byte), 1, 0, 0, 0);
    if (got >= 0) break;
    if (got != -EINTR) failed++;
  }
  sn::shut(ready[0]);
  for (sn_frames *f : registered) {
    if (f == nullptr) continue;
    go_on(*f);
    pthread_mutex_unlock(&f->mutex);
  }
  sn::guard_let_go();
  pthread_mutex_unlock(&registry);
}

void child() {
  sn::driver_let_go();
  for (sn_frames *&f : registered) {
    if (f == nullptr) continue;
    leave_parent(*f);
    pthread_mutex_unlock(&f->mutex);
    f = nullptr;
  }
  const char byte = 1;
  if (ready[1] >= 0) sn_system(SYS_write, ready[1], sn::arg(&byte), 1, 0, 0, 0);
  sn::shut(ready[1]);
  sn::shut(ready[0]);  // not before: if the parent is gone, that is no reason to end by SIGPIPE
  sn::guard_let_go();
  pthread_mutex_unlock(&registry);
}

}  // namespace

namespace sn {

int frames_watch_forks() {
  static const int watched = pthread_atfork(before, parent, child);
  return -watched;
}

int frames_register(sn_frames *f, bool there) {
  Lock lock(&registry);
  for (sn_frames *&each : registered) {
    if (each != (there ? nullptr : f)) continue;
    each = there ? f : nullptr;
    return 0;
  }
  return there ? -ENFILE : 0;
}

}  // namespace sn
