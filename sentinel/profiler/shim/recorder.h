// Which operators of the owner's thread read and wrote which bytes of which storages.
//
// Calls return 0 or -errno unless they say otherwise. All with the GIL. One recording at a time; start on the thread that
// trains, between operators. Any thread may stop it: sn_recorder_stop lets go of the GIL until the thread that trains has
// left the recorder, and only then it is to be read or forgotten.
#pragma once

#include <stdint.h>

#include "sentinel.h"

extern "C" {

// MADE: an outermost operator gave this storage, which operators within it wrote.
enum { SN_OPERAND_READ = 2, SN_OPERAND_WRITE = 3, SN_OPERATOR = 4, SN_OPERAND_MADE = 5 };

// One operand, or the operator that the operands before it with the same seq belong to.
typedef struct sn_operator_event {
  uint64_t seq;      // of the operator's end, in the order of the allocation log
  uint64_t address;  // first byte of the storage;  operator: where its words start, see sn_recorder_words
  uint64_t nbytes;   // of the storage;             operator: how many words
  uint64_t offset;   // of the operand in it;       operator: CLOCK_MONOTONIC
  uint64_t span;     // bytes touched;              operator: elements computed, 0 where words or other operators tell
  int32_t op;        // index of its name
  uint8_t kind;      // SN_OPERAND_... or SN_OPERATOR
  uint8_t backward;  // 1: within autograd's backward
  uint16_t line;     // of the program, which called it: see sn_recorder_line; 0: unknown. In backward it is the line that
                     // called the operator whose gradient is computed
} sn_operator_event;

// The calling thread's operators are recorded from now on; older records are forgotten. The words of the
// operators named in `worded` (without overload) are kept, of the outermost where they nest. With `most` events the
// recording breaks off. It ends in a forked child. -EBUSY: started already.
SN_API int sn_recorder_start(uint64_t count, const char *const *worded, uint64_t most);
SN_API int sn_recorder_stop(void);
// 1: what observes the operators of the calling thread alone, as torch's profiler does, sees none until 0 is said. Other
// observers, the recorder among them, see them all.
SN_API void sn_recorder_leave_observers(int leave);
// The recording that starts next notes the lines of the program that call operators outside of backward: the frames of
// paths that begin with a word of `skipped` tell nothing, those with a word of `libraries` in them are no program's.
SN_API void sn_recorder_note_lines(uint64_t n_skipped, const char *const *skipped, uint64_t n_libraries,
                                   const char *const *libraries);
SN_API uint64_t sn_recorder_line_count(void);
// That of the number `line` + 1: PATH:LINE of the program, and after a line feed that of the library that it called.
SN_API const char *sn_recorder_line(uint64_t line);  // NULL: there is none; valid until the next start or forget
// 0, or -errno: the recording broke off (-ENOMEM: no memory was left for it; -ENOBUFS: it had the most events;
// -EIO: torch threw where a tensor was asked about) and holds nothing; the operators ran on.
SN_API int sn_recorder_error(void);
// Gives back what was recorded. -EBUSY while it is recorded.
SN_API int sn_recorder_forget(void);
SN_API int sn_recorder_running(void);  // 1 between start and stop
SN_API uint64_t sn_recorder_count(void);
SN_API uint64_t sn_recorder_lost(void);  // operators of other threads, the outermost
SN_API uint64_t sn_recorder_copy(uint64_t first, uint64_t count, sn_operator_event *out);
SN_API uint64_t sn_recorder_op_count(void);
SN_API const char *sn_recorder_op_name(uint64_t op);  // NULL: there is none; valid until the next start or forget
// Arguments and results: count of arguments, each; count of results, each. One is 0 (of no interest),
// 1 dims sizes... (a tensor), 2 value (a number), 3 count values..., or 4 count and so many of these (a list).
SN_API uint64_t sn_recorder_word_count(void);
SN_API uint64_t sn_recorder_words(uint64_t first, uint64_t count, int64_t *out);

}  // extern "C"
