#include "move_pages.h"

#include <errno.h>
#include <sys/syscall.h>

#include <algorithm>

#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr size_t kBatch = 1024;  // pages a call: beyond 512 the call's fixed cost no longer shows
constexpr uint64_t kAttempts = 4;  // in a row that move nothing
constexpr uint64_t kPauseNs = 100000;  // grows with each attempt: a page is busy while someone holds it
constexpr long kMove = 2;  // MPOL_MF_MOVE: pages that only this process maps

struct Batch {
  std::vector<uint64_t> pages;
  std::vector<int> nodes;
  std::vector<int> status;
};

// Where each page is: a node, or a negative errno. Returns the errno of the query itself, asked twice at most:
// pages whose place is unknown would have to be taken for unmoved.
int query(Batch &batch) {
  long result = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    batch.status.assign(batch.pages.size(), -EAGAIN);
    result = sn_system(SYS_move_pages, 0, sn::arg(uint64_t{batch.pages.size()}), sn::arg(batch.pages.data()), 0,
                       sn::arg(batch.status.data()), 0);
    if (result >= 0) return 0;
  }
  return static_cast<int>(-result);
}

bool absent(int status) { return status == -ENOENT || status == -EFAULT; }  // -EFAULT until 6.11

// Takes the pages that need no move out of the batch and counts them.
void settle(Batch &batch, int node, uint64_t &there, uint64_t &absent_bytes) {
  size_t kept = 0;
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    if (batch.status[i] == node) {
      there += kPage;
    } else if (absent(batch.status[i])) {
      absent_bytes += kPage;
    } else {
      batch.pages[kept++] = batch.pages[i];
    }
  }
  batch.pages.resize(kept);
}

// One call; `why` gets each page's errno, 0 if it has none. Returns the errno of the call itself.
//
// A positive result counts pages that were not moved, a tail of them not even tried, and statuses of huge
// pages lie (one -EBUSY for each though they moved). So nothing here is believed: the caller asks again.
int move_once(Batch &batch, int node, std::vector<int> &why) {
  batch.nodes.assign(batch.pages.size(), node);
  batch.status.assign(batch.pages.size(), -EAGAIN);
  const long result = sn_system(SYS_move_pages, 0, sn::arg(uint64_t{batch.pages.size()}), sn::arg(batch.pages.data()),
                                sn::arg(batch.nodes.data()), sn::arg(batch.status.data()), kMove);
  const int error = result < 0 ? static_cast<int>(-result) : 0;
  why.resize(batch.pages.size());
  for (size_t i = 0; i < why.size(); ++i) why[i] = error != 0 ? error : (batch.status[i] < 0 ? -batch.status[i] : 0);
  return error;
}

bool worth_another_try(int error) { return error == 0 || error == EAGAIN || error == EBUSY; }

void count_failed(const Batch &batch, const std::vector<int> &why, int call_error, sn::PageFate &fate,
                  uint64_t *errors) {
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    int error = i < why.size() ? why[i] : call_error;
    if (error <= 0 || error >= SN_ERRNO_COUNT) error = EAGAIN;  // it said nothing, or that it had moved
    errors[error] += 1;
    if (fate.error == 0) fate.error = error;
  }
  fate.failed_bytes += batch.pages.size() * kPage;
}

void move_batch(Batch &batch, int node, sn::PageFate &fate, uint64_t *errors) {
  std::vector<int> why;
  int error = query(batch);
  if (error == 0) settle(batch, node, fate.present_bytes, fate.absent_bytes);
  uint64_t idle = 0;
  while (idle < kAttempts && !batch.pages.empty() && error == 0) {
    if (idle > 0) sn_nap_until(sn_now_ns() + idle * kPauseNs);
    const size_t before = batch.pages.size();
    const int call_error = move_once(batch, node, why);
    error = query(batch);
    if (error != 0) break;
    // `why` belongs to the pages before settling: keep it aligned with those that stay.
    size_t kept = 0;
    for (size_t i = 0; i < batch.pages.size(); ++i)
      if (batch.status[i] != node && !absent(batch.status[i])) why[kept++] = why[i];
    why.resize(kept);
    settle(batch, node, fate.moved_bytes, fate.absent_bytes);
    idle = batch.pages.size() < before ? 0 : idle + 1;
    if (!worth_another_try(call_error)) break;
    if (std::none_of(why.begin(), why.end(), worth_another_try)) break;
  }
  count_failed(batch, why, error, fate, errors);
}

void keep_to_rate(uint64_t began_ns, uint64_t done_bytes, uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return;
  const double ns = static_cast<double>(done_bytes) * 1e9 / static_cast<double>(bytes_per_s);
  sn_nap_until(began_ns + static_cast<uint64_t>(ns));
}

}  // namespace

namespace sn {

PageFate move_pages(const PageOrder &order, uint64_t *errors) {
  PageFate fate;
  Batch batch;
  batch.pages.reserve(kBatch);
  const uint64_t began_ns = sn_now_ns();
  const auto flush = [&] {
    if (batch.pages.empty()) return;
    if (order.abandoned->load(std::memory_order_relaxed)) {
      count_failed(batch, {}, ECANCELED, fate, errors);
    } else {
      move_batch(batch, order.node, fate, errors);
      keep_to_rate(began_ns, fate.moved_bytes, order.bytes_per_s);
    }
    batch.pages.clear();
  };
  for (const sn_span &span : order.spans)
    for (uint64_t page = span.address & ~(kPage - 1); page < span.address + span.nbytes; page += kPage) {
      batch.pages.push_back(page);
      if (batch.pages.size() == kBatch) flush();
    }
  flush();
  return fate;
}

}  // namespace sn
