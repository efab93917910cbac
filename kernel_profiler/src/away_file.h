// The file that holds what is away: without a name, so that nothing is left of it when the process ends, however it does.
#pragma once

#include <stdint.h>

namespace sn {

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
  // with what was tried in `step` and nothing left behind.
  int open(const char *directory, uint64_t nbytes, bool direct, const char **step);
  void close();

  int descriptor() const { return fd_; }
  bool direct() const { return direct_; }
  bool unnamed() const { return unnamed_; }    // it never had a name
  bool promised() const { return promised_; }  // the file system has set the room aside

  // All of the piece: 0 or a positive errno. Short transfers and interrupts go on, what is busy is asked again.
  int transfer(const Piece &piece, bool writes) const;

 private:
  int open_unnamed(const char *directory, int flags);
  int open_named(const char *directory, int flags);
  int reserve(uint64_t nbytes, const char **step);
  int try_direct(const char **step);
  int transfer_once(const Piece &piece, bool writes) const;
  int leave_cache(const Piece &piece, bool writes) const;

  int fd_ = -1;
  bool direct_ = false, unnamed_ = false, promised_ = false;
};

}  // namespace sn
