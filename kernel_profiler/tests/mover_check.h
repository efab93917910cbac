// What the tests of the mover share. A failed check ends the program with its line.
#pragma once

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "sentinel.h"

#define CHECK(truth)                                                            \
  do {                                                                          \
    if (!(truth)) {                                                             \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #truth);       \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

constexpr uint64_t kMs = 1000000;
constexpr uint64_t kForever = UINT64_MAX;
constexpr uint64_t kPage = 4096;

inline sn_mover *make(uint64_t capacity, int half_duplex = 0) {
  sn_mover *mover = nullptr;
  CHECK(sn_mover_create(capacity, half_duplex, &mover) == 0);
  return mover;
}

inline sn_job emulated(uint8_t direction, uint64_t nbytes, uint64_t duration_ns) {
  sn_job job{};
  job.nbytes = nbytes;
  job.held[direction == SN_DEMOTE ? 0 : 1] = nbytes;
  job.duration_ns = duration_ns;
  job.source = direction == SN_DEMOTE ? 0 : 1;
  job.target = direction == SN_DEMOTE ? 1 : 0;
  return job;
}

inline uint64_t submit(sn_mover *mover, const sn_job &job) {
  const int64_t id = sn_mover_submit(mover, &job);
  CHECK(id > 0);
  return static_cast<uint64_t>(id);
}

inline sn_held held(sn_mover *mover) {
  sn_held now;
  CHECK(sn_mover_held(mover, &now, 0) == 0);
  return now;
}

inline std::vector<sn_moved> results(sn_mover *mover) {
  std::vector<sn_moved> all(64);
  all.resize(sn_mover_results(mover, all.data(), all.size()));
  return all;
}

// Sleeps of the workers, in the test's hands: they fail at once, or wait until they are let go and then fail.
inline std::atomic<bool> held_up{false};
inline std::atomic<int> sleeping{0};

inline long sleeps_fail(long number, const long a[6]) {
  if (number != SYS_clock_nanosleep) return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  ++sleeping;
  while (held_up.load()) sched_yield();
  return -EIO;
}
