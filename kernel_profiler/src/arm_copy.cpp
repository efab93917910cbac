// Bytes on their way into a memfd and out of it, by several threads.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "arm.h"
#include "parts.h"
#include "system.h"

namespace {

constexpr uint64_t kPartBytes = uint64_t{4} << 20;  // one thread's

long seek(int fd, uint64_t offset, int whence) {
  return sn_system(SYS_lseek, fd, sn::arg(offset), whence, 0, 0, 0);
}

// Reads or writes all of it; a short transfer goes on, a signal too.
int transfer(long number, int fd, uint64_t address, uint64_t nbytes, uint64_t offset) {
  while (nbytes != 0) {
    const long moved = sn_system(number, fd, sn::arg(address), sn::arg(nbytes), sn::arg(offset), 0, 0);
    if (moved == -EINTR) continue;
    if (moved < 0) return static_cast<int>(moved);
    if (moved == 0) return -EIO;
    address += static_cast<uint64_t>(moved);
    offset += static_cast<uint64_t>(moved);
    nbytes -= static_cast<uint64_t>(moved);
  }
  return 0;
}

// The kernel lets one thread at a time write to a file, but all of them to its huge pages where they are mapped.
int write(const sn::ArmRange &range, uint64_t address, uint64_t nbytes, uint64_t offset) {
  if (offset + nbytes > range.huge_to) return transfer(SYS_pwrite64, range.fd, address, nbytes, offset);
  memcpy(reinterpret_cast<void *>(range.view + offset), reinterpret_cast<const void *>(address), nbytes);
  return 0;
}

int write_in_parts(const sn::ArmRange &range, uint64_t address, uint64_t nbytes, uint64_t offset) {
  return sn::in_parts(offset, offset + nbytes, kPartBytes, [&](uint64_t from, uint64_t to) {
    return write(range, address + from - offset, to - from, from);
  });
}

int copy(uint64_t to, uint64_t from, uint64_t nbytes) {
  return sn::in_parts(0, nbytes, kPartBytes, [=](uint64_t begin, uint64_t end) {
    memcpy(reinterpret_cast<void *>(to + begin), reinterpret_cast<const void *>(from + begin), end - begin);
    return 0;
  });
}

int copy_part(const sn::ArmRange &range, int pagemap, uint64_t from, uint64_t to) {
  constexpr uint64_t kBatch = 512;
  uint64_t entries[kBatch];
  uint64_t run = 0, run_pages = 0;
  for (uint64_t page = from / sn::kArmPage; page < to / sn::kArmPage; page += kBatch) {
    const uint64_t count = std::min(kBatch, to / sn::kArmPage - page);
    const uint64_t index = range.base / sn::kArmPage + page;
    if (pagemap < 0) {
      std::fill_n(entries, count, ~uint64_t{0});
    } else if (const int error = transfer(SYS_pread64, pagemap, reinterpret_cast<uintptr_t>(entries), count * 8, index * 8);
               error != 0) {
      return error;
    }
    for (uint64_t i = 0; i <= count; i++) {
      const bool holds = i < count && (entries[i] >> 62) != 0;  // present or swapped out
      if (holds && run_pages == 0) run = page + i;
      if (holds) {
        run_pages++;
      } else if (run_pages != 0 && (i < count || page + count == to / sn::kArmPage)) {
        const uint64_t offset = run * sn::kArmPage;
        const int error = write(range, range.base + offset, run_pages * sn::kArmPage, offset);
        if (error != 0) return error;
        run_pages = 0;
      }
    }
  }
  return 0;
}

// The range whose memfd holds all of [address, address + nbytes), or null.
sn::ArmRange *shared_at(uint64_t address, uint64_t nbytes) {
  for (int i = 0; i < sn::armed.count; i++) {
    sn::ArmRange &range = sn::armed.ranges[i];
    const uint64_t offset = address - range.base;
    if (offset < range.nbytes && offset >= range.shared_from && offset + nbytes <= range.shared_to) return &range;
  }
  return nullptr;
}

}  // namespace

namespace sn {

int arm_copy_in(const ArmRange &range, int pagemap, uint64_t from, uint64_t to) {
  const int error = in_parts(from, to, kPartBytes, [&](uint64_t begin, uint64_t end) {
    return copy_part(range, pagemap, begin, end);
  });
  arm_hide_view(range, from, to);
  return error;
}

int arm_copy_out(const ArmRange &range, uint64_t at, uint64_t from, uint64_t data, uint64_t to) {
  return in_parts(data, to, kPartBytes, [&](uint64_t begin, uint64_t end) {
    for (uint64_t offset = begin;;) {
      const long found = seek(range.fd, offset, SEEK_DATA);
      if (found == -ENXIO || (found >= 0 && static_cast<uint64_t>(found) >= end)) return 0;
      if (found < 0) return static_cast<int>(found);
      const long hole = seek(range.fd, static_cast<uint64_t>(found), SEEK_HOLE);
      if (hole < 0) return static_cast<int>(hole);
      offset = static_cast<uint64_t>(found);
      const uint64_t stop = std::min(end, static_cast<uint64_t>(hole));
      const int error = transfer(SYS_pread64, range.fd, at + offset - from, stop - offset, offset);
      if (error != 0 || stop == end) return error;
      offset = stop;
    }
  });
}

long arm_first_data(const ArmRange &range, uint64_t from, uint64_t used) {
  const long data = from < used ? seek(range.fd, from, SEEK_DATA) : -ENXIO;
  const bool none = data == -ENXIO || (data >= 0 && static_cast<uint64_t>(data) >= used);
  return none ? static_cast<long>(used) : data;
}

void arm_hide_view(const ArmRange &range, uint64_t from, uint64_t to) {
  if (range.view == 0) return;
  from = from / kHugeBytes * kHugeBytes;
  to = std::min(range.nbytes, (to + kHugeBytes - 1) / kHugeBytes * kHugeBytes);
  advise(range.view + from, to - from, MADV_DONTNEED);
}

}  // namespace sn

extern "C" int sn_exclusive_fill(void *to, const void *from, uint64_t nbytes) {
  const uint64_t address = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  sn::arm_lock();
  int error = 0;
  if (sn::ArmRange *range = shared_at(address, nbytes); range != nullptr) {
    const uint64_t offset = address - range->base;
    if (offset + nbytes > range->huge_to) sn::arm_make_huge(*range, offset + nbytes + sn::kChunkBytes);
    error = write_in_parts(*range, source, nbytes, offset);
    sn::arm_hide_view(*range, offset, offset + nbytes);
  } else {
    error = copy(address, source, nbytes);
  }
  sn::arm_unlock();
  return error;
}
