// The slots of up to ten plans, and which of them the step that runs is likeliest to be.
//
// A job may run steps of several shapes, one plan each. All plans share the arena, so going from one to another
// is to look keys up elsewhere. What a step asks for first tells which plan is its own.
#pragma once

#include <stdint.h>

#include <memory>
#include <vector>

namespace sn {

constexpr int32_t kMostTables = 10;

struct Slot {
  uint64_t offset;
  uint64_t nbytes;
};

// Slots by (layer, ordinal).
class Table {
 public:
  // nullptr if the table is a bad one: see sn_place. Throws std::bad_alloc.
  static std::unique_ptr<Table> build(uint64_t count, const int32_t *layers, const int32_t *ordinals,
                                      const uint64_t *offsets, const uint64_t *nbytes, uint64_t extent);

  int32_t size() const { return static_cast<int32_t>(slots_.size()); }
  const Slot &slot(int32_t index) const { return slots_[index]; }
  // The slots of a layer are [first, end); both 0 for a layer without any.
  int32_t first(int32_t layer) const { return known(layer) ? layers_[layer].first : 0; }
  int32_t end(int32_t layer) const { return known(layer) ? layers_[layer].end : 0; }
  // Index of the slot with this key, -1 without one.
  int32_t find(int32_t layer, int32_t ordinal) const {
    if (!known(layer)) return -1;
    const std::vector<int32_t> &by = layers_[layer].by_ordinal;
    return static_cast<size_t>(ordinal) < by.size() ? by[ordinal] : -1;
  }

 private:
  struct Layer {
    int32_t first = 0, end = 0;
    std::vector<int32_t> by_ordinal;
  };
  bool known(int32_t layer) const { return layer >= 0 && static_cast<size_t>(layer) < layers_.size(); }

  std::vector<Slot> slots_;
  std::vector<Layer> layers_;
};

// The owner's thread only, but for `in_use`.
class Tables {
 public:
  void begin(std::unique_ptr<Table> table);  // the only one from now on
  bool full() const { return tables_.size() == kMostTables; }
  int32_t add(std::unique_ptr<Table> table); // its index; not while full
  bool use(int32_t index);                   // false if there is none such
  void step_begins();
  // Before a slot is looked up: may put another table in use, if it serves the latest of this step better.
  void ask(int32_t layer, int32_t ordinal, uint64_t nbytes);

  const Table &current() const { return *tables_[in_use_]; }
  const int32_t *in_use() const { return &in_use_; }

 private:
  struct Asked {
    int32_t layer, ordinal;
    uint64_t nbytes;
  };
  struct Fit {
    int32_t exact = 0;   // allocations with a slot of their size
    int32_t fits = 0;    // allocations with a slot that they fit in
    uint64_t waste = 0;  // granules of those slots that stay empty
    bool beats(const Fit &other) const {
      if (exact != other.exact) return exact > other.exact;
      return fits != other.fits ? fits > other.fits : waste < other.waste;
    }
  };
  static constexpr int32_t kLatest = 32, kMostChanges = 4;

  Fit fit(const Table &table) const;
  static Fit fit(const Table &table, const Asked &asked);

  std::vector<std::unique_ptr<Table>> tables_;
  int32_t in_use_ = 0;
  Asked latest_[kLatest] = {};
  uint64_t asked_ = 0;    // in this step
  int32_t changes_ = 0;  // of the table in use, in this step
};

}  // namespace sn
