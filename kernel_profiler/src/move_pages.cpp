#include "move_pages.h"

#include <errno.h>
#include <sys/syscall.h>

#include <algorithm>

#include "policy.h"
#include "sentinel.h"
#include "system.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHuge = 512 * kPage;
// Pages a call: each call empties every CPU's page lists before it begins, which costs more the more CPUs there
// are. Under a rate limit calls are shorter, for it is kept between them.
constexpr size_t kBatch = 4096, kPacedBatch = 512;
// After so many journeys that met no huge page only every so-manyth looks for one.
constexpr uint32_t kPatience = 3, kSeldom = 64;
constexpr uint64_t kAttempts = 4;  // in a row that move nothing
constexpr uint64_t kPauseNs = 100000;  // grows with each attempt: a page is busy while someone holds it
constexpr long kMove = 2;     // MPOL_MF_MOVE: pages that only this process maps
constexpr long kMoveAll = 4;  // MPOL_MF_MOVE_ALL: those that forked children map too; needs CAP_SYS_NICE
constexpr int kPreferred = 1;  // MPOL_PREFERRED: on a node, or on others where that is full

using Batch = sn::Workbench;

// What one call of sn::move_pages learns as it goes.
struct Journey {
  const sn::PageRoute &route;
  uint64_t *errors;
  bool huge_pages;               // worth looking for: until the first page of a 2 MiB group moved without the others
  bool met_huge = false, met_none = false;
  bool may_move_shared = true;   // until the kernel said EPERM
  uint64_t moved_bytes = 0;
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

// Whether the kernel took it, for one of the spans at least, that their pages are born on `node` from now on.
bool bind(const std::vector<sn_span> &spans, int node) {
  constexpr int kBits = 8 * sizeof(sn::MemoryPolicy::nodes[0]);
  if (node < 0 || node >= static_cast<int>(sn::kPolicyNodes)) return false;
  sn::MemoryPolicy policy;
  policy.mode = kPreferred;
  policy.nodes[node / kBits] = 1ul << node % kBits;
  bool any = false;
  for (const sn_span &span : spans) any |= sn::policy_apply(policy, span.address, span.nbytes) == 0;
  return any;
}

// A page that nobody has touched cannot move: from now on those of its block are born where the others go. Returns whether
// there were any. Somebody may have touched them before they were bound, so the batch is asked for again.
bool bind_untouched(const Journey &journey, const Batch &batch) {
  if (!journey.route.binds_untouched->load(std::memory_order_relaxed)) return false;
  const sn::PageOrder *last = nullptr;
  bool bound = false;
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    sn::PageOrder &order = *batch.owners[i];
    if (&order == last || !absent(batch.status[i])) continue;
    last = &order;
    if (order.fate.bound) continue;  // in an earlier batch
    order.fate.bound = bind(order.spans, journey.route.node);
    bound |= order.fate.bound;
  }
  return bound;
}

// Takes out of the batch the pages that need no move, and counts those that moved. `why`, if given, is what the move
// just made said of each, and stays aligned. A page that it says moved counts as moved wherever it is by now: a write after a
// fork gives it a new one at home, which may have to move too; the life of another may have ended. Nor can it tell a page
// whose life ended between question and move, and that was born where the others go: the answer is the same.
void settle(Journey &journey, Batch &batch, bool by_us, std::vector<int> *why) {
  size_t kept = 0;
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    const bool there = batch.status[i] == journey.route.node;
    if (there ? by_us : why != nullptr && (*why)[i] == 0) {
      batch.owners[i]->fate.moved_bytes += kPage;
      journey.moved_bytes += kPage;
    }
    if (there || absent(batch.status[i])) continue;
    if (why != nullptr) (*why)[kept] = (*why)[i];
    batch.owners[kept] = batch.owners[i];
    batch.pages[kept++] = batch.pages[i];
  }
  batch.pages.resize(kept);
  batch.owners.resize(kept);
  if (why != nullptr) why->resize(kept);
}

// One call; `batch.why` gets each page's errno, 0 if it has none. Returns the errno of the call itself.
//
// A positive result counts pages that were not moved, a tail of them not even tried, and statuses of huge
// pages lie (one -EBUSY for each though they moved). So nothing here is believed: the caller asks again.
int move_once(Journey &journey, Batch &batch, const std::vector<uint64_t> &pages, long flags) {
  batch.nodes.assign(pages.size(), journey.route.node);
  batch.why.assign(pages.size(), -EAGAIN);
  const long result = sn_system(SYS_move_pages, 0, sn::arg(uint64_t{pages.size()}), sn::arg(pages.data()),
                                sn::arg(batch.nodes.data()), sn::arg(batch.why.data()), flags);
  const int error = result < 0 ? static_cast<int>(-result) : 0;
  for (int &status : batch.why) status = error != 0 ? error : std::max(0, -status);
  return error;
}

bool worth_another_try(int error) { return error == 0 || error == EAGAIN || error == EBUSY || error == EINTR; }

// What is left of the batch stayed: each page for its own reason where `why` has one, else for `call_error`.
void count_failed(Journey &journey, const Batch &batch, int call_error) {
  for (size_t i = 0; i < batch.pages.size(); ++i) {
    int error = i < batch.why.size() ? batch.why[i] : call_error;
    if (error <= 0 || error >= SN_ERRNO_COUNT) error = EAGAIN;  // it said nothing, or that it had moved
    journey.errors[error] += 1;
    sn::PageFate &fate = batch.owners[i]->fate;
    if (fate.error == 0) fate.error = error;
    fate.failed_bytes += kPage;
  }
}

// The first pages of those aligned 2 MiB groups that are in the batch as a whole.
const std::vector<uint64_t> &heads_of_groups(Batch &batch) {
  constexpr size_t group = kHuge / kPage;
  batch.heads.clear();
  for (size_t i = 0; i + group <= batch.pages.size();) {
    const bool whole = batch.pages[i] % kHuge == 0 && batch.pages[i + group - 1] == batch.pages[i] + kHuge - kPage;
    if (whole) batch.heads.push_back(batch.pages[i]);
    i += whole ? group : 1;
  }
  return batch.heads;
}

// Where memory is in huge pages, the first page takes the others along: 512 times fewer addresses. Where a first
// page went alone it was none, and the rest of the journey does without this. Returns the errno of its query.
int move_huge_pages(Journey &journey, Batch &batch) {
  const std::vector<uint64_t> &heads = heads_of_groups(batch);
  if (heads.empty()) return 0;
  move_once(journey, batch, heads, kMove);
  batch.why.clear();  // it says nothing of the other pages
  const size_t before = batch.pages.size();
  const int error = query(batch);
  if (error != 0) return error;
  settle(journey, batch, true, nullptr);
  const size_t moved = before - batch.pages.size();
  if (moved > heads.size()) journey.met_huge = true;
  if (moved > 0 && moved <= heads.size()) journey.met_none = true;
  journey.huge_pages = !journey.met_none;
  return 0;
}

void move_batch(Journey &journey, Batch &batch) {
  std::vector<int> &why = batch.why;
  why.clear();
  int error = query(batch);
  if (error == 0 && bind_untouched(journey, batch)) error = query(batch);
  if (error == 0) settle(journey, batch, false, nullptr);
  if (error == 0 && journey.huge_pages) error = move_huge_pages(journey, batch);
  uint64_t idle = 0;
  long flags = kMove;
  while (idle < kAttempts && !batch.pages.empty() && error == 0) {
    if (idle > 0) sn_nap_until(sn_now_ns() + idle * kPauseNs);
    const size_t before = batch.pages.size();
    const int call_error = move_once(journey, batch, batch.pages, flags);
    error = query(batch);
    if (error != 0) break;
    settle(journey, batch, true, &why);
    idle = batch.pages.size() < before ? 0 : idle + 1;
    if (flags == kMoveAll && call_error == EPERM) {  // they wait until no child shares them
      journey.may_move_shared = false;
      why = batch.told;
      break;
    }
    const bool shared = std::find(why.begin(), why.end(), EACCES) != why.end();
    if (flags == kMove && call_error == 0 && shared && journey.may_move_shared) {
      flags = kMoveAll;
      batch.told = why;
      continue;
    }
    if (!worth_another_try(call_error)) break;
    if (std::none_of(why.begin(), why.end(), worth_another_try)) break;
  }
  count_failed(journey, batch, error);
}

void keep_to_rate(uint64_t began_ns, uint64_t done_bytes, uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return;
  const double ns = static_cast<double>(done_bytes) * 1e9 / static_cast<double>(bytes_per_s);
  sn_nap_until(began_ns + static_cast<uint64_t>(ns));
}

// Whether to send the batch off before `page` joins it: it is full, or a group of 2 MiB would be cut by its end.
bool is_full(const Batch &batch, uint64_t page, size_t most) {
  const size_t count = batch.pages.size();
  return count == most || (page % kHuge == 0 && count > 0 && count + kHuge / kPage > most);
}

}  // namespace

namespace sn {

Workbench::Workbench() {
  pages.reserve(kBatch);
  owners.reserve(kBatch);
  for (std::vector<int> *each : {&status, &nodes, &why, &told}) each->reserve(kBatch);
  heads.reserve(kBatch * kPage / kHuge);
}

void move_pages(PageOrder *first, const PageRoute &route, Workbench &batch, uint64_t *errors) {
  const uint32_t without = route.without_huge->load(std::memory_order_relaxed);
  Journey journey{route, errors, without < kPatience || without % kSeldom == 0};
  const size_t most = route.bytes_per_s != 0 ? kPacedBatch : kBatch;
  const uint64_t began_ns = sn_now_ns();
  const auto flush = [&] {
    if (batch.pages.empty()) return;
    if (route.abandoned->load(std::memory_order_relaxed)) {
      batch.why.clear();
      count_failed(journey, batch, ECANCELED);
    } else {
      move_batch(journey, batch);
      keep_to_rate(began_ns, journey.moved_bytes, route.bytes_per_s);
    }
    batch.pages.clear();
    batch.owners.clear();
  };
  for (PageOrder *order = first; order != nullptr; order = order->next)
    for (const sn_span &span : order->spans)
      for (uint64_t page = span.address & ~(kPage - 1); page < span.address + span.nbytes; page += kPage) {
        if (is_full(batch, page, most)) flush();
        batch.pages.push_back(page);
        batch.owners.push_back(order);
      }
  flush();
  if (journey.met_huge) {
    route.without_huge->store(0, std::memory_order_relaxed);
  } else if (journey.met_none || without >= kPatience) {
    route.without_huge->store(without + 1, std::memory_order_relaxed);
  }
}

}  // namespace sn
