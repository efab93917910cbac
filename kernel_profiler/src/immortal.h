// What must not be destroyed, or not as usual.
#pragma once

#include <new>
#include <thread>

namespace sn {

// A static that is never destroyed: threads that Python does not wait for use the library while the program ends.
template <typename T>
union Immortal {
  Immortal() : value() {}
  ~Immortal() {}

  T value;
};

// In a forked child, where the thread does not run: nothing is asked of it, not even to be detached.
inline void forget_thread(std::thread &thread) {
  static_assert(sizeof(std::thread) == sizeof(std::thread::native_handle_type), "a thread owns nothing but its handle");
  new (&thread) std::thread;
}

}  // namespace sn
