// An observer of operators. Operators nest: an operand counts for the innermost operators that name its storage.

#include "recorder.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <errno.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guarded.h"
#include "lines.h"
#include "operators.h"
#include "plain.h"

// Python's stable C interface, as in lines.cpp.
extern "C" {
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
}

// As in torch/csrc/autograd/graph_task.h, which takes longer to compile than all of this.
namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}

namespace {

using sn_shim::Access;
using sn_shim::each_tensor;
using sn_shim::has_sizes;
using sn_shim::Operator;
using sn_shim::Table;

constexpr uint32_t kResult = std::numeric_limits<uint32_t>::max();  // position of a result

struct Operand {
  uint64_t address, nbytes, offset, span, numel, itemsize;
  uint32_t position;  // of the argument
  bool reads, writes;
};

// Numbers of which it is asked whether one is among them: few are looked through, of many a set is made.
class Keys {
 public:
  void add(uint64_t key) {
    list_.push_back(key);
    if (list_.size() <= kFew) return;
    if (set_.empty()) set_.insert(list_.begin(), list_.end());
    set_.insert(key);
  }
  void add(const Keys &others) {
    for (const uint64_t key : others.list_) add(key);
  }
  bool has(uint64_t key) const {
    if (list_.size() > kFew) return set_.count(key) != 0;
    return std::find(list_.begin(), list_.end(), key) != list_.end();
  }
  bool empty() const { return list_.empty(); }
  void clear() {
    list_.clear();
    if (!set_.empty()) set_ = {};
  }

 private:
  static constexpr size_t kFew = 32;

  std::vector<uint64_t> list_;
  std::unordered_set<uint64_t> set_;  // the same, where there are many
};

// An access of some kind to a storage.
uint64_t access(uint64_t address, uint8_t kind) { return address << 3 | kind; }

struct Frame {
  const Operator *about;
  int32_t op;
  bool worded;
  uint64_t first_word;
  uint64_t rows;  // elements of the second operand
  std::vector<Operand> operands;
  Keys given;    // storages of the arguments
  Keys covered;  // accesses of operators within
};

struct Known {
  int32_t op;
  Operator about;
};

// Autograd numbers the nodes of its graph as operators make them, on each thread by itself: those of `first` to before
// `end` are of an operator that this line called.
struct Nodes {
  uint64_t first, end;
  uint16_t line;
};

struct Recording {
  std::vector<sn_operator_event> events;
  std::vector<Nodes> nodes;  // in the order of their numbers
  std::vector<int64_t> words;
  std::vector<std::string> names;
  std::unordered_map<const char *, Known> known;  // by the schema's own string: one for each overload
  std::unordered_map<std::string, int32_t> by_name;
  std::unordered_set<std::string> worded;
  std::vector<Frame> frames;
  size_t depth = 0;
  int worded_depth = 0;  // how many of the frames are worded
  uint16_t line = 0;     // of the program, which called the outermost operator; in backward that of the node
  uint64_t first_node = 0;  // the number that the next node had as the outermost operator began
};

Recording *recording = nullptr;  // never freed: an operator that began in it may end after it
std::atomic<const char *> owner{nullptr};
std::atomic<int> recorders{0};  // threads that are in `record`
uint64_t most_events = 0;  // a recording breaks off with so many
std::atomic<uint64_t> lost{0};
std::atomic<int> broken{0};  // errno of what broke the recording off; 0: nothing did
sn_shim::Lines *const lines = new sn_shim::Lines;  // immortal: operators run while the program ends
thread_local char thread_mark;
thread_local int foreign_depth = 0;
std::atomic<at::CallbackHandle> handle{at::INVALID_CALLBACK_HANDLE};
std::atomic<at::CallbackHandle> node_handle{at::INVALID_CALLBACK_HANDLE};  // set before `handle`, and read after it

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

bool mine() { return owner.load(std::memory_order_relaxed) == &thread_mark; }

bool measure(const at::Tensor &tensor, Operand *out) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu()) return false;
  const bool sized = has_sizes(tensor);
  if (sized && tensor.numel() == 0) return false;
  const c10::StorageImpl *storage = tensor.storage().unsafeGetStorageImpl();
  const auto address = reinterpret_cast<uint64_t>(storage->data());  // const: makes no copy-on-write copy
  if (address == 0 || storage->nbytes() == 0) return false;
  const auto itemsize = static_cast<uint64_t>(tensor.itemsize());
  if (!sized) {  // it counts for all of its storage
    *out = Operand{};
    out->address = address;
    out->nbytes = out->span = storage->nbytes();
    out->numel = out->nbytes / itemsize;
    out->itemsize = itemsize;
    return true;
  }
  uint64_t extent = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    extent += static_cast<uint64_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  out->address = address;
  out->nbytes = storage->nbytes();
  out->offset = static_cast<uint64_t>(tensor.storage_offset()) * itemsize;
  out->numel = static_cast<uint64_t>(tensor.numel());
  out->itemsize = itemsize;
  out->span = std::min(extent, out->numel) * itemsize;
  return true;
}

void put_words(const c10::IValue &value, std::vector<int64_t> *out) {
  if (value.isTensor() && value.toTensor().defined() && has_sizes(value.toTensor())) {
    const auto sizes = value.toTensor().sizes();
    out->push_back(1);
    out->push_back(static_cast<int64_t>(sizes.size()));
    out->insert(out->end(), sizes.begin(), sizes.end());
  } else if (value.isInt() || value.isBool()) {
    out->push_back(2);
    out->push_back(value.isInt() ? value.toInt() : static_cast<int64_t>(value.toBool()));
  } else if (value.isIntList() || value.isBoolList()) {
    const auto parts = value.toListRef();
    out->push_back(3);
    out->push_back(static_cast<int64_t>(parts.size()));
    for (const c10::IValue &part : parts) out->push_back(part.isInt() ? part.toInt() : part.toBool());
  } else if (value.isList()) {
    const auto parts = value.toListRef();
    out->push_back(4);
    out->push_back(static_cast<int64_t>(parts.size()));
    for (const c10::IValue &part : parts) put_words(part, out);
  } else {
    out->push_back(0);
  }
}

template <typename Values>
void put_all(const Values &values, std::vector<int64_t> *out) {
  out->push_back(static_cast<int64_t>(values.size()));
  for (const c10::IValue &value : values) put_words(value, out);
}

const Known *lookup(Recording &r, const at::RecordFunction &fn) {
  const char *key = fn.name();
  const auto found = r.known.find(key);
  if (found != r.known.end()) return &found->second;
  const auto schema = fn.operator_schema();
  if (!schema) return nullptr;  // not an operator; its name may not outlive it
  const std::string &full = schema->name();
  const auto colons = full.find("::");
  const std::string name = full.substr(0, 6) == "aten::" ? full.substr(colons + 2) : full;
  auto [entry, fresh] = r.by_name.try_emplace(name, static_cast<int32_t>(r.names.size()));
  if (fresh) r.names.push_back(name);
  Known known{entry->second, sn_shim::describe(*schema)};
  known.about.worded = r.worded.count(full) != 0;
  return &r.known.emplace(key, std::move(known)).first->second;
}

Frame &push(Recording &r) {
  if (r.depth == r.frames.size()) r.frames.emplace_back();
  Frame &frame = r.frames[r.depth++];
  frame.about = nullptr;
  frame.worded = false;
  frame.rows = 0;
  frame.operands.clear();
  frame.given.clear();
  frame.covered.clear();
  return frame;
}

void take_inputs(const at::RecordFunction &fn, Frame &frame) {
  uint32_t position = 0;
  for (const c10::IValue &value : fn.inputs()) {
    Access access;
    if (position < frame.about->arguments.size()) access = frame.about->arguments[position];
    each_tensor(value, [&](const at::Tensor &tensor) {
      Operand operand{};
      if (position == 1 && tensor.defined() && has_sizes(tensor)) frame.rows = static_cast<uint64_t>(tensor.numel());
      if (measure(tensor, &operand)) {
        operand.position = position;
        operand.reads = access.reads;
        operand.writes = access.writes;
        if (frame.about->table == Table::kRows && position == 0 && has_sizes(tensor) && tensor.dim() > 0) {
          operand.numel = static_cast<uint64_t>(tensor.numel() / tensor.size(0));  // of a row
        }
        frame.operands.push_back(operand);
        frame.given.add(operand.address);
      }
    });
    ++position;
  }
}

class Recorder {
 public:
  Recorder() { recorders.fetch_add(1); }
  ~Recorder() { recorders.fetch_sub(1); }
  Recorder(const Recorder &) = delete;
  Recorder &operator=(const Recorder &) = delete;
};

// Runs in each forked child, which would go on recording for all its life. A log that another thread was changing cannot
// be freed there.
void leave_to_parent() {
  owner = nullptr;
  if (recorders.exchange(0) != 0) recording = nullptr;
}

// There is no owner any more: whoever is in `record` has found one before, and leaves. It may want the GIL for that.
void wait_for_recorders() {
  if (recorders.load() == 0) return;
  void *const state = PyEval_SaveThread();
  while (recorders.load() != 0) sn_nap_until(sn_now_ns() + 20000);
  PyEval_RestoreThread(state);
}

// Nothing may be thrown into an operator of the program's. A recording with a gap would be a wrong one: it ends here, its
// memory goes back, and sn_recorder_error tells why.
template <typename Body>
void record(Body body) {
  const Recorder within;
  if (owner.load() != &thread_mark) return;  // sn_recorder_stop was called, and does not wait for this one
  if (broken.load(std::memory_order_relaxed) != 0) return;
  const int error = sn::guarded([&] {
    if (recording->events.size() >= most_events) return -ENOBUFS;
    body(*recording);
    return 0;
  });
  if (error == 0) return;
  broken.store(-error);
  *recording = Recording{};
}

void begin(Recording &r, const at::RecordFunction &fn) {
  if (r.depth == 0) {
    r.line = in_backward() ? 0 : lines->here();
    r.first_node = at::sequence_number::peek();
  }
  Frame &frame = push(r);
  const Known *known = lookup(r, fn);
  if (known == nullptr) return;
  frame.about = &known->about;
  frame.op = known->op;
  if (known->about.touches) take_inputs(fn, frame);
  if (known->about.worded) {
    frame.worded = r.worded_depth++ == 0;
    if (frame.worded) {
      frame.first_word = r.words.size();
      put_all(fn.inputs(), &r.words);
    }
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &fn) {
  if (mine()) {
    record([&](Recording &r) { begin(r, fn); });
  } else if (foreign_depth++ == 0 && owner.load(std::memory_order_relaxed) != nullptr) {
    lost.fetch_add(1, std::memory_order_relaxed);
  }
  return nullptr;
}

// Results that are not operands passed on are written; `given` sums their bytes, `computed` their elements.
void take_outputs(const at::RecordFunction &fn, Frame &frame, uint64_t *given, uint64_t *computed, bool *passed_on) {
  for (const c10::IValue &value : fn.outputs()) {
    each_tensor(value, [&](const at::Tensor &tensor) {
      Operand operand{};
      if (!measure(tensor, &operand)) return;
      *given += operand.span;
      *computed += operand.numel;
      if (frame.given.has(operand.address)) {
        *passed_on = true;
        return;
      }
      operand.position = kResult;
      operand.writes = true;
      frame.operands.push_back(operand);
    });
  }
}

void narrow(Frame &frame, uint64_t given) {
  uint64_t most = 0;
  for (const Operand &operand : frame.operands) {
    if (operand.position != 0) most = std::max(most, operand.numel);
  }
  for (Operand &operand : frame.operands) {
    if (operand.position != 0) continue;
    uint64_t touched = given;
    if (frame.about->table == Table::kRows) touched = frame.rows * operand.numel * operand.itemsize;
    if (frame.about->table == Table::kScatter) touched = most * operand.itemsize;
    operand.span = std::min(operand.span, touched);
  }
}

void finish(Recording &r, Frame &frame, uint64_t computed) {
  const uint64_t seq = sn_next_seq();
  const uint8_t backward = in_backward();
  const bool within = !frame.covered.empty();
  bool touched = false;
  for (const Operand &o : frame.operands) {
    for (const uint8_t kind : {SN_OPERAND_READ, SN_OPERAND_WRITE}) {
      if (!(kind == SN_OPERAND_READ ? o.reads : o.writes)) continue;
      if (!within || !frame.covered.has(access(o.address, kind))) {
        touched = true;
        r.events.push_back({seq, o.address, o.nbytes, o.offset, o.span, frame.op, kind, backward, r.line});
      }
      if (within && r.depth == 1 && o.position == kResult && kind == SN_OPERAND_WRITE) {
        r.events.push_back({seq, o.address, o.nbytes, o.offset, o.span, frame.op, SN_OPERAND_MADE, backward, r.line});
      }
      frame.covered.add(access(o.address, kind));
    }
  }
  if (!touched && !frame.worded) return;
  const uint64_t count = frame.worded ? r.words.size() - frame.first_word : 0;
  const uint64_t elements = within || r.worded_depth > 0 ? 0 : computed;
  r.events.push_back({seq, frame.worded ? frame.first_word : 0, count, sn_now_ns(), elements, frame.op,
                      SN_OPERATOR, backward, r.line});
}

void end(Recording &r, const at::RecordFunction &fn) {
  if (r.depth == 0) return;  // it began before the recording did
  Frame &frame = r.frames[r.depth - 1];
  if (frame.about != nullptr) {
    if (frame.worded) put_all(fn.outputs(), &r.words);
    if (frame.about->touches) {
      uint64_t given = 0, computed = 0;
      bool passed_on = false;
      take_outputs(fn, frame, &given, &computed, &passed_on);
      const bool writes = std::any_of(frame.operands.begin(), frame.operands.end(), [](auto &o) { return o.writes; });
      if (frame.about->table != Table::kNone) narrow(frame, given);
      if (writes || !passed_on) finish(r, frame, computed);  // else it gave back what it got, as a view does
    } else if (frame.worded) {
      finish(r, frame, 0);
    }
    if (frame.about->worded) --r.worded_depth;
  }
  --r.depth;
  if (r.depth > 0) {
    r.frames[r.depth - 1].covered.add(frame.covered);
  } else if (r.line != 0 && !in_backward() && at::sequence_number::peek() > r.first_node) {
    r.nodes.push_back({r.first_node, at::sequence_number::peek(), r.line});
  }
}

void on_end(const at::RecordFunction &fn, at::ObserverContext *) {
  if (mine()) {
    record([&](Recording &r) { end(r, fn); });
  } else {
    foreign_depth = std::max(foreign_depth - 1, 0);
  }
}

// Of the operator that made the node which runs now, if this thread did so while it was recorded; else 0. Nodes run within
// a frame of the engine's own, which is recorded as an operator: `autograd::engine::evaluate_function`.
uint16_t line_of_node(const Recording &r, const at::RecordFunction &fn) {
  if (fn.seqNr() < 0 || fn.forwardThreadId() != at::RecordFunction::currentThreadId()) return 0;
  const auto number = static_cast<uint64_t>(fn.seqNr());
  auto after = std::upper_bound(r.nodes.begin(), r.nodes.end(), number,
                                [](uint64_t n, const Nodes &nodes) { return n < nodes.first; });
  if (after == r.nodes.begin()) return 0;
  --after;
  return number < after->end ? after->line : 0;
}

std::unique_ptr<at::ObserverContext> on_node_start(const at::RecordFunction &fn) {
  if (mine()) record([&](Recording &r) { r.line = line_of_node(r, fn); });
  return nullptr;
}

// The engine's own frame ends the line of a node: what it sums for that node comes after it. A backward within a backward
// leaves the rest of the outer node without one.
void on_node_end(const at::RecordFunction &, at::ObserverContext *) {
  if (mine()) record([](Recording &r) {
      if (r.depth > 1) r.line = 0;
    });
}

template <typename T>
uint64_t copy_out(const std::vector<T> &from, uint64_t first, uint64_t count, T *out) {
  if (first >= from.size()) return 0;
  const uint64_t taken = std::min<uint64_t>(count, from.size() - first);
  std::copy_n(from.begin() + static_cast<ptrdiff_t>(first), taken, out);
  return taken;
}

}  // namespace

extern "C" {

int sn_recorder_start(uint64_t count, const char *const *worded, uint64_t most) {
  if (handle != at::INVALID_CALLBACK_HANDLE) return -EBUSY;
  return sn::guarded([&] {
    static const int at_fork = pthread_atfork(nullptr, nullptr, leave_to_parent);
    if (at_fork != 0) return -at_fork;
    Recording fresh;
    fresh.events.reserve(1 << 16);
    fresh.words.reserve(1 << 14);
    fresh.frames.resize(64);
    for (uint64_t i = 0; i < count; ++i) fresh.worded.insert(worded[i]);
    if (recording == nullptr) recording = new Recording;
    *recording = std::move(fresh);
    most_events = most;
    lost = 0;
    broken = 0;
    // It asks for no inputs: whoever holds those of a node keeps AccumulateGrad from taking a gradient as it is.
    const at::CallbackHandle of_nodes = at::addGlobalCallback(
        at::RecordFunctionCallback(on_node_start, on_node_end).scopes({at::RecordScope::BACKWARD_FUNCTION}));
    node_handle = of_nodes;
    try {
      handle = at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                                         .needsInputs(true)
                                         .needsOutputs(true)
                                         .scopes({at::RecordScope::FUNCTION}));
    } catch (...) {
      at::removeCallback(of_nodes);
      throw;
    }
    owner = &thread_mark;
    return 0;
  });
}

int sn_recorder_stop(void) {
  at::CallbackHandle ended = handle;
  const at::CallbackHandle of_nodes = node_handle;
  if (owner.exchange(nullptr) != &thread_mark) wait_for_recorders();
  // Last: until then none may start. While this one waited another thread may have stopped it, and begun the next.
  if (ended != at::INVALID_CALLBACK_HANDLE && handle.compare_exchange_strong(ended, at::INVALID_CALLBACK_HANDLE)) {
    at::removeCallback(ended);
    at::removeCallback(of_nodes);
  }
  return 0;
}

void sn_recorder_leave_observers(int leave) {
  static thread_local at::RecordFunctionTLS left;
  static thread_local bool has_left = false;
  sn::guarded([&] {
    if (leave != 0 && !has_left) {
      left = at::get_record_function_tls_();
      at::set_record_function_tls_(at::RecordFunctionTLS{});
      has_left = true;
    } else if (leave == 0 && has_left) {
      at::set_record_function_tls_(left);
      left = at::RecordFunctionTLS{};
      has_left = false;
    }
    return 0;
  });
}

int sn_recorder_error(void) { return -broken; }

int sn_recorder_forget(void) {
  if (handle != at::INVALID_CALLBACK_HANDLE) return -EBUSY;
  if (recording != nullptr) *recording = Recording{};
  lines->forget();
  return 0;
}

void sn_recorder_note_lines(uint64_t n_skipped, const char *const *skipped, uint64_t n_libraries,
                            const char *const *libraries) {
  sn::guarded([&] {
    lines->note({skipped, skipped + n_skipped}, {libraries, libraries + n_libraries});
    return 0;
  });
}

uint64_t sn_recorder_line_count(void) { return lines->seen().size(); }

const char *sn_recorder_line(uint64_t line) {
  return line < lines->seen().size() ? lines->seen()[line].c_str() : nullptr;
}

int sn_recorder_running(void) { return handle != at::INVALID_CALLBACK_HANDLE ? 1 : 0; }

uint64_t sn_recorder_count(void) { return recording == nullptr ? 0 : recording->events.size(); }

uint64_t sn_recorder_lost(void) { return lost; }

uint64_t sn_recorder_copy(uint64_t first, uint64_t count, sn_operator_event *out) {
  return recording == nullptr ? 0 : copy_out(recording->events, first, count, out);
}

uint64_t sn_recorder_op_count(void) { return recording == nullptr ? 0 : recording->names.size(); }

const char *sn_recorder_op_name(uint64_t op) {
  return op < sn_recorder_op_count() ? recording->names[op].c_str() : nullptr;
}

uint64_t sn_recorder_word_count(void) { return recording == nullptr ? 0 : recording->words.size(); }

uint64_t sn_recorder_words(uint64_t first, uint64_t count, int64_t *out) {
  return recording == nullptr ? 0 : copy_out(recording->words, first, count, out);
}

}  // extern "C"
