#include "lanes.h"

#include <errno.h>
#include <signal.h>

#include <utility>

#include "frame_pool.h"
#include "lock.h"
#include "naps.h"
#include "sentinel.h"

namespace sn {

Lanes::Lanes() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&changed_, &attributes);
  pthread_condattr_destroy(&attributes);
}

Lanes::~Lanes() { stop(); }

int Lanes::start(const AwayFile *file, uint32_t readers, uint32_t writers) {
  file_ = file;
  int error = 0;
  for (uint32_t i = 0; i < readers && error == 0; i++) error = start_one(i, false);
  for (uint32_t i = 0; i < writers && error == 0; i++) error = start_one(i, true);
  if (error != 0) stop();
  return -error;
}

int Lanes::start_one(uint32_t number, bool writes) {
  Lane &lane = lanes_[started_];
  lane.lanes = this;
  lane.number = number;
  lane.writes = writes;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  const int error = pthread_create(&lane.thread, nullptr, work_of, &lane);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) started_++;
  return error;
}

void Lanes::stop() {
  {
    Lock lock(&mutex_);
    stopping_ = true;
    pthread_cond_broadcast(&changed_);
  }
  for (; started_ != 0; started_--) pthread_join(lanes_[started_ - 1].thread, nullptr);
}

void Lanes::forget() { started_ = 0; }

void Lanes::submit(Transfer &transfer, bool first) {
  Lock lock(&mutex_);
  transfer.start_ns = transfer.stop_ns = sn_now_ns();
  if (transfer.pieces.empty()) return;
  Transfer **last = &queue_[transfer.writes];
  while (*last != nullptr && !first) last = &(*last)->behind;
  transfer.behind = *last;
  *last = &transfer;
  pthread_cond_broadcast(&changed_);
}

bool Lanes::take_out(Transfer &transfer) {
  for (Transfer **at = &queue_[transfer.writes]; *at != nullptr; at = &(*at)->behind)
    if (*at == &transfer) {
      *at = transfer.behind;
      return true;
    }
  return false;
}

void Lanes::hasten(Transfer &transfer) {
  Lock lock(&mutex_);
  if (!take_out(transfer)) return;
  transfer.behind = queue_[transfer.writes];
  queue_[transfer.writes] = &transfer;
}

void Lanes::cancel(Transfer &transfer) {
  Lock lock(&mutex_);
  take_out(transfer);
  for (; transfer.next < transfer.pieces.size(); transfer.next++) transfer.pieces[transfer.next].error = ECANCELED;
  pthread_cond_broadcast(&changed_);
}

void Lanes::cut(Transfer &transfer, size_t piece) {
  Lock lock(&mutex_);
  if (piece >= transfer.next) transfer.pieces[piece].error = ECANCELED;
}

bool Lanes::over(const Transfer &transfer) {
  Lock lock(&mutex_);
  return transfer.over();
}

bool Lanes::wait(const Transfer &transfer, uint64_t deadline_ns) {
  Lock lock(&mutex_);
  const timespec deadline = spec_of(deadline_ns);
  while (!transfer.over())
    if (pthread_cond_timedwait(&changed_, &mutex_, &deadline) == ETIMEDOUT) return transfer.over();
  return true;
}

uint64_t Lanes::wait_for_ends(uint64_t seen) {
  Lock lock(&mutex_);
  while (ends_ == seen) pthread_cond_wait(&changed_, &mutex_);
  return ends_;
}

void Lanes::wake() {
  Lock lock(&mutex_);
  ends_++;
  pthread_cond_broadcast(&changed_);
}

void Lanes::drain() {
  Lock lock(&mutex_);
  while (queue_[0] != nullptr || queue_[1] != nullptr || running_ != 0) pthread_cond_wait(&changed_, &mutex_);
}

Pace Lanes::fastest(bool writes) {
  Lock lock(&mutex_);
  return fastest_[writes];
}

Pace Lanes::latest(bool writes) {
  Lock lock(&mutex_);
  return latest_[writes];
}

void Lanes::count(bool writes, int change) {
  const bool reads_were = under_way_[0] != 0, writes_were = under_way_[1] != 0;
  under_way_[writes] += change;
  if (reads_were == (under_way_[0] != 0) && writes_were == (under_way_[1] != 0)) return;
  const uint64_t took_ns = sn_now_ns() - stretch_since_ns_;
  if (reads_were != writes_were && stretch_bytes_ != 0) {
    Pace &sum = alone_[writes_were], &best = fastest_[writes_were];
    sum.nbytes += stretch_bytes_;
    sum.ns += took_ns;
    if (sum.nbytes >= kLeastAlone) {
      if (sum.rate() >= best.rate()) best = sum;
      sum = {};
    }
    Pace &lately = lately_[writes_were];
    lately.nbytes += stretch_bytes_;
    lately.ns += took_ns;
    if (lately.nbytes >= kLately || (lately.nbytes >= kLeastAlone && lately.ns >= kLatelyNs))
      latest_[writes_were] = std::exchange(lately, Pace{});
  }
  stretch_++;
  stretch_since_ns_ += took_ns;
  stretch_bytes_ = 0;
}

void *Lanes::work_of(void *lane) {
  const Lane &own = *static_cast<Lane *>(lane);
  own.lanes->work(own);
  return nullptr;
}

void Lanes::work(const Lane &lane) {
  Lock lock(&mutex_);
  while (!stopping_) {
    Transfer *transfer = queue_[lane.writes];
    if (transfer == nullptr) {
      pthread_cond_wait(&changed_, &mutex_);
      continue;
    }
    Piece &piece = transfer->pieces[transfer->next++];
    if (transfer->next == transfer->pieces.size()) queue_[lane.writes] = transfer->behind;
    transfer->running++;
    running_++;
    count(lane.writes, 1);
    const uint64_t stretch = stretch_;
    pthread_mutex_unlock(&mutex_);
    const int error = piece.error != 0 ? piece.error : file_->transfer(piece, lane.writes, lane.number);
    pthread_mutex_lock(&mutex_);
    piece.error = error;
    if (error == 0 && stretch == stretch_) stretch_bytes_ += piece.count * kFrameBytes;
    count(lane.writes, -1);
    transfer->running--;
    running_--;
    if (transfer->over()) {
      transfer->stop_ns = sn_now_ns();
      ends_++;
    }
    if (transfer->over() || running_ == 0) pthread_cond_broadcast(&changed_);
  }
}

}  // namespace sn
