// A step that asks for a little more or less than the plan expects loses little more than that.

#include <algorithm>
#include <vector>

#include "memory_check.h"

namespace {

using Sizes = std::vector<uint64_t>;

constexpr int kSlots = 61, kLayers = 3;

// Slot i of a layer: 13 sizes in turn, none like its neighbours'.
uint64_t size_of(int i) { return 4096 * (1 + static_cast<uint64_t>(i) * 7 % 13); }

Sizes planned_sizes() {
  Sizes sizes;
  for (int i = 0; i < kSlots; i++) sizes.push_back(size_of(i));
  return sizes;
}

void place(const Sizes &sizes) {
  std::vector<int32_t> layers, ordinals;
  std::vector<uint64_t> offsets, nbytes;
  uint64_t extent = 0;
  for (int32_t layer = 0; layer < kLayers; layer++)
    for (size_t i = 0; i < sizes.size(); i++) {
      layers.push_back(layer);
      ordinals.push_back(static_cast<int32_t>(2 * i));  // small allocations had the others
      offsets.push_back(extent);
      nbytes.push_back(sizes[i]);
      extent += sizes[i];
    }
  CHECK(sn_place(layers.size(), layers.data(), ordinals.data(), offsets.data(), nbytes.data(), extent, 0, 0) == 0);
}

struct Lost {
  uint64_t count = 0, nbytes = 0, unlike = 0, fitted = 0;
  bool is(uint64_t c, uint64_t n, uint64_t u) const {  // at most `u` unlike
    return count == c && nbytes == n && unlike <= u && fitted == 0; }
};

// The middle layer asks for `asked`, the others for what was planned. What found no slot of its size.
Lost run(const Sizes &planned, const Sizes &asked) {
  const sn_counters before = counters();
  const uint64_t unlike = sn_placement_unlike(), fitted = sn_placement_fitted();
  std::vector<unsigned char *> held;
  std::vector<uint64_t> lengths;
  for (int32_t layer = 0; layer < kLayers; layer++) {
    sn_tick(layer);
    for (const uint64_t nbytes : layer == 1 ? asked : planned) {
      held.push_back(static_cast<unsigned char *>(sn_allocate(nbytes)));
      lengths.push_back(nbytes);
      fill(held.back(), nbytes, static_cast<int>(held.size()));
    }
  }
  for (size_t i = 0; i < held.size(); i++) CHECK(holds(held[i], lengths[i], static_cast<int>(i + 1)));
  for (unsigned char *address : held) sn_free(address);
  Lost lost;
  for (const int why : {SN_WHY_NO_SLOT, SN_WHY_SIZE_DIFFERS, SN_WHY_BUSY}) {
    lost.count += counters().fallback[why] - before.fallback[why];
    lost.nbytes += counters().fallback_bytes[why] - before.fallback_bytes[why];
  }
  lost.unlike = sn_placement_unlike() - unlike;
  lost.fitted = sn_placement_fitted() - fitted;
  return lost;
}

Sizes with(int at, Sizes more) {
  Sizes sizes = planned_sizes();
  sizes.insert(sizes.begin() + at, more.begin(), more.end());
  return sizes;
}

Sizes without(int at, int count = 1) {
  Sizes sizes = planned_sizes();
  sizes.erase(sizes.begin() + at, sizes.begin() + at + count);
  return sizes;
}

void what_was_planned_loses_nothing() { CHECK(run(planned_sizes(), planned_sizes()).is(0, 0, 0)); }

void small_ones_do_not_count() {
  CHECK(run(planned_sizes(), with(17, {1000, 8, 1023})).is(0, 0, 0));
}

// Larger than any slot, or far smaller than the one that comes next (slot 19 has 4 pages, 20 has 11).
void one_more_loses_itself_only() {
  for (const int at : {0, 1, 19, 37, kSlots}) {
    CHECK(run(planned_sizes(), with(at, {4096 * 50})).is(1, 4096 * 50, 4096 * 50));
    CHECK(run(planned_sizes(), with(at, {4096 * 50, 4096 * 31, 4096 * 50})).is(3, 4096 * 131, 4096 * 131));
  }
  CHECK(run(planned_sizes(), with(20, {1024})).is(1, 1024, 1024));
}

// A size that comes again soon: it takes that one's slot, and is missed only there.
void one_more_of_a_size_to_come_costs_one() {
  for (const int at : {2, 19, 37}) {
    CHECK(size_of(at + 5) != size_of(at));
    const Lost lost = run(planned_sizes(), with(at, {size_of(at + 5)}));
    CHECK(lost.count <= 1 && lost.nbytes <= size_of(at + 5) && lost.fitted == 0);
  }
}

// One that fits in the slot of another keeps that one out, as long as it lives, and nobody else.
void one_more_that_takes_a_slot_costs_its_tenant_one() {
  CHECK(size_of(4) == 4096 * 3 && size_of(3) == 4096 * 9);
  const Lost lost = run(planned_sizes(), with(3, {4096 * 8 + 512}));
  CHECK(lost.count == 1 && lost.nbytes == size_of(3) && lost.fitted == 4096 * 8 + 512);
  CHECK(lost.unlike == 4096 - 512);
}

void what_is_left_out_loses_nothing() {
  for (const int at : {0, 1, 23, kSlots - 1}) CHECK(run(planned_sizes(), without(at)).is(0, 0, 0));
  CHECK(run(planned_sizes(), without(23, 7)).is(0, 0, 0));
}

void two_that_change_places_lose_nothing() {
  for (const int at : {0, 23, kSlots - 2}) {
    Sizes sizes = planned_sizes();
    std::swap(sizes[at], sizes[at + 1]);
    CHECK(run(planned_sizes(), sizes).is(0, 0, 0));
  }
}

// Every third step logs something, every fifth leaves something out.
void steps_take_turns() {
  for (int step = 0; step < 31; step++) {
    const bool more = step % 3 == 0, less = step % 5 == 0;
    Sizes sizes = planned_sizes();
    if (less) sizes.erase(sizes.begin() + 40);
    if (more) sizes.insert(sizes.begin() + 11, 4096 * 50);
    CHECK(run(planned_sizes(), sizes).is(more, more ? 4096 * 50 : 0, more ? 4096 * 50 : 0));
  }
}

// Negative control: sizes of which the plan has none are served where they fit, each in the slot of its place.
void another_shape_is_not_taken_for_this_one() {
  Sizes sizes = planned_sizes();
  for (uint64_t &nbytes : sizes) nbytes -= 1024;
  const Lost lost = run(planned_sizes(), sizes);
  CHECK(lost.count == 0 && lost.unlike == 1024 * kSlots);
  for (uint64_t &nbytes : sizes) nbytes += 4096 * 100;
  CHECK(run(planned_sizes(), sizes).count == kSlots);
}

// No two of them share a byte, whatever is added, left out and freed meanwhile.
void live_bytes_are_nobody_elses() {
  Random random;
  uint64_t edits = 0, lost = 0;
  for (int round = 0; round < 211; round++) {
    Sizes sizes = planned_sizes();
    for (uint64_t more = random.below(9); more > 0; more--, edits++) {
      const auto at = sizes.begin() + static_cast<std::ptrdiff_t>(random.below(sizes.size()));
      if (random.below(2) == 0) sizes.erase(at);
      else sizes.insert(at, 1024 + random.below(60000));
    }
    lost += run(planned_sizes(), sizes).count;
  }
  CHECK(lost < edits);  // one each, fewer where they were served
}

// With one plan for each of two shapes, one allocation more does not make a step one of the other.
void one_more_does_not_change_the_plan() {
  Sizes larger = planned_sizes();
  for (uint64_t &nbytes : larger) nbytes *= 2;
  std::vector<int32_t> layers, ordinals;
  std::vector<uint64_t> offsets;
  uint64_t extent = 0;
  Sizes all;
  for (int32_t layer = 0; layer < kLayers; layer++)
    for (int i = 0; i < kSlots; i++) {
      layers.push_back(layer);
      ordinals.push_back(i);
      offsets.push_back(extent);
      all.push_back(larger[i]);
      extent += larger[i];
    }
  CHECK(sn_place_also(layers.size(), layers.data(), ordinals.data(), offsets.data(), all.data(), extent, 0) == 1);
  CHECK(run(planned_sizes(), with(19, {4096 * 50})).is(1, 4096 * 50, 4096 * 50) && *sn_table_in_use() == 0);
  Sizes more = larger;
  more.insert(more.begin() + 19, 4096 * 50);
  CHECK(run(larger, more).is(1, 4096 * 50, 4096 * 50) && *sn_table_in_use() == 1);
  CHECK(run(planned_sizes(), without(19)).is(0, 0, 0) && *sn_table_in_use() == 0);
}

}  // namespace

int main() {
  create();
  place(planned_sizes());
  what_was_planned_loses_nothing();
  small_ones_do_not_count();
  one_more_loses_itself_only();
  one_more_of_a_size_to_come_costs_one();
  one_more_that_takes_a_slot_costs_its_tenant_one();
  what_is_left_out_loses_nothing();
  two_that_change_places_lose_nothing();
  steps_take_turns();
  another_shape_is_not_taken_for_this_one();
  live_bytes_are_nobody_elses();
  one_more_does_not_change_the_plan();
  CHECK(counters().live_bytes == 0 && counters().unmanaged_live_bytes == 0);
  CHECK(sn_memory_destroy() == 0);
  return 0;
}
