#include "tables.h"

#include <algorithm>

#include "sentinel.h"

namespace {

constexpr int32_t kMostKey = 1 << 24;  // keeps the dense indexes small; a layer has thousands of allocations

uint64_t granules(uint64_t nbytes) { return (nbytes + SN_GRANULE_BYTES - 1) / SN_GRANULE_BYTES; }

bool valid(uint64_t count, const int32_t *layers, const int32_t *ordinals, const uint64_t *offsets,
           const uint64_t *nbytes, uint64_t extent) {
  for (uint64_t i = 0; i < count; i++)
    if (layers[i] < 0 || layers[i] >= kMostKey || ordinals[i] < 0 || ordinals[i] >= kMostKey ||
        offsets[i] % SN_GRANULE_BYTES != 0 || nbytes[i] == 0 || nbytes[i] > extent || offsets[i] > extent - nbytes[i])
      return false;
  return count < static_cast<uint64_t>(INT32_MAX);
}

}  // namespace

namespace sn {

std::unique_ptr<Table> Table::build(uint64_t count, const int32_t *layers, const int32_t *ordinals,
                                    const uint64_t *offsets, const uint64_t *nbytes, uint64_t extent) {
  if (!valid(count, layers, ordinals, offsets, nbytes, extent)) return nullptr;
  auto table = std::make_unique<Table>();
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; i++) order[i] = i;
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return layers[a] != layers[b] ? layers[a] < layers[b] : ordinals[a] < ordinals[b];
  });
  if (count > 0) table->layers_.resize(static_cast<size_t>(layers[order.back()]) + 1);
  for (const uint32_t i : order) {
    Layer &layer = table->layers_[layers[i]];
    const int32_t slot = table->size();
    if (layer.by_ordinal.empty()) layer.first = slot;
    if (static_cast<size_t>(ordinals[i]) < layer.by_ordinal.size()) return nullptr;  // a key comes twice
    layer.by_ordinal.resize(ordinals[i], -1);
    layer.by_ordinal.push_back(slot);
    layer.end = slot + 1;
    table->slots_.push_back({offsets[i], nbytes[i]});
  }
  return table;
}

void Tables::begin(std::unique_ptr<Table> table) {
  if (tables_.empty()) tables_.reserve(kMostTables);
  in_use_ = 0;
  tables_.resize(1);
  tables_[0] = std::move(table);
  step_begins();
}

int32_t Tables::add(std::unique_ptr<Table> table) {
  tables_.push_back(std::move(table));  // there is room for all since `begin`
  return static_cast<int32_t>(tables_.size()) - 1;
}

bool Tables::use(int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= tables_.size()) return false;
  in_use_ = index;
  return true;
}

void Tables::step_begins() {
  asked_ = 0;
  changes_ = 0;
}

void Tables::ask(int32_t layer, int32_t ordinal, uint64_t nbytes) {
  if (tables_.size() < 2) return;
  const Asked now{layer, ordinal, nbytes};
  latest_[asked_++ % kLatest] = now;
  const Fit here = fit(current(), now);
  if (here.exact == 1 || changes_ == kMostChanges) return;
  Fit best;
  bool compared = false;
  int32_t found = in_use_;
  for (int32_t i = 0; i < static_cast<int32_t>(tables_.size()); i++) {
    if (i == in_use_ || !fit(*tables_[i], now).beats(here)) continue;  // nearly all calls end here
    if (!compared) best = fit(current());
    compared = true;
    const Fit other = fit(*tables_[i]);
    if (!other.beats(best)) continue;
    best = other;
    found = i;
  }
  if (found == in_use_) return;
  in_use_ = found;
  changes_++;
}

Tables::Fit Tables::fit(const Table &table, const Asked &asked) {
  const int32_t index = table.find(asked.layer, asked.ordinal);
  if (index < 0 || table.slot(index).nbytes < asked.nbytes) return {};
  const uint64_t waste = granules(table.slot(index).nbytes) - granules(asked.nbytes);
  return {waste == 0, 1, waste};
}

Tables::Fit Tables::fit(const Table &table) const {
  Fit sum;
  for (uint64_t i = 0; i < std::min<uint64_t>(asked_, kLatest); i++) {
    const Fit one = fit(table, latest_[i]);
    sum.exact += one.exact;
    sum.fits += one.fits;
    sum.waste += one.waste;
  }
  return sum;
}

}  // namespace sn
