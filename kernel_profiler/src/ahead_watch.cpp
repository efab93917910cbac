#include "ahead_watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include <atomic>

#include "frames.h"

namespace {

std::atomic<sn_frames *> watched{nullptr};  // changed by whoever makes or closes the frames
std::atomic<bool> ending{false};
pthread_t thread;

void *watch(void *argument) {
  sn_frames &f = *static_cast<sn_frames *>(argument);
  for (uint64_t ended = 0; !ending;) {
    ended = f.lanes.wait_for_ends(ended);
    // Whoever makes room decides who leaves.
    if (ending || pthread_mutex_trylock(&f.manager) != 0) continue;
    {
      sn::Lock lock(&f.mutex);
      // Between operators their thread may be in a system call that writes into a tensor.
      if (f.ahead.running != 0) sn::read_ahead(f);
    }
    pthread_mutex_unlock(&f.manager);
  }
  return nullptr;
}

}  // namespace

namespace sn {

void ahead_watch_begin(sn_frames *frames) {
  sn_frames *nobody = nullptr;
  if (!watched.compare_exchange_strong(nobody, frames)) return;
  ending = false;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  const int error = pthread_create(&thread, nullptr, watch, frames);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) watched = nullptr;
}

void ahead_watch_end() {
  sn_frames *const frames = watched.load();
  if (frames == nullptr) return;
  ending = true;
  frames->lanes.wake();
  pthread_join(thread, nullptr);
  watched = nullptr;
}

void ahead_watch_forget() { watched = nullptr; }

}  // namespace sn
