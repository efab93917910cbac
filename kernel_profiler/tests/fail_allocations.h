// Allocations that fail when a test says so. It defines operator new: for one file of a program.
#pragma once

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <atomic>
#include <new>

#include "memory_check.h"

namespace {

std::atomic<long> left{0};       // allocations until the first that fails; 0: none is to fail
std::atomic<bool> lasts{false};  // all later ones fail too
std::atomic<bool> others_fail{false};  // those of any thread but the first
std::atomic<uint64_t> failed{0};
thread_local bool first_thread = false;

bool fails_now() {
  if (others_fail.load() && !first_thread) return true;
  long now = left.load();
  while (now > 0)
    if (left.compare_exchange_weak(now, now == 1 && lasts.load() ? 1 : now - 1)) return now == 1;
  return false;
}

void *allocate(size_t nbytes, size_t alignment) {
  if (fails_now()) {
    failed++;
    throw std::bad_alloc();
  }
  void *address = nullptr;
  if (posix_memalign(&address, alignment, nbytes == 0 ? 1 : nbytes) != 0) throw std::bad_alloc();
  return address;
}

}  // namespace

void *operator new(size_t nbytes) { return allocate(nbytes, alignof(max_align_t)); }
void *operator new(size_t nbytes, std::align_val_t to) { return allocate(nbytes, static_cast<size_t>(to)); }
void *operator new(size_t nbytes, const std::nothrow_t &) noexcept {
  try {
    return allocate(nbytes, alignof(max_align_t));
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
// Inlined at -O1 apart from operator new, GCC 12 takes it for one that does not belong to it.
#define APART __attribute__((noinline))
APART void operator delete(void *address, const std::nothrow_t &) noexcept { free(address); }
APART void operator delete(void *address) noexcept { free(address); }
APART void operator delete(void *address, size_t) noexcept { free(address); }
APART void operator delete(void *address, std::align_val_t) noexcept { free(address); }
APART void operator delete(void *address, size_t, std::align_val_t) noexcept { free(address); }
#undef APART

namespace {

void fail_from(long nth, bool onwards) {
  lasts.store(onwards);
  failed.store(0);
  left.store(nth);
}

// The allocations that failed since then.
uint64_t fail_no_more() {
  left.store(0);
  return failed.exchange(0);
}

// Calls `call(true)` with ever later allocations failing, until none does; it returns what the entry returned, which is
// -ENOMEM where one failed, and makes its checks. Then `undo`. How many allocations the call makes.
//
// `prepare` comes before each call, while none fails.
template <typename Call, typename Undo, typename Prepare>
uint64_t each_fails(Call call, Undo undo, Prepare prepare) {
  uint64_t made = 0;
  for (const bool onwards : {false, true})
    for (long nth = 1;; nth++) {
      prepare();
      fail_from(nth, onwards);
      const int64_t result = call();
      if (fail_no_more() == 0) {
        CHECK(result >= 0);
        undo();
        made = static_cast<uint64_t>(nth - 1);
        break;
      }
      CHECK(result == -ENOMEM);
    }
  return made;
}

template <typename Call, typename Undo>
uint64_t each_fails(Call call, Undo undo) {
  return each_fails(call, undo, [] {});
}

}  // namespace
