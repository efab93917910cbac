// Reading ahead by a recorded step: what comes before it is asked for, who leaves, what is not written; and bytes, whatever
// a job does instead of what was recorded.
#include <errno.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "frames_check.h"

namespace {

sn_frames *begin(uint32_t frames, uint32_t granules) {
  create();
  sn_frames *made = open_frames(request_of(frames, granules, granules)), *const begun = made;
  CHECK(sn_framed_begin(&made, SN_FRAMED_LEAST_BYTES) == 0 && made == nullptr);
  return begun;
}

void end() { CHECK(sn_framed_end() == 0 && sn_framed_any() == 0); }

sn_framed_counters told() {
  sn_framed_counters now;
  CHECK(sn_framed_count(&now) == 0);
  return now;
}

sn_framed_ahead ahead() {
  sn_framed_ahead now;
  CHECK(sn_framed_ahead_count(&now) == 0);
  return now;
}

// A tensor of whole granules, each of whose pages has the same at its ends.
struct Tensor {
  uint8_t *bytes;
  uint64_t nbytes;
  uint8_t value;

  sn_framed_operand operand(int writes) const { return {reinterpret_cast<uintptr_t>(bytes), nbytes, writes, 0}; }
};

Tensor made(uint64_t nbytes, uint8_t value) {
  void *const bytes = sn_allocate(nbytes);
  CHECK(bytes != nullptr);
  fill_ends(bytes, nbytes, value);
  return {static_cast<uint8_t *>(bytes), nbytes, value};
}

// An operator, which computes for as long as transfers take if it is `slow`.
void use(Tensor &tensor, bool writes, const char *name = "aten::test", bool slow = false) {
  const sn_framed_operand operand = tensor.operand(writes ? SN_WRITES : SN_READS);
  const int found = sn_framed_need(&operand, 1, name);
  CHECK(found == 0 || found == 2);
  while (slow && ahead().under_way != 0) usleep(100);
  CHECK(ends_hold(tensor.bytes, tensor.nbytes, tensor.value));
  if (writes) {
    tensor.value++;
    fill_ends(tensor.bytes, tensor.nbytes, tensor.value);
  }
  if (found == 2) sn_framed_ran();
}

void use_slowly(Tensor &tensor, bool writes) { use(tensor, writes, "aten::test", true); }

std::vector<Tensor> tensors_of(uint32_t count) {
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < count; i++) tensors.push_back(made(2 * kMiB, static_cast<uint8_t>(i)));
  return tensors;
}

void end_with(std::vector<Tensor> &tensors) {
  for (Tensor &tensor : tensors) {
    CHECK(ends_hold(tensor.bytes, tensor.nbytes, tensor.value));
    sn_free(tensor.bytes);
  }
  end();
}

// 40 tensors, one after the other, in 16 frames. By what was needed longest ago, all of them are read in each step.
void what_comes_next_is_there_before_it_is_needed() {
  constexpr uint32_t kTensors = 40, kFrames = 16, kSteps = 5;
  begin(kFrames, 64);
  std::vector<Tensor> tensors = tensors_of(kTensors);
  const auto step = [&] {
    CHECK(sn_framed_step() == 0);
    for (uint32_t i = 0; i < kTensors; i++) {
      use_slowly(tensors[i], i % 4 == 0);
    }
  };
  step();
  CHECK(ahead().recorded == 0 && ahead().follows == 0 && ahead().hit_bytes == 0);
  step();  // the first one that is planned
  CHECK(ahead().recorded == 1 && ahead().follows == 1 && ahead().operators == kTensors + 1);
  const sn_framed_ahead before = ahead();
  const sn_framed_counters at_first = told();
  for (uint32_t i = 0; i < kSteps; i++) step();
  const sn_framed_ahead after = ahead();
  const uint64_t read = told().frames.read_bytes - at_first.frames.read_bytes;
  const uint64_t waited_for = after.late_bytes + after.demanded_bytes - before.late_bytes - before.demanded_bytes;
  fprintf(stderr, "%lu MiB a step are read, of %u; waited for %lu, in vain %lu, ahead %lu\n", read / kSteps / kMiB, 2 * kTensors,
         waited_for / kMiB, (after.vain_bytes - before.vain_bytes) / kMiB, (after.hit_bytes - before.hit_bytes) / kMiB);
  CHECK(after.matched - before.matched == uint64_t{kSteps} * kTensors && after.missed == 0 && after.recorded == 1);
  CHECK(waited_for <= read / 10);
  // No order of leaving reads fewer than 24; a quarter of the frames is for what is read ahead.
  CHECK(read <= uint64_t{kSteps} * (kTensors - kFrames + kFrames / 4 + 4) * 2 * kMiB);
  CHECK(told().frames.written_bytes - at_first.frames.written_bytes <= uint64_t{kSteps} * 10 * 2 * kMiB);  // 10 are written to
  end_with(tensors);
}

// 24 tensors leave as they are made; once all have been written, they are only read.
void what_goes_one_way_alone_tells_how_fast_that_is() {
  begin(16, 64);
  CHECK(ahead().read_alone_bytes == 0 && ahead().write_alone_bytes == 0);
  std::vector<Tensor> tensors = tensors_of(40);
  const sn_framed_ahead written = ahead();
  CHECK(written.write_alone_bytes >= 16 * kMiB && written.write_alone_ns > 0 && written.read_alone_bytes == 0);
  for (int pass = 0; pass < 3; pass++)
    for (Tensor &tensor : tensors) use(tensor, false);
  const sn_framed_ahead read = ahead();
  CHECK(read.read_alone_bytes >= 16 * kMiB && read.read_alone_ns > 0 && read.read_alone_bytes < 64 * kMiB);
  end_with(tensors);
}

// Between two operators of a step the program itself reads a tensor that no operator uses, page by page. It is read ahead in
// the next step, and there as the program comes to it; once the program no longer does, it is so in vain for one step.
void what_was_unforeseen_is_read_ahead_in_the_next_step() {
  constexpr uint32_t kTensors = 40, kFrames = 16, kPlace = 24;
  constexpr uint64_t kLongestNs = uint64_t{120} * 1000000000;
  sn_frames *const frames = begin(kFrames, 64);
  std::vector<Tensor> tensors = tensors_of(kTensors + 1);
  const Tensor &other = tensors[kTensors];
  const auto granule = static_cast<uint32_t>((other.operand(SN_READS).address - facts(frames).base) / kGranule);
  bool reads = false;
  const auto step = [&] {  // what the tensor was before it was read
    CHECK(sn_framed_step() == 0);
    uint8_t before = SN_GRANULE_ABSENT;
    for (uint32_t i = 0; i < kTensors; i++) {
      use_slowly(tensors[i], i % 4 == 0);
      if (i != kPlace || !reads) continue;
      before = state(frames, granule);
      CHECK(ends_hold(other.bytes, other.nbytes, other.value));
    }
    return before;
  };
  for (int i = 0; i < 3; i++) step();
  CHECK(ahead().follows == 1 && ahead().unforeseen == 0 && ahead().expected == 0);
  const uint64_t uses = ahead().uses, until = sn_now_ns() + kLongestNs;
  reads = true;
  // A look in vain just before, for what else the process has faulted in, is followed by a pause.
  while (ahead().unforeseen == 0 && sn_now_ns() < until) CHECK(step() == SN_GRANULE_AWAY);
  const uint64_t found = ahead().unforeseen;
  CHECK(found == 1);
  for (int i = 0; i < 2; i++) CHECK(step() == SN_GRANULE_CLEAN && ahead().expected == 1 && ahead().uses == uses);
  CHECK(ahead().unforeseen == found);
  reads = false;
  step();
  step();
  CHECK(ahead().expected == 0 && ahead().unforeseen == found && ahead().recorded == 1);
  end_with(tensors);
}

// Computes a while at each look at the page tables of a granule, for the thread that begins an operator.
constexpr uint64_t kComputedNs = 400000;
thread_local bool begins = false;
thread_local uint64_t tables_read = 0;

uint64_t thread_computed_ns() {
  timespec spent;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent) == 0);
  return static_cast<uint64_t>(spent.tv_sec) * 1000000000 + static_cast<uint64_t>(spent.tv_nsec);
}

void compute() {
  for (const uint64_t until = thread_computed_ns() + kComputedNs; thread_computed_ns() < until;) {
  }
}

long with_slow_tables(long number, const long arguments[6]) {
  if (begins && number == SYS_pread64 && arguments[2] == static_cast<long>(kGranule / kPage * 8)) {
    tables_read++;
    compute();
  }
  const long done = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  return done >= 0 ? done : -errno;
}

// Before each operator a page of another tensor is read, which each look would find: of the time that goes by, looks take a
// tenth.
void looks_that_find_something_take_a_part_of_the_time() {
  constexpr uint32_t kTensors = 80, kOthers = 7, kFrames = 64, kAway = kTensors + kOthers - kFrames;
  begin(kFrames, 96);
  std::vector<Tensor> tensors = tensors_of(kTensors + kOthers);
  for (int i = 0; i < 3; i++) {
    CHECK(sn_framed_step() == 0);
    for (uint32_t k = 0; k < kTensors; k++) use_slowly(tensors[k], k % 4 == 0);
  }
  CHECK(ahead().follows == 1);
  constexpr uint64_t kLongestNs = uint64_t{120} * 1000000000;
  uint64_t looks = 0, took = 0;
  sn_system_replace(with_slow_tables);
  // A look in vain before is followed by a pause, which may be longer than a step.
  for (const uint64_t until = sn_now_ns() + kLongestNs; looks == 0 && sn_now_ns() < until;) {
    CHECK(sn_framed_step() == 0);
    const uint64_t began = sn_now_ns();
    for (uint32_t k = 0; k < kOthers; k++) {
      Tensor &other = tensors[kTensors + k];
      CHECK(*reinterpret_cast<volatile uint64_t *>(other.bytes) == word_of(other.value));
      tables_read = 0;
      begins = true;
      use(tensors[k], k % 4 == 0);
      begins = false;
      looks += tables_read >= kAway / 2 ? 1 : 0;
    }
    took = sn_now_ns() - began;
    for (uint32_t k = kOthers; k < kTensors; k++) use_slowly(tensors[k], k % 4 == 0);
  }
  sn_system_replace(nullptr);
  CHECK(looks >= 1 && ahead().unforeseen >= 1);
  CHECK(looks - 1 <= took / (8 * kAway / 2 * kComputedNs));
  end_with(tensors);
}

uint64_t pages_out = 0;  // calls, each ten times as long as one to a page table

long with_slow_pages_out(long number, const long arguments[6]) {
  constexpr long kPageOut = 21;
  if (number == SYS_madvise && arguments[2] == kPageOut) {
    pages_out++;
    for (int i = 0; i < 10; i++) compute();
  }
  const long done = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  return done >= 0 ? done : -errno;
}

// In each step the kernel reads a page of a tensor that is away: pages leave the page cache for a tenth of the time.
void pages_of_few_faults_leave_the_page_cache_for_a_part_of_the_time() {
  constexpr uint64_t kLongestNs = uint64_t{120} * 1000000000;
  struct sysinfo host {};
  if (sysinfo(&host) != 0 || host.totalswap != 0) return;  // there mapped pages stay
  begin(8, 16);
  std::vector<Tensor> tensors = tensors_of(16);
  CHECK(sn_framed_step() == 0);  // what the process has faulted in before counts here
  uint64_t page = 0, begins_at = 0;
  const auto step_that_pages_out = [&] {  // how long the calls of one have computed
    for (const uint64_t until = sn_now_ns() + kLongestNs; sn_now_ns() < until; page++) {
      const uint8_t *const read = tensors[0].bytes + page % (kGranule / kPage) * kPage;
      CHECK(*reinterpret_cast<const volatile uint64_t *>(read) == word_of(tensors[0].value));
      begins_at = sn_now_ns();
      pages_out = 0;
      CHECK(sn_framed_step() == 0);
      if (pages_out != 0) break;
    }
    return pages_out * 10 * kComputedNs;
  };
  sn_system_replace(with_slow_pages_out);
  const uint64_t took = step_that_pages_out(), ended_at = sn_now_ns();
  CHECK(took != 0 && step_that_pages_out() != 0);
  sn_system_replace(nullptr);
  CHECK(begins_at - ended_at >= 8 * took);
  end_with(tensors);
}

// What was read ahead to be written is made private for the child, and written: it stays, and is no less a hit.
void what_was_read_ahead_outlasts_a_fork() {
  constexpr uint32_t kTensors = 40, kFrames = 16, kPlace = 20;
  begin(kFrames, 64);
  std::vector<Tensor> tensors = tensors_of(kTensors);
  const auto step = [&](bool forks) {
    CHECK(sn_framed_step() == 0);
    for (uint32_t i = 0; i < kTensors; i++) {
      use_slowly(tensors[i], true);
      if (i != kPlace || !forks) continue;
      const pid_t pid = fork();
      if (pid == 0) _exit(0);
      int status = -1;
      CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
  };
  for (int i = 0; i < 4; i++) step(false);
  CHECK(ahead().follows == 1);
  const sn_framed_ahead first = ahead();
  step(false);
  const sn_framed_ahead second = ahead();
  step(true);
  const uint64_t without = second.vain_bytes - first.vain_bytes, with = ahead().vain_bytes - second.vain_bytes;
  fprintf(stderr, "in vain %lu MiB without a fork, %lu with one\n", without / kMiB, with / kMiB);
  CHECK(with <= without + 2 * 2 * kMiB);
  end_with(tensors);
}

void what_dies_is_not_written() {
  constexpr uint32_t kSteps = 4;
  begin(12, 64);
  std::vector<Tensor> tensors = tensors_of(16);
  const auto step = [&] {
    CHECK(sn_framed_step() == 0);
    for (Tensor &tensor : tensors) {
      use_slowly(tensor, false);
      Tensor found = made(4 * kMiB, 7);
      use_slowly(found, true);
      sn_free(found.bytes);
    }
  };
  for (int i = 0; i < 2; i++) step();
  const sn_framed_counters before = told();
  const sn_framed_ahead at_first = ahead();
  for (uint32_t i = 0; i < kSteps; i++) step();
  const uint64_t written = told().frames.written_bytes - before.frames.written_bytes;
  const uint64_t read = told().frames.read_bytes - before.frames.read_bytes;
  const uint64_t demanded = ahead().demanded_bytes - at_first.demanded_bytes;
  fprintf(stderr, "%lu MiB written, %lu read, %lu of them on demand\n", written / kMiB, read / kMiB, demanded / kMiB);
  CHECK(written == 0 && read > 0 && demanded <= read / 4);
  end_with(tensors);
}

void the_record_can_be_had() {
  begin(8, 32);
  std::vector<Tensor> tensors = tensors_of(4);
  uint64_t some = 0;
  uint32_t granule = 0;
  uint8_t kind = 0;
  CHECK(sn_framed_recorded(0, 0, &some, &some, &granule, &kind) == -ENODATA);
  for (int i = 0; i < 2; i++) {
    CHECK(sn_framed_step() == 0);
    for (Tensor &tensor : tensors) use(tensor, &tensor == tensors.data());
    Tensor found = made(2 * kMiB, 7);
    sn_free(found.bytes);
  }
  const sn_framed_ahead now = ahead();
  CHECK(now.operators == 5 && now.uses == 5);
  std::vector<uint64_t> compute_ns(5), first_use(6);
  std::vector<uint32_t> granules(5);
  std::vector<uint8_t> kinds(5);
  CHECK(sn_framed_recorded(4, 5, compute_ns.data(), first_use.data(), granules.data(), kinds.data()) == -EAGAIN);
  CHECK(sn_framed_recorded(5, 5, compute_ns.data(), first_use.data(), granules.data(), kinds.data()) == 0);
  CHECK((first_use == std::vector<uint64_t>{0, 0, 1, 2, 3, 5}) && (granules == std::vector<uint32_t>{0, 1, 2, 3, 4}));
  CHECK(kinds[0] == (SN_USE_READS | SN_USE_WRITES) && kinds[1] == SN_USE_READS);
  CHECK(kinds[4] == (SN_USE_WRITES | SN_USE_BORN | SN_USE_DIED));
  end_with(tensors);
  CHECK(ahead().recorded == 1 && ahead().follows == 0);  // the last ones
}

void another_step_is_recorded_anew() {
  begin(8, 64);
  std::vector<Tensor> tensors = tensors_of(24);
  const auto steps = [&](uint32_t count, uint32_t stride) {
    for (uint32_t i = 0; i < count; i++) {
      CHECK(sn_framed_step() == 0);
      for (uint32_t k = 0; k < 24; k++) use(tensors[k * stride % 24], k % 3 == 0);
    }
  };
  steps(4, 1);
  CHECK(ahead().recorded == 1);
  steps(1, 7);  // as another shape
  steps(2, 1);
  const uint64_t again = ahead().recorded;
  CHECK(again >= 1);
  steps(6, 5);
  CHECK(ahead().recorded > again && ahead().follows == 1);
  const sn_framed_ahead before = ahead();
  steps(2, 5);
  CHECK(ahead().matched - before.matched == 48 && ahead().missed == before.missed);
  end_with(tensors);
}

// A step that is too long, once: later ones are recorded all the same.
void a_step_that_is_too_long_is_not_the_last_one() {
  constexpr uint32_t kGranules = 64, kOperators = (4u << 20) / kGranules + 1;
  begin(kGranules, kGranules);
  Tensor all = made(kGranules * 2 * kMiB, 3);
  const sn_framed_operand operand = all.operand(SN_READS);
  const auto step = [&](uint32_t operators) {
    CHECK(sn_framed_step() == 0);
    for (uint32_t i = 0; i < operators; i++)
      if (sn_framed_need(&operand, 1, "aten::test") == 2) sn_framed_ran();
  };
  step(kOperators);
  CHECK(ahead().too_long == 1);
  for (uint32_t i = 0; i < 4; i++) step(10);
  CHECK(ahead().recorded == 1 && ahead().too_long == 0);
  step(10);
  CHECK(ahead().follows == 1 && ahead().missed == 0);
  sn_free(all.bytes);
  end();
}

// The disk fails now and then, and so does the kernel: what was to come ahead comes later.
void what_is_refused_costs_time_only() {
  begin(8, 64);
  std::vector<Tensor> tensors = tensors_of(20);
  constexpr long kCalls[] = {SYS_preadv, SYS_pread64, SYS_pwritev, SYS_pwrite64, SYS_mmap, SYS_mprotect};
  for (uint32_t i = 0; i < 12; i++) {
    CHECK(sn_framed_step() == 0);
    for (uint32_t k = 0; k < 20; k++) {
      if (i > 1 && k % 3 == 0) sn_system_fail(kCalls[i % std::size(kCalls)], 1 + k % 4, ENOMEM);
      const sn_framed_operand operand = tensors[k].operand(SN_READS);
      const int found = sn_framed_need(&operand, 1, "aten::test");
      sn_system_fail(-1, 0, 0);
      if (found == 2) sn_framed_ran();
      CHECK(ends_hold(tensors[k].bytes, tensors[k].nbytes, tensors[k].value));
      if (k % 5 == 0) use(tensors[k], true);
    }
  }
  end_with(tensors);
}

// Steps in any order, with what was not recorded in between, births and deaths, forks, a pool that shrinks, a thread that
// reads and one that has operators of its own.
void bytes_hold_whatever_comes() {
  std::mt19937 random(0);
  begin(10, 128);
  std::vector<Tensor> tensors = tensors_of(28), others = tensors_of(6);
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < 28; i++) order.push_back(i);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    uint64_t wrong = 0;
    for (; !done; usleep(20000))  // else it would take a core to itself
      for (const Tensor &other : others) {
        wrong += ends_hold(other.bytes, other.nbytes, other.value) ? 0 : 1;
        const sn_framed_operand operand = other.operand(SN_READS);
        if (sn_framed_need(&operand, 1, "aten::other") == 2) sn_framed_ran();
      }
    CHECK(wrong == 0);
  });
  for (uint32_t i = 0; i < 12; i++) {
    CHECK(sn_framed_step() == 0);
    if (i % 5 == 4) std::shuffle(order.begin(), order.end(), random);
    std::vector<Tensor> born;
    for (const uint32_t k : order) {
      use(tensors[k], (k + i) % 3 == 0);
      if (k % 4 == 0) born.push_back(made(3 * kMiB, static_cast<uint8_t>(k)));
      if (k % 7 == 0 && !born.empty()) {
        use(born.back(), true);
        sn_free(born.back().bytes);
        born.pop_back();
      }
      if (random() % 64 == 0) use(tensors[random() % 28], true, "aten::unforeseen");
    }
    if (i % 4 == 3) {
      const pid_t pid = fork();
      if (pid == 0) {
        bool fine = true;
        for (const Tensor &tensor : tensors) fine = fine && ends_hold(tensor.bytes, tensor.nbytes, tensor.value);
        sn_framed_step();
        const sn_framed_operand operand = tensors[0].operand(SN_WRITES);
        sn_framed_need(&operand, 1, "aten::test");
        _exit(fine && ends_hold(tensors[0].bytes, tensors[0].nbytes, tensors[0].value) ? 0 : 1);
      }
      int status = 0;
      CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    for (Tensor &each : born) {
      CHECK(ends_hold(each.bytes, each.nbytes, each.value));
      sn_free(each.bytes);
    }
  }
  done = true;
  reader.join();
  for (Tensor &other : others) sn_free(other.bytes);
  end_with(tensors);
}

}  // namespace

int main() {
  what_comes_next_is_there_before_it_is_needed();
  what_goes_one_way_alone_tells_how_fast_that_is();
  what_was_unforeseen_is_read_ahead_in_the_next_step();
  looks_that_find_something_take_a_part_of_the_time();
  pages_of_few_faults_leave_the_page_cache_for_a_part_of_the_time();
  what_was_read_ahead_outlasts_a_fork();
  what_dies_is_not_written();
  the_record_can_be_had();
  another_step_is_recorded_anew();
  a_step_that_is_too_long_is_not_the_last_one();
  what_is_refused_costs_time_only();
  bytes_hold_whatever_comes();
}
