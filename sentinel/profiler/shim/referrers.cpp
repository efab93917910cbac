// Who refers to Python objects at this moment, asked in one call that keeps the GIL.

#include "referrers.h"

#include <sys/types.h>

extern "C" {
struct _object;
using PyObject = struct _object;
PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
PyObject *PyObject_Type(PyObject *object);
ssize_t PyList_Size(PyObject *list);
PyObject *PyList_GetItem(PyObject *list, ssize_t index);
PyObject *PyDict_GetItemString(PyObject *dict, const char *key);
ssize_t PyLong_AsSsize_t(PyObject *number);
void PyErr_Clear(void);
void Py_DecRef(PyObject *object);
int PyGC_Disable(void);
int PyGC_Enable(void);
}

namespace {

using sn_shim::Interpreter;
using Counts = std::unordered_map<uint64_t, int64_t>;

PyObject *object(uint64_t id) { return reinterpret_cast<PyObject *>(id); }
uint64_t id(PyObject *object) { return reinterpret_cast<uintptr_t>(object); }

// A collection would run finalizers, and those other threads.
class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) {}
  ~NoCollection() {
    if (was_ != 0) PyGC_Enable();
  }
  NoCollection(const NoCollection &) = delete;
  NoCollection &operator=(const NoCollection &) = delete;

 private:
  int was_;
};

class Owned {
 public:
  explicit Owned(PyObject *object) : object_(object) {
    if (object == nullptr) PyErr_Clear();
  }
  ~Owned() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  Owned(const Owned &) = delete;
  Owned &operator=(const Owned &) = delete;
  PyObject *get() const { return object_; }

 private:
  PyObject *object_;
};

class Walk {
 public:
  explicit Walk(const Interpreter &python)
      : python_(python), objects_(PyObject_CallFunctionObjArgs(object(python.get_objects), nullptr)) {
    for (uint64_t i = 0; i < python.slot_count; i++) slots_[python.slots[i]]++;
    if (objects_.get() != nullptr) counting_adds_ = references(objects_.get()) - 1;
  }

  bool fine() const { return objects_.get() != nullptr && !failed_; }

  // Calls visit(holder, its type, what it refers to) for each reference of an object whose references explain some.
  template <typename Visit>
  void each_reference(Visit visit) {
    const ssize_t count = PyList_Size(objects_.get());
    for (ssize_t i = 0; i < count && !failed_; i++) {
      PyObject *const holder = PyList_GetItem(objects_.get(), i);
      const uint64_t type = type_of(holder);
      if (explains_nothing(type)) continue;
      const Owned held(PyObject_CallFunctionObjArgs(object(python_.get_referents), holder, nullptr));
      if (held.get() == nullptr) failed_ = true;
      const ssize_t references = held.get() == nullptr ? 0 : PyList_Size(held.get());
      for (ssize_t k = 0; k < references; k++) visit(holder, type, id(PyList_GetItem(held.get(), k)));
    }
  }

  // References to `of` but `explained`, the local variables' and this walk's own.
  int64_t others(uint64_t of, int64_t explained, bool listed) {
    const auto slots = slots_.find(of);
    return references(object(of)) - counting_adds_ - listed - explained - (slots == slots_.end() ? 0 : slots->second);
  }

  // Marks those of `found` that the list of all objects holds.
  std::unordered_map<uint64_t, bool> listed(const Counts &found) {
    std::unordered_map<uint64_t, bool> is;
    const ssize_t count = PyList_Size(objects_.get());
    for (ssize_t i = 0; i < count; i++)
      if (const uint64_t one = id(PyList_GetItem(objects_.get(), i)); found.count(one) != 0) is[one] = true;
    return is;
  }

 private:
  static uint64_t type_of(PyObject *of) {
    const Owned type(PyObject_Type(of));
    return id(type.get());
  }

  bool explains_nothing(uint64_t type) const {
    for (uint64_t i = 0; i < python_.never_count; i++)
      if (python_.never[i] == type) return true;
    return false;
  }

  int64_t references(PyObject *of) {
    const Owned number(PyObject_CallFunctionObjArgs(object(python_.getrefcount), of, nullptr));
    if (number.get() == nullptr) failed_ = true;
    return number.get() == nullptr ? 0 : PyLong_AsSsize_t(number.get());
  }

  const Interpreter &python_;
  Owned objects_;
  Counts slots_;
  int64_t counting_adds_ = 0;
  bool failed_ = false;
};

// The namespace of code: running functions refer to it in ways that the collector does not show.
bool is_namespace(PyObject *dict) { return PyDict_GetItemString(dict, "__builtins__") != nullptr; }

}  // namespace

namespace sn_shim {

std::unordered_map<uint64_t, int64_t> unexplained(const Interpreter &python, const std::vector<uint64_t> &wanted) {
  const NoCollection no_collection;
  Walk walk(python);
  if (!walk.fine()) return {};
  Counts found, carriers;  // a call under way may have its arguments in a tuple or a dict, and hold only that
  for (const uint64_t one : wanted) found[one] = 0;
  std::vector<std::pair<uint64_t, uint64_t>> carried;
  walk.each_reference([&](PyObject *holder, uint64_t type, uint64_t to) {
    const auto seen = found.find(to);
    if (seen == found.end()) return;
    seen->second++;
    if (type != python.tuple && (type != python.dict || is_namespace(holder))) return;
    carriers[id(holder)] = 0;
    carried.emplace_back(id(holder), to);
  });
  walk.each_reference([&](PyObject *, uint64_t, uint64_t to) {
    if (const auto seen = carriers.find(to); seen != carriers.end()) seen->second++;
  });
  const auto listed = walk.listed(found), listed_carriers = walk.listed(carriers);
  Counts result;
  for (const auto &[one, explained] : found) result[one] = walk.others(one, explained, listed.count(one) != 0);
  for (const auto &[carrier, one] : carried)
    if (walk.others(carrier, carriers[carrier], listed_carriers.count(carrier) != 0) != 0) result[one]++;
  return walk.fine() ? result : Counts{};
}

}  // namespace sn_shim
