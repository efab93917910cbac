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

inline void fill(void *address, uint64_t nbytes, int value) { memset(address, value, nbytes); }

inline bool holds(const void *address, uint64_t nbytes, int value) {
  const unsigned char *bytes = static_cast<const unsigned char *>(address);
  // Each byte is as the one before it. A loop of ours would be slow under the sanitizers, which look at each access.
  return nbytes == 0 || (bytes[0] == static_cast<unsigned char>(value) && memcmp(bytes, bytes + 1, nbytes - 1) == 0);
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
