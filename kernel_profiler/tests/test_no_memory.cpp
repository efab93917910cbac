// The n-th allocation fails, for n = 1, 2, 3 ... until all succeed, alone or with all that come after it: every entry
// says so, all is as it was, and the next call goes well. Threads of the library need no memory at all.
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <vector>

#include "fail_allocations.h"

namespace {

constexpr uint64_t kPage = 4096, kForever = UINT64_MAX;

// ---- the mover ----

sn_mover *make() {
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(64 * kMiB, 0, &mover) == 0);
  return mover;
}

sn_job emulated(uint8_t direction, uint64_t nbytes) {
  sn_job job{};
  job.nbytes = nbytes;
  job.held[direction == SN_DEMOTE ? 0 : 1] = nbytes;
  job.source = direction == SN_DEMOTE ? 0 : 1;
  job.duration_ns = 1000;
  job.target = direction == SN_DEMOTE ? 1 : 0;
  return job;
}

sn_job to_node(const sn_span *spans, uint64_t count, int node) {
  sn_job job{};
  for (uint64_t i = 0; i < count; ++i) job.nbytes += spans[i].nbytes;
  job.held[0] = job.nbytes;
  job.target = 1;
  job.kind = SN_MOVE_NODE;
  job.spans = spans;
  job.span_count = count;
  job.node = node;
  return job;
}

void a_mover_is_made_whole_or_not() {
  sn_mover *mover = nullptr;
  CHECK(each_fails([&] { return sn_mover_create(100, 0, &mover); }, [&] { CHECK(sn_mover_destroy(mover) == 0); }) >= 1);
}

void a_job_is_submitted_whole_or_not() {
  std::vector<char> memory(64 * kPage);
  const uint64_t at = (reinterpret_cast<uintptr_t>(memory.data()) + kPage - 1) / kPage * kPage;
  const sn_span spans[] = {{at, 7 * kPage}, {at + 11 * kPage, 13 * kPage}};
  const sn_job job = to_node(spans, 2, 0);
  sn_mover *mover = make();
  int64_t ids = 0;
  CHECK(each_fails(
            [&] {
              const int64_t id = sn_mover_submit(mover, &job);
              if (id > 0) CHECK(id == ++ids);  // a job that was refused took no number
              return id;
            },
            [] {}) >= 3);  // the job, its spans, its number
  sn_moved moved[4];
  for (int64_t id = 1; id <= ids; id++) CHECK(sn_mover_wait(mover, static_cast<uint64_t>(id), kForever) == 0);
  CHECK(sn_mover_results(mover, moved, 4) == static_cast<uint64_t>(ids) && *sn_mover_ended(mover) == 2);
  sn_held held;
  CHECK(sn_mover_held(mover, &held, 0) == 0 && held.in_flight_bytes == 0);
  sn_mover_destroy(mover);
}

void jobs_are_submitted_together_or_none_of_them() {
  const sn_job jobs[] = {emulated(SN_PROMOTE, 4096), emulated(SN_DEMOTE, 4096), emulated(SN_PROMOTE, 4096)};
  sn_mover *mover = make();
  int64_t last = 0;
  CHECK(each_fails(
            [&] {
              const int64_t first = sn_mover_submit_all(mover, jobs, 3);
              if (first > 0) CHECK(first == last + 1);  // those that were refused took no numbers
              if (first > 0) last += 3;
              CHECK(*sn_mover_submitted(mover) == static_cast<uint64_t>(last));
              return first;
            },
            [] {}) >= 6);  // each job and its number
  sn_moved moved[8];
  for (int64_t id = 1; id <= last; id++) CHECK(sn_mover_wait(mover, static_cast<uint64_t>(id), kForever) == 0);
  CHECK(last == 6 && sn_mover_results(mover, moved, 8) == 6);
  CHECK(sn_mover_wait(mover, 7, 0) == 0);  // no such job
  sn_mover_destroy(mover);
}

// All that a worker does: both directions, chains, small jobs together, huge groups, a rate, pages that stay.
void workers_need_no_memory() {
  const uint64_t nbytes = 10 * kMiB;
  char *memory = static_cast<char *>(mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(memory != MAP_FAILED);
  fill(memory, nbytes, 7);
  const uint64_t at = reinterpret_cast<uintptr_t>(memory);
  sn_mover *mover = make();
  others_fail.store(true);
  uint64_t last = 0;
  for (int round = 0; round < 5; round++)
    for (const int node : {0, 1000}) {
      const sn_span all = {at, nbytes};
      sn_job job = to_node(&all, 1, node);
      CHECK(sn_mover_submit(mover, &job) > 0);
      for (uint64_t i = 0; i < 17; i++) {
        const sn_span one = {at + 3 * i * kPage, kPage};
        job = to_node(&one, 1, node);
        job.bytes_per_s = i < 9 ? 0 : uint64_t{1} << 40;
        CHECK(sn_mover_submit(mover, &job) > 0);
      }
      sn_job up = emulated(SN_PROMOTE, 4096), down = emulated(SN_DEMOTE, 4096);
      down.after = static_cast<uint64_t>(sn_mover_submit(mover, &up));
      const int64_t id = sn_mover_submit(mover, &down);
      CHECK(id > 0);
      last = static_cast<uint64_t>(id);
    }
  fail_from(1, true);  // nor does whoever waits for them, or asks
  CHECK(sn_mover_wait(mover, last, kForever) == 0);
  sn_moved moved[256];
  sn_held held;
  CHECK(sn_mover_results(mover, moved, 256) == 200 && sn_mover_held(mover, &held, 1) == 0);
  CHECK(sn_mover_reserve(mover, 4096, 0) == 0 && sn_mover_release(mover, 4096) == 0);
  CHECK(sn_mover_force(mover, 4096) == 0 && sn_mover_hold(mover, 1, 4096) == 0);
  CHECK(sn_mover_set_capacity(mover, 0, 1) == 0);
  uint64_t errors[SN_ERRNO_COUNT];
  CHECK(sn_mover_errors(mover, errors) == 0 && errors[ENODEV] == 5 * (nbytes / kPage + 17));
  CHECK(fail_no_more() == 0);
  const sn_job starved = emulated(SN_PROMOTE, 4096);
  const int64_t id = sn_mover_submit(mover, &starved);  // there is no room, so it can be cancelled
  fail_from(1, true);
  CHECK(sn_mover_cancel(mover, static_cast<uint64_t>(id)) == 1 && sn_mover_results(mover, moved, 256) == 1);
  CHECK(moved[0].outcome == SN_MOVE_CANCELLED);
  CHECK(sn_mover_destroy(mover) == 0 && fail_no_more() == 0);
  others_fail.store(false);
  CHECK(holds(memory, nbytes, 7));
  munmap(memory, nbytes);
}

// ---- the allocator ----

// One failure makes the arenas smaller, as a refused reservation does; without any memory there are none.
void arenas_are_made_whole_or_not() {
  for (const bool onwards : {false, true}) {
    fail_from(1, onwards);
    const int result = sn_memory_create(kArena, kArena);
    CHECK(fail_no_more() != 0 && result == (onwards ? -ENOMEM : 0));
    sn_range range;
    if (onwards) CHECK(sn_exclusive_range(&range) == -ENODEV && sn_placement_range(&range) == -ENODEV);
    CHECK(sn_memory_destroy() == 0);
  }
}

const std::vector<int32_t> kLayers = {0, 0, 3}, kOrdinals = {0, 5, 1};
const std::vector<uint64_t> kOffsets = {0, 8192, 4096}, kOther = {16384, 20480, 24576}, kLengths = {4096, 4096, 4096};

uint64_t served_at() {
  CHECK(sn_tick(0) == 0);
  void *address = sn_allocate(4096);
  CHECK(sn_memory_contains(reinterpret_cast<uintptr_t>(address)) == 1);
  sn_free(address);
  return reinterpret_cast<uintptr_t>(address) - placement().base;
}

void a_plan_is_taken_whole_or_not() {
  create();
  CHECK(sn_place(3, kLayers.data(), kOrdinals.data(), kOffsets.data(), kLengths.data(), 65536, 0) == 0);
  CHECK(sn_tick(3) == 0);
  sn_free(sn_allocate(64));
  void *tenant = sn_allocate(4096);
  fill(tenant, 4096, 5);
  const auto place = [&](auto entry) {
    return each_fails(
        [&] {
          const int64_t result = entry();
          if (result < 0) CHECK(served_at() == 0);  // as the plan before said
          return result;
        },
        [] { CHECK(served_at() == 16384 && sn_use_table(0) == 0); });
  };
  // another table first, and back to the plan whose slot for (0, 0) is at 0
  const auto also = [] {
    const int result = sn_place_also(3, kLayers.data(), kOrdinals.data(), kOther.data(), kLengths.data(), 65536);
    if (result > 0) CHECK(sn_use_table(result) == 0);
    return result;
  };
  CHECK(place(also) >= 3);
  for (const bool onwards : {false, true})
    for (long nth = 1;; nth++) {
      fail_from(nth, onwards);
      const int result = sn_place(3, kLayers.data(), kOrdinals.data(), kOther.data(), kLengths.data(), 65536, 1);
      const bool any = fail_no_more() != 0;
      CHECK(result == (any ? -ENOMEM : 0) && served_at() == (any ? 0 : 16384));
      if (any) continue;
      CHECK(sn_place(3, kLayers.data(), kOrdinals.data(), kOffsets.data(), kLengths.data(), 65536, 0) == 0);
      break;
    }
  CHECK(holds(tenant, 4096, 5));
  sn_free(tenant);
}

void allocating_needs_no_memory_of_its_own() {
  fail_from(1, true);
  for (int (*mode)() : {sn_record, sn_pass_through, sn_record}) {
    CHECK(mode() == 0);
    for (int32_t layer = 0; layer < 5; layer++) {
      CHECK(sn_tick(layer) == 0);
      void *large = sn_allocate(3 * kMiB), *small = sn_allocate(100), *own = sn_allocate_exclusive(12345);
      CHECK(large != nullptr && small != nullptr && own != nullptr);
      for (void *each : {large, small, own}) sn_free(each);
    }
    CHECK(sn_exclusive_release() >= 0 && sn_placement_release() >= 0);
  }
  CHECK(sn_log_count() > 0);
  sn_event event;
  CHECK(sn_log_copy(0, 1, &event) == 1);
  CHECK(fail_no_more() == 0);
}

// ---- watching ----

constexpr uint64_t kPages = 1024;  // two granules
uint64_t base;

volatile char *page(uint64_t i) { return reinterpret_cast<volatile char *>(base + i * kPage); }

void write_all() {
  for (uint64_t i = 0; i < kPages; i++) *page(i) = static_cast<char>(i * 7);
}

bool all_there() {
  for (uint64_t i = 0; i < kPages; i++)
    if (*page(i) != static_cast<char>(i * 7)) return false;
  return true;
}

void backing_changes_whole_or_not(int guarded) {
  const auto back = [=] {
    const int result = sn_arm_back(base, kPages * kPage, guarded);
    CHECK(all_there());
    return result;
  };
  const auto unback = [] {
    const int result = sn_arm_unback();
    CHECK(all_there());
    return result;
  };
  each_fails(back, [&] { CHECK(unback() == 0); });
  CHECK(back() == 0);
  each_fails(unback, [&] { CHECK(back() == 0); });
  CHECK(unback() == 0);
}

bool available(int kind) {
  const int error = sn_touch_start(kind, nullptr, kPages);
  CHECK(sn_touch_stop() == 0);
  return error == 0;
}

void watching_starts_whole_or_not(int kind) {
  each_fails(
      [=] {
        CHECK(sn_touch_granules(kPages * kPage) == 0);
        const int result = sn_touch_start(kind, nullptr, kPages);
        CHECK(all_there() && (result == 0 || sn_touch_mark(0) == -ENODEV));
        return result;
      },
      [] { CHECK(sn_touch_stop() == 0); });
}

// What finds no room among the runs is counted, and no more than that.
void what_is_not_written_down_is_counted(int kind) {
  constexpr uint64_t kTouched = 97;
  CHECK(sn_touch_start(kind, nullptr, kPages) == 0);
  CHECK(sn_touch_mark(0) == 0);
  others_fail.store(true);
  for (uint64_t i = 0; i < kTouched; i++) *page(5 * i) = static_cast<char>(5 * i * 7);
  fail_from(1, true);
  CHECK(sn_touch_mark(1) == 0);
  sn_touch_state state;
  sn_touch_quality(&state);
  fail_no_more();
  CHECK(state.lost == kTouched && sn_touch_runs(0, 0, nullptr) == 0);
  *page(3) = static_cast<char>(3 * 7);
  CHECK(sn_touch_stop() == 0);
  others_fail.store(false);
  sn_touch_quality(&state);
  sn_touch_run run;
  CHECK(state.lost == kTouched && sn_touch_runs(0, 1, &run) == 1);
  CHECK(run.page == base / kPage + 3 && run.npages == 1 && run.layer == 1);
}

void watching() {
  CHECK(sn_arm_back(base, kPages * kPage, 0) == 0);
  for (const int kind : {SN_TOUCH_PAGEMAP, SN_TOUCH_PERF, SN_TOUCH_UFFD}) {
    if (!available(kind)) {
      fprintf(stderr, "reader %d is not available here\n", kind);
      continue;
    }
    watching_starts_whole_or_not(kind);
    sn_touch_state state;
    sn_touch_quality(&state);
    if (state.unit_pages == 1) what_is_not_written_down_is_counted(kind);
    CHECK(all_there());
  }
  CHECK(sn_arm_unback() == 0 && all_there());
}

// ---- measuring ----

void measuring_fails_with_a_number() {
  sn_work works[5] = {};
  for (sn_work &work : works) {
    work.base = base;
    work.nbytes = kPages * kPage;
    work.cpu = -1;
    work.kind = SN_MEASURE_READ;
  }
  works[3].kind = SN_MEASURE_MOVE;
  sn_pace paces[5];
  CHECK(each_fails(
            [&]() -> int64_t {
              const int result = sn_measure(works, 5, 1000, paces);
              return result == 0 ? -paces[3].error : result;
            },
            [] {}) >= 5);
  CHECK(all_there());
}

}  // namespace

int main() {
  first_thread = true;
  a_mover_is_made_whole_or_not();
  a_job_is_submitted_whole_or_not();
  jobs_are_submitted_together_or_none_of_them();
  workers_need_no_memory();
  arenas_are_made_whole_or_not();
  a_plan_is_taken_whole_or_not();
  allocating_needs_no_memory_of_its_own();
  CHECK(sn_arm_map(kPages * kPage, &base) == 0);
  write_all();
  backing_changes_whole_or_not(0);
  if (sn_arm_guarded() == 0) backing_changes_whole_or_not(1);
  watching();
  measuring_fails_with_a_number();
  return 0;
}
