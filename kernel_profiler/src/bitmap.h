// Granules taken and free: claimed and cleared by any thread, in whole ranges.
#pragma once

#include <stdint.h>

#include <atomic>

namespace sn {

class Bitmap {
 public:
  explicit Bitmap(std::atomic<uint64_t> *words = nullptr) : words_(words) {}

  // Takes [first, first + count) if all of it is free.
  bool claim(uint64_t first, uint64_t count) {
    const uint64_t end = first + count, last_word = (end - 1) / 64;
    for (uint64_t word = first / 64; word <= last_word; word++)
      if ((words_[word].load(std::memory_order_relaxed) & mask(word, first, end)) != 0) return false;
    for (uint64_t word = first / 64; word <= last_word; word++)
      if (!claim_word(word, mask(word, first, end))) {
        if (word > first / 64) clear(first, word * 64 - first);
        return false;
      }
    return true;
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

  uint64_t taken(uint64_t first, uint64_t count) const {
    uint64_t total = 0;
    const uint64_t end = first + count;
    for (uint64_t word = first / 64; count != 0 && word <= (end - 1) / 64; word++)
      total += static_cast<uint64_t>(
          __builtin_popcountll(words_[word].load(std::memory_order_relaxed) & mask(word, first, end)));
    return total;
  }

 private:
  static uint64_t mask(uint64_t word, uint64_t first, uint64_t end) {
    uint64_t bits = ~uint64_t{0};
    if (word == first / 64) bits &= ~uint64_t{0} << (first % 64);
    if (word == (end - 1) / 64) bits &= ~uint64_t{0} >> (63 - (end - 1) % 64);
    return bits;
  }

  bool claim_word(uint64_t word, uint64_t bits) {
    uint64_t old = words_[word].load(std::memory_order_relaxed);
    do {
      if ((old & bits) != 0) return false;
    } while (!words_[word].compare_exchange_weak(old, old | bits, std::memory_order_acquire,
                                                 std::memory_order_relaxed));
    return true;
  }

  std::atomic<uint64_t> *words_;
};

}  // namespace sn
