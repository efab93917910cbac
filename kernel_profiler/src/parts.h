// Work on memory that several threads share: it is copied and cleared as fast as the processors allow, not one of them.
#pragma once

#include <stdint.h>

namespace sn {

constexpr int kMostThreads = 8;  // beyond, memory is what limits

// Calls `part(job, from, to)` for all of [begin, end), cut at multiples of `part_bytes`, in this thread and in up to
// seven of its own, which take no signals and are gone on return. Where none can be made, this one does it all.
// 0, or the -errno of a part that failed; parts that nobody had begun by then are left out.
int in_parts(uint64_t begin, uint64_t end, uint64_t part_bytes, int (*part)(const void *job, uint64_t from, uint64_t to),
             const void *job);

// The same for anything that can be called with (from, to).
template <typename Part>
int in_parts(uint64_t begin, uint64_t end, uint64_t part_bytes, const Part &part) {
  const auto call = [](const void *job, uint64_t from, uint64_t to) { return (*static_cast<const Part *>(job))(from, to); };
  return in_parts(begin, end, part_bytes, call, &part);
}

void work_alone();  // from now on this thread does it all: in a forked child

}  // namespace sn
