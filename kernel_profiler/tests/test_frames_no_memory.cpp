// The n-th allocation fails in calls of frames, for n = 1, 2, 3 ... until all succeed, alone or with all that come after
// it: the call says so, no byte is lost, and the next call goes well. What ends a transfer needs no memory at all.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fail_allocations.h"
#include "frames_check.h"

namespace {

constexpr uint32_t kFrames = 6, kGranules = 12;  // half of them are away

sn_frames *frames;
uint64_t base;

uint64_t threads_now() { return entries_in("/proc/self/task"); }

// A thread that was joined may be listed for a moment.
bool settles_at(uint64_t wanted) {
  for (int i = 0; i < 600000 && threads_now() != wanted; i++) usleep(1000);
  return threads_now() == wanted;
}

uint64_t threads_that_stay() {
  uint64_t least = threads_now();
  for (int i = 0; i < 200; i++) {
    usleep(1000);
    least = std::min(least, threads_now());
  }
  return least;
}

void frames_are_made_whole_or_not() {
  const std::string here = "./././././././././././.";  // longer than what a string holds by itself
  sn_frames_request request = request_of(kFrames, kGranules, kGranules);
  request.directory = here.c_str();
  CHECK(sn_frames_destroy(open_frames(request)) == 0);  // what is done once in a process
  const uint64_t files = entries_in("/proc/self/fd"), threads = threads_that_stay();  // a sanitizer has one
  sn_frames *made = nullptr;
  const char *step;
  const auto nothing_is_left = [&] {
    CHECK(entries_in("/proc/self/fd") == files && settles_at(threads));
  };
  CHECK(each_fails([&] { return sn_frames_create(&request, &made, &step); },
                   [&] {
                     CHECK(sn_frames_destroy(made) == 0);
                     made = nullptr;
                   },
                   [&] {
                     CHECK(made == nullptr);
                     nothing_is_left();
                   }) >= 8);
  nothing_is_left();
}

uint64_t at(uint32_t granule) { return base + granule * kGranule; }

int need(uint32_t first, uint32_t count, int writes) { return sn_frames_need(frames, at(first), count * kGranule, writes); }

void need_now(uint32_t first, uint32_t count, int writes) { CHECK(need(first, count, writes) == 0); }

bool all_there() { return marks_hold(base, kGranules, 7); }

bool all_are(uint32_t first, uint32_t count, uint8_t wanted) {
  for (uint32_t i = first; i < first + count; i++)
    if (state(frames, i) != wanted) return false;
  return true;
}

// The first half is away, the second has the frames, and the file holds none of what is there.
void second_half_has_frames() {
  need_now(kFrames, kFrames, SN_WRITES);
  CHECK(all_are(0, kFrames, SN_GRANULE_AWAY) && all_are(kFrames, kFrames, SN_GRANULE_DIRTY));
}

void all_are_away() {
  for (uint32_t first = 0; first < kGranules; first += kFrames)
    if (leave(frames, first, kFrames).error == EAGAIN)  // what was stored beside the frames is in them now
      CHECK(leave(frames, first, kFrames).error == 0);
  CHECK(all_are(0, kGranules, SN_GRANULE_AWAY) && counted(frames).free_frames == kFrames);
}

// Each half as it has the frames.
void write_all() {
  for (uint32_t first = 0; first < kGranules; first += kFrames) {
    need_now(first, kFrames, SN_WRITES);
    for (uint64_t page = first * kGranule / kPage; page < (first + kFrames) * kGranule / kPage; page++) {
      *word(base, page, 0) = mark(page, 7);
      *word(base, page, kPage / 8 - 1) = ~mark(page, 7);
    }
  }
}

void begin() {
  frames = open_frames(request_of(kFrames, kGranules, 6 * kGranules));
  base = facts(frames).base;
  for (uint32_t i = 0; i < kGranules; i++) CHECK(sn_frames_attach(frames, i, 1) == 0);
  write_all();
}

void what_is_needed_comes_or_nothing_is_lost() {
  for (const int writes : {SN_READS, SN_WRITES})
    CHECK(each_fails([=] { return need(0, kFrames, writes); },
                     [=] {
                       CHECK(all_are(0, kFrames, writes == SN_WRITES ? SN_GRANULE_DIRTY : SN_GRANULE_CLEAN));
                       CHECK(all_there());
                     },
                     [] {
                       CHECK(all_there());
                       second_half_has_frames();
                     }) >= 6);  // who leaves, their transfer, and that of who comes
}

// Others leave for what is attached; none of it is, where they cannot.
void granules_are_attached_together_or_none_of_them() {
  sn_frames *few = open_frames(request_of(kFrames, 2 * kFrames, 4 * kFrames));
  const uint64_t begin = facts(few).base;
  CHECK(sn_frames_attach(few, 0, kFrames) == 0);
  write_marks(begin, kFrames, 3);
  CHECK(each_fails(
            [=] {
              const int result = sn_frames_attach(few, kFrames, kFrames);
              const uint64_t absent = counted(few).in_state[SN_GRANULE_ABSENT];
              CHECK(absent == (result == 0 ? 0 : kFrames));
              return result;
            },
            [=] { CHECK(sn_frames_release(few, kFrames, kFrames) == 0); },
            [=] { CHECK(sn_frames_need(few, begin, kFrames * kGranule, SN_WRITES) == 0); }) >= 3);
  CHECK(marks_hold(begin, kFrames, 3));
  close_frames(few);
}

void transfers_begin_whole_or_not() {
  int64_t id = 0;
  CHECK(each_fails([&] { return id = sn_frames_leave(frames, kFrames, kFrames); },
                   [&] { CHECK(collect(frames, id).moved == kFrames && all_there()); },
                   second_half_has_frames) >= 4);
  CHECK(each_fails([&] { return id = sn_frames_arrive(frames, 0, kFrames, 1); },
                   [&] { CHECK(collect(frames, id).moved == kFrames && all_there()); },
                   [] {
                     all_are_away();
                     CHECK(counted(frames).in_state[SN_GRANULE_ARRIVING] == 0);
                   }) >= 4);
}

void the_pool_shrinks_or_stays() {
  CHECK(each_fails([] { return sn_frames_resize(frames, kFrames / 2); }, [] { CHECK(facts(frames).frames == kFrames / 2); },
                   [] {
                     CHECK(sn_frames_resize(frames, kFrames) == 0 && all_there());
                     second_half_has_frames();
                   }) >= 3);
  fail_from(1, true);
  CHECK(sn_frames_resize(frames, kFrames) == 0 && fail_no_more() == 0);
}

// From here on every allocation fails: what is under way ends, whoever asks is told, what is released goes.
void what_ends_a_transfer_needs_no_memory() {
  second_half_has_frames();
  const int64_t leaves = sn_frames_leave(frames, kFrames, 2), goes = sn_frames_leave(frames, kFrames + 2, 2);
  const int64_t called_off = sn_frames_leave(frames, kFrames + 4, 2);
  sn_frames_result result;
  fail_from(1, true);
  CHECK(sn_frames_collect(frames, static_cast<uint64_t>(leaves), kForever, &result) == 0 && result.moved == 2);
  CHECK(sn_frames_release(frames, kFrames + 2, 2) == 0);
  CHECK(sn_frames_cancel(frames, static_cast<uint64_t>(called_off)) == 0);
  for (const int64_t id : {goes, called_off})
    CHECK(sn_frames_collect(frames, static_cast<uint64_t>(id), kForever, &result) == 0);
  CHECK(sn_frames_keep(frames, 0) == 0 && counted(frames).in_state[SN_GRANULE_ABSENT] == 2);
  CHECK(fail_no_more() == 0);
  CHECK(sn_frames_attach(frames, kFrames + 2, 2) == 0);
  write_all();
}

void stray_stores() {
  for (uint32_t i = 0; i < kFrames; i++)
    for (uint64_t page = i * kGranule / kPage; page < (i + 1) * kGranule / kPage; page++) *word(base, page, 1) = page;
}

// Stores that nobody announced have made pages beside the frames. A call that finds no memory leaves them, and the next
// one takes them into frames.
void what_was_left_beside_the_frames_is_taken_in_later() {
  all_are_away();
  need_now(0, kFrames, SN_READS);
  for (const bool onwards : {false, true})
    for (long nth = 1;; nth++) {
      stray_stores();
      CHECK(anonymous_kib(at(0), at(kFrames)) > kFrames * kGranule / 2048);
      fail_from(nth, onwards);
      const int result = need(0, 1, SN_READS);
      const bool any = fail_no_more() != 0;
      CHECK(any || result == 0);
      CHECK(need(0, 1, SN_READS) == 0);
      CHECK(anonymous_kib(at(0), at(kFrames)) <= kGranule >> 10);
      CHECK(all_there());
      all_are_away();
      need_now(0, kFrames, SN_READS);
      if (!any) break;
    }
}

// The child sees all; of the parent nothing is written that it may still read.
void a_fork_goes_well_without_memory() {
  second_half_has_frames();
  fail_from(1, true);
  const pid_t child = fork();
  if (child == 0) _exit(all_there() ? 0 : 1);
  CHECK(child > 0 && fail_no_more() != 0);
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  need_now(0, kFrames, SN_WRITES);
  CHECK(all_there());
}

}  // namespace

int main() {
  first_thread = true;
  frames_are_made_whole_or_not();
  begin();
  what_is_needed_comes_or_nothing_is_lost();
  granules_are_attached_together_or_none_of_them();
  transfers_begin_whole_or_not();
  the_pool_shrinks_or_stays();
  what_ends_a_transfer_needs_no_memory();
  what_was_left_beside_the_frames_is_taken_in_later();
  a_fork_goes_well_without_memory();
  close_frames(frames);
  return 0;
}
