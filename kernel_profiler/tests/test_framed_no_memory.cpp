// The n-th allocation fails while tensors are made, used and freed in frames: each has its bytes, what could not be done is
// counted, and what comes next goes well.
#include <vector>

#include "fail_allocations.h"
#include "frames_check.h"

namespace {

constexpr uint32_t kFrames = 8, kTensors = 10;
constexpr long kMostAllocations = 40;  // that an operator makes
constexpr long kNone = -1;             // none fails

sn_framed_counters told() {
  sn_framed_counters now;
  CHECK(sn_framed_count(&now) == 0);
  return now;
}

// A tensor of one granule, each of whose pages has the same at its ends.
struct Tensor {
  void *bytes;
  uint8_t value;

  bool there() const { return ends_hold(bytes, kGranule, value); }
};

void frames_are_taken_or_left() {
  sn_frames *made = nullptr;
  CHECK(each_fails(
            [&] {
              sn_frames *const before = made;
              const int result = sn_framed_begin(&made, SN_FRAMED_LEAST_BYTES);
              CHECK(made == (result == 0 ? nullptr : before) && sn_framed_any() == (result == 0 ? 1 : 0));
              return result;
            },
            [] { CHECK(sn_framed_end() == 0); },
            [&] {
              if (made == nullptr) made = open_frames(request_of(kFrames, 32, 32));
            }) >= 3);
  made = open_frames(request_of(kFrames, 32, 32));
  CHECK(sn_framed_begin(&made, SN_FRAMED_LEAST_BYTES) == 0);
}

void the_cap_is_followed_or_not() {
  sn_framed_cap cap{};
  cap.least_frames = cap.most_frames = kFrames;
  cap.cap_bytes = uint64_t{1} << 50;
  const char *const path = "/a/path/longer/than/what/a/string/holds/by/itself";
  const sn_framed_group group = {path, path, path, path, path};
  cap.groups = &group;
  cap.n_groups = 1;
  CHECK(each_fails([&] { return sn_framed_follow(&cap); }, [] {}) >= 6);
}

// One that finds no memory for its row comes from elsewhere, and is counted.
void a_tensor_has_frames_or_comes_from_elsewhere() {
  for (const bool onwards : {false, true})
    for (long nth = 1;; nth++) {
      const uint64_t refused = told().refused, live = told().live_bytes;
      fail_from(nth, onwards);
      void *const bytes = sn_allocate(kGranule);
      const bool any = fail_no_more() != 0;
      CHECK(bytes != nullptr);
      fill(bytes, kGranule, 5);
      const sn_framed_counters now = told();
      if (any) CHECK(now.refused == refused + 1 && now.refused_error == ENOMEM && now.live_bytes == live);
      else CHECK(now.refused == refused && now.live_bytes == live + kGranule);
      CHECK(sn_framed_contains(reinterpret_cast<uintptr_t>(bytes)) == (any ? 0 : 1));
      CHECK(holds(bytes, kGranule, 5));
      sn_free(bytes);
      CHECK(told().live_bytes == live);
      if (!any) break;
    }
}

// Without memory for the hole that it leaves, its addresses are not used again; its frame is.
void a_tensor_is_freed_without_memory() {
  void *const bytes = sn_allocate(kGranule), *const behind = sn_allocate(kGranule);
  const uint64_t free_frames = told().frames.free_frames;
  fail_from(1, true);
  sn_free(bytes);
  CHECK(fail_no_more() != 0 && told().frames.free_frames == free_frames + 1);
  sn_free(behind);
  CHECK(told().live_bytes == 0 && told().frames.free_frames == kFrames);
}

// `nth`: of the allocations of an operator, the first that fails, or kNone.
void use(Tensor &tensor, bool writes, long nth, bool onwards) {
  const sn_framed_operand operand = {reinterpret_cast<uintptr_t>(tensor.bytes), kGranule, writes ? SN_WRITES : SN_READS, 0};
  if (nth != kNone) fail_from(nth, onwards);
  const int found = sn_framed_need(&operand, 1, "aten::test");
  fail_no_more();
  CHECK(found == 0 || found == 2);
  CHECK(tensor.there());
  if (writes) fill_ends(tensor.bytes, kGranule, ++tensor.value);
  if (found == 2) sn_framed_ran();
}

// A step is recorded, followed and recorded again while allocations fail; nobody's bytes are lost.
void operators_run_without_memory() {
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < kTensors; i++) {
    tensors.push_back({sn_allocate(kGranule), static_cast<uint8_t>(i)});
    fill_ends(tensors.back().bytes, kGranule, tensors.back().value);
  }
  const auto step = [&](long nth, bool onwards) {
    if (nth != kNone) fail_from(nth, onwards);
    CHECK(sn_framed_step() == 0);
    fail_no_more();
    for (uint32_t i = 0; i < kTensors; i++) use(tensors[i], i % 3 == 0, nth, onwards);
  };
  const uint64_t failed_before = told().failed;
  for (const bool recorded : {false, true}) {
    for (const bool onwards : {true, false})
      for (long nth = 1; nth < kMostAllocations; nth += onwards ? 7 : 1) step(nth, onwards);
    if (recorded) break;
    step(kNone, false);
    step(kNone, false);
    sn_framed_ahead ahead;
    CHECK(sn_framed_ahead_count(&ahead) == 0 && ahead.recorded >= 1);
  }
  CHECK(told().failed > failed_before && told().failure == ENOMEM);
  const uint64_t failed = told().failed;
  step(kNone, false);
  CHECK(told().failed == failed);
  for (const Tensor &tensor : tensors) {
    CHECK(tensor.there());
    sn_free(tensor.bytes);
  }
}

// What an operator's operands are is not known without memory for a list: they come page by page, and that is counted.
void an_operator_without_memory_is_counted() {
  Tensor tensor = {sn_allocate(kGranule), 9};
  fill_ends(tensor.bytes, kGranule, tensor.value);
  const uint64_t failed = told().failed;
  use(tensor, false, 1, false);
  CHECK(told().failed == failed + 1 && told().failure == ENOMEM);
  sn_free(tensor.bytes);
}

}  // namespace

int main() {
  first_thread = true;
  create();
  frames_are_taken_or_left();
  a_tensor_has_frames_or_comes_from_elsewhere();
  a_tensor_is_freed_without_memory();
  an_operator_without_memory_is_counted();
  operators_run_without_memory();
  CHECK(sn_framed_end() == 0 && sn_framed_any() == 0);
  the_cap_is_followed_or_not();
  return 0;
}
