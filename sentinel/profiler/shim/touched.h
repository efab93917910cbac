// What each operator of one thread touches, told as the operator ends, so that somebody can ask then where that is.
//
// A dispatch mode is told the same, but under one autograd adds gradients up in memory of their own: the step that is
// watched so allocates more than others, in another order.
#pragma once

#include <stdint.h>

#include "sentinel.h"

extern "C" {

// Bytes [first, end) of a storage: of a view with gaps, the gaps too. Of a table only its rows, where these are told.
typedef struct sn_touched {
  uint64_t storage;  // its number: no other storage has it
  uint64_t address;  // of its first byte
  uint64_t nbytes;   // of the storage
  uint64_t first, end;
  const int64_t *rows;  // those that are touched of a table, in any order; NULL: not such a table
  uint64_t n_rows, row_stride, row_bytes;  // row r begins at first + r * row_stride
} sn_touched;

// Called on the thread that trains, without the GIL or with it. What it is given is gone when it returns.
typedef void (*sn_touched_tell)(const sn_touched *touched, uint64_t count);

// One at a time. Tells of the operators of the calling thread from now on; between operators, as stop. 0 or -errno.
SN_API int sn_touched_start(sn_touched_tell tell);
SN_API int sn_touched_stop(void);

// Forgets the numbers of storages. 0, or -errno of what went wrong since the last call: then something was not told.
SN_API int sn_touched_forget(void);

}  // extern "C"
