// Tensors in frames: who has which addresses, what is brought in, what comes from ordinary memory, how it ends.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

void begin(uint32_t frames, uint32_t granules) {
  create();
  sn_frames *made = open_frames(request_of(frames, granules, granules));
  CHECK(sn_framed_begin(&made, SN_FRAMED_LEAST_BYTES) == 0 && made == nullptr);
}

void end() { CHECK(sn_framed_end() == 0 && sn_framed_any() == 0); }

sn_framed_counters told() {
  sn_framed_counters now;
  CHECK(sn_framed_count(&now) == 0);
  return now;
}

uint64_t address_of(const void *tensor) { return reinterpret_cast<uintptr_t>(tensor); }

bool in_frames(const void *tensor) { return sn_framed_contains(address_of(tensor)) == 1; }

uint8_t *made(uint64_t nbytes, int value) {
  void *const tensor = sn_allocate(nbytes);
  CHECK(tensor != nullptr);
  fill(tensor, nbytes, value);
  return static_cast<uint8_t *>(tensor);
}

void more_than_the_pool_keeps_its_bytes() {
  begin(4, 64);
  std::vector<uint8_t *> tensors;
  for (int i = 0; i < 20; i++) tensors.push_back(made(3 * kMiB - 512, i));
  CHECK(told().live_bytes == 60 * kMiB && told().frames.written_bytes > 40 * kMiB);
  for (int i = 0; i < 20; i++) {
    const sn_framed_operand operand = {address_of(tensors[i]), 3 * kMiB - 512, i % 2, 0};
    sn_framed_need(&operand, 1, "aten::test");
    CHECK(holds(tensors[i], 3 * kMiB - 512, i));
    if (i % 2 == 1) fill(tensors[i], 3 * kMiB - 512, 100 + i);
  }
  for (int i = 0; i < 20; i++) CHECK(holds(tensors[i], 3 * kMiB - 512, i % 2 == 1 ? 100 + i : i));  // by the kernel
  CHECK(told().needs == 20 && told().failed == 0 && told().too_large == 0 && told().refused == 0);
  for (uint8_t *tensor : tensors) sn_free(tensor);
  CHECK(told().live_bytes == 0 && told().frames.free_frames == 4 && told().peak_live_bytes == 60 * kMiB);
  end();
}

void small_and_too_large_ones_come_from_malloc() {
  begin(4, 8);
  uint8_t *const small = made(kMiB - 1, 1), *const least = made(kMiB, 2), *const large = made(9 * kMiB, 3);
  CHECK(!in_frames(small) && in_frames(least) && !in_frames(large));
  CHECK(told().refused == 1 && told().refused_bytes == 9 * kMiB && told().refused_error == ENOSPC);
  uint8_t *const most = made(7 * kMiB, 4);  // in as many granules as there are frames
  CHECK(holds(small, kMiB - 1, 1) && holds(least, kMiB, 2) && holds(large, 9 * kMiB, 3) && in_frames(most) && holds(most, 7 * kMiB, 4));
  for (uint8_t *tensor : {small, least, large, most}) sn_free(tensor);
  end();
}

// The lowest hole would make it lie in one granule more.
void a_tensor_as_large_as_all_frames_begins_with_a_granule() {
  begin(4, 16);
  uint8_t *const one = made(kMiB, 1), *const whole = made(8 * kMiB, 2), *const other = made(kMiB, 3);
  CHECK(in_frames(whole) && whole == one + 2 * kMiB && other == one + kMiB && told().refused == 0);
  CHECK(holds(one, kMiB, 1) && holds(whole, 8 * kMiB, 2) && holds(other, kMiB, 3));
  sn_free(one);
  sn_free(other);
  uint8_t *const again = made(2 * kMiB, 4);
  CHECK(again == one && holds(whole, 8 * kMiB, 2));
  sn_free(whole);
  sn_free(again);
  end();
}

void operands_that_do_not_fit_together_are_told_once_by_name() {
  begin(4, 16);
  uint8_t *const a = made(6 * kMiB, 1), *const b = made(6 * kMiB, 2);
  const sn_framed_operand operands[] = {{address_of(a), 6 * kMiB, 0, 0}, {address_of(b), 6 * kMiB, 1, 0}};
  CHECK(sn_framed_need(operands, 2, "aten::first") == 1 && sn_framed_need(operands, 2, "aten::second") == 1);
  const sn_framed_operand twice[] = {operands[0], operands[0]};
  CHECK(sn_framed_need(twice, 2, "aten::third") == 0);
  sn_framed_done();
  sn_framed_done();
  CHECK(told().too_large == 2 && told().too_large_bytes == 12 * kMiB && told().needs == 1);
  CHECK(strcmp(told().too_large_by, "aten::first") == 0);
  CHECK(holds(a, 6 * kMiB, 1) && holds(b, 6 * kMiB, 2));
  sn_free(a);
  sn_free(b);
  end();
}

// Who is written to unforeseen stays, but not in the way of an operator that needs nearly all frames.
void operands_that_fit_are_all_there() {
  constexpr uint32_t kTensors = 24, kWritten = 4, kOperands = 14;
  begin(16, 32);
  std::vector<uint8_t *> tensors;
  std::vector<sn_framed_operand> operands;
  for (uint32_t i = 0; i < kTensors; i++) {
    tensors.push_back(made(2 * kMiB, static_cast<int>(i)));
    operands.push_back({address_of(tensors[i]), 2 * kMiB, SN_READS, 0});
  }
  const auto need_each = [&](uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) CHECK(sn_framed_need(&operands[i], 1, "aten::test") == 0);
  };
  for (int round = 0; round < 2; round++) {
    need_each(kWritten, kTensors);
    for (uint32_t i = 0; i < kWritten; i++) tensors[i][0] = static_cast<uint8_t>(i);
    need_each(0, kWritten);
  }
  CHECK(told().frames.kept == kWritten);
  CHECK(sn_framed_need(&operands[6], kOperands, "aten::test") == 0 && told().frames.kept == 16 - kOperands);
  const uint64_t read = told().frames.read_bytes;
  CHECK(sn_framed_need(&operands[6], kOperands, "aten::test") == 0 && told().frames.read_bytes == read);
  for (uint32_t i = 0; i < kTensors; i++) {
    CHECK(holds(tensors[i], 2 * kMiB, static_cast<int>(i)));
    sn_free(tensors[i]);
  }
  end();
}

// To each of 2 MiB bytes, none of which becomes more than 255.
void add_to_each(uint8_t *bytes, uint64_t value) {
  uint64_t *const words = reinterpret_cast<uint64_t *>(bytes);
  for (uint64_t i = 0; i < 2 * kMiB / sizeof *words; i++) words[i] += value * 0x0101010101010101;
}

// An operator that does not fit, as slow as it has to be for a thread beside it to come along: more than so much is never
// beside the frames, whatever it stores.
void what_does_not_fit_is_taken_in_as_it_is_written() {
  constexpr uint32_t kFrames = 4, kTensors = 12;
  constexpr uint64_t kMost = 12 * 1024;  // KiB; the kernel's count is off by some where there are many CPUs
  begin(kFrames, 64);
  std::vector<uint8_t *> tensors;
  std::vector<sn_framed_operand> operands;
  for (uint32_t i = 0; i < kTensors; i++) tensors.push_back(made(4 * kMiB, static_cast<int>(i)));
  for (uint8_t *tensor : tensors) operands.push_back({address_of(tensor), 4 * kMiB, SN_WRITES, 0});
  const uint64_t first = address_of(tensors[0]), last = first + 64 * SN_FRAME_BYTES;
  CHECK(anonymous_kib(first, last) <= kMost);
  uint64_t peak = 0;
  for (int round = 1; round < 3; round++) {
    CHECK(sn_framed_need(operands.data(), operands.size(), "aten::test") == 1);
    for (uint32_t i = 0; i < 2 * kTensors; i++) {
      add_to_each(tensors[i / 2] + i % 2 * 2 * kMiB, 100);
      peak = std::max(peak, anonymous_kib(first, last));
      while (anonymous_kib(first, last) > kMost) usleep(1000);
    }
    sn_framed_done();
    for (uint32_t i = 0; i < kTensors; i++) CHECK(holds(tensors[i], 4 * kMiB, static_cast<int>(i) + round * 100));
  }
  printf("at most %lu of %lu KiB beside the frames\n", peak, uint64_t{kTensors} * 4 * 1024);
  CHECK(peak <= kMost + 2 * 1024);
  CHECK(told().frames.kept <= kFrames / 4);  // one that was written to as it left counts, if that happens twice
  CHECK(told().too_large == 2);
  for (uint8_t *tensor : tensors) sn_free(tensor);
  end();
}

// As fast as threads can, several such operators at once: no store is lost.
void what_does_not_fit_keeps_its_bytes() {
  begin(4, 64);
  std::vector<uint8_t *> tensors;
  std::vector<sn_framed_operand> operands;
  for (int i = 0; i < 12; i++) tensors.push_back(made(2 * kMiB, i));
  for (uint8_t *tensor : tensors) operands.push_back({address_of(tensor), 2 * kMiB, SN_WRITES, 0});
  std::vector<std::thread> threads;
  for (size_t id = 0; id < 3; id++)
    threads.emplace_back([&, id] {
      for (int round = 0; round < 3; round++) {
        CHECK(sn_framed_need(operands.data(), operands.size(), "aten::test") == 1);
        for (size_t i = id; i < tensors.size(); i += 3)
          add_to_each(tensors[i], 1);
        sn_framed_done();
      }
    });
  for (std::thread &thread : threads) thread.join();
  for (int i = 0; i < 12; i++) {
    CHECK(holds(tensors[static_cast<size_t>(i)], 2 * kMiB, i + 3));
    sn_free(tensors[static_cast<size_t>(i)]);
  }
  end();
}

// Pages in the page cache of what is away, of tensors at [begin, end).
uint64_t cached_pages(uint64_t begin, uint64_t end) {
  FILE *file = fopen("/proc/self/maps", "r");
  CHECK(file != nullptr);
  uint64_t count = 0, from = 0, to = 0;
  for (char line[512]; fgets(line, sizeof line, file) != nullptr;) {
    if (sscanf(line, "%lx-%lx ", &from, &to) != 2 || from < begin || to > end) continue;
    if (strstr(line, "(deleted)") == nullptr || strstr(line, "memfd:") != nullptr) continue;
    std::vector<unsigned char> there((to - from) / kPage);
    CHECK(mincore(reinterpret_cast<void *>(from), to - from, there.data()) == 0);
    for (const unsigned char page : there) count += page & 1;
  }
  fclose(file);
  return count;
}

// Of what is mapped, and of what has been a frame meanwhile.
void what_faults_have_read_is_not_kept_beside_the_frames() {
  constexpr int kTensors = 16;
  begin(4, 64);
  std::vector<uint8_t *> tensors;
  for (int i = 0; i < kTensors; i++) tensors.push_back(made(2 * kMiB, i));
  const uint64_t base = address_of(*std::min_element(tensors.begin(), tensors.end())), until = base + 32 * kMiB;
  for (int i = 0; i < kTensors; i++) CHECK(holds(tensors[i], 2 * kMiB, i));
  CHECK(cached_pages(base, until) >= 12 * 512);
  for (int i = 0; i < 8; i++) {
    const sn_framed_operand operand = {address_of(tensors[i]), 2 * kMiB, SN_READS, 0};
    sn_framed_need(&operand, 1, "aten::test");
  }
  tensors[15][kPage] = 99;  // in a page of its own
  CHECK(cached_pages(base, until) > 6 * 512);
  sn_framed_step();
  CHECK(cached_pages(base, until) <= 512);  // that one, and those that the kernel has not yet put on its lists
  CHECK(tensors[15][kPage] == 99);
  tensors[15][kPage] = 15;
  for (int i = 0; i < kTensors; i++) {
    CHECK(holds(tensors[i], 2 * kMiB, i));
    sn_free(tensors[i]);
  }
  end();
}

// Page faults that wait for the disk while all of these bytes are read.
int64_t faults_in(const uint8_t *bytes, uint64_t nbytes, int value) {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  CHECK(holds(bytes, nbytes, value));
  getrusage(RUSAGE_SELF, &after);
  return after.ru_majflt - before.ru_majflt;
}

constexpr int64_t kPages = 8 * kMiB / kPage;

sn_framed_operand read_of(const uint8_t *tensor) { return {address_of(tensor), 8 * kMiB, SN_READS, 0}; }

// A page at a time, if no operator has said that it reads them.
void operands_that_do_not_fit_are_read_many_pages_at_a_time() {
  begin(9, 64);
  uint8_t *const a = made(8 * kMiB, 1), *const b = made(8 * kMiB, 2), *const c = made(8 * kMiB, 3);
  uint8_t *const small = made(2 * kMiB, 4);
  sn_framed_step();  // nothing is in the page cache
  CHECK(faults_in(a, 8 * kMiB, 1) > kPages * 3 / 4);
  sn_framed_step();
  const sn_framed_operand other = {address_of(small), 2 * kMiB, SN_READS, 0}, reads[] = {read_of(a), read_of(b), read_of(c)};
  for (int i = 0; i < 2; i++) CHECK(sn_framed_need(&other, 1, "aten::other") == 0);  // whose operands are recent ones
  CHECK(sn_framed_need(reads, 3, "aten::too_many") == 1);
  CHECK(faults_in(a, 8 * kMiB, 1) < kPages / 8);
  uint8_t *const result = made(18 * kMiB, 5);  // has all frames
  sn_framed_done();
  sn_framed_step();
  const int64_t faults = faults_in(b, 8 * kMiB, 2) + faults_in(c, 8 * kMiB, 3);
  CHECK(faults > 0 && faults < kPages / 8);
  for (uint8_t *tensor : {a, b, c, small, result}) sn_free(tensor);
  end();
}

void so_are_those_whose_place_its_result_takes() {
  begin(8, 64);
  uint8_t *const a = made(8 * kMiB, 1), *const b = made(8 * kMiB, 2);
  const sn_framed_operand reads[] = {read_of(a), read_of(b)};
  CHECK(sn_framed_need(reads, 2, "aten::fits") == 0);
  uint8_t *const result = made(8 * kMiB, 3);
  CHECK(told().frames.in_state[SN_GRANULE_AWAY] == 4);
  sn_framed_step();
  const int64_t faults = faults_in(a, 8 * kMiB, 1) + faults_in(b, 8 * kMiB, 2);
  CHECK(faults > 0 && faults < kPages / 8);
  for (uint8_t *tensor : {a, b, result}) sn_free(tensor);
  end();
}

void neighbours_keep_their_granule() {
  begin(8, 16);
  uint8_t *const a = made(kMiB, 1), *const b = made(kMiB, 2), *const c = made(3 * kMiB, 3);
  CHECK(b == a + kMiB && c == b + kMiB && told().frames.free_frames == 5);
  sn_free(a);
  CHECK(holds(b, kMiB, 2) && told().frames.free_frames == 5);
  sn_free(b);
  CHECK(holds(c, 3 * kMiB, 3) && told().frames.free_frames == 6);
  uint8_t *const d = made(kMiB + 4096, 4);  // the hole that both have left
  CHECK(d == a && holds(c, 3 * kMiB, 3));
  sn_free(c);
  sn_free(d);
  CHECK(told().frames.free_frames == 8);
  end();
}

void tensors_outlive_the_end() {
  begin(2, 16);
  std::vector<uint8_t *> tensors;
  for (int i = 0; i < 6; i++) tensors.push_back(made(2 * kMiB, i));
  CHECK(sn_framed_end() == 1 && sn_framed_any() == 1);
  uint8_t *const ordinary = made(2 * kMiB, 9);
  CHECK(!in_frames(ordinary));
  sn_frames *others = open_frames(request_of(2, 2, 2));
  CHECK(sn_framed_begin(&others, SN_FRAMED_LEAST_BYTES) == -EBUSY && others != nullptr);
  close_frames(others);
  for (int i = 0; i < 6; i++) {
    CHECK(holds(tensors[i], 2 * kMiB, i));
    sn_free(tensors[i]);
  }
  CHECK(sn_framed_any() == 0 && !in_frames(tensors[0]) && told().live_bytes == 0 && told().tensors == 6);
  sn_free(ordinary);
  end();
}

// Whatever the kernel refuses, a tensor gets memory, and what lives keeps its bytes.
void refused_calls_cost_frames_only() {
  begin(4, 16);
  uint8_t *const kept = made(3 * kMiB, 7);
  for (uint64_t nth = 1; nth < 8; nth++) {
    sn_system_fail(SYS_mmap, nth, ENOMEM);
    uint8_t *const tensor = made(6 * kMiB, static_cast<int>(nth));
    sn_system_fail(-1, 0, 0);
    CHECK(holds(tensor, 6 * kMiB, static_cast<int>(nth)) && holds(kept, 3 * kMiB, 7));
    sn_system_fail(SYS_mmap, nth, ENOMEM);
    sn_free(tensor);
    sn_system_fail(-1, 0, 0);
    CHECK(holds(kept, 3 * kMiB, 7));
  }
  CHECK(told().refused > 0);
  sn_free(kept);
  end();
}

void threads_make_use_and_free_them_at_once() {
  begin(8, 128);
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; id++)
    threads.emplace_back([id] {
      uint8_t *held[3] = {};
      for (int i = 0; i < 60; i++) {
        uint8_t *&place = held[i % 3];
        if (place != nullptr) {
          const sn_framed_operand operand = {address_of(place), kMiB + 512, i % 2, 0};
          if (in_frames(place)) sn_framed_need(&operand, 1, "aten::test");
          CHECK(holds(place, kMiB + 512, id * 3 + i % 3));
          sn_free(place);
        }
        place = made(kMiB + 512, id * 3 + i % 3);
      }
      for (uint8_t *place : held) sn_free(place);
    });
  for (std::thread &thread : threads) thread.join();
  CHECK(told().live_bytes == 0 && told().frames.free_frames == 8);
  end();
}

void a_child_reads_on_and_frees_nothing() {
  begin(4, 16);
  std::vector<uint8_t *> tensors;
  for (int i = 0; i < 6; i++) tensors.push_back(made(2 * kMiB, i));
  const pid_t pid = fork();
  if (pid == 0) {
    sn_framed_counters none;
    bool fine = sn_framed_any() == 0 && sn_framed_end() == -ECHILD && sn_framed_count(&none) == -ECHILD;
    const sn_framed_operand operand = {address_of(tensors[0]), 2 * kMiB, 1, 0};
    sn_framed_need(&operand, 1, "aten::test");
    for (int i = 0; i < 6; i++) fine = fine && holds(tensors[i], 2 * kMiB, i);
    fill(tensors[5], 2 * kMiB, 77);
    sn_free(tensors[0]);
    uint8_t *const own = made(2 * kMiB, 8);
    fine = fine && !in_frames(own) && holds(tensors[0], 2 * kMiB, 0) && holds(tensors[5], 2 * kMiB, 77);
    sn_free(own);
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  for (int i = 0; i < 6; i++) {
    CHECK(holds(tensors[i], 2 * kMiB, i));
    sn_free(tensors[i]);
  }
  end();
}

}  // namespace

int main() {
  more_than_the_pool_keeps_its_bytes();
  small_and_too_large_ones_come_from_malloc();
  a_tensor_as_large_as_all_frames_begins_with_a_granule();
  operands_that_do_not_fit_together_are_told_once_by_name();
  operands_that_fit_are_all_there();
  what_does_not_fit_is_taken_in_as_it_is_written();
  what_does_not_fit_keeps_its_bytes();
  what_faults_have_read_is_not_kept_beside_the_frames();
  operands_that_do_not_fit_are_read_many_pages_at_a_time();
  so_are_those_whose_place_its_result_takes();
  neighbours_keep_their_granule();
  tensors_outlive_the_end();
  refused_calls_cost_frames_only();
  threads_make_use_and_free_them_at_once();
  a_child_reads_on_and_frees_nothing();
}
