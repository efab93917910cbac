#include "framed_steps.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <algorithm>

#include "ahead_watch.h"
#include "frames.h"
#include "lock.h"

namespace {

using sn::Lock;

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // of `kept`
sn_framed_ahead kept{};

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

void count(sn_frames &f, sn_framed_ahead *out) {
  const sn::Ahead &ahead = f.ahead;
  *out = {};
  out->steps = ahead.steps;
  out->recorded = ahead.recorded;
  out->matched = ahead.matched;
  out->missed = ahead.missed;
  if (ahead.plan != nullptr) {
    out->operators = ahead.plan->recorded().operators();
    out->uses = ahead.plan->uses() - ahead.expected.size();
    out->matched += ahead.plan->matched();
    out->missed += ahead.plan->missed();
  }
  out->hit_bytes = ahead.hit_bytes;
  out->late_bytes = ahead.late_bytes;
  out->vain_bytes = ahead.vain_bytes;
  out->demanded_bytes = ahead.demanded_bytes;
  out->unforeseen = ahead.unforeseen_uses;
  out->expected = ahead.expected.size();
  out->wait_before_ns = ahead.wait_before_ns;
  out->wait_after_ns = ahead.wait_after_ns;
  out->follows = ahead.follows() ? 1 : 0;
  out->too_long = ahead.too_long || ahead.record.too_long() ? 1 : 0;
  const sn::Pace reads = f.lanes.fastest(false), writes = f.lanes.fastest(true);
  out->read_alone_bytes = reads.nbytes;
  out->read_alone_ns = reads.ns;
  out->write_alone_bytes = writes.nbytes;
  out->write_alone_ns = writes.ns;
  const sn::Pace last_reads = f.lanes.latest(false), last_writes = f.lanes.latest(true);
  out->read_lately_bytes = last_reads.nbytes;
  out->read_lately_ns = last_reads.ns;
  out->write_lately_bytes = last_writes.nbytes;
  out->write_lately_ns = last_writes.ns;
  for (const auto &[id, order] : f.orders)
    if (!order->settled && !f.lanes.over(order->transfer)) out->under_way += order->items.size();
}

}  // namespace

namespace sn {

uint64_t signature_of(const sn_framed_operand *operands, uint64_t count, const char *name) {
  uint64_t hash = mixed(1, count);
  for (const char *at = name; *at != 0; at++) hash = mixed(hash, static_cast<uint8_t>(*at));
  for (uint64_t i = 0; i < count; i++) {
    hash = mixed(hash, operands[i].address);
    hash = mixed(hash, operands[i].nbytes * 4 + static_cast<uint64_t>(operands[i].writes));
  }
  return hash;
}

void framed_operator_begins(sn_frames *frames, uint64_t signature) {
  Lock lock(&frames->mutex);
  if (!frames->inert) operator_begins(*frames, signature);
}

bool framed_operator_runs(sn_frames *frames) {
  // Another thread that makes room decides who leaves: what can be begun is begun later.
  const bool decides = pthread_mutex_trylock(&frames->manager) == 0;
  bool tells;
  {
    Lock lock(&frames->mutex);
    if (decides && !frames->inert) read_ahead(*frames);
    tells = operator_runs(*frames);
  }
  if (decides) pthread_mutex_unlock(&frames->manager);
  return tells;
}

void framed_operator_ended(sn_frames *frames) {
  Lock lock(&frames->mutex);
  operator_ended(*frames);
}

void framed_birth_waited(sn_frames *frames, uint64_t ns) {
  Lock lock(&frames->mutex);
  frames->ahead.record.waited(ns);
}

void framed_steps_forget() {
  Lock lock(&mutex);
  kept = {};
}

void framed_steps_keep(sn_frames *frames) {
  ahead_watch_end();
  Lock lock(&mutex);
  Lock of_frames(&frames->mutex);
  count(*frames, &kept);
  kept.follows = 0;
}

}  // namespace sn

extern "C" int sn_framed_step(void) {
  const sn::FramedInUse used;
  sn_frames *const frames = used.frames();
  if (frames == nullptr) return 0;
  sn::guard_stay_on_top();
  bool planned;
  {
    Lock lock(&frames->mutex);
    if (frames->inert) return 0;
    sn::step_begins(*frames, sn::framed_waited_ns());
    sn::leave_page_cache(*frames);
    planned = frames->ahead.plan != nullptr;
  }
  if (planned) sn::ahead_watch_begin(frames);
  return 0;
}

extern "C" int sn_framed_ahead_count(sn_framed_ahead *out) {
  const sn::FramedInUse used;
  if (sn_frames *const frames = used.frames(); frames != nullptr) {
    Lock lock(&frames->mutex);
    if (frames->inert) return -ECHILD;
    count(*frames, out);
    return 0;
  }
  Lock lock(&mutex);
  *out = kept;
  return 0;
}

extern "C" int sn_framed_recorded(uint64_t operators, uint64_t uses, uint64_t *compute_ns, uint64_t *first_use,
                                  uint32_t *granule, uint8_t *kind) {
  const sn::FramedInUse used;
  sn_frames *const frames = used.frames();
  if (frames == nullptr) return -ENODATA;
  Lock lock(&frames->mutex);
  if (frames->inert) return -ECHILD;
  if (frames->ahead.plan == nullptr) return -ENODATA;
  const sn::StepUses &step = frames->ahead.plan->recorded();
  if (step.operators() != operators || step.uses() - frames->ahead.expected.size() != uses) return -EAGAIN;
  std::copy(step.compute_ns.begin(), step.compute_ns.end(), compute_ns);
  uint64_t told = 0;
  for (uint64_t place = 0; place < operators; place++) {
    first_use[place] = told;
    for (uint64_t at = step.first_use[place]; at < step.first_use[place + 1]; at++) {
      const uint8_t each = step.kind[at];
      if ((each & sn::kUnforeseen) != 0) continue;  // not of the recorded step
      granule[told] = step.granule[at];
      kind[told++] = static_cast<uint8_t>((each & sn::kZeroed) != 0 ? (each & ~sn::kZeroed) | sn::kBorn : each);
    }
  }
  first_use[operators] = told;
  return 0;
}
