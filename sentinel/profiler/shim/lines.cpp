// Which line of the program called an operator.
//
// Operators run without the GIL: it is taken to walk the frames, as torch's own recorder of allocations does
// (torch/csrc/profiler/python/combined_traceback.cpp). Nothing is allocated for a line that was seen before but by Python.

#include "lines.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sentinel.h"

// Python's stable C interface, which its executable or library exports: so no header of it is needed to compile this.
extern "C" {
int PyGILState_Ensure(void);
void PyGILState_Release(int);
void *PyEval_GetFrame(void);
void *PyFrame_GetBack(void *frame);
void *PyFrame_GetCode(void *frame);
int PyFrame_GetLineNumber(void *frame);
void *PyObject_GetAttrString(void *object, const char *name);
const char *PyUnicode_AsUTF8(void *text);
void PyErr_Clear(void);
void Py_IncRef(void *object);
void Py_DecRef(void *object);
int PyGC_Disable(void);
int PyGC_Enable(void);
}

namespace sn_shim {
namespace {

constexpr double kShare = 0.03;                 // of the recorded time, beyond the first:
constexpr uint64_t kFirstNs = 10'000'000;       // a small step has all of its lines
constexpr int kMostFrames = 200;

uint64_t mixed(uint64_t seed, uint64_t value) { return (seed ^ value) * 0x9E3779B97F4A7C15ull + (seed >> 31); }

// No collection meanwhile: frames become objects, and a collection would run finalizers within an operator.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()), collects_(PyGC_Disable()) {}
  ~Gil() {
    if (collects_ != 0) PyGC_Enable();
    PyGILState_Release(state_);
  }
  Gil(const Gil &) = delete;
  Gil &operator=(const Gil &) = delete;

 private:
  int state_, collects_;
};

}  // namespace

void Lines::note(std::vector<std::string> skipped, std::vector<std::string> libraries) {
  forget();
  skipped_ = std::move(skipped);
  libraries_ = std::move(libraries);
  began_ns_ = sn_now_ns();
  on_ = true;
}

void Lines::forget() {
  on_ = false;
  spent_ns_ = 0;
  for (const auto &entry : codes_) Py_DecRef(entry.first);
  codes_.clear();
  numbers_.clear();
  known_.clear();
  seen_.clear();
}

uint16_t Lines::here() {
  if (!on_) return 0;
  const uint64_t now = sn_now_ns();
  if (spent_ns_ > kFirstNs + static_cast<uint64_t>(kShare * static_cast<double>(now - began_ns_))) return 0;
  uint16_t found = 0;
  {
    const Gil gil;
    found = look();
  }
  spent_ns_ += sn_now_ns() - now;
  return found;
}

const Lines::Code *Lines::code_of(void *code) {
  const auto known = codes_.find(code);
  if (known != codes_.end()) return &known->second;
  void *name = PyObject_GetAttrString(code, "co_filename");
  const char *path = name == nullptr ? nullptr : PyUnicode_AsUTF8(name);
  if (path == nullptr) PyErr_Clear();
  Code made{Kind::kSkipped, path == nullptr ? "" : path};
  if (name != nullptr) Py_DecRef(name);
  const auto begins = [&](const std::string &word) { return made.path.compare(0, word.size(), word) == 0; };
  const auto within = [&](const std::string &word) { return made.path.find(word) != std::string::npos; };
  if (!made.path.empty() && std::none_of(skipped_.begin(), skipped_.end(), begins)) {
    const bool library = std::any_of(libraries_.begin(), libraries_.end(), within);
    made.kind = library ? Kind::kLibrary : Kind::kProgram;
  }
  const Code *kept = &codes_.emplace(code, std::move(made)).first->second;
  Py_IncRef(code);
  return kept;
}

// With the GIL.
uint16_t Lines::look() {
  const Code *program = nullptr, *library = nullptr;
  int program_line = 0, library_line = 0;
  uint64_t key = 0;
  void *frame = PyEval_GetFrame();
  if (frame != nullptr) Py_IncRef(frame);
  for (int depth = 0; frame != nullptr && depth < kMostFrames && program == nullptr; ++depth) {
    void *code = PyFrame_GetCode(frame);
    const Code *about = code_of(code);
    if (about->kind == Kind::kProgram || (about->kind == Kind::kLibrary && library == nullptr)) {
      const int line = PyFrame_GetLineNumber(frame);
      key = mixed(mixed(key, reinterpret_cast<uint64_t>(code)), static_cast<uint64_t>(line));
      (about->kind == Kind::kProgram ? program : library) = about;
      (about->kind == Kind::kProgram ? program_line : library_line) = line;
    }
    Py_DecRef(code);
    void *back = PyFrame_GetBack(frame);
    Py_DecRef(frame);
    frame = back;
  }
  if (frame != nullptr) Py_DecRef(frame);
  if (program == nullptr && library == nullptr) return 0;
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  std::string text;
  if (program != nullptr) text = program->path + ":" + std::to_string(program_line);
  if (library != nullptr) {
    if (!text.empty()) text += "\n";
    text += library->path + ":" + std::to_string(library_line);
  }
  if (seen_.size() >= std::numeric_limits<uint16_t>::max()) return 0;
  const auto [entry, fresh] = numbers_.try_emplace(text, static_cast<uint16_t>(seen_.size() + 1));
  if (fresh) seen_.push_back(text);
  known_.emplace(key, entry->second);
  return entry->second;
}

}  // namespace sn_shim
