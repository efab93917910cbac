// Faults handed to a thread of ours by userfaultfd, which notes them and maps the page. The thread allocates,
// locks and logs nothing: the thread that faulted may hold any lock.
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include <atomic>
#include <thread>

#include "guarded.h"
#include "immortal.h"
#include "system.h"
#include "touch.h"
#include "uffd.h"

namespace {

constexpr uint64_t kContinueWriteProtected = 1 << 1;  // UFFDIO_CONTINUE_MODE_WP, from 6.4

int wake_up = -1;  // an eventfd: the thread ends when it is written
sn::Immortal<std::thread> kept_handler;
std::thread &handler = kept_handler.value;
std::atomic<bool> busy{false};  // the handler has read messages that it has not answered yet

long control(unsigned long request, void *argument) {
  return sn::uffd_control(sn::armed.uffd, request, argument);
}

// A page of the memfd where there is none yet.
long populate(uint64_t page) {
  for (int i = 0; i < sn::armed.count; i++) {
    const sn::ArmRange &range = sn::armed.ranges[i];
    if (page - range.base < range.nbytes)
      return sn_system(SYS_fallocate, range.fd, 0, sn::arg(page - range.base), sn::kArmPage, 0, 0);
  }
  return -EFAULT;
}

long map_page(uint64_t page, bool protect) {
  uffdio_continue request = {};
  request.range.start = page;
  request.range.len = sn::kArmPage;
  request.mode = protect ? kContinueWriteProtected : 0;
  return control(UFFDIO_CONTINUE, &request);
}

long allow_writes(uint64_t page) {
  uffdio_writeprotect request = {};
  request.range.start = page;
  request.range.len = sn::kArmPage;
  return control(UFFDIO_WRITEPROTECT, &request);
}

// From here on the kernel resolves faults by itself: unseen, but nobody hangs.
void let_go() {
  for (int i = 0; i < sn::armed.count; i++) {
    uffdio_range all = {sn::armed.ranges[i].base, sn::armed.ranges[i].nbytes};
    control(UFFDIO_UNREGISTER, &all);
    control(UFFDIO_WAKE, &all);
  }
}

void give_up() {
  sn::touch_lost++;
  let_go();
}

void resolve(uint64_t page, bool write, bool protected_page) {
  for (;;) {
    const long error = protected_page ? allow_writes(page) : map_page(page, !write);
    if (error == 0) return;
    if (error == -EAGAIN) continue;  // the mappings are being changed
    if (error == -EEXIST || error == -ENOENT) {  // another thread's fault was first, or the page went again
      uffdio_range one = {page, sn::kArmPage};
      control(UFFDIO_WAKE, &one);
      return;
    }
    if (error == -EFAULT && !protected_page && populate(page) == 0) continue;
    return give_up();
  }
}

uint64_t page_of(const uffd_msg &message) {
  return message.arg.pagefault.address / sn::kArmPage * sn::kArmPage;
}

void note(const uffd_msg &message) {
  if (message.event != UFFD_EVENT_PAGEFAULT) return;
  const bool write = (message.arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0;
  sn::TouchCell *cell = sn::touched.find(page_of(message));
  if (cell == nullptr) {
    sn::touch_lost++;
  } else {
    cell->note(write);
  }
}

void answer(const uffd_msg &message) {
  if (message.event != UFFD_EVENT_PAGEFAULT) return;
  const uint64_t flags = message.arg.pagefault.flags, page = page_of(message);
  const bool missing = (flags & (UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_MINOR)) == 0;
  if (missing && populate(page) != 0) return give_up();
  resolve(page, (flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0,
          (flags & UFFD_PAGEFAULT_FLAG_WP) != 0);
}

struct Busy {
  Busy() { busy.store(true); }
  ~Busy() { busy.store(false); }
};

// All is noted before anything is answered: an answer lets every thread go on that waits for the same page, and a
// layer may end before the next message is looked at.
void serve() {
  uffd_msg messages[32];
  pollfd waits[2] = {{sn::armed.uffd, POLLIN, 0}, {wake_up, POLLIN, 0}};
  for (;;) {
    const long ready = sn_system(SYS_poll, sn::arg(waits), 2, -1, 0, 0, 0);
    if (ready < 0 && ready != -EINTR) return give_up();
    const Busy until_answered;
    const long bytes = sn_system(SYS_read, sn::armed.uffd, sn::arg(messages), sizeof messages, 0, 0, 0);
    const long got = bytes / static_cast<long>(sizeof messages[0]);
    for (long i = 0; i < got; i++) note(messages[i]);
    for (long i = 0; i < got; i++) answer(messages[i]);
    if (bytes <= 0 && waits[1].revents != 0) return;  // asked to end, and nobody waits
  }
}

long register_all() {
  uffdio_api api = {};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_MINOR_SHMEM;
  long error = control(UFFDIO_API, &api);
  for (int i = 0; error == 0 && i < sn::armed.count; i++) {
    uffdio_register request = {};
    request.range = {sn::armed.ranges[i].base, sn::armed.ranges[i].nbytes};
    request.mode = UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;
    error = control(UFFDIO_REGISTER, &request);
  }
  return error;
}

// Without write-protected continuation (from 6.4) a write after a read would go unseen: try it on a page of ours.
long try_continue() {
  const uint64_t page = sn::armed.ranges[0].base;
  long error = populate(page);
  if (error == 0) error = map_page(page, true);
  if (error == -EINVAL) return -EOPNOTSUPP;
  return error == -EEXIST ? 0 : error;
}

int start() {
  long fd = sn::uffd_open();
  if (fd < 0) return static_cast<int>(fd);
  sn::armed.uffd = sn::out_of_the_way(static_cast<int>(fd));
  long error = register_all();
  if (error == 0) error = try_continue();
  if (error != 0) return static_cast<int>(error);
  fd = sn_system(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  wake_up = sn::out_of_the_way(static_cast<int>(fd));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are for the program's threads
  error = sn::guarded([] {
    handler = std::thread(serve);
    return 0;
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return static_cast<int>(error);
}

// The kernel hands out messages of threads that need no answer any more, as another's was for the same page. What
// was read before a mark belongs to the layer that ends; what was not is withdrawn before its thread goes on.
int collect() {
  while (busy.load()) std::this_thread::yield();
  return 0;
}

int look(uint64_t, uint64_t) { return 0; }  // the handler writes a touch down before its thread goes on

void stop() {
  if (handler.joinable()) {
    let_go();  // first: from then on nobody can come to wait
    const uint64_t one = 1;
    while (sn_system(SYS_write, wake_up, sn::arg(&one), sizeof one, 0, 0, 0) == -EINTR) {
    }
    handler.join();
  }
  sn::shut(wake_up);
}

void nothing() {}  // its thread changes nothing that a child looks at

void forget() {
  sn::forget_thread(handler);
  busy.store(false);
  sn::shut(wake_up);
}

}  // namespace

namespace sn {
const TouchReader uffd_reader = {start, collect, look, stop, nothing, nothing, forget};
}
