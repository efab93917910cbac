// Threads that move bytes between frames and the away file: some read, the others write.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <vector>

#include "away_file.h"

namespace sn {

// Lanes ask for no memory: a transfer brings all that it needs, and stays where it is until it is over.
struct Transfer {
  bool writes = false;
  std::vector<Piece> pieces;
  size_t next = 0;      // piece that no lane has begun
  uint32_t running = 0;  // pieces under way
  uint64_t start_ns = 0, stop_ns = 0;
  Transfer *behind = nullptr;  // in the queue

  bool over() const { return next == pieces.size() && running == 0; }
};

// Bytes that were moved one way while nothing was the other way, and how long that took.
struct Pace {
  uint64_t nbytes = 0, ns = 0;
  double rate() const { return ns == 0 ? 0 : static_cast<double>(nbytes) / static_cast<double>(ns); }
};

constexpr uint64_t kLeastAlone = uint64_t{16} << 20;  // bytes: less says more of one call than of the disk
constexpr uint64_t kLately = uint64_t{256} << 20;     // bytes, or kLeastAlone that took kLatelyNs: a pause is no slow disk
constexpr uint64_t kLatelyNs = 2000000000;

class Lanes {
 public:
  Lanes();
  ~Lanes();
  Lanes(const Lanes &) = delete;
  Lanes &operator=(const Lanes &) = delete;

  int start(const AwayFile *file, uint32_t readers, uint32_t writers);
  void stop();
  void forget();  // in a forked child: its threads are not there

  // `first`: before all that wait, since a thread is about to wait for it.
  void submit(Transfer &transfer, bool first = false);
  void hasten(Transfer &transfer);  // before all that wait, what of it no lane has begun
  void cancel(Transfer &transfer);  // pieces that no lane has begun end with ECANCELED
  void cut(Transfer &transfer, size_t piece);  // this one, likewise
  bool over(const Transfer &transfer);
  // Whether it was over before CLOCK_MONOTONIC `deadline_ns`.
  bool wait(const Transfer &transfer, uint64_t deadline_ns);
  // Until the count of transfers that are over, or of calls of `wake`, is another than `seen`: what it is then.
  uint64_t wait_for_ends(uint64_t seen);
  void wake();
  // Of bytes one after the other, the fastest kLeastAlone, and the last kLately; 0 bytes: there were not so many.
  Pace fastest(bool writes);
  Pace latest(bool writes);
  void drain();  // until all are over; nobody submits meanwhile

 private:
  bool take_out(Transfer &transfer);  // of the queue: whether it was there
  struct Lane {
    Lanes *lanes;
    uint32_t number;  // among those of its direction
    bool writes;
    pthread_t thread;
  };
  static void *work_of(void *lane);
  void work(const Lane &lane);
  void count(bool writes, int change);  // of pieces under way
  int start_one(uint32_t number, bool writes);

  const AwayFile *file_ = nullptr;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed_;
  Transfer *queue_[2] = {nullptr, nullptr};
  uint32_t running_ = 0;
  int under_way_[2] = {0, 0};  // pieces, by direction
  // A stretch begins when the first piece of a direction does, or the last one ends. Its bytes are of pieces within it.
  // `alone_`: of stretches of one direction, since the last kLeastAlone bytes.
  uint64_t stretch_ = 0, stretch_since_ns_ = 0, stretch_bytes_ = 0;
  Pace alone_[2], fastest_[2], lately_[2], latest_[2];
  uint64_t ends_ = 0;
  bool stopping_ = false;
  Lane lanes_[2 * kMostLanes];
  uint32_t started_ = 0;
};

}  // namespace sn
