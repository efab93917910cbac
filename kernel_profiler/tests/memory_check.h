// What the tests of the allocator share. A failed check ends the program with its line.
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sentinel.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                                \
    }                                                                         \
  } while (0)

// A sanitizer does not look at these accesses: they are to gigabytes of tensors' own bytes, of which only the values are
// in question, and would take most of the time of a test.
#define UNSANITIZED __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined"), noinline))

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kArena = 1024 * kMiB;

inline void create() { CHECK(sn_memory_create(kArena, kArena) == 0); }

inline sn_range exclusive() {
  sn_range range;
  CHECK(sn_exclusive_range(&range) == 0);
  return range;
}

inline sn_range placement() {
  sn_range range;
  CHECK(sn_placement_range(&range) == 0);
  return range;
}

inline sn_counters counters() {
  sn_counters counted;
  sn_memory_counters(&counted);
  return counted;
}

using AnyWord __attribute__((aligned(1), may_alias)) = uint64_t;  // at any address
constexpr uint64_t kWord = sizeof(AnyWord);

constexpr uint64_t word_of(int value) { return 0x0101010101010101ull * static_cast<unsigned char>(value); }

UNSANITIZED inline void fill(void *address, uint64_t nbytes, int value) {
  auto *const bytes = static_cast<volatile unsigned char *>(address);
  uint64_t i = 0;
  for (; i + kWord <= nbytes; i += kWord) *reinterpret_cast<volatile AnyWord *>(bytes + i) = word_of(value);
  for (; i < nbytes; i++) bytes[i] = static_cast<unsigned char>(value);
}

UNSANITIZED inline bool holds(const void *address, uint64_t nbytes, int value) {
  const auto *const bytes = static_cast<const volatile unsigned char *>(address);
  uint64_t i = 0;
  for (; i + kWord <= nbytes; i += kWord)
    if (*reinterpret_cast<const volatile AnyWord *>(bytes + i) != word_of(value)) return false;
  for (; i < nbytes; i++)
    if (bytes[i] != static_cast<unsigned char>(value)) return false;
  return true;
}

// A small generator, the same on every run.
struct Random {
  uint64_t state = 88172645463325252ull;
  uint64_t below(uint64_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
  }
};
