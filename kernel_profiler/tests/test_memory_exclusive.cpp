// The exclusive arena: pages of one's own, reuse, release.

#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "memory_check.h"

namespace {

struct Block {
  unsigned char *address;
  uint64_t nbytes;
  int value;
};

void blocks_never_share_a_page_and_keep_their_bytes() {
  Random random;
  std::vector<Block> live;
  for (int i = 0; i < 20011; i++) {
    if (live.size() < 100 && random.below(2) == 0) {
      const uint64_t nbytes = 1024 + random.below(random.below(16) == 0 ? 300000 : 20000);
      auto *address = static_cast<unsigned char *>(sn_allocate(nbytes));
      CHECK(reinterpret_cast<uintptr_t>(address) % 4096 == 0);
      for (const Block &other : live) {
        const bool below = address + (nbytes + 4095) / 4096 * 4096 <= other.address;
        CHECK(below || other.address + (other.nbytes + 4095) / 4096 * 4096 <= address);
      }
      const int value = static_cast<int>(random.below(256));
      address[0] = address[nbytes - 1] = address[nbytes / 2] = static_cast<unsigned char>(value);
      live.push_back({address, nbytes, value});
    } else if (!live.empty()) {
      const size_t which = random.below(live.size());
      const Block block = live[which];
      CHECK(block.address[0] == block.value && block.address[block.nbytes - 1] == block.value);
      CHECK(block.address[block.nbytes / 2] == block.value);
      sn_free(block.address);
      live[which] = live.back();
      live.pop_back();
    }
  }
  for (const Block &block : live) sn_free(block.address);
}

void all_that_was_freed_is_one_range_again() {
  const sn_range range = exclusive();
  CHECK(range.free_bytes == range.used_bytes);
  void *whole = sn_allocate(range.used_bytes);
  CHECK(reinterpret_cast<uintptr_t>(whole) == range.base);
  CHECK(exclusive().used_bytes == range.used_bytes);
  sn_free(whole);
}

void a_freed_range_of_the_same_length_is_used_again() {
  void *first = sn_allocate(1000003);
  void *guard = sn_allocate(4096);
  sn_free(first);
  CHECK(sn_allocate(1000003) == first);
  sn_free(first);
  sn_free(guard);
}

// What fills huge pages begins with one; what lies before it stays for smaller ones, and joins its neighbours again.
void large_ones_begin_with_a_huge_page() {
  create();
  const uint64_t base = exclusive().base;
  const auto offset = [=](void *address) { return reinterpret_cast<uint64_t>(address) - base; };
  void *first = sn_allocate_exclusive(1), *large = sn_allocate_exclusive(3 * kMiB), *fits = sn_allocate_exclusive(kMiB);
  CHECK(offset(first) == 0 && offset(large) == 2 * kMiB && offset(fits) == 4096);
  void *other = sn_allocate_exclusive(2 * kMiB);
  CHECK(offset(other) == 6 * kMiB);
  sn_free(large);
  void *into = sn_allocate_exclusive(2 * kMiB);  // of the 4 MiB less a page that are free now, those that are aligned
  CHECK(offset(into) == 2 * kMiB || offset(into) == 4 * kMiB);
  for (void *tensor : {first, fits, other, into}) sn_free(tensor);
  CHECK(exclusive().free_bytes == exclusive().used_bytes);
  void *whole = sn_allocate_exclusive(8 * kMiB);
  CHECK(offset(whole) == 0);
  sn_free(whole);
  CHECK(sn_memory_destroy() == 0);
}

// Whether the kernel may make huge pages of the mapping that holds `address`, by what it was advised.
bool may_be_huge(const void *address) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      here = begin <= reinterpret_cast<uintptr_t>(address) && reinterpret_cast<uintptr_t>(address) < end;
    if (here && line.rfind("VmFlags:", 0) == 0) return line.find(" hg") != std::string::npos;
  }
  CHECK(false);
  return false;
}

void tensors_have_huge_pages_unless_told_otherwise() {
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) return;  // the kernel has none
  create();
  void *by_default = sn_allocate_exclusive(4 * kMiB);
  sn_exclusive_huge(0);
  void *small = sn_allocate_exclusive(4 * kMiB);
  sn_exclusive_huge(1);
  void *large = sn_allocate_exclusive(4 * kMiB);
  CHECK(may_be_huge(by_default) && !may_be_huge(small) && may_be_huge(large));
  for (void *tensor : {by_default, small, large}) sn_free(tensor);
  sn_exclusive_huge(0);
  void *again = sn_allocate_exclusive(4 * kMiB);  // where one was that had them
  CHECK(!may_be_huge(again));
  sn_free(again);
  sn_exclusive_huge(1);
  CHECK(sn_memory_destroy() == 0);
}

long without_huge_pages_of_memfds(long number, const long a[6]) {
  if (number == SYS_fallocate) return -ENOMEM;  // each would be made anew in each watch
  const long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  return result == -1 ? -errno : result;
}

// However often a step was watched: what was counted before counts once.
void stretches_of_huge_pages_are_counted_once() {
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) return;
  constexpr int kTensors = 128, kWatches = 8192 / kTensors + 2;  // one process may have 8192 such stretches
  create();
  const sn_range arena = exclusive();
  void *tensors[kTensors];
  for (void *&tensor : tensors) tensor = sn_allocate_exclusive(3 * kMiB);  // between two: half a huge page
  sn_system_replace(without_huge_pages_of_memfds);
  for (int i = 0; i < kWatches; i++) {
    CHECK(sn_arm_back(arena.base, arena.reserved_bytes, 0) == 0);
    CHECK(sn_arm_unback() == 0);
  }
  sn_system_replace(nullptr);
  void *next = sn_allocate_exclusive(4 * kMiB);
  CHECK(may_be_huge(tensors[0]) && may_be_huge(tensors[kTensors - 1]) && may_be_huge(next));
  sn_free(next);
  for (void *tensor : tensors) sn_free(tensor);
  CHECK(sn_memory_destroy() == 0);
}

void other_threads_use_malloc_and_their_frees_wait_for_the_owner() {
  void *mine = sn_allocate(8192);
  const sn_counters before = counters();
  void *theirs = nullptr;
  std::thread([&] {
    theirs = sn_allocate(8192);
    sn_free(mine);
  }).join();
  CHECK(sn_memory_contains(reinterpret_cast<uintptr_t>(theirs)) == 0);
  CHECK(counters().fallback[SN_WHY_FOREIGN_THREAD] == before.fallback[SN_WHY_FOREIGN_THREAD] + 1);
  CHECK(counters().live_bytes == before.live_bytes);
  CHECK(sn_tick(0) == 0);
  CHECK(counters().live_bytes == before.live_bytes - 8192);
  sn_free(theirs);
}

void free_pages_go_back_and_read_as_zero() {
  auto *block = static_cast<unsigned char *>(sn_allocate(kMiB));
  auto *held = static_cast<unsigned char *>(sn_allocate(4096));
  fill(block, kMiB, 7);
  fill(held, 4096, 9);
  sn_free(block);
  CHECK(holds(block, kMiB, 7));
  CHECK(sn_exclusive_release() == static_cast<int64_t>(exclusive().free_bytes));
  CHECK(holds(block, kMiB, 0));
  CHECK(holds(held, 4096, 9));
  fill(block, 4096, 5);
  CHECK(sn_pass_through() == 0);  // leaving record releases too
  CHECK(holds(block, 4096, 0));
  fill(held, 4096, 9);
  sn_free(held);  // and so does every free from then on
  CHECK(holds(held, 4096, 0));
}

void every_event_is_in_the_log_in_order() {
  CHECK(sn_record() == 0 && sn_log_count() == 0);
  CHECK(sn_tick(3) == 0);
  void *large = sn_allocate(5000);
  void *small = sn_allocate(100);
  sn_free(large);
  sn_free(small);
  sn_event events[8];
  CHECK(sn_log_count() == 5 && sn_log_copy(0, 8, events) == 5 && sn_log_lost() == 0);
  CHECK(events[0].kind == SN_EVENT_TICK && events[0].layer == 3);
  CHECK(events[1].kind == SN_EVENT_ALLOC && events[1].nbytes == 5000 && events[1].ordinal == 0);
  CHECK(events[2].kind == SN_EVENT_ALLOC && events[2].flags == SN_FLAG_SMALL && events[2].ordinal == 1);
  CHECK(events[3].kind == SN_EVENT_FREE && events[3].address == events[1].address && events[3].flags == 0);
  CHECK(events[4].kind == SN_EVENT_FREE && events[4].flags == SN_FLAG_FALLBACK);
  for (int i = 1; i < 5; i++) CHECK(events[i].seq > events[i - 1].seq && events[i].time_ns >= events[i - 1].time_ns);
  CHECK(sn_pass_through() == 0);
  sn_free(sn_allocate(5000));
  CHECK(sn_log_count() == 0);  // nothing is recorded outside of record
}

// While touches are watched no page has two tenants in a layer, as far as memory allows.
void watched_pages_rest_until_the_layer_ends() {
  const sn_range range = exclusive();
  CHECK(sn_arm_back(range.base, range.reserved_bytes, 0) == 0);
  CHECK(sn_record() == 0);
  if (sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, range.reserved_bytes / 4096) != 0) {
    CHECK(sn_arm_unback() == 0);
    return;
  }
  void *lasting = sn_allocate(100 * kMiB);
  void *first = sn_allocate(kMiB), *second = nullptr;
  fill(first, kMiB, 3);
  sn_free(first);
  CHECK((second = sn_allocate(kMiB)) != first);
  sn_free(second);
  void *third = sn_allocate(kMiB);
  CHECK(third != first && third != second);
  CHECK(sn_tick(1) == 0);
  CHECK(sn_allocate(2 * kMiB) == first);  // both together again
  sn_touch_state state;
  sn_touch_quality(&state);
  CHECK(state.live_peak_bytes == 103 * kMiB && state.held_peak_bytes == 103 * kMiB && state.given_up_bytes == 0);
  for (int i = 0; i < 50; i++) sn_free(sn_allocate(kMiB));
  sn_touch_quality(&state);
  CHECK(state.live_peak_bytes == 104 * kMiB);
  CHECK(state.held_peak_bytes <= 104 * kMiB * 5 / 4 && state.held_peak_bytes > 125 * kMiB);
  CHECK(state.given_up_bytes > 20 * kMiB && state.given_up_bytes < 50 * kMiB);
  CHECK(sn_tick(2) == 0);
  void *rest = sn_allocate(exclusive().reserved_bytes - exclusive().used_bytes);
  CHECK(sn_memory_contains(reinterpret_cast<uintptr_t>(rest)) == 1);
  const uint64_t most = exclusive().free_bytes / 3 * 2;
  CHECK(most > 10 * kMiB);
  sn_free(sn_allocate(most));
  void *last = sn_allocate(most);  // no room but where pages rest
  CHECK(sn_memory_contains(reinterpret_cast<uintptr_t>(last)) == 1);
  sn_free(last);
  sn_free(rest);
  const sn_range before = exclusive();
  CHECK(sn_touch_stop() == 0);
  CHECK(exclusive().free_bytes > before.free_bytes);  // nothing rests any more
  sn_touch_quality(&state);
  CHECK(state.given_up_bytes != 0);
  CHECK(sn_arm_unback() == 0);
  void *again = sn_allocate(kMiB);
  sn_free(again);
  CHECK(sn_allocate(kMiB) == again);
  sn_free(again);
  sn_free(first);
  sn_free(third);
  sn_free(lasting);
  CHECK(sn_pass_through() == 0);
}

void *born(uint64_t nbytes) {
  void *block = sn_allocate(nbytes);
  fill(block, nbytes, 5);
  return block;
}

void next_layer(int32_t layer) {
  CHECK(sn_tick(layer) == 0);
  CHECK(sn_touch_mark(layer) == 0);
}

uint64_t touched_in(int32_t layer, const void *block, uint64_t nbytes) {
  const uint64_t first = reinterpret_cast<uintptr_t>(block) / 4096, end = first + nbytes / 4096;
  uint64_t pages = 0;
  sn_touch_run run;
  for (uint64_t i = 0; sn_touch_runs(i, 1, &run) == 1; i++)
    for (uint64_t page = run.page; page < run.page + run.npages; page++)
      pages += run.layer == layer && page >= first && page < end;
  return pages;
}

// What will be freed in the layer of its birth, as its like was, gets pages of such a tensor that was written there; what
// lives on, or may, gets others. Pages that were not written, or whose tensor came from before, have no second tenant.
void written_pages_go_to_tensors_that_end_in_the_layer_too() {
  const sn_range range = exclusive();
  CHECK(sn_arm_back(range.base, range.reserved_bytes, 0) == 0);
  CHECK(sn_record() == 0);
  sn_touch_state state = {};
  const bool watched = sn_touch_start(SN_TOUCH_PAGEMAP, nullptr, range.reserved_bytes / 4096) == 0;
  sn_touch_quality(&state);
  if (!watched || state.unit_pages != 1) {  // touches can't be told page by page here, so all of it rests
    CHECK(sn_touch_stop() == 0 && sn_arm_unback() == 0 && sn_pass_through() == 0);
    return;
  }
  void *most = sn_allocate(100 * kMiB);  // a quarter of it is allowed for what rests
  void *lasting[3], *last = nullptr;
  for (int32_t layer = 1; layer <= 3; layer++) {
    next_layer(layer);
    void *first = born(kMiB);
    sn_free(first);
    void *second = sn_allocate(kMiB);
    CHECK((second == first) == (layer > 1));  // in layer 1 nobody knows yet
    sn_free(second);  // if it was on pages of the first, they stay as good
    lasting[layer - 1] = born(kMiB);
    CHECK(lasting[layer - 1] != first);  // the third one of a layer lives on
    last = first;
  }
  next_layer(4);
  CHECK(touched_in(3, last, kMiB) == kMiB / 4096 && touched_in(3, lasting[2], kMiB) == kMiB / 4096);
  void *partly = sn_allocate(kMiB);
  fill(partly, kMiB / 2, 5);
  sn_free(partly);
  void *second = sn_allocate(kMiB);
  CHECK(second != partly);
  sn_free(second);
  for (void *&block : lasting) fill(block, kMiB, 6), sn_free(block);  // born before this layer
  void *other = sn_allocate(kMiB + 1);  // of another length than was born there before: no guess
  for (void *block : lasting) CHECK(other != block);
  sn_free(other);
  sn_free(most);
  sn_touch_quality(&state);
  CHECK(state.given_up_bytes == 0);
  CHECK(sn_touch_stop() == 0 && sn_arm_unback() == 0 && sn_pass_through() == 0);
}

uint64_t resident_bytes() {
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file != nullptr);
  uint64_t all = 0, resident = 0;
  CHECK(fscanf(file, "%lu %lu", &all, &resident) == 2);
  fclose(file);
  return resident * 4096;
}

void a_long_log_is_given_back_when_the_recording_ends() {
  CHECK(sn_pass_through() == 0 && sn_record() == 0);
  const uint64_t before = resident_bytes();
  for (int i = 0; i < 400000; i++) CHECK(sn_tick(0) == 0);
  const uint64_t held = resident_bytes() - before;
  CHECK(sn_log_count() == 400000 && held > 8 * kMiB);
  CHECK(sn_pass_through() == 0);
  CHECK(sn_log_count() == 0);
#ifndef __SANITIZE_THREAD__  // whose notes on those pages stay
  CHECK(resident_bytes() < before + held / 4);
#endif
  CHECK(sn_record() == 0);
}

}  // namespace

int main() {
  create();
  CHECK(sn_record() == 0);
  blocks_never_share_a_page_and_keep_their_bytes();
  all_that_was_freed_is_one_range_again();
  a_freed_range_of_the_same_length_is_used_again();
  other_threads_use_malloc_and_their_frees_wait_for_the_owner();
  free_pages_go_back_and_read_as_zero();
  every_event_is_in_the_log_in_order();
  a_long_log_is_given_back_when_the_recording_ends();
  watched_pages_rest_until_the_layer_ends();
  written_pages_go_to_tensors_that_end_in_the_layer_too();
  CHECK(counters().live_bytes == 0 && counters().unmanaged_live_bytes == 0);
  CHECK(sn_memory_destroy() == 0);
  large_ones_begin_with_a_huge_page();
  tensors_have_huge_pages_unless_told_otherwise();
  stretches_of_huge_pages_are_counted_once();
  return 0;
}
