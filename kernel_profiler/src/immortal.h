// A static that is never destroyed: threads that Python does not wait for use the library while the program ends.
#pragma once

namespace sn {

template <typename T>
union Immortal {
  Immortal() : value() {}
  ~Immortal() {}

  T value;
};

}  // namespace sn
