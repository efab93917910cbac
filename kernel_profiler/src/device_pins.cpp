#include "device_pins.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>

#include "lock.h"
#include "sentinel.h"

namespace {

// Of CUDA's driver: cuPointerGetAttribute(out, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) tells CU_MEMORYTYPE_HOST of
// memory that was registered with it (cudaHostRegister) or allocated by it, in no context of its own and from any thread.
using Ask = int (*)(void *out, int attribute, uint64_t address);
constexpr char kDriver[] = "libcuda.so.1", kName[] = "cuPointerGetAttribute";
constexpr int kMemoryType = 2, kHost = 1;
constexpr uint64_t kStep = 64 << 10;  // a smaller piece that was registered for itself may be overlooked

std::atomic<Ask> ask{nullptr};
std::atomic<unsigned long long> loaded{0};  // libraries, ever, at the last look
pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

int count_loaded(dl_phdr_info *info, size_t, void *out) {
  *static_cast<unsigned long long *>(out) = info->dlpi_adds;
  return 1;  // the first one knows it
}

}  // namespace

namespace sn {

void find_device_driver() {
  if (ask.load(std::memory_order_relaxed) != nullptr) return;
  unsigned long long now = 0;
  {
    Lock lock(&counting);
    dl_iterate_phdr(count_loaded, &now);
  }
  if (now == loaded.load(std::memory_order_relaxed)) return;
  // Several threads may come here at once, and find the same. No lock: who loads a library may fork.
  void *const driver = dlopen(kDriver, RTLD_LAZY | RTLD_NOLOAD);
  if (driver != nullptr) ask = reinterpret_cast<Ask>(dlsym(driver, kName));  // and it stays loaded
  loaded = now;
}

void driver_hold() { pthread_mutex_lock(&counting); }

void driver_let_go() { pthread_mutex_unlock(&counting); }

int device_pins(uint64_t address, uint64_t nbytes) {
  const Ask driver = ask.load(std::memory_order_acquire);
  if (driver == nullptr || nbytes == 0) return 0;
  const auto is_pinned = [&](uint64_t at) {
    uint32_t type = 0;
    return driver(&type, kMemoryType, at) == 0 && type == kHost;
  };
  for (uint64_t at = address; at < address + nbytes; at += kStep)
    if (is_pinned(at)) return 1;
  return is_pinned(address + nbytes - 1) ? 1 : 0;
}

}  // namespace sn

extern "C" int sn_device_pins(uint64_t address, uint64_t nbytes) {
  sn::find_device_driver();
  return sn::device_pins(address, nbytes);
}
