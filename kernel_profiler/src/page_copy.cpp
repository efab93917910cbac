#include "page_copy.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "lock.h"
#include "system.h"

namespace {

constexpr uint64_t kScratch = 32 << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = sn::kCopyPiece / kPage;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // of what follows, but `turn`
uint64_t base = 0;
uint64_t holders = 0;
std::atomic<uint64_t> turn{0};

void refuse(sn_copied &told, uint64_t nbytes, int error) {
  told.refused_bytes += nbytes;
  if (told.error == 0) told.error = static_cast<uint64_t>(error);
}

}  // namespace

namespace sn {

int scratch::hold() {
  Lock lock(&mutex);
  if (holders == 0) {
    const long mapped =
        sn::map(0, kScratch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    if (mapped < 0) return -ENOMEM;
    base = static_cast<uint64_t>(mapped);
    advise(base, kScratch, MADV_DONTFORK);  // refused: a child has a copy that it never touches
  }
  holders += 1;
  return 0;
}

void scratch::let_go() {
  Lock lock(&mutex);
  holders -= 1;
  if (holders == 0) unmap(base, kScratch);
}

void *scratch::next_piece() {
  const uint64_t at = turn.fetch_add(kCopyPiece, std::memory_order_relaxed) % kScratch;
  return reinterpret_cast<void *>(base + at);
}

void scratch::forget() {
  pthread_mutex_init(&mutex, nullptr);  // a thread that is not here may have held it
  holders = 0;
}

// By system calls, which find out what is mapped and what is not: a load would end the process where a page is gone.
void copy_piece(uint64_t address, uint64_t nbytes, void *into, sn_copied &told) {
  unsigned char resident[kPages];
  const uint64_t pages = std::min(nbytes / kPage, kPages);
  const long looked = sn_system(SYS_mincore, arg(address), arg(pages * kPage), arg(resident), 0, 0, 0);
  if (looked != 0) return refuse(told, nbytes, static_cast<int>(-looked));
  iovec there[kPages] = {};
  unsigned long runs = 0;
  uint64_t wanted = 0;
  for (uint64_t page = 0; page < pages; ++page) {
    if ((resident[page] & 1) == 0) {
      told.absent_bytes += kPage;
      continue;
    }
    const bool goes_on = page > 0 && (resident[page - 1] & 1) != 0;
    if (goes_on) there[runs - 1].iov_len += kPage;
    else there[runs++] = {reinterpret_cast<void *>(address + page * kPage), kPage};
    wanted += kPage;
  }
  if (wanted == 0) return;
  const iovec here{into, wanted};
  const long read = sn_system(SYS_process_vm_readv, getpid(), arg(&here), 1, arg(there), arg(runs), 0);
  const uint64_t copied = read < 0 ? 0 : static_cast<uint64_t>(read);
  told.copied_bytes += copied;
  if (copied < wanted) refuse(told, wanted - copied, read < 0 ? static_cast<int>(-read) : EFAULT);
}

}  // namespace sn
