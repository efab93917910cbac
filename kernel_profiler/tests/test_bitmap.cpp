// Claims that come between one another, at the worst moment: no granule is ever given to two, and none is lost.
#include "../src/bitmap.h"

#include <functional>
#include <thread>
#include <vector>

#include "memory_check.h"

namespace {

using sn::Between;

// What happens when a thread gets there; once.
struct Script {
  static void at(Between point) {
    if (point != when || !armed.exchange(false)) return;
    const std::function<void()> now = std::move(what);  // which may set the next
    now();
  }
  static void set(Between point, std::function<void()> action) {
    when = point;
    what = std::move(action);
    armed.store(true);
  }

  static Between when;
  static std::function<void()> what;
  static std::atomic<bool> armed;
};
Between Script::when = Between::kChecked;
std::function<void()> Script::what;
std::atomic<bool> Script::armed{false};

constexpr uint64_t kWords = 64, kLarge = 1024;  // granules; large enough for the owner's gate

struct Fresh {
  Fresh() : words(kWords) { bitmap.reset(words.data()); }
  std::vector<std::atomic<uint64_t>> words;
  sn::PausingBitmap<Script> bitmap;
};

void a_claim_that_fails_half_way_gives_all_back() {
  Fresh fresh;
  Script::set(Between::kChecked, [&] { CHECK(fresh.bitmap.claim_as_owner(200, 3)); });
  CHECK(!fresh.bitmap.claim_as_other(10, 300));  // words 0 to 4; the other took some of word 3 meanwhile
  CHECK(fresh.bitmap.taken(0, kWords * 64) == 3);
  fresh.bitmap.clear(200, 3);
  CHECK(fresh.bitmap.claim_as_other(10, 300) && fresh.bitmap.taken(0, kWords * 64) == 300);
}

// The owner has seen that all is free; who comes now waits until the owner has written it down.
void the_owners_gate_shuts_others_out() {
  Fresh fresh;
  std::atomic<bool> arrived{false}, done{false}, theirs{false};
  std::thread other;
  Script::set(Between::kChecked, [&] {
    Script::set(Between::kShutOut, [&] { arrived.store(true); });
    other = std::thread([&] {
      theirs.store(fresh.bitmap.claim_as_other(100, 200));
      done.store(true);
    });
    while (!arrived.load() && !done.load()) sched_yield();
  });
  const bool ours = fresh.bitmap.claim_as_owner(0, kLarge);
  other.join();
  CHECK(ours && !theirs.load() && arrived.load());
  CHECK(fresh.bitmap.taken(0, kWords * 64) == kLarge);
}

// Somebody else is claiming already: then the owner must not write whole words over what that one takes.
void the_owner_takes_care_while_others_claim() {
  Fresh fresh;
  std::atomic<bool> inside{false}, go{false}, done{false};
  bool theirs = false;
  Script::set(Between::kInside, [&] {
    inside.store(true);
    while (!go.load()) sched_yield();
  });
  std::thread other([&] {
    theirs = fresh.bitmap.claim_as_other(100, 200);
    done.store(true);
  });
  while (!inside.load()) sched_yield();
  Script::set(Between::kChecked, [&] {
    go.store(true);
    while (!done.load()) sched_yield();
  });
  const bool ours = fresh.bitmap.claim_as_owner(0, kLarge);
  other.join();
  CHECK(theirs && !ours);
  CHECK(fresh.bitmap.taken(0, kWords * 64) == 200);
}

}  // namespace

int main() {
  a_claim_that_fails_half_way_gives_all_back();
  the_owners_gate_shuts_others_out();
  the_owner_takes_care_while_others_claim();
  return 0;
}
