// Granules taken and free. One thread, the owner, claims most ranges; others claim few; anyone clears.
#pragma once

#include <sched.h>
#include <stdint.h>

#include <atomic>

namespace sn {

// Where another thread may come between: a test stops there, the library does not.
enum class Between { kChecked, kInside, kShutOut };

struct NoPause {
  static void at(Between) {}
};

template <typename Pause>
class PausingBitmap {
 public:
  void reset(std::atomic<uint64_t> *words) {
    words_ = words;
    owner_claims_.store(false);
    others_.store(0);
  }

  // Takes [first, first + count) if all of it is free. Only the owner.
  bool claim_as_owner(uint64_t first, uint64_t count) {
    if (count < kGatedGranules) return claim(first, count);
    // A compare-and-swap for each word of a large range would cost more than the rest of the allocation. While
    // no other thread claims, words that are zero stay zero: the gate sees to that, in the order of Dekker.
    owner_claims_.store(true, std::memory_order_seq_cst);
    const bool alone = others_.load(std::memory_order_seq_cst) == 0;
    const bool claimed = alone ? claim_alone(first, count) : claim(first, count);
    owner_claims_.store(false, std::memory_order_release);
    return claimed;
  }

  // The same for any other thread.
  bool claim_as_other(uint64_t first, uint64_t count) {
    others_.fetch_add(1, std::memory_order_seq_cst);
    while (owner_claims_.load(std::memory_order_seq_cst)) {
      Pause::at(Between::kShutOut);
      sched_yield();
    }
    Pause::at(Between::kInside);
    const bool claimed = claim(first, count);
    others_.fetch_sub(1, std::memory_order_release);
    return claimed;
  }

  void clear(uint64_t first, uint64_t count) {
    const uint64_t end = first + count, last_word = (end - 1) / 64;
    for (uint64_t word = first / 64; word <= last_word; word++) {
      const uint64_t bits = mask(word, first, end);
      // A word that is ours alone needs no read: nobody else changes it while it is full.
      if (bits == ~uint64_t{0})
        words_[word].store(0, std::memory_order_release);
      else
        words_[word].fetch_and(~bits, std::memory_order_release);
    }
  }

  // Sets bits, whoever has set them before.
  void mark(uint64_t first, uint64_t count) {
    const uint64_t end = first + count;
    for (uint64_t word = first / 64; count != 0 && word <= (end - 1) / 64; word++)
      words_[word].fetch_or(mask(word, first, end), std::memory_order_relaxed);
  }

  // The first of [first, end) that is taken, or that is not; `end` if there is none.
  uint64_t next(uint64_t first, uint64_t end, bool is_taken) const {
    for (uint64_t word = first / 64; first < end; first = ++word * 64) {
      const uint64_t now = words_[word].load(std::memory_order_acquire);
      const uint64_t bits = (is_taken ? now : ~now) & mask(word, first, end);
      if (bits != 0) return word * 64 + static_cast<uint64_t>(__builtin_ctzll(bits));
    }
    return end;
  }

  uint64_t taken(uint64_t first, uint64_t count) const {
    uint64_t total = 0;
    const uint64_t end = first + count;
    for (uint64_t word = first / 64; count != 0 && word <= (end - 1) / 64; word++)
      total += static_cast<uint64_t>(
          __builtin_popcountll(words_[word].load(std::memory_order_relaxed) & mask(word, first, end)));
    return total;
  }

 private:
  static constexpr uint64_t kGatedGranules = 512;

  static uint64_t mask(uint64_t word, uint64_t first, uint64_t end) {
    uint64_t bits = ~uint64_t{0};
    if (word == first / 64) bits &= ~uint64_t{0} << (first % 64);
    if (word == (end - 1) / 64) bits &= ~uint64_t{0} >> (63 - (end - 1) % 64);
    return bits;
  }

  bool is_free(uint64_t first, uint64_t end) const {
    for (uint64_t word = first / 64; word <= (end - 1) / 64; word++)
      if ((words_[word].load(std::memory_order_acquire) & mask(word, first, end)) != 0) return false;
    return true;
  }

  bool claim(uint64_t first, uint64_t count) {
    const uint64_t end = first + count, last_word = (end - 1) / 64;
    if (!is_free(first, end)) return false;
    Pause::at(Between::kChecked);
    for (uint64_t word = first / 64; word <= last_word; word++)
      if (!claim_word(word, mask(word, first, end))) {
        if (word > first / 64) clear(first, word * 64 - first);
        return false;
      }
    return true;
  }

  bool claim_alone(uint64_t first, uint64_t count) {
    const uint64_t end = first + count, last_word = (end - 1) / 64;
    if (!is_free(first, end)) return false;
    Pause::at(Between::kChecked);
    for (uint64_t word = first / 64; word <= last_word; word++) {
      const uint64_t bits = mask(word, first, end);
      if (bits == ~uint64_t{0})
        words_[word].store(bits, std::memory_order_relaxed);
      else
        words_[word].fetch_or(bits, std::memory_order_relaxed);  // others clear their bits of it
    }
    return true;
  }

  bool claim_word(uint64_t word, uint64_t bits) {
    uint64_t old = words_[word].load(std::memory_order_relaxed);
    do {
      if ((old & bits) != 0) return false;
    } while (!words_[word].compare_exchange_weak(old, old | bits, std::memory_order_acquire,
                                                 std::memory_order_relaxed));
    return true;
  }

  std::atomic<uint64_t> *words_ = nullptr;
  std::atomic<bool> owner_claims_{false};
  std::atomic<int> others_{0};
};

using Bitmap = PausingBitmap<NoPause>;

}  // namespace sn
