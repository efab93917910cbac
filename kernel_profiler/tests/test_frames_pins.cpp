// Pages that a device has. The device here is a pipe: vmsplice() pins pages, and who reads the pipe finds what those pages
// hold by then, whatever their addresses show.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "frames_check.h"

namespace {

constexpr uint32_t kFrames = 4, kGranules = 12;
uint64_t base;
std::atomic<uint64_t> pinned{0};  // bit i: granule i
std::atomic<uint64_t> asked{0};

int pins(uint64_t address, uint64_t nbytes) {
  CHECK(nbytes == kGranule && (address - base) % kGranule == 0);
  asked++;
  return (pinned >> ((address - base) / kGranule) & 1) != 0 ? 1 : 0;
}

class Device {
 public:
  // Has the page at `address` from now on, as a driver has memory that was registered with it.
  explicit Device(uint64_t address) {
    CHECK(pipe(ends_) == 0);
    iovec page = {reinterpret_cast<void *>(address), kPage};
    CHECK(vmsplice(ends_[1], &page, 1, 0) == static_cast<ssize_t>(kPage));
    pinned |= uint64_t{1} << ((address - base) / kGranule);
  }
  // The first word of the page, as the device sees it now.
  uint64_t sees() {
    uint64_t page[kPage / 8];
    for (size_t got = 0; got < kPage;) {
      const ssize_t more = read(ends_[0], reinterpret_cast<char *>(page) + got, kPage - got);
      CHECK(more > 0);
      got += static_cast<size_t>(more);
    }
    return page[0];
  }
  ~Device() {
    close(ends_[0]);
    close(ends_[1]);
    pinned = 0;
  }

 private:
  int ends_[2];
};

sn_frames *opened(bool asks) {
  sn_frames *frames = open_frames(request_of(kFrames, kGranules, kGranules));
  base = facts(frames).base;
  if (asks) CHECK(sn_frames_ask_pins(frames, pins) == 0);
  CHECK(sn_frames_attach(frames, 0, 1) == 0);
  write_marks(base, 1, 1);
  return frames;
}

// A driver pins to write, which makes the page; vmsplice() does not.
void make_own_page() {
  volatile uint64_t *const there = word(base, 0, 1);
  *there = *there;
}

// All others go through the frames twice, written and read.
void churn(sn_frames *frames) {
  for (int round = 0; round < 2; round++)
    for (uint32_t i = 1; i < kGranules; i++) {
      if (state(frames, i) == SN_GRANULE_ABSENT) CHECK(sn_frames_attach(frames, i, 1) == 0);
      CHECK(sn_frames_need(frames, base + i * kGranule, kGranule, 1) == 0);
      if (round == 1) CHECK(marks_hold(base + i * kGranule, 1, i));
      write_marks(base + i * kGranule, 1, i);
    }
}

// What is stored after all that, the device has to see.
bool device_sees_stores(sn_frames *frames, Device &device) {
  CHECK(sn_frames_need(frames, base, kGranule, 1) == 0);
  CHECK(marks_hold(base, 1, 1));
  *word(base, 0, 0) = 42;
  return device.sees() == 42;
}

void a_resident_granule_keeps_its_pages() {
  sn_frames *frames = opened(true);
  {
    Device device(base);
    churn(frames);
    CHECK(state(frames, 0) == SN_GRANULE_DIRTY && counted(frames).pinned == 1);
    const sn_frames_result refused = leave(frames, 0, 1);
    CHECK(refused.moved == 0 && refused.stayed == 1 && refused.error == EBUSY);
    CHECK(device_sees_stores(frames, device));
  }
  CHECK(sn_frames_release(frames, 0, 1) == 0 && counted(frames).pinned == 0);
  CHECK(sn_frames_attach(frames, 0, 1) == 0 && leave(frames, 0, 1).moved == 1);  // the next one may leave
  close_frames(frames);
}

// So that the tests before and after can fail.
void without_asking_the_device_sees_old_pages() {
  sn_frames *frames = opened(false);
  {
    Device device(base);
    churn(frames);
    CHECK(!device_sees_stores(frames, device));
  }
  close_frames(frames);
}

// Pinned while it is away: pages of its own, which a store has made, are the device's.
void an_away_granule_keeps_its_pages() {
  sn_frames *frames = opened(true);
  CHECK(leave(frames, 0, 1).moved == 1 && state(frames, 0) == SN_GRANULE_AWAY);
  make_own_page();
  {
    Device device(base);
    const sn_frames_result refused = arrive(frames, 0, 1, 1);
    CHECK(refused.moved == 0 && refused.stayed == 1 && refused.error == EBUSY);
    churn(frames);
    CHECK(sn_frames_tidy(frames, 1) == 0);
    CHECK(state(frames, 0) == SN_GRANULE_AWAY && counted(frames).pinned == 1);
    CHECK(device_sees_stores(frames, device));
    CHECK(sn_frames_need(frames, base, kGranule, SN_ZEROES) == 0);
    CHECK(*word(base, 0, 0) == 42);  // whoever zeroes it stores there
  }
  close_frames(frames);
}

void pinned_on_its_way_it_stays() {
  for (const bool arrives : {false, true}) {
    sn_frames *frames = opened(true);
    if (arrives) CHECK(leave(frames, 0, 1).moved == 1);
    const int64_t id = arrives ? sn_frames_arrive(frames, 0, 1, 0) : sn_frames_leave(frames, 0, 1);
    make_own_page();
    {
      Device device(base);
      const sn_frames_result turned = collect(frames, id);
      CHECK(turned.moved == 0 && turned.error == EBUSY);
      churn(frames);
      CHECK(device_sees_stores(frames, device));
    }
    close_frames(frames);
  }
}

void a_fork_leaves_them_to_the_parent() {
  sn_frames *frames = opened(true);
  {
    Device device(base);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(600);
      const bool same = marks_hold(base, 1, 1);
      *word(base, 0, 0) = 7;  // its own affair
      _exit(same && *word(base, 0, 0) == 7 ? 0 : 2);
    }
    CHECK(device_sees_stores(frames, device));
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(*word(base, 0, 0) == 42);
  }
  close_frames(frames);
}

// Where devices have more than there are frames, whoever comes is told, and nothing hangs.
void all_frames_pinned_is_told() {
  sn_frames *frames = opened(true);
  CHECK(sn_frames_attach(frames, 1, kFrames - 1) == 0);
  pinned = (1u << kFrames) - 1;
  CHECK(sn_frames_attach(frames, kFrames, 1) == -ENOSPC);
  CHECK(counted(frames).pinned == kFrames && state(frames, kFrames) == SN_GRANULE_ABSENT);
  CHECK(sn_frames_resize(frames, 1) < 0 && facts(frames).frames == kFrames);
  pinned = 0;
  close_frames(frames);
}

}  // namespace

int main() {
  a_resident_granule_keeps_its_pages();
  without_asking_the_device_sees_old_pages();
  an_away_granule_keeps_its_pages();
  pinned_on_its_way_it_stays();
  a_fork_leaves_them_to_the_parent();
  all_frames_pinned_is_told();
  CHECK(asked > 0);
  return 0;
}
