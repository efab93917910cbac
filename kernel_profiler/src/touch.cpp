#include "touch.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "exclusive.h"
#include "granule.h"
#include "guarded.h"
#include "immortal.h"
#include "lock.h"
#include "system.h"

namespace {

// What one fault maps where the ranges can't be registered: 64 KiB around it, or its huge page.
constexpr uint64_t kAroundPages = 16, kHugePages = 512;
constexpr uint64_t kWordPages = sizeof(uint64_t) / sizeof(sn::TouchCell);

// Over the peak of live memory: what may be spent on telling apart tensors that follow each other on a page.
constexpr uint64_t kRestPercent = 25;

struct Session {
  std::atomic<bool> running{false};
  bool own_table = false;
  bool broken = false;  // by a fork, and nobody was told yet
  int kind = 0;
  int32_t layer = -1;
  uint64_t unit_pages = 1;
  const sn::TouchReader *reader = nullptr;
  std::vector<sn_touch_run> runs;
  sn::Rested rested = {};
};

sn::Immortal<Session> kept_session;
Session &session = kept_session.value;

int nothing() { return 0; }
void nothing_to_stop() {}
int nothing_at(uint64_t, uint64_t) { return 0; }
int register_only() {
  sn::arm_register();  // its absence shows as a coarser granularity
  return 0;
}
const sn::TouchReader table_reader = {register_only,   nothing,         nothing_at,     nothing_to_stop,
                                      nothing_to_stop, nothing_to_stop, nothing_to_stop};

const sn::TouchReader *reader_of(int kind) {
  switch (kind) {
    case SN_TOUCH_TABLE: return &table_reader;
    case SN_TOUCH_PAGEMAP: return &sn::pagemap_reader;
    case SN_TOUCH_PERF: return &sn::perf_reader;
    case SN_TOUCH_UFFD: return &sn::uffd_reader;
    default: return nullptr;
  }
}

uint64_t lay_out() {
  uint64_t cells = 0;
  for (int i = 0; i < sn::armed.count; i++) {
    sn::touched.first[i] = cells;
    cells += (sn::armed.ranges[i].nbytes / sn::kArmPage + 3) / 4 * 4;
  }
  return cells;
}

uint32_t meaning(sn::TouchCell cell) {
  if (session.kind == SN_TOUCH_PAGEMAP || session.kind == SN_TOUCH_PERF || session.unit_pages != 1)
    return SN_TOUCHED;
  uint32_t seen = 0;
  if (cell.read != 0) seen |= SN_TOUCHED_READ;
  if (cell.written != 0) seen |= SN_TOUCHED_WRITE;
  return seen;
}

void append(uint64_t page, uint64_t npages, uint32_t seen) {
  if (session.layer < 0) return;
  if (!session.runs.empty()) {
    sn_touch_run &last = session.runs.back();
    if (last.layer == session.layer && last.seen == seen && last.page + last.npages == page) {
      last.npages += npages;
      return;
    }
  }
  const int error = sn::guarded([=] {
    session.runs.push_back(sn_touch_run{page, npages, session.layer, seen});
    return 0;
  });
  if (error != 0) sn::touch_lost += npages;
}

void harvest_cell(uint64_t page, uint64_t last_page, sn::TouchCell cell) {
  if (session.unit_pages == 1) return append(page, 1, meaning(cell));
  // the fault mapped the pages around it too, as far as they lie in the range
  const uint64_t from = page / session.unit_pages * session.unit_pages;
  const uint64_t begin = session.runs.empty() || session.runs.back().layer != session.layer
                             ? from
                             : std::max(from, session.runs.back().page + session.runs.back().npages);
  const uint64_t end = std::min(from + session.unit_pages, last_page);
  if (begin < end) append(begin, end - begin, meaning(cell));
}

// Takes the words of one granule out of the table: what was seen anywhere in it.
sn::TouchCell take_granule(uint64_t *words, uint64_t count) {
  sn::TouchCell seen = {};
  for (uint64_t word = 0; word < count; word++) {
    if (__atomic_load_n(&words[word], __ATOMIC_RELAXED) == 0) continue;
    const uint64_t taken = __atomic_exchange_n(&words[word], 0, __ATOMIC_RELAXED);
    sn::TouchCell cells[kWordPages];
    memcpy(cells, &taken, sizeof taken);
    for (const sn::TouchCell cell : cells) {
      seen.read = static_cast<uint8_t>(seen.read | cell.read);
      seen.written = static_cast<uint8_t>(seen.written | cell.written);
    }
  }
  return seen;
}

// Moves the table's content to the runs of the current layer. Four pages are looked at together.
void harvest(int index) {
  const sn::ArmRange &range = sn::armed.ranges[index];
  const uint64_t first = sn::touched.first[index];
  if (first >= sn::touched.n_pages) return;
  const uint64_t base_page = range.base / sn::kArmPage, last_page = base_page + range.nbytes / sn::kArmPage;
  const uint64_t count = std::min(sn::touched.n_pages - first, sn::arm_used_bytes(range) / sn::kArmPage);
  const uint64_t n_words = (count + kWordPages - 1) / kWordPages;
  uint64_t *words = reinterpret_cast<uint64_t *>(sn::touched.cells + first);
  for (uint64_t word = 0; word < n_words; word++) {
    if (__atomic_load_n(&words[word], __ATOMIC_RELAXED) == 0) continue;
    if (sn::in_granule(index, word * kWordPages)) {
      const uint64_t begin = word * kWordPages / sn::kGranulePages * sn::kGranulePages;
      const uint64_t end = std::min(n_words, (begin + sn::kGranulePages) / kWordPages);
      const sn::TouchCell seen = take_granule(words + word, end - word);
      append(base_page + begin, sn::kGranulePages, meaning(seen) | SN_IN_GRANULE);
      word = end - 1;
      continue;
    }
    const uint64_t taken = __atomic_exchange_n(&words[word], 0, __ATOMIC_RELAXED);
    sn::TouchCell cells[kWordPages];
    memcpy(cells, &taken, sizeof taken);
    for (uint64_t i = 0; i < kWordPages; i++)
      if (cells[i].read != 0 || cells[i].written != 0)
        harvest_cell(base_page + word * kWordPages + i, last_page, cells[i]);
  }
}

int collect() {
  const int error = session.reader->collect();
  if (error != 0) return error;
  for (int i = 0; i < sn::armed.count; i++) harvest(i);
  return 0;
}

void rest_freed_pages(uint64_t percent) {
  for (int i = 0; i < sn::armed.count; i++)
    if (sn::armed.ranges[i].exclusive && sn_memory_is_owner() != 0) return sn::exclusive_rest(percent);
}

void end() {
  sn::Lock held(&sn::watching);
  session.reader->stop();
  sn::granules_stop();
  // Another thread ends it by a fork, while the owner counts on: a watch that is cut off has no figures.
  session.rested = sn_memory_is_owner() != 0 ? sn::exclusive_rested() : sn::Rested{};
  rest_freed_pages(0);
  sn::shut(sn::armed.uffd);
  if (session.own_table)
    sn::unmap(reinterpret_cast<uintptr_t>(sn::touched.cells), sn::touched.n_pages * sizeof(sn::TouchCell));
  sn::touched.cells = nullptr;
  sn::touched.n_pages = 0;
  session.own_table = false;
  session.running = false;
}

uint64_t unit_of_faults() {
  if (sn::armed.uffd >= 0) return 1;
  for (int i = 0; i < sn::armed.count; i++)
    if (sn::armed.ranges[i].huge_to != 0) return kHugePages;
  return kAroundPages;
}

int make_table(void *given, uint64_t n_pages) {
  const uint64_t all = lay_out();
  sn::touched.n_pages = std::min(all, (n_pages + 3) / 4 * 4);
  sn::touched.cells = static_cast<sn::TouchCell *>(given);
  if (given != nullptr) return 0;
  const long mapped = sn::map(0, sn::touched.n_pages * sizeof(sn::TouchCell), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (mapped < 0) return static_cast<int>(mapped);
  sn::touched.cells = reinterpret_cast<sn::TouchCell *>(mapped);
  session.own_table = true;
  return 0;
}

// What a fork ended, maybe in another thread than the one that allocates, which is this one.
int tell_broken() {
  if (sn_memory_is_owner() != 0) sn::exclusive_rest(0);
  return -ECANCELED;
}

struct Locked {
  Locked() { sn::arm_lock(); }
  ~Locked() { sn::arm_unlock(); }
};

}  // namespace

namespace sn {

TouchTable touched;
std::atomic<uint64_t> touch_lost{0};
std::atomic<uint64_t> touch_late{0};

TouchCell *TouchTable::find(uint64_t address) const {
  for (int i = 0; i < armed.count; i++) {
    const uint64_t offset = address - armed.ranges[i].base;
    if (offset >= armed.ranges[i].nbytes) continue;
    const uint64_t index = first[i] + offset / kArmPage;
    return index < n_pages ? &cells[index] : nullptr;
  }
  return nullptr;
}

bool TouchTable::should_hold(uint64_t address) const {
  return std::any_of(armed.ranges, armed.ranges + armed.count,
                     [=](const ArmRange &range) { return address - range.base < range.nbytes; });
}

bool touch_running() { return session.running; }

bool written_wholly(uint64_t address, uint64_t nbytes) {
  if (!session.running) return false;
  Lock held(&watching);
  if (!session.running || session.unit_pages != 1 || session.layer < 0) return false;
  const TouchCell *cells = touched.find(address);
  const uint64_t count = nbytes / kArmPage;
  if (cells == nullptr || cells + count > touched.cells + touched.n_pages || granule_within(address, nbytes)) return false;
  if (session.reader->look(address, nbytes) != 0) return false;
  const bool told = (meaning(TouchCell{0, 1}) & SN_TOUCHED_WRITE) != 0;
  return std::all_of(cells, cells + count, [=](const TouchCell &cell) {
    return __atomic_load_n(told ? &cell.written : &cell.read, __ATOMIC_RELAXED) != 0;
  });
}

void touch_break() {
  if (!session.running) return;
  end();
  session.broken = true;
}

void touch_hold() {
  if (session.running) session.reader->hold();
}

void touch_go_on() {
  if (session.running) session.reader->go_on();
}

void touch_forget() {
  if (session.running) session.reader->forget();
  session.running = false;
}

}  // namespace sn

extern "C" int sn_touch_start(int kind, void *table, uint64_t n_pages) {
  const sn::TouchReader *reader = reader_of(kind);
  if (reader == nullptr || n_pages == 0 || (table == nullptr) != (kind != SN_TOUCH_TABLE)) return -EINVAL;
  Locked locked;
  if (session.running) return -EBUSY;
  if (sn::armed.count == 0) return -ENODEV;
  int error = make_table(table, n_pages);
  if (error != 0) return error;
  std::vector<sn_touch_run>().swap(session.runs);
  sn::touch_lost = sn::touch_late = 0;
  session.kind = kind;
  session.layer = -1;
  session.reader = reader;
  session.running = true;
  session.broken = false;
  sn::arm_prepare(true);
  error = reader->start();
  if (error == 0) error = sn::granules_start();
  session.unit_pages = unit_of_faults();
  rest_freed_pages(kRestPercent);
  if (error != 0) end();
  return error;
}

extern "C" int sn_touch_granules(uint64_t tensor_bytes) {
  if (tensor_bytes != 0 && tensor_bytes < sn::kHugeBytes) return -EINVAL;
  Locked locked;
  if (session.running) return -EBUSY;
  sn::granules_want(tensor_bytes);
  return 0;
}

extern "C" int sn_touch_mark(int32_t layer) {
  Locked locked;
  if (session.broken) return tell_broken();
  if (!session.running) return -ENODEV;
  int error = collect();
  sn::granules_marked();
  if (sn_memory_is_owner() != 0) sn::exclusive_settle();  // from here on nothing counts as touched
  session.layer = layer;
  if (error == 0) error = sn::arm_zap();
  if (error == 0) sn::arm_prepare(false);
  return error;
}

extern "C" int sn_touch_stop(void) {
  Locked locked;
  if (session.broken) {
    session.broken = false;
    return tell_broken();
  }
  if (!session.running) return 0;
  const int error = collect();
  end();
  return error;
}

extern "C" uint64_t sn_touch_runs(uint64_t first, uint64_t count, sn_touch_run *out) {
  Locked locked;
  if (first >= session.runs.size()) return 0;
  if (out == nullptr) return session.runs.size() - first;
  const uint64_t taken = std::min<uint64_t>(count, session.runs.size() - first);
  std::copy_n(session.runs.begin() + static_cast<std::ptrdiff_t>(first), taken, out);
  return taken;
}

extern "C" void *sn_touch_take(sn_touch_run **runs, uint64_t *count) {
  Locked locked;
  auto *taken = new (std::nothrow) std::vector<sn_touch_run>;
  if (taken == nullptr) return nullptr;
  taken->swap(session.runs);
  *runs = taken->data();
  *count = taken->size();
  return taken;
}

extern "C" void sn_touch_drop(void *taken) { delete static_cast<std::vector<sn_touch_run> *>(taken); }

extern "C" void sn_touch_quality(sn_touch_state *out) {
  Locked locked;
  out->unit_pages = session.unit_pages;
  out->lost = sn::touch_lost;
  out->late = sn::touch_late;
  const sn::Rested rested = session.running ? sn::exclusive_rested() : session.rested;
  out->live_peak_bytes = rested.live_peak_bytes;
  out->held_peak_bytes = rested.held_peak_bytes;
  out->given_up_bytes = rested.given_up_bytes;
  out->sees_system_calls = session.kind == SN_TOUCH_PERF ? static_cast<uint64_t>(sn::perf_sees_kernel()) : 1;
}
