// What the tests of frames share.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "memory_check.h"

constexpr uint64_t kGranule = SN_FRAME_BYTES;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kForever = UINT64_MAX;

// ctest runs each test in the build folder.
inline sn_frames_request request_of(uint32_t frames, uint32_t granules, uint32_t regions) {
  sn_frames_request request{};
  request.directory = ".";
  request.frames = frames;
  request.granules = granules;
  request.regions = regions;
  request.readers = request.writers = 2;
  return request;
}

inline sn_frames *open_frames(const sn_frames_request &request) {
  sn_frames *frames = nullptr;
  const char *step = "";
  const int error = sn_frames_create(&request, &frames, &step);
  if (error == -EMEDIUMTYPE) {
    fprintf(stderr, "needs a build folder on a disk: %s\n", step);
    exit(77);
  }
  if (error != 0) fprintf(stderr, "%s: %s\n", step, strerror(-error));
  CHECK(error == 0);
  return frames;
}

inline sn_frames_facts facts(sn_frames *frames) {
  sn_frames_facts told;
  CHECK(sn_frames_facts_of(frames, &told) == 0);
  return told;
}

inline sn_frames_counters counted(sn_frames *frames) {
  sn_frames_counters told;
  CHECK(sn_frames_count(frames, &told) == 0);
  return told;
}

inline uint8_t state(sn_frames *frames, uint32_t granule) {
  uint8_t told;
  CHECK(sn_frames_states(frames, granule, 1, &told) == 0);
  return told;
}

inline sn_frames_result collect(sn_frames *frames, int64_t id) {
  CHECK(id > 0);
  sn_frames_result result;
  CHECK(sn_frames_collect(frames, static_cast<uint64_t>(id), kForever, &result) == 0);
  return result;
}

inline sn_frames_result leave(sn_frames *frames, uint32_t first, uint32_t count) {
  return collect(frames, sn_frames_leave(frames, first, count));
}

inline sn_frames_result arrive(sn_frames *frames, uint32_t first, uint32_t count, int writes) {
  return collect(frames, sn_frames_arrive(frames, first, count, writes));
}

inline void close_frames(sn_frames *frames) {
  CHECK(sn_frames_release(frames, 0, facts(frames).granules) == 0);
  const sn_frames_counters left = counted(frames);
  CHECK(left.free_frames == facts(frames).frames && left.in_state[SN_GRANULE_ABSENT] == facts(frames).granules);
  CHECK(sn_frames_destroy(frames) == 0);
}

// The word that a page of a granule begins with, told apart from all others.
constexpr uint64_t mark(uint64_t page, uint64_t salt) { return (page + 1) * 0x9E3779B97F4A7C15ull ^ salt; }

inline uint64_t *word(uint64_t base, uint64_t page, uint64_t index) {
  return reinterpret_cast<uint64_t *>(base + page * kPage) + index;
}

// Each page: its first word and its last one.
UNSANITIZED inline void write_marks(uint64_t base, uint64_t granules, uint64_t salt) {
  for (uint64_t page = 0; page < granules * kGranule / kPage; page++) {
    *word(base, page, 0) = mark(page, salt);
    *word(base, page, kPage / 8 - 1) = ~mark(page, salt);
  }
}

UNSANITIZED inline bool marks_hold(uint64_t base, uint64_t granules, uint64_t salt) {
  for (uint64_t page = 0; page < granules * kGranule / kPage; page++)
    if (*word(base, page, 0) != mark(page, salt) || *word(base, page, kPage / 8 - 1) != ~mark(page, salt)) return false;
  return true;
}

// What some tests move is whole pages, gigabytes of them in all: a word at each end of a page tells what it holds.
UNSANITIZED inline void fill_ends(void *bytes, uint64_t nbytes, uint8_t value) {
  for (uint64_t at = reinterpret_cast<uintptr_t>(bytes), end = at + nbytes; at < end; at += kPage)
    *word(at, 0, 0) = *word(at, 0, kPage / 8 - 1) = word_of(value);
}

UNSANITIZED inline bool ends_hold(const void *bytes, uint64_t nbytes, uint8_t value) {
  for (uint64_t at = reinterpret_cast<uintptr_t>(bytes), end = at + nbytes; at < end; at += kPage)
    if (*word(at, 0, 0) != word_of(value) || *word(at, 0, kPage / 8 - 1) != word_of(value)) return false;
  return true;
}

// KiB of memory in [begin, end) that is this process's alone, by the kernel's own account. Page by page: in smaps a mapping
// that other threads join to another one meanwhile may be counted twice.
inline uint64_t anonymous_kib(uint64_t begin, uint64_t end) {
  constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kOfFile = uint64_t{1} << 61;
  std::vector<uint64_t> entries((end - begin) / kPage);
  const size_t nbytes = entries.size() * sizeof entries[0];
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  CHECK(pread(pagemap, entries.data(), nbytes, static_cast<off_t>(begin / kPage * 8)) == static_cast<ssize_t>(nbytes));
  close(pagemap);
  uint64_t pages = 0;
  for (const uint64_t entry : entries) pages += (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0 ? 1 : 0;
  return pages * kPage / 1024;
}

inline uint64_t entries_in(const char *folder) {
  DIR *opened = opendir(folder);
  CHECK(opened != nullptr);
  uint64_t count = 0;
  while (readdir(opened) != nullptr) count++;
  closedir(opened);
  return count;
}
