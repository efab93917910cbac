// One view of a granule for another. What replaces a mapping does so at one moment for all that touch it, so that loads
// need no care. Stores do: between the look for pages of the granule's own and the replacement, none may be made.
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>

#include <climits>

#include "frames.h"
#include "system.h"

namespace {

using sn::Granule;
using sn::View;

constexpr uint64_t kPage = 4096;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kOfFile = uint64_t{1} << 61;

int read_entries(int pagemap, uint64_t address, uint64_t (&entries)[sn::kPagesPerGranule]) {
  for (uint64_t read = 0; read < sizeof entries;) {
    const long got = sn_system(SYS_pread64, pagemap, sn::arg(reinterpret_cast<uint8_t *>(entries) + read),
                               sn::arg(sizeof entries - read), sn::arg(address / kPage * 8 + read), 0, 0);
    if (got == -EINTR) continue;
    if (got <= 0) return got < 0 ? static_cast<int>(got) : -EIO;
    read += static_cast<uint64_t>(got);
  }
  return 0;
}

bool is_own(uint64_t entry) { return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0; }

// A bare clone() must not show a child what this process writes later.
void keep_from_children(uint64_t address) { sn::advise(address, sn::kFrameBytes, MADV_DONTFORK); }

int show(uint64_t address, int kind, int fd, uint64_t offset) {
  const long mapped = sn::map(address, sn::kFrameBytes, kReadWrite, kind | MAP_FIXED | MAP_NORESERVE, fd, offset);
  return mapped < 0 ? static_cast<int>(mapped) : 0;
}

// While it lives, no store reaches the granule: in user code they wait.
class Instant {
 public:
  Instant(sn_frames &f, uint32_t granule) : f_(f), granule_(granule), gate_(f.granules[granule].gate) {
    f_.turns.fetch_add(1);
    gate_.store(sn::kShut);
    error_ = sn::protect(f.address(granule), sn::kFrameBytes, PROT_READ);
  }
  ~Instant() {
    const bool open = replaced_ || error_ != 0 || allow();
    gate_.store(open ? sn::kOpen : sn::kStuck);
    f_.turns.fetch_add(1);
    sn_system(SYS_futex, sn::arg(&f_.turns), FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
  }
  Instant(const Instant &) = delete;
  Instant &operator=(const Instant &) = delete;

  int error() const { return error_; }
  int replaced(int error) {  // by a mapping that allows stores
    replaced_ = error == 0;
    return error;
  }

 private:
  bool allow() {
    for (int attempt = 0; attempt < 100; attempt++) {
      if (sn::protect(f_.address(granule_), sn::kFrameBytes, kReadWrite) == 0) return true;
      sched_yield();
    }
    return false;
  }

  sn_frames &f_;
  uint32_t granule_;
  std::atomic<uint8_t> &gate_;
  int error_ = 0;
  bool replaced_ = false;
};

// Where stores come again and again that nobody announces, a granule stays, so that system calls of other threads meet no
// instant there. A quarter of the frames at most: the others have to do for all the rest.
void note_unforeseen(sn_frames &f, Granule &g) {
  constexpr uint8_t kOften = 2;
  if (f.foreseen || g.kept) return;
  if (g.unforeseen < kOften) g.unforeseen++;
  if (g.unforeseen < kOften || f.kept >= sn::most_kept(f.pool.count())) return;
  g.kept = true;
  f.kept++;
}

// The kernel copies pages of the granule's own into a frame: bytes that other threads may be about to write are not ours
// to load.
int carry(sn_frames &f, uint32_t granule, uint32_t frame, const bool *own, bool *begun) {
  for (uint32_t page = 0, end = 0; page < sn::kPagesPerGranule; page = end) {
    for (end = page + 1; end < sn::kPagesPerGranule && own[end] == own[page]; end++) {
    }
    if (!own[page]) continue;
    *begun = true;
    for (uint64_t at = page * kPage; at < end * kPage;) {
      const long moved = sn_system(SYS_pwrite64, f.pool.descriptor(), sn::arg(f.address(granule) + at),
                                   sn::arg(end * kPage - at), sn::arg(sn::FramePool::offset(frame) + at), 0, 0);
      if (moved == -EINTR) continue;
      if (moved <= 0) return moved < 0 ? static_cast<int>(moved) : -EIO;
      at += static_cast<uint64_t>(moved);
    }
    f.carried_pages += end - page;
  }
  if (*begun) note_unforeseen(f, f.granules[granule]);
  return 0;
}

// In an instant: the frame takes what the granule has of its own, and everybody sees it.
int share(sn_frames &f, uint32_t granule, const bool *own, Instant &instant) {
  Granule &g = f.granules[granule];
  bool begun = false;
  int error = carry(f, granule, g.frame, own, &begun);
  if (begun) g.saved = false;
  if (error == 0) error = instant.replaced(sn::show_shared(f, granule, g.frame));
  return error;
}

}  // namespace

namespace sn {

int own_pages(int pagemap, uint64_t address, bool *own) {
  uint64_t entries[kPagesPerGranule];
  const int error = read_entries(pagemap, address, entries);
  if (error != 0) return error;
  int count = 0;
  for (uint32_t page = 0; page < kPagesPerGranule; page++) {
    own[page] = is_own(entries[page]);
    count += own[page] ? 1 : 0;
  }
  return count;
}

Touched touched_pages(int pagemap, uint64_t address) {
  uint64_t entries[kPagesPerGranule];
  Touched count{0, 0};
  if (read_entries(pagemap, address, entries) != 0) return count;
  for (const uint64_t entry : entries) {
    if (is_own(entry)) count.own++;
    else if ((entry & kPresent) != 0) count.shown++;
  }
  return count;
}

int show_shared(sn_frames &f, uint32_t granule, uint32_t frame) {
  const int error = show(f.address(granule), MAP_SHARED, f.pool.descriptor(), FramePool::offset(frame));
  if (error != 0) return error;
  keep_from_children(f.address(granule));
  Granule &g = f.granules[granule];
  g.view = View::kShared;
  g.frame = frame;
  g.saved = false;
  return 0;
}

int show_private(sn_frames &f, uint32_t granule, uint32_t frame) {
  const int error = show(f.address(granule), MAP_PRIVATE, f.pool.descriptor(), FramePool::offset(frame));
  if (error != 0) return error;
  keep_from_children(f.address(granule));
  f.granules[granule].view = View::kPrivate;
  f.granules[granule].frame = frame;
  return 0;
}

int show_file(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  const int error = show(f.address(granule), MAP_PRIVATE, f.file.descriptor(), g.region * kFrameBytes);
  if (error != 0) return error;
  // One page for one access: what reads ahead would fill the page cache with what nobody asked for. But for an operator
  // that has no room for all of its operands, and is going to read this one.
  if (f.ahead.operators != 0 && is_recent(f, g)) expect_stream(f, granule);
  else advise(f.address(granule), kFrameBytes, MADV_RANDOM);
  if (!f.inert) keep_from_children(f.address(granule));
  g.view = View::kFile;
  g.touched = false;
  g.own = 0;
  return 0;
}

void expect_stream(sn_frames &f, uint32_t granule) { advise(f.address(granule), kFrameBytes, MADV_SEQUENTIAL); }

int show_nothing(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  const uint8_t before = g.gate.exchange(kNothing);
  const long mapped = map(f.address(granule), kFrameBytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED);
  if (mapped < 0) {
    g.gate.store(before);
    return static_cast<int>(mapped);
  }
  if (!f.inert) keep_from_children(f.address(granule));
  g.view = View::kNothing;
  return 0;
}

int show_zeros(sn_frames &f, uint32_t granule) {
  const uint32_t frame = f.pool.take();
  if (frame == kNone) return -ENOSPC;
  memset(reinterpret_cast<void *>(f.pool.address(frame)), 0, kFrameBytes);
  const int error = show_shared(f, granule, frame);
  if (error != 0) f.pool.give(frame);
  return error;
}

int turn_shared(sn_frames &f, uint32_t granule) {
  Instant instant(f, granule);
  if (instant.error() != 0) return instant.error();
  bool own[kPagesPerGranule];
  const int found = own_pages(f.pagemap, f.address(granule), own);
  return found < 0 ? found : share(f, granule, own, instant);
}

int turn_away(sn_frames &f, uint32_t granule) {
  Granule &g = f.granules[granule];
  Instant instant(f, granule);
  if (instant.error() != 0) return instant.error();
  bool own[kPagesPerGranule];
  const int found = own_pages(f.pagemap, f.address(granule), own);
  if (found < 0) return found;
  if (found != 0) {
    const int error = share(f, granule, own, instant);
    return error != 0 ? error : -EAGAIN;
  }
  const int error = instant.replaced(show_file(f, granule));
  if (error != 0) return error;
  f.pool.give(g.frame);
  g.frame = kNone;
  return 0;
}

int turn_resident(sn_frames &f, uint32_t granule, uint32_t frame, bool writes) {
  Granule &g = f.granules[granule];
  Instant instant(f, granule);
  if (instant.error() != 0) return instant.error();
  bool own[kPagesPerGranule];
  const int found = own_pages(f.pagemap, f.address(granule), own);
  if (found < 0) return found;
  bool begun = false;
  int error = carry(f, granule, frame, own, &begun);
  if (error != 0) return error;
  if (writes || found != 0) return instant.replaced(show_shared(f, granule, frame));
  error = instant.replaced(show_private(f, granule, frame));
  if (error == 0) g.saved = true;
  return error;
}

}  // namespace sn
