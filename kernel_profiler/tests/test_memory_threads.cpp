// Who owns memory as threads come and go.
#include <pthread.h>

#include <thread>

#include "memory_check.h"

namespace {

constexpr uint64_t kBytes = 8 * kMiB;

// A thread's handle is given again as soon as the thread has ended.
void a_later_thread_under_the_same_handle_owns_nothing() {
  pthread_t handle;
  uint64_t number = 0;
  std::thread([&] {
    create();
    handle = pthread_self();
    number = sn_thread_number();
    CHECK(sn_memory_is_owner() == 1 && number != 0 && number == sn_thread_number());
  }).join();
  bool again = false;
  for (int i = 0; i < 100 && !again; i++)
    std::thread([&] {
      again = pthread_equal(pthread_self(), handle) != 0;
      CHECK(sn_memory_is_owner() == 0 && sn_record() == -EPERM && sn_allocate_exclusive(kBytes) == nullptr);
      CHECK(sn_thread_number() != number && sn_memory_is_owner() == 0);
    }).join();
  if (!again) fprintf(stderr, "no thread had the handle of one before\n");
  CHECK(sn_memory_own() == 0 && sn_memory_is_owner() == 1);
  CHECK(sn_memory_destroy() == 0);
  CHECK(sn_memory_is_owner() == 0);
}

}  // namespace

int main() {
  a_later_thread_under_the_same_handle_owns_nothing();
  return 0;
}
