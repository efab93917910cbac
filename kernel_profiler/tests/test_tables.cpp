// Slots of several plans: the one whose sizes a step asks for is put in use.

#include <vector>

#include "memory_check.h"

namespace {

// A step of `n` allocations a layer, `layers` layers, each of `nbytes`, one after the other in the arena.
struct Shape {
  std::vector<int32_t> layers, ordinals;
  std::vector<uint64_t> offsets, nbytes;
  uint64_t extent = 0;
  void add(int32_t layer, int32_t ordinal, uint64_t size) {
    layers.push_back(layer);
    ordinals.push_back(ordinal);
    offsets.push_back(extent);
    nbytes.push_back(size);
    extent += (size + 4095) / 4096 * 4096;
  }
  int place() const {
    return sn_place(layers.size(), layers.data(), ordinals.data(), offsets.data(), nbytes.data(), extent, 0);
  }
  int place_also() const {
    return sn_place_also(layers.size(), layers.data(), ordinals.data(), offsets.data(), nbytes.data(), extent);
  }
};

// The first allocation of each layer is the same in all shapes, the others are as long as the shape says.
Shape shape(uint64_t nbytes) {
  Shape made;
  for (int32_t layer = 0; layer < 5; layer++)
    for (int32_t ordinal = 0; ordinal < 7; ordinal++) made.add(layer, ordinal, ordinal == 0 ? 4096 : nbytes);
  return made;
}

struct Step {
  uint64_t fell_back = 0;
  int32_t in_use_after_layer_0 = -1;
};

Step run(const Shape &asked) {
  Step step;
  std::vector<void *> held;
  int32_t layer = -1;
  const uint64_t before = counters().served;
  for (size_t i = 0; i < asked.layers.size(); i++) {
    if (asked.layers[i] != layer) {
      if (layer == 0) step.in_use_after_layer_0 = *sn_table_in_use();
      sn_tick(layer = asked.layers[i]);
    }
    held.push_back(sn_allocate(asked.nbytes[i]));
    fill(held.back(), asked.nbytes[i], static_cast<int>(i));
  }
  for (size_t i = 0; i < held.size(); i++) CHECK(holds(held[i], asked.nbytes[i], static_cast<int>(i)));
  step.fell_back = held.size() - (counters().served - before);
  for (void *address : held) sn_free(address);
  return step;
}

void steps_that_take_turns_are_told_apart_in_their_first_layer() {
  const Shape small = shape(8192), middle = shape(16384), large = shape(65536);
  CHECK(small.place() == 0 && middle.place_also() == 1 && large.place_also() == 2);
  const Shape *shapes[] = {&small, &middle, &large};
  Random random;
  for (int i = 0; i < 97; i++) {
    const int which = static_cast<int>(random.below(3));
    const Step step = run(*shapes[which]);
    CHECK(step.fell_back == 0);
    CHECK(step.in_use_after_layer_0 == which);
  }
}

void a_shape_between_two_is_served_by_the_larger() {
  CHECK(shape(8192).place() == 0 && shape(65536).place_also() == 1 && shape(131072).place_also() == 2);
  const uint64_t before = sn_placement_fitted(), unlike = sn_placement_unlike();
  const Step step = run(shape(20000));
  CHECK(step.in_use_after_layer_0 == 1 && step.fell_back == 0);
  CHECK(sn_placement_fitted() - before == 5 * 6 * 20000);
  CHECK(sn_placement_unlike() - unlike == 5 * 6 * (65536 - 20000));
  run(shape(65536));
  CHECK(sn_placement_fitted() - before == 5 * 6 * 20000);  // those fit exactly
  CHECK(sn_placement_unlike() - unlike == 5 * 6 * (65536 - 20000));
}

// Negative control: what no table fits falls back, and a single table is never left.
void a_shape_that_none_fits_falls_back() {
  CHECK(shape(8192).place() == 0);
  const uint64_t unlike = sn_placement_unlike();
  CHECK(run(shape(65536)).fell_back == 5 * 6 && *sn_table_in_use() == 0);
  CHECK(sn_placement_unlike() - unlike == 5 * 6 * (65536 - 8192));
  CHECK(shape(16384).place_also() == 1);
  CHECK(run(shape(65536)).fell_back == 5 * 6);
}

void a_difference_that_comes_late_is_seen_when_it_comes() {
  Shape first = shape(8192), second = shape(8192);
  for (int32_t ordinal = 0; ordinal < 41; ordinal++) {
    first.add(5, ordinal, 8192);
    second.add(5, ordinal, 32768);
  }
  CHECK(first.place() == 0 && second.place_also() == 1);
  CHECK(run(second).fell_back == 0 && *sn_table_in_use() == 1);
  CHECK(run(first).fell_back == 0 && *sn_table_in_use() == 0);
}

// The first table's step was recorded after its batch was made: it knows nothing of that, and what follows in layer 0
// has other ordinals. A larger shape has room for all of it; still the step is the smaller one's.
void a_table_is_known_by_the_sizes_that_it_expects_exactly() {
  Shape small = shape(8192), asked, large;
  small.layers.erase(small.layers.begin() + 2, small.layers.begin() + 7);
  small.ordinals.erase(small.ordinals.begin() + 2, small.ordinals.begin() + 7);
  small.offsets.erase(small.offsets.begin() + 2, small.offsets.begin() + 7);
  small.nbytes.erase(small.nbytes.begin() + 2, small.nbytes.begin() + 7);
  asked = shape(8192), large = shape(65536);
  CHECK(small.place() == 0 && large.place_also() == 1);
  for (int i = 0; i < 7; i++) {
    CHECK(run(large).in_use_after_layer_0 == 1);
    CHECK(run(asked).fell_back == 5 && *sn_table_in_use() == 0);
  }
}

void there_are_ten_tables_at_most_and_a_new_one_alone_forgets_them() {
  CHECK(sn_pass_through() == 0 && shape(8192).place_also() == -EINVAL);
  CHECK(shape(8192).place() == 0);
  for (int i = 1; i < 10; i++) CHECK(shape(8192 + 4096 * i).place_also() == i);
  const uint64_t extent = placement().used_bytes;
  CHECK(shape(1 << 20).place_also() == -ENOSPC && placement().used_bytes == extent);  // and nothing has changed
  CHECK(sn_use_table(9) == 0 && *sn_table_in_use() == 9);
  CHECK(sn_use_table(10) == -EINVAL && sn_use_table(-1) == -EINVAL);
  CHECK(shape(8192).place() == 0 && *sn_table_in_use() == 0 && sn_use_table(1) == -EINVAL);
}

}  // namespace

int main() {
  create();
  steps_that_take_turns_are_told_apart_in_their_first_layer();
  a_shape_between_two_is_served_by_the_larger();
  a_shape_that_none_fits_falls_back();
  a_difference_that_comes_late_is_seen_when_it_comes();
  a_table_is_known_by_the_sizes_that_it_expects_exactly();
  there_are_ten_tables_at_most_and_a_new_one_alone_forgets_them();
  CHECK(sn_memory_destroy() == 0);
  puts("ok");
  return 0;
}
