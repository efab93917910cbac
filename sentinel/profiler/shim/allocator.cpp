// torch's CPU allocations, served by the native library.

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <typeinfo>

#include "sentinel.h"
#include "shim.h"

namespace sn_shim {

// A storage keeps the deleter it was born with, so this one must do for all memory and for ever: the context
// is the address itself, and the library knows by its range where it goes.
void release(void *address) {
  c10::profiledCPUMemoryReporter().Delete(address);
  sn_free(address);
}

namespace {

class ManagedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, nullptr, &release, cpu};
    void *address = sn_allocate(nbytes);
    if (address == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(nbytes);
      // torch's own words, by which accelerate and Lightning know to try a smaller batch
      TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", nbytes,
                  " bytes. Error code ", ENOMEM, " (", strerror(ENOMEM), ")");
    }
    c10::DataPtr held{address, address, &release, cpu};  // first: what follows may throw
    c10::profiledCPUMemoryReporter().New(address, nbytes);
    return held;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void *to, const void *from, std::size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
};

// Immortal: storages die after static destructors.
ManagedAllocator *const managed = new ManagedAllocator;
c10::Allocator *previous = nullptr;

void name_of(const c10::Allocator *allocator, char *out, size_t nbytes) {
  int status = 0;
  const char *mangled = typeid(*allocator).name();
  char *readable = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::snprintf(out, nbytes, "%s", status == 0 ? readable : mangled);
  std::free(readable);
}

}  // namespace

c10::Allocator *managed_allocator() { return managed; }

}  // namespace sn_shim

using sn_shim::managed;
using sn_shim::previous;

// 0, or -EBUSY with the type name of the allocator in the way in `holder`.
extern "C" SN_API int sn_shim_install(char *holder, size_t nbytes) {
  c10::Allocator *found = c10::GetCPUAllocator();
  if (found == managed) return 0;
  if (found == c10::GetDefaultCPUAllocator()) {
    c10::SetCPUAllocator(managed, 0);
    if (c10::GetCPUAllocator() == managed) {
      previous = found;
      return 0;
    }
  }
  sn_shim::name_of(found, holder, nbytes);
  return -EBUSY;
}

// 0 also if another allocator was installed since: that one stays.
extern "C" SN_API int sn_shim_uninstall(void) {
  if (c10::GetCPUAllocator() == managed && previous != nullptr) c10::SetCPUAllocator(previous, 0);
  return c10::GetCPUAllocator() == managed ? -EBUSY : 0;
}

extern "C" SN_API int sn_shim_installed(void) { return c10::GetCPUAllocator() == managed ? 1 : 0; }
