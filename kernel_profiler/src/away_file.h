// The file that holds what is away: without a name, so that nothing is left of it when the process ends, however it does.
#pragma once

#include <stdint.h>

namespace sn {

constexpr uint32_t kMostLanes = 16;  // threads in each direction
constexpr uint32_t kPieceFrames = 2;  // 4 MiB: larger transfers are no faster

// What one system call moves: frames, and the consecutive bytes of the file that belong to them.
struct Piece {
  uint64_t offset;
  uint64_t addresses[kPieceFrames];  // of the frames, in the pool's own mapping
  uint32_t count;
  int error;  // positive, once it has ended badly
};

class AwayFile {
 public:
  // Reserves `nbytes` in `directory`. `direct`: past the page cache, where the file system can. 0 or a negative errno,
  // with what was tried in `step` and nothing left behind. `writers`: threads that write.
  int open(const char *directory, uint64_t nbytes, bool direct, uint32_t writers, const char **step);
  int grow(uint64_t nbytes);  // to so many; it is as it was where that fails
  void close();

  int descriptor() const { return fd_; }
  bool direct() const { return direct_; }
  bool unnamed() const { return unnamed_; }    // it never had a name
  bool promised() const { return promised_; }  // the file system has set the room aside

  // All of the piece: 0 or a positive errno. Short transfers and interrupts go on, what is busy is asked again. `writer`:
  // which of the threads that write asks.
  int transfer(const Piece &piece, bool writes, uint32_t writer) const;
  void leave_page_cache() const;  // all that nobody maps

 private:
  int open_unnamed(const char *directory, int flags);
  int open_named(const char *directory, int flags);
  int reserve(uint64_t nbytes, const char **step);
  int try_direct(const char **step);
  int open_for_writers(uint32_t writers, const char **step);
  int transfer_once(const Piece &piece, bool writes, int fd) const;
  int leave_cache(const Piece &piece, bool writes, int fd) const;

  int fd_ = -1;
  // Through the page cache, that bytes were lost is told once to each opening of a file: a thread that shared its opening
  // with another would not hear of its own.
  int writer_fds_[kMostLanes];
  uint32_t writers_ = 0;
  bool direct_ = false, unnamed_ = false, promised_ = false;
};

}  // namespace sn
