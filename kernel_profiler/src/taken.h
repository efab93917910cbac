// What a process takes of memory, by the kernel's own account.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sn {

// A small file of the kernel as a text, as much of it as there is room for; a negative errno.
long read_small(const char *path, char *text, size_t room);
// The number after `name` at the beginning of a line of `text`; -1 where there is none.
int64_t number_after(const char *text, const char *name);

// Resident pages by the text of /proc/self/statm: of files, frames and other shared memory among them, and all.
struct ResidentPages {
  int64_t of_files, all;

  int64_t anonymous() const { return all - of_files; }
};
ResidentPages resident_pages(const char *statm);

// Resident pages of this process and of its descendants, each counted once, and page tables, in bytes; but no more than
// `frames_bytes` of shared memory, which is the frames'. -EOPNOTSUPP: this kernel does not tell.
int64_t taken_bytes(uint64_t frames_bytes);
// Of this process's own memory that is anonymous; -1: not known.
int64_t anonymous_bytes();

}  // namespace sn
