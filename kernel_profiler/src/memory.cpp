// The allocator: which memory an allocation comes from, and where it goes back to.

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "arm.h"
#include "clock.h"
#include "exclusive.h"
#include "framed_tensors.h"
#include "log.h"
#include "placement.h"
#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kSmallBytes = 1024;
constexpr size_t kAlignment = 64;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kLeastBytes = uint64_t{1} << 30;
constexpr uint64_t kPageBytes = 4096;
// The most that glibc's M_MMAP_THRESHOLD grows to: larger blocks have mappings of their own, which go when they die,
// unless a hole in the heap is large enough.
constexpr uint64_t kMappedApart = uint64_t{32} << 20;

// The whole address range: the exclusive arena, then the placement arena.
struct Space {
  uint64_t mapped = 0, mapped_bytes = 0;  // as reserved, before alignment
  uint64_t base = 0, nbytes = 0;          // nbytes == 0: no arena exists
  uint64_t placement = 0;                 // where the second begins
};

// Written by the owner alone, read by anyone.
struct Own {
  std::atomic<uint64_t> value{0};
  void add(uint64_t more) { value.store(value.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
  uint64_t get() const { return value.load(std::memory_order_relaxed); }
};

// The counters of the owner, and apart from them, on lines of their own, those of all others.
struct alignas(64) Owners {
  Own served, served_bytes, freed_bytes;
  Own fallback[SN_WHY_COUNT], fallback_bytes[SN_WHY_COUNT];
  Own unmanaged;  // born less died; less than 0 modulo 2^64 where what others gave died
};
struct alignas(64) Others {
  std::atomic<uint64_t> freed_bytes{0}, frees{0};
  std::atomic<uint64_t> fallback{0}, fallback_bytes{0};
  std::atomic<uint64_t> unmanaged{0};
};
struct alignas(64) Peaks {
  std::atomic<int64_t> live{0}, unmanaged{0};
};

Space space;
// A thread's number is its own for ever, while a pthread_t, and the kernel's number too, may be a later thread's again.
// Initial-exec: a thread's first look at it allocates nothing.
std::atomic<uint64_t> last_number{0};
__attribute__((tls_model("initial-exec"))) thread_local uint64_t number = 0;  // 0: nobody has asked for it yet
std::atomic<uint64_t> owner{0};                                              // 0: nobody
std::atomic<bool> in_child{false};
std::atomic<bool> logging{false};
std::atomic<int> mode{SN_PASS_THROUGH};
uint32_t ordinal = 0;  // the owner's; where no tick comes it goes round, and from 2^31 on finds no slot

Owners own;
Others others;
Peaks peaks;

bool is_owner() {
  return number != 0 && number == owner.load(std::memory_order_relaxed);
}

uint32_t foreign_flag() { return is_owner() ? 0 : uint32_t{SN_FLAG_FOREIGN}; }

bool is_logging() { return logging.load(std::memory_order_relaxed); }

int64_t live() {
  return static_cast<int64_t>(own.served_bytes.get() - own.freed_bytes.get() -
                              others.freed_bytes.load(std::memory_order_relaxed));
}

int64_t unmanaged_live() {
  return static_cast<int64_t>(own.unmanaged.get() + others.unmanaged.load(std::memory_order_relaxed));
}

void raise_peak(std::atomic<int64_t> &peak, int64_t value) {
  int64_t old = peak.load(std::memory_order_relaxed);
  while (value > old && !peak.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}

// A forked child has other threads' locks and lists in whatever state they were: it uses malloc only, and
// leaves the arenas, its private copies, as they are.
void after_fork_in_child() {
  in_child.store(true);
  owner.store(0);  // the thread that forked has its number still
  logging.store(false);
  mode.store(SN_PASS_THROUGH);
  sn::placement_after_fork();
  sn::framed_after_fork();
}

void *from_malloc(uint64_t nbytes, int why) {
  void *address = nullptr;
  if (posix_memalign(&address, kAlignment, nbytes) != 0) return nullptr;
  const uint64_t usable = malloc_usable_size(address);
  if (why == SN_WHY_FOREIGN_THREAD) {
    others.fallback.fetch_add(1, std::memory_order_relaxed);
    others.fallback_bytes.fetch_add(nbytes, std::memory_order_relaxed);
    others.unmanaged.fetch_add(usable, std::memory_order_relaxed);
  } else {
    own.fallback[why].add(1);
    own.fallback_bytes[why].add(nbytes);
    own.unmanaged.add(usable);
  }
  raise_peak(peaks.unmanaged, unmanaged_live());
  return address;
}

// Before memory of a forked child goes back to malloc. Tensors that moved to an arena have left the parent large holes in
// its heap; what each of eight workers writes into them, and frees, would stay its own for as long as it lives.
void drop_pages(void *address, uint64_t nbytes) {
  const uint64_t at = reinterpret_cast<uintptr_t>(address);
  const uint64_t low = (at + kPageBytes - 1) / kPageBytes * kPageBytes, high = (at + nbytes) / kPageBytes * kPageBytes;
  sn::advise(low, high - low, MADV_DONTNEED);  // where it fails the pages stay: slower and larger, not wrong
}

void to_malloc(void *address) {
  const uint64_t usable = malloc_usable_size(address);
  if (usable >= kMappedApart && in_child.load(std::memory_order_relaxed)) drop_pages(address, usable);
  if (is_owner())
    own.unmanaged.add(-usable);
  else
    others.unmanaged.fetch_sub(usable, std::memory_order_relaxed);
  if (is_logging())
    sn::log_append(SN_EVENT_FREE, address, 0, -1, SN_FLAG_FALLBACK | foreign_flag());
  free(address);
}

void drain() {
  if (sn::exclusive_pending()) own.freed_bytes.add(sn::exclusive_drain());
}

void *from_arena(uint64_t nbytes, int32_t key, int *why) {
  const int now = mode.load(std::memory_order_relaxed);
  if (now == SN_PASS_THROUGH) {
    *why = SN_WHY_PASS_THROUGH;
    return nullptr;
  }
  if (now == SN_PLACE) return sn::placement_allocate(nbytes, key, why);
  drain();
  *why = SN_WHY_NO_MEMORY;
  return sn::exclusive_allocate(nbytes);
}

void count_served(uint64_t nbytes) {
  own.served.add(1);
  own.served_bytes.add(nbytes);
  const int64_t now = live();
  if (now > peaks.live.load(std::memory_order_relaxed)) peaks.live.store(now, std::memory_order_relaxed);
}

void *allocate_foreign(uint64_t nbytes) {
  void *address = from_malloc(nbytes, SN_WHY_FOREIGN_THREAD);
  if (is_logging())
    sn::log_append(SN_EVENT_ALLOC, address, nbytes, -1,
                   SN_FLAG_FOREIGN | (nbytes < kSmallBytes ? SN_FLAG_SMALL : SN_FLAG_FALLBACK));
  return address;
}

int start_mode(int wanted) {
  if (space.nbytes == 0) return -ENODEV;
  if (!is_owner()) return -EPERM;
  const int before = mode.load();
  drain();
  mode.store(wanted);
  sn::exclusive_keep_free_pages(wanted == SN_RECORD);
  sn::placement_keep_free_pages(wanted == SN_PLACE);
  // Where this fails, pages stay resident until they are used again: no reason not to change the mode.
  if (before == SN_RECORD && wanted != SN_RECORD) {
    sn_exclusive_release();
    sn::log_release();
  }
  if (before == SN_PLACE && wanted != SN_PLACE) sn_placement_release();
  return 0;
}

// Address space without memory, halved until it is granted.
int reserve(uint64_t exclusive_bytes, uint64_t placement_bytes) {
  for (;; exclusive_bytes /= 2, placement_bytes /= 2) {
    exclusive_bytes = exclusive_bytes / kHugePage * kHugePage;
    placement_bytes = placement_bytes / kHugePage * kHugePage;
    if (exclusive_bytes == 0 || placement_bytes == 0) return -ENOMEM;
    const uint64_t nbytes = exclusive_bytes + placement_bytes;
    const long mapped = sn::map(0, nbytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    const uint64_t base = (static_cast<uint64_t>(mapped) + kHugePage - 1) / kHugePage * kHugePage;
    int error = mapped < 0 ? static_cast<int>(mapped) : sn::exclusive_create(base, exclusive_bytes);
    if (error == 0) {
      error = sn::placement_create(base + exclusive_bytes, placement_bytes);
      if (error == 0) {
        space = Space{static_cast<uint64_t>(mapped), nbytes + kHugePage, base, nbytes, base + exclusive_bytes};
        return 0;
      }
      sn::exclusive_destroy();
    }
    if (mapped >= 0) sn::unmap(static_cast<uint64_t>(mapped), nbytes + kHugePage);
    if (nbytes / 2 < kLeastBytes) return error;
  }
}

}  // namespace

extern "C" int sn_memory_create(uint64_t exclusive_bytes, uint64_t placement_bytes) {
  if (in_child.load()) return -ENOTSUP;
  if (sysconf(_SC_PAGESIZE) != 4096) return -EOPNOTSUPP;  // arming, page tables and migrations are read in such pages
  if (space.nbytes == 0) {
    if (sn::new_memory_is_locked()) return -ENOLCK;  // the tables alone would take gigabytes
    static const int at_fork = pthread_atfork(nullptr, nullptr, after_fork_in_child);
    if (at_fork != 0) return -at_fork;
    int error = sn::arm_watch_forks();  // a free, or a commit, of another thread may be under way as one forks
    if (error == 0) error = reserve(exclusive_bytes, placement_bytes);
    if (error != 0) return error;
  }
  return sn_memory_own();
}

extern "C" int sn_memory_destroy(void) {
  if (space.nbytes == 0) return 0;
  if (!is_owner()) return -EPERM;
  drain();
  if (live() != 0) return -EBUSY;
  mode.store(SN_PASS_THROUGH);
  logging.store(false);
  owner.store(0);
  sn::exclusive_destroy();
  sn::placement_destroy();
  const int error = sn::unmap(space.mapped, space.mapped_bytes);
  space = Space{};
  return error;
}

extern "C" int sn_memory_own(void) {
  if (space.nbytes == 0) return -ENODEV;
  if (in_child.load()) return -ENOTSUP;
  owner.store(sn_thread_number());
  return 0;
}

extern "C" uint64_t sn_thread_number(void) {
  if (number == 0) number = last_number.fetch_add(1) + 1;
  return number;
}

extern "C" int sn_memory_is_owner(void) { return is_owner() ? 1 : 0; }

extern "C" int sn_memory_mode(void) { return mode.load(); }

extern "C" void *sn_allocate(uint64_t nbytes) {
  if (void *const in_frames = sn::framed_allocate(nbytes); in_frames != nullptr) return in_frames;
  if (!is_owner()) return allocate_foreign(nbytes);
  const int32_t key = static_cast<int32_t>(ordinal++);
  int why = SN_WHY_SMALL;
  uint32_t flags = SN_FLAG_SMALL;
  void *address = nullptr;
  if (nbytes >= kSmallBytes) {
    address = from_arena(nbytes, key, &why);
    flags = address == nullptr ? SN_FLAG_FALLBACK : mode.load(std::memory_order_relaxed) == SN_PLACE ? SN_FLAG_SLOT : 0;
  }
  if (address != nullptr)
    count_served(nbytes);
  else
    address = from_malloc(nbytes, why);
  if (is_logging() && address != nullptr) sn::log_append(SN_EVENT_ALLOC, address, nbytes, key, flags);
  return address;
}

extern "C" void sn_free(void *address) {
  if (address == nullptr) return;
  const uint64_t at = reinterpret_cast<uintptr_t>(address);
  if (at - space.base >= space.nbytes) {
    if (!sn::framed_free(at)) to_malloc(address);
    return;
  }
  if (in_child.load(std::memory_order_relaxed)) return;
  const bool mine = is_owner();
  if (!mine) others.frees.fetch_add(1, std::memory_order_relaxed);
  // Logged before it is freed: afterwards the address may be born again, with an earlier seq than its death.
  if (is_logging()) sn::log_append(SN_EVENT_FREE, address, 0, -1, foreign_flag());
  if (at < space.placement) {
    if (mine)
      own.freed_bytes.add(sn::exclusive_free(at));
    else
      sn::exclusive_push(at);
    return;
  }
  const uint64_t nbytes = sn::placement_free(at);
  if (mine)
    own.freed_bytes.add(nbytes);
  else
    others.freed_bytes.fetch_add(nbytes, std::memory_order_relaxed);
}

extern "C" void *sn_allocate_exclusive(uint64_t nbytes) {
  if (!is_owner() || nbytes == 0) return nullptr;
  if (sn::framed_in_use()) return sn::framed_allocate(nbytes);
  drain();
  void *address = sn::exclusive_allocate(nbytes);
  if (address != nullptr) count_served(nbytes);
  return address;
}

extern "C" int sn_tick(int32_t layer) {
  if (space.nbytes != 0 && !is_owner()) return -EPERM;
  sn::layer.store(layer, std::memory_order_relaxed);
  if (space.nbytes == 0) return 0;
  drain();
  sn::exclusive_settle();
  ordinal = 0;
  sn::placement_enter(layer);
  if (is_logging()) sn::log_append(SN_EVENT_TICK, nullptr, 0, -1, 0);
  return 0;
}

extern "C" int sn_pass_through(void) {
  logging.store(false);
  return start_mode(SN_PASS_THROUGH);
}

extern "C" int sn_record(void) {
  if (!is_owner()) return space.nbytes == 0 ? -ENODEV : -EPERM;
  const int error = sn::log_open();
  if (error != 0) return error;
  sn::log_clear();
  logging.store(true);
  return start_mode(SN_RECORD);
}

extern "C" int sn_place(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
                        const uint64_t *nbytes, uint64_t extent_bytes, int log) {
  if (!is_owner()) return space.nbytes == 0 ? -ENODEV : -EPERM;
  int error = log != 0 ? sn::log_open() : 0;  // first: once the plan is taken nothing fails any more
  if (error == 0) error = sn::placement_plan(count, layers, ordinals, offsets, nbytes, extent_bytes, true);
  if (error != 0) return error;
  sn::placement_enter(sn_current_layer());
  if (log != 0) sn::log_clear();
  logging.store(log != 0);
  return start_mode(SN_PLACE);
}

extern "C" int sn_place_also(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
                             const uint64_t *nbytes, uint64_t extent_bytes) {
  if (!is_owner()) return space.nbytes == 0 ? -ENODEV : -EPERM;
  if (mode.load() != SN_PLACE) return -EINVAL;
  return sn::placement_plan(count, layers, ordinals, offsets, nbytes, extent_bytes, false);
}

extern "C" void sn_memory_counters(sn_counters *out) {
  *out = sn_counters{};
  out->served = own.served.get();
  out->served_bytes = own.served_bytes.get();
  for (int why = 0; why < SN_WHY_COUNT; why++) {
    out->fallback[why] = own.fallback[why].get();
    out->fallback_bytes[why] = own.fallback_bytes[why].get();
  }
  out->fallback[SN_WHY_FOREIGN_THREAD] = others.fallback.load(std::memory_order_relaxed);
  out->fallback_bytes[SN_WHY_FOREIGN_THREAD] = others.fallback_bytes.load(std::memory_order_relaxed);
  out->live_bytes = live();
  out->peak_live_bytes = peaks.live.load(std::memory_order_relaxed);
  out->unmanaged_live_bytes = unmanaged_live();
  out->unmanaged_peak_bytes = peaks.unmanaged.load(std::memory_order_relaxed);
  out->foreign_frees = others.frees.load(std::memory_order_relaxed);
}

extern "C" void sn_memory_reset_peaks(void) {
  peaks.live.store(live());
  peaks.unmanaged.store(unmanaged_live());
}

extern "C" int sn_memory_contains(uint64_t address) { return address - space.base < space.nbytes ? 1 : 0; }
