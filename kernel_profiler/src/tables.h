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

// The slots of each layer, in the order in which they are expected to be asked for.
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
  int32_t count(int32_t layer) const { return end(layer) - first(layer); }
  // How many slots of the layer have an ordinal below this one.
  int32_t before(int32_t layer, int32_t ordinal) const;

 private:
  struct Layer {
    int32_t first = 0, end = 0;
  };
  bool known(int32_t layer) const { return layer >= 0 && static_cast<size_t>(layer) < layers_.size(); }

  std::vector<Slot> slots_;
  std::vector<int32_t> ordinals_;  // of the slots
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
  // An allocation, and which slot of its layer it is or is expected to be, counted from the layer's first.
  void note(int32_t layer, int32_t position, uint64_t nbytes) {
    if (tables_.size() > 1) latest_[asked_++ % kLatest] = {layer, position, nbytes};
  }
  // Of the latest one the size is not what was expected: may put another table in use, if that serves the latest of this
  // step better. Whether it did.
  bool reconsider();
  // It is this slot after all.
  void amend(int32_t position) {
    if (tables_.size() > 1) latest_[(asked_ - 1) % kLatest].position = position;
  }

  const Table &current() const { return *tables_[in_use_]; }
  const int32_t *in_use() const { return &in_use_; }

 private:
  struct Asked {
    int32_t layer, position;
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
