// The placement arena: planned slots, served only if free in fact.

#include <atomic>
#include <thread>
#include <vector>

#include "../src/placement.h"
#include "memory_check.h"

namespace {

int place(std::vector<int32_t> layers, std::vector<int32_t> ordinals, std::vector<uint64_t> offsets,
          std::vector<uint64_t> nbytes, uint64_t extent) {
  const int result = sn_place(layers.size(), layers.data(), ordinals.data(), offsets.data(), nbytes.data(), extent, 0);
  sn_tick(0);
  return result;
}

uint64_t offset_of(void *address) { return reinterpret_cast<uintptr_t>(address) - placement().base; }

bool placed(void *address) {
  return sn_memory_contains(reinterpret_cast<uintptr_t>(address)) == 1 && offset_of(address) < kArena;
}

uint64_t fell_back(int why) { return counters().fallback[why]; }

void a_slot_serves_its_key() {
  CHECK(place({1, 0, 0}, {0, 2, 0}, {8192, 4096, 0}, {4096, 2000, 4096}, 12288) == 0);
  void *first = sn_allocate(4096), *unplanned = sn_allocate(4096), *third = sn_allocate(2000);
  CHECK(offset_of(first) == 0 && offset_of(third) == 4096);
  CHECK(!placed(unplanned) && fell_back(SN_WHY_NO_SLOT) == 1);
  sn_tick(1);
  void *next = sn_allocate(4096);
  CHECK(offset_of(next) == 8192);
  CHECK(sn_placement_taken(0, 12288) == 4096 + 2048 + 4096);  // whole granules
  for (void *address : {first, unplanned, third, next}) sn_free(address);
  CHECK(sn_placement_taken(0, 12288) == 0);
}

void a_slot_whose_bytes_are_taken_is_not_served() {
  CHECK(place({0, 1}, {0, 0}, {0, 4096}, {8192, 8192}, 12288) == 0);  // a wrong plan: they overlap
  void *first = sn_allocate(8192);
  fill(first, 8192, 1);
  sn_tick(1);
  void *second = sn_allocate(8192);
  CHECK(!placed(second) && fell_back(SN_WHY_BUSY) == 1);
  fill(second, 8192, 2);
  CHECK(holds(first, 8192, 1));
  sn_free(first);
  sn_tick(1);
  void *third = sn_allocate(8192);
  CHECK(offset_of(third) == 4096);
  sn_free(second);
  sn_free(third);
}

void other_sizes_find_a_slot_that_fits() {
  CHECK(place({0, 0, 0}, {0, 1, 2}, {0, 4096, 8192}, {4096, 4096, 65536}, 73728) == 0);
  void *shorter = sn_allocate(1500);  // in its own slot
  void *longer = sn_allocate(50000);  // not in its own, but in the next
  void *late = sn_allocate(65536);    // whose tenant finds none
  CHECK(offset_of(shorter) == 0 && offset_of(longer) == 8192);
  CHECK(!placed(late));
  sn_tick(-1);
  void *unknown = sn_allocate(4096);
  CHECK(placed(unknown) && offset_of(unknown) == 4096);
  const uint64_t before = fell_back(SN_WHY_UNSYNCHRONISED);
  void *none = sn_allocate(4096);
  CHECK(!placed(none) && fell_back(SN_WHY_UNSYNCHRONISED) == before + 1);
  for (void *address : {shorter, longer, late, unknown, none}) sn_free(address);
}

void a_slot_one_granule_too_small_is_not_served() {
  CHECK(place({0, 0}, {0, 1}, {0, 4096}, {4096, 4096}, 8192) == 0);
  void *longer = sn_allocate(4096 + 1), *next = sn_allocate(4096);
  CHECK(!placed(longer) && offset_of(next) == 4096);
  for (void *address : {longer, next}) sn_free(address);
  sn_tick(0);
  longer = sn_allocate(4096 + 512);
  CHECK(!placed(longer));
  sn_free(longer);
  sn_tick(-1);  // where any slot would do
  longer = sn_allocate(4096 + 512);
  CHECK(!placed(longer));
  sn_free(longer);
}

void a_new_table_respects_the_tenants_of_the_old() {
  CHECK(place({0}, {0}, {0}, {8192}, 8192) == 0);
  void *tenant = sn_allocate(8192);
  fill(tenant, 8192, 3);
  CHECK(place({0, 0}, {0, 1}, {4096, 1 * kMiB}, {4096, 4096}, 2 * kMiB) == 0);
  void *busy = sn_allocate(4096), *beyond = sn_allocate(4096);
  CHECK(!placed(busy) && offset_of(beyond) == kMiB);
  CHECK(holds(tenant, 8192, 3));
  for (void *address : {tenant, busy, beyond}) sn_free(address);
}

void bad_tables_are_refused_and_the_old_one_stays() {
  CHECK(place({0}, {0}, {0}, {4096}, 4096) == 0);
  CHECK(place({0}, {0}, {100}, {4096}, 8192) == -EINVAL);                  // off the granules
  CHECK(place({0}, {0}, {4096}, {4097}, 8192) == -EINVAL);                 // beyond the extent
  CHECK(place({0, 0}, {1, 1}, {0, 4096}, {4096, 4096}, 8192) == -EINVAL);  // a key twice
  CHECK(place({-1}, {0}, {0}, {4096}, 4096) == -EINVAL);
  CHECK(place({0}, {0}, {0}, {4096}, 2 * kArena) == -ENOMEM);
  void *served = sn_allocate(4096);
  CHECK(offset_of(served) == 0);
  sn_free(served);
}

void a_reservation_excludes_tenants_and_tenants_exclude_it() {
  CHECK(place({0}, {0}, {0}, {40 * kMiB}, 40 * kMiB) == 0);
  CHECK(sn_reserve(512 * 1001, 512) == 0);
  void *refused = sn_allocate(40 * kMiB);
  CHECK(!placed(refused));
  CHECK(sn_placement_taken(0, 40 * kMiB) == 512);  // nothing of the failed claim is left
  CHECK(sn_release(512 * 1001, 512) == 0);
  sn_tick(0);
  void *served = sn_allocate(40 * kMiB);
  CHECK(placed(served));
  CHECK(sn_reserve(39 * kMiB, 2 * kMiB) == -EBUSY && sn_reserve(40 * kMiB, kMiB) == 0);
  CHECK(sn_release(40 * kMiB, kMiB) == 0);
  CHECK(sn_reserve(1, 512) == -EINVAL && sn_reserve(kArena, 512) == -EINVAL && sn_reserve(0, 0) == -EINVAL);
  sn_free(refused);
  sn_free(served);
}

void only_whole_huge_pages_of_the_tables_may_be_huge() {
  constexpr uint64_t kHuge = 2 * kMiB;
  const auto huge = [](std::vector<uint64_t> offsets, std::vector<uint64_t> nbytes) {
    return sn_placement_huge(offsets.size(), offsets.data(), nbytes.data());
  };
  CHECK(place({0}, {0}, {0}, {4096}, 40 * kMiB) == 0);
  CHECK(huge({}, {}) == 0 && huge({0, 2 * kHuge}, {kHuge, 3 * kHuge}) == 0);
  CHECK(huge({0}, {kHuge / 2}) == -EINVAL && huge({4096}, {kHuge}) == -EINVAL);
  CHECK(huge({kHuge, 0}, {kHuge, kHuge}) == -EINVAL);            // not ascending
  CHECK(huge({0, kHuge}, {2 * kHuge, kHuge}) == -EINVAL);        // they overlap
  CHECK(huge({kArena - kHuge}, {2 * kHuge}) == -EINVAL);         // beyond the arena
  CHECK(huge({kHuge}, {~uint64_t{0} / kHuge * kHuge}) == -EINVAL);  // round all addresses
  sn_system_fail(-1, 1, EINVAL);                                 // a kernel without huge pages
  CHECK(huge({0}, {kHuge}) == 0);
  sn_system_fail(-1, 0, 0);
}

void free_pages_go_back_when_placing_ends() {
  CHECK(place({0, 0, 0}, {0, 1, 2}, {0, kMiB + 512, kMiB + 2048}, {kMiB, 1024, 20000}, 2 * kMiB) == 0);
  auto *dead = static_cast<unsigned char *>(sn_allocate(kMiB));
  auto *living = static_cast<unsigned char *>(sn_allocate(1024));
  fill(dead, kMiB, 8);
  auto *later = static_cast<unsigned char *>(sn_allocate(20000));
  fill(living, 1024, 9);
  fill(later, 20000, 7);
  sn_free(dead);
  CHECK(holds(dead, kMiB, 8));
  CHECK(sn_pass_through() == 0);
  CHECK(holds(dead, kMiB, 0) && holds(living, 1024, 9) && holds(later, 20000, 7));
  sn_free(later);  // and so does what is freed from then on, but for pages that others live on
  CHECK(holds(later + 2048, 16384, 0) && holds(living, 1024, 9));
  CHECK(sn_placement_taken(0, 2 * kMiB) == 1024);
  sn_system_fail(-1, 1, EAGAIN);
  CHECK(sn_placement_release() == -EAGAIN && sn_placement_taken(0, 2 * kMiB) == 1024);
  CHECK(sn_placement_release() >= static_cast<int64_t>(2 * kMiB - 4096));
  sn_free(living);
}

// What nobody has of a range goes at once, and what tenants have of it as they are freed. The rest of them stays.
void what_tenants_have_is_discarded_as_they_are_freed() {
  constexpr uint64_t kPage = 4096;
  CHECK(place({0, 0, 0, 0}, {0, 1, 2, 3}, {kPage, 5 * kPage, 6 * kPage, 8 * kPage},
              {3 * kPage - 512, kPage, kPage, 2 * kPage}, 16 * kPage) == 0);
  auto *before = static_cast<unsigned char *>(sn_allocate(3 * kPage - 512));
  auto *within = static_cast<unsigned char *>(sn_allocate(kPage));
  auto *dead = static_cast<unsigned char *>(sn_allocate(kPage));
  auto *behind = static_cast<unsigned char *>(sn_allocate(2 * kPage));
  fill(before, 3 * kPage - 512, 3);
  fill(within, kPage, 4);
  fill(dead, kPage, 5);
  fill(behind, 2 * kPage, 6);
  sn_free(dead);
  CHECK(sn_placement_discard(2 * kPage, 7 * kPage) == static_cast<int64_t>(3 * kPage));
  CHECK(holds(dead, kPage, 0) && holds(before, 3 * kPage - 512, 3) && holds(within, kPage, 4) && holds(behind, 2 * kPage, 6));
  for (void *address : {before, within, behind}) sn_free(address);
  CHECK(holds(before, kPage, 3) && holds(before + kPage, 2 * kPage - 512, 0) && holds(within, kPage, 0));
  CHECK(holds(behind, kPage, 0) && holds(behind + kPage, kPage, 6));
  sn_tick(0);  // and the next tenants leave theirs
  CHECK(sn_allocate(3 * kPage - 512) == before);
  fill(before, 3 * kPage - 512, 7);
  sn_free(before);
  CHECK(holds(before, 3 * kPage - 512, 7) && sn_placement_taken(0, 16 * kPage) == 0);
}

void a_page_of_two_tenants_is_discarded_with_the_last() {
  constexpr uint64_t kPage = 4096;
  CHECK(place({0, 0}, {0, 1}, {512, 2048}, {1024, 1024}, kPage) == 0);
  auto *first = static_cast<unsigned char *>(sn_allocate(1024)), *last = static_cast<unsigned char *>(sn_allocate(1024));
  fill(first, 1024, 3);
  fill(last, 1024, 4);
  CHECK(sn_placement_discard(0, kPage) == 0);
  sn_free(first);
  CHECK(holds(first, 1024, 3) && holds(last, 1024, 4));
  sn_free(last);
  CHECK(holds(first, 1024, 0) && holds(last, 1024, 0));
}

// Whoever is served what another thread is freeing finds the pages that were due gone, and the rest of them goes too.
void nobody_is_served_what_is_to_be_discarded() {
  constexpr uint64_t kWhole = 256 << 10, kPart = 64 << 10;
  CHECK(place({0, 1}, {0, 0}, {0, kPart}, {kWhole, kPart}, kWhole) == 0);
  std::atomic<bool> stop{false};
  std::atomic<void *> handed{nullptr};
  std::thread freer([&] {
    while (!stop.load())
      if (void *address = handed.load()) {
        sn_free(address);
        handed.store(nullptr);
      }
  });
  for (int round = 0; round < 600; round++) {
    sn_tick(0);
    auto *whole = static_cast<unsigned char *>(sn_allocate(kWhole));
    CHECK(placed(whole));
    fill(whole, kWhole, 1);
    CHECK(sn_placement_discard(0, kWhole) == 0);
    handed.store(whole);
    void *part = nullptr;
    while (part == nullptr) {
      sn_tick(1);
      part = sn_allocate(kPart);
      if (placed(part)) break;
      sn_free(part);
      part = nullptr;
    }
    CHECK(holds(part, kPart, 0));
    sn_free(part);
    while (handed.load() != nullptr) {}
    CHECK(holds(whole, kWhole, 0));
  }
  stop.store(true);
  freer.join();
}

void only_whole_pages_of_the_arena_are_discarded() {
  CHECK(place({0}, {0}, {0}, {8192}, 8192) == 0);
  CHECK(sn_placement_discard(512, 4096) == 0 && sn_placement_discard(512, 8192 - 512) == 4096);
  CHECK(sn_placement_discard(1, 512) == -EINVAL && sn_placement_discard(kArena, 512) == -EINVAL);
  CHECK(sn_placement_discard(0, 0) == -EINVAL);
  sn_system_fail(-1, 1, EAGAIN);
  CHECK(sn_placement_discard(0, 8192) == -EAGAIN && sn_placement_taken(0, 8192) == 0);
}

// A mover discards what is dead while the owner lives on, and a third thread frees.
void movers_and_foreign_frees_never_touch_live_bytes() {
  constexpr int kSlots = 61;
  std::vector<int32_t> layers(kSlots, 0), ordinals;
  std::vector<uint64_t> offsets, nbytes;
  Random random;
  for (int i = 0; i < kSlots; i++) {  // overlapping at will
    ordinals.push_back(i);
    offsets.push_back(random.below(1500) * 512);
    nbytes.push_back(i % 6 == 0 ? 300000 + random.below(100000) : 1024 + random.below(40) * 512);
  }
  CHECK(place(layers, ordinals, offsets, nbytes, 2 * kMiB) == 0);
  std::atomic<bool> stop{false};
  std::atomic<void *> handed{nullptr};
  std::thread mover([&] {
    Random own;
    auto *base = reinterpret_cast<unsigned char *>(placement().base);
    while (!stop.load()) {
      const uint64_t offset = own.below(3000) * 512, length = (1 + own.below(900)) * 512;
      if (own.below(2) == 0) {
        CHECK(sn_placement_discard(offset, length) >= 0);
        continue;
      }
      if (sn_reserve(offset, length) != 0) continue;
      fill(base + offset, length, 0);
      CHECK(sn_release(offset, length) == 0);
    }
  });
  std::thread freer([&] {
    while (!stop.load())
      if (void *address = handed.exchange(nullptr)) sn_free(address);
  });
  int served = 0;
  for (int round = 0; round < 53; round++) {
    sn_tick(0);
    std::vector<unsigned char *> live;
    for (int i = 0; i < kSlots; i++) {
      live.push_back(static_cast<unsigned char *>(sn_allocate(nbytes[i])));
      served += placed(live.back());
      fill(live[i], nbytes[i], i + 1);
    }
    for (int i = 0; i < kSlots; i++) {
      CHECK(holds(live[i], nbytes[i], i + 1));
      void *expected = nullptr;
      if (!handed.compare_exchange_strong(expected, live[i])) sn_free(live[i]);
    }
  }
  stop.store(true);
  mover.join();
  freer.join();
  if (void *address = handed.exchange(nullptr)) sn_free(address);
  CHECK(served > 0);
  CHECK(sn_placement_taken(0, 2 * kMiB) == 0);
}

}  // namespace

int main() {
  create();
  a_slot_serves_its_key();
  a_slot_whose_bytes_are_taken_is_not_served();
  other_sizes_find_a_slot_that_fits();
  a_slot_one_granule_too_small_is_not_served();
  a_new_table_respects_the_tenants_of_the_old();
  bad_tables_are_refused_and_the_old_one_stays();
  a_reservation_excludes_tenants_and_tenants_exclude_it();
  only_whole_huge_pages_of_the_tables_may_be_huge();
  free_pages_go_back_when_placing_ends();
  what_tenants_have_is_discarded_as_they_are_freed();
  a_page_of_two_tenants_is_discarded_with_the_last();
  nobody_is_served_what_is_to_be_discarded();
  only_whole_pages_of_the_arena_are_discarded();
  movers_and_foreign_frees_never_touch_live_bytes();
  CHECK(counters().live_bytes == 0 && counters().unmanaged_live_bytes == 0);
  CHECK(sn_memory_destroy() == 0);
  return 0;
}
