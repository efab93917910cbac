#include "overflow_watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "lock.h"
#include "naps.h"
#include "sentinel.h"

namespace {

constexpr uint64_t kPauseNs = 1000000;  // a disk gives some ten pages to each thread in it

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed;
uint32_t running = 0;  // operators
bool alive = false;    // the thread
void (*tidy)(bool last) = nullptr;

thread_local uint32_t begun = 0;  // on this thread
thread_local bool blocked = false;  // it had blocked SIGSEGV as the first of those began

// The kernel ends a program whose store meets an instant on a thread that blocks the signal. One that waits to be
// delivered would come now: then it stays blocked.
void let_faults_through() {
  if (begun++ != 0) return;
  sigset_t pending, fault, before;
  sigemptyset(&fault);
  sigaddset(&fault, SIGSEGV);
  if (pthread_sigmask(SIG_BLOCK, nullptr, &before) != 0 || sigismember(&before, SIGSEGV) != 1) return;
  if (sigpending(&pending) != 0 || sigismember(&pending, SIGSEGV) != 0) return;
  blocked = pthread_sigmask(SIG_UNBLOCK, &fault, nullptr) == 0;
}

void block_again() {
  if (begun == 0 || --begun != 0 || !blocked) return;
  sigset_t fault;
  sigemptyset(&fault);
  sigaddset(&fault, SIGSEGV);
  pthread_sigmask(SIG_BLOCK, &fault, nullptr);
  blocked = false;
}

int open_clock() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  const int error = pthread_cond_init(&changed, &attributes);
  pthread_condattr_destroy(&attributes);
  return error;
}

void *watch(void *) {
  sn::Lock lock(&mutex);
  for (bool last = false; !last;) {
    last = running == 0;
    void (*const what)(bool) = tidy;
    pthread_mutex_unlock(&mutex);
    what(last);
    pthread_mutex_lock(&mutex);
    last = last && running == 0;  // another one may have begun
    const timespec next = sn::spec_of(sn_now_ns() + kPauseNs);
    if (running != 0) pthread_cond_timedwait(&changed, &mutex, &next);
  }
  alive = false;
  pthread_cond_broadcast(&changed);
  return nullptr;
}

bool start() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, watch, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return error == 0;
}

}  // namespace

namespace sn {

void overflow_begin(void (*what)(bool)) {
  static const int opened = open_clock();
  let_faults_through();
  Lock lock(&mutex);
  running++;
  tidy = what;
  if (!alive && opened == 0) alive = start();
}

void overflow_end() {
  block_again();
  Lock lock(&mutex);
  running--;
  if (running == 0 && alive) pthread_cond_broadcast(&changed);
  while (running == 0 && alive) pthread_cond_wait(&changed, &mutex);
}

}  // namespace sn
