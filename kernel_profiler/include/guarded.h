// Neither C nor Python can catch what C++ throws: an exception that leaves an entry, or a thread of ours, ends the
// program. So every entry that needs memory does its work in `guarded`, and what is thrown becomes its result.
#pragma once

#include <errno.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

namespace sn {

// The errno of the exception that is being handled.
inline int errno_of_thrown() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc &) {
    return ENOMEM;
  } catch (const std::length_error &) {  // more than any container holds
    return ENOMEM;
  } catch (const std::system_error &failed) {  // of a thread or a mutex
    return failed.code().value() > 0 ? failed.code().value() : EIO;
  } catch (...) {
    return EIO;
  }
}

// What `body` returns, or the negative errno of what it throws. The body leaves all as it was where it throws.
template <typename Body>
auto guarded(Body body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return -errno_of_thrown();
  }
}

}  // namespace sn
