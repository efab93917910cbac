"""Which operators touched which bytes, on calls whose answer is known."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sentinel.core.errors import CapabilityError, NativeError, UsageError
from sentinel.profiler import operators
from sentinel.profiler.operators import MADE, OPERATOR, READ, WRITE
from sentinel.profiler.record import StepRecorder
from sentinel.session.gradient_watch import GradientWatch
from sentinel.session.spent_guard import SpentGuard
from tests.processes import LONGEST_S

pytestmark = pytest.mark.needs("compiler")


class Seen:
    """What was recorded while it was entered."""

    def __enter__(self):
        operators.start()
        return self

    def __exit__(self, *_):
        operators.stop()
        self.log = operators.log()

    def of(self, tensor, kind):
        """(operator, offset, span) of each access to the storage of `tensor`."""
        events = self.log.events
        rows = events[(events["address"] == tensor.untyped_storage().data_ptr()) & (events["kind"] == kind)]
        return [(self.log.ops[r["op"]], int(r["offset"]), int(r["span"])) for r in rows]

    def reads(self, tensor):
        return self.of(tensor, READ)

    def writes(self, tensor):
        return self.of(tensor, WRITE)

    def calls(self):
        return [self.log.ops[i] for i in self.log.events["op"][self.log.events["kind"] == OPERATOR]]


def test_nothing_is_recorded_outside():
    x = torch.ones(1024)
    with Seen() as seen:
        pass
    x.add_(1)
    assert len(seen.log.events) == 0
    with Seen() as seen:
        x.add_(1)
    x.add_(1)
    assert seen.writes(x) == [("add_", 0, 4096)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_counts_for_all_of_its_storage():
    nested = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)])
    weight, other = torch.ones(8, 8), torch.ones(1024)
    with Seen() as seen:
        made = torch.nn.functional.linear(nested, weight)
        other.add_(1)
    whole = 8 * 8 * 4
    assert (0, whole) in [access[1:] for access in seen.reads(nested)]
    assert (0, whole) in [access[1:] for access in seen.writes(made)]
    assert seen.writes(other) == [("add_", 0, 4096)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_jagged_tensor_does_not_end_the_recording():
    jagged = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=torch.jagged)
    other = torch.ones(1024)
    with Seen() as seen:
        made = torch.nn.functional.linear(jagged, torch.ones(8, 8)) + 1
        other.add_(1)
    assert len(seen.writes(made.values())) > 0
    assert seen.writes(other) == [("add_", 0, 4096)]


def test_a_recording_that_broke_off_at_a_tensor_says_so(monkeypatch):
    monkeypatch.setattr(operators.torch_shim, "function", lambda *_: lambda: -errno.EIO)
    with pytest.raises(CapabilityError, match="does not tell its size"):
        operators.log()


def test_counts_are_exact_for_a_prime_number_of_calls():
    x, y, z = torch.ones(1024), torch.ones(1024), torch.ones(1024)
    with Seen() as seen:
        for _ in range(23):
            x.add_(y)
        for _ in range(29):
            y.mul_(z)
    assert Counter(seen.calls()) == {"add_": 23, "mul_": 29}
    assert (len(seen.reads(x)), len(seen.writes(x))) == (23, 23)
    assert (len(seen.reads(y)), len(seen.writes(y))) == (23 + 29, 29)


def test_an_operator_reads_its_arguments_and_writes_its_results():
    a, b = torch.ones(8, 16), torch.ones(16, 32)
    with Seen() as seen:
        c = a @ b
    assert seen.reads(a) == [("mm", 0, 512)]
    assert seen.reads(b) == [("mm", 0, 2048)]
    assert seen.writes(c) == [("mm", 0, 1024)]
    assert seen.writes(a) == seen.writes(b) == seen.reads(c) == []


def test_an_operand_counts_once_however_deep_operators_nest():
    layer, x = nn.Linear(16, 32), torch.ones(8, 16)
    with Seen() as seen:
        y = layer(x)
    assert seen.reads(x) == [("addmm", 0, 512)]
    assert seen.reads(layer.weight) == [("addmm", 0, 2048)]
    assert [span for _, _, span in seen.reads(layer.bias)] == [128]
    assert seen.of(y, MADE) == [("linear", 0, 1024)]
    assert {op for op, _, _ in seen.writes(y)} == {"copy_"} or {op for op, _, _ in seen.writes(y)} == {"addmm"}


def test_views_and_questions_touch_nothing():
    x = torch.arange(4096.0)
    with Seen() as seen:
        y = x.view(64, 64).t()[3:7].expand(4, 64).unsqueeze(0).detach()
        x.contiguous().to(torch.float32).reshape(-1)
        torch.empty_like(x), x.new_empty(3), y.size(), y.stride(), x.is_floating_point()
        F.dropout(x, 0.5, training=False)
    assert len(seen.log.events) == 0


def test_copies_that_are_needed_are_seen():
    x = torch.arange(4096.0).view(64, 64)
    with Seen() as seen:
        y = x.t().contiguous()
        z = x.to(torch.float64)
    assert [span for _, _, span in seen.reads(x)] == [16384, 16384]
    assert [span for _, _, span in seen.writes(y)] == [16384]
    assert [span for _, _, span in seen.writes(z)] == [32768]


def test_operands_span_their_extent_only():
    x = torch.zeros(64, 64)
    with Seen() as seen:
        x[8:16].add_(1)
        x[:, 3].add_(1)
        x[0].expand(64, 64).sum()
    assert seen.writes(x) == [("add_", 8 * 256, 8 * 256), ("add_", 12, 256)]
    assert seen.reads(x)[-1] == ("sum", 0, 256)


def test_what_is_only_filled_is_not_read():
    x, y = torch.empty(1024), torch.ones(1024)
    with Seen() as seen:
        x.zero_()
        x.fill_(3)
        x.copy_(y)
        x.normal_()
        torch.add(y, 1, out=x)
        z = torch.zeros_like(y)
    assert seen.reads(x) == []
    assert [op for op, _, _ in seen.writes(x)] == ["zero_", "fill_", "copy_", "normal_", "add"]
    assert [op for op, _, _ in seen.reads(y)] == ["copy_", "add"]
    assert [op for op, _, _ in seen.writes(z)] == ["zero_"]


class TestTables:
    def test_an_embedding_touches_the_rows_it_reads(self):
        table = nn.Embedding(10_000, 16)
        with Seen() as seen:
            table(torch.tensor([5, 6, 7]))
        assert [span for _, _, span in seen.reads(table.weight)] == [3 * 64]

    def test_an_embedding_bag_touches_a_row_for_each_index(self):
        table = nn.EmbeddingBag(10_000, 16, mode="sum")
        with Seen() as seen:
            table(torch.arange(30).view(3, 10))
        assert [span for _, _, span in seen.reads(table.weight)] == [30 * 64]

    def test_indexing_touches_what_it_takes_and_puts(self):
        x, index = torch.zeros(1000, 8), torch.tensor([1, 2, 3])
        with Seen() as seen:
            x[index]
            x.gather(0, torch.zeros(2, 8, dtype=torch.long))
            x[index] = torch.ones(3, 8)
            x.index_add_(0, index, torch.ones(3, 8))
        assert [span for _, _, span in seen.reads(x)] == [96, 64, 96, 96]
        assert [span for _, _, span in seen.writes(x)] == [96, 96]

    def test_the_gradient_of_an_embedding_is_written_whole(self):
        table = nn.Embedding(1000, 16)
        with Seen() as seen:
            table(torch.tensor([5, 6])).sum().backward()
        assert max(span for _, _, span in seen.writes(table.weight.grad)) == 64_000


class TestOptimizersAndStatistics:
    @pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}])
    def test_a_step_reads_gradients_and_updates_parameters_and_state(self, how):
        p = nn.Parameter(torch.ones(1024))
        p.grad = torch.ones(1024)
        optimizer = torch.optim.AdamW([p], **how)
        optimizer.step()
        with Seen() as seen:
            optimizer.step()
        state = optimizer.state[p]
        assert seen.reads(p.grad)
        assert not seen.writes(p.grad)
        for updated in (p, state["exp_avg"], state["exp_avg_sq"]):
            assert seen.reads(updated)
            assert seen.writes(updated)

    def test_running_statistics_are_written_in_training(self):
        norm = nn.BatchNorm1d(512)
        with Seen() as seen:
            norm(torch.randn(4, 512))
        assert seen.writes(norm.running_mean)
        assert seen.writes(norm.running_var)


class TestThreadsAndPhases:
    def test_backward_is_marked(self):
        x = torch.ones(1024, requires_grad=True)
        with Seen() as seen:
            (x * 2).sum().backward()
        events = seen.log.events
        forward = {seen.log.ops[i] for i in events["op"][events["backward"] == 0]}
        backward = {seen.log.ops[i] for i in events["op"][events["backward"] == 1]}
        assert {"mul", "sum"} <= forward
        assert "mul" in backward
        assert seen.log.lost == 0

    def test_operators_of_other_threads_are_counted_as_lost(self):
        x = torch.ones(1024)

        def work():
            for _ in range(13):
                x.add_(1)

        with Seen() as seen:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert seen.log.lost == 13
        assert len(seen.log.events) == 0

    def test_one_recording_at_a_time(self):
        with Seen(), pytest.raises(UsageError, match="recorded already"):
            operators.start()
        operators.stop()  # a second time: nothing

    def test_a_recording_keeps_no_owner_alive_and_is_for_its_owner_until_it_ends(self):
        class Owner:
            pass

        owner = Owner()
        operators.start(owner)
        operators.forget()  # as another thread may, which has taken its own
        operators.stop()
        assert operators.recording()
        operators.stop(owner)
        assert not operators.recording()
        gone = weakref.ref(owner)
        del owner
        assert gone() is None
        operators.forget()

    def test_an_exception_in_an_operator_leaves_the_next_ones_right(self):
        x, y = torch.ones(3, 4), torch.ones(5, 6)
        with Seen() as seen:
            with pytest.raises(RuntimeError):
                torch.addmm(torch.ones(2), x, y)
            x.add_(1)
        assert seen.writes(x) == [("add_", 0, 48)]

    def test_results_are_the_same_bits(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 8))
        x = torch.randn(16, 32)
        model(x).square().mean().backward()
        plain = [p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        with Seen():
            model(x).square().mean().backward()
        assert all(torch.equal(a, p.grad) for a, p in zip(plain, model.parameters(), strict=True))


class TestFlops:
    @pytest.mark.parametrize(
        ("build", "shape"),
        [
            (lambda: nn.Linear(64, 32), (8, 64)),
            (lambda: nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 16, 16)),
            (lambda: nn.Conv2d(8, 8, 3, groups=4), (2, 8, 16, 16)),
            (lambda: nn.ConvTranspose2d(4, 8, 2), (2, 4, 8, 8)),
        ],
    )
    def test_products_count_as_torch_counts_them(self, build, shape):
        model, x = build(), torch.randn(shape, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        with Seen() as seen:
            model(x).sum().backward()
        by_formula = seen.log.flops[(seen.log.events["kind"] == OPERATOR) & (seen.log.events["nbytes"] > 0)]
        assert (by_formula >= 0).all()
        assert by_formula.sum() == counter.get_total_flops() > 0

    def test_attention_counts_two_products_each_way(self):
        q = torch.randn(2, 3, 16, 8, requires_grad=True)
        with Seen() as seen:
            F.scaled_dot_product_attention(q, q, q).sum().backward()
        worded = (seen.log.events["kind"] == OPERATOR) & (seen.log.events["nbytes"] > 0)
        one = 2 * 2 * 3 * 16 * 16 * 8
        forward = seen.log.flops[worded & (seen.log.events["backward"] == 0)]
        assert forward.sum() == 2 * one
        assert seen.log.flops[worded & (seen.log.events["backward"] == 1)].sum() >= 4 * one

    def test_a_recurrent_layer_counts_its_products(self):
        lstm, x = nn.LSTM(32, 64), torch.randn(5, 2, 32)
        with Seen() as seen:
            lstm(x)
        products = 2 * 5 * 2 * (4 * 64 * 32 + 4 * 64 * 64)
        assert products <= seen.log.flops.sum() <= 1.2 * products

    def test_other_operators_count_an_operation_for_each_element(self):
        x = torch.randn(1000)
        with Seen() as seen:
            x.exp()
        assert seen.log.flops.sum() == 1000


NO_MEMORY = """
import resource, torch
from sentinel.core.errors import CapabilityError, NativeError
from sentinel.profiler import operators

torch.set_num_threads(1)
x, before = torch.zeros(4), torch.ones(4)
with torch.no_grad():
    x.add_(before)
    operators.start()
    x.add_(before)
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (2 << 20), -1))
    for _ in range(40_000):
        x.add_(before)
    operators.stop()
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
try:
    operators.log()
except NativeError as error:
    print(error)
print(x.tolist())
operators.start()
x.add_(before)
operators.stop()
print(len(operators.log().events) > 0, len(operators.log().events))
"""


def test_a_recording_that_finds_no_memory_breaks_off_and_the_operators_run_on():
    done = subprocess.run([sys.executable, "-c", NO_MEMORY], capture_output=True, text=True, check=False, timeout=600)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[0].startswith("recording operators: Cannot allocate memory")
    assert said[1:] == [str([40_002.0] * 4), "True 0"]


def ends_well(fork, holds):
    """Whether `holds()` in a child of `fork`."""
    if (pid := fork()) == 0:
        code = 1
        try:
            signal.alarm(int(LONGEST_S))
            code = 0 if holds() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["os.fork", "fork of the C library"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # Python 3.12 and later
def test_a_forked_child_is_not_recorded(fork):
    x = torch.ones(8)

    def holds():
        before = operators.events_so_far()
        x.add_(1)
        return operators.events_so_far() <= before

    with Seen() as seen:
        x.add_(1)
        assert ends_well(fork, holds)
        x.add_(1)
    assert len(seen.writes(x)) == 2


@pytest.mark.parametrize("recorder", [StepRecorder, GradientWatch, SpentGuard])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # as above
def test_whoever_records_leaves_that_to_the_parent(recorder):
    layer = nn.Linear(4, 4)
    begun = recorder()
    if recorder is StepRecorder:
        begun.start([layer], [])
    elif recorder is GradientWatch:
        begun.begin([layer.weight])
    else:
        layer.weight.register_post_accumulate_grad_hook(lambda _: begun.after_backward())
        layer(torch.ones(2, 4)).sum().backward()
    assert operators.recording()
    hooks = list(layer.weight._post_accumulate_grad_hooks or ())
    watched = recorder is StepRecorder

    def holds():
        left = list(layer.weight._post_accumulate_grad_hooks or ())
        return not operators.recording() and not operators.events_so_far() and left == ([] if watched else hooks)

    try:
        assert bool(hooks) == (recorder is not GradientWatch)
        assert ends_well(os.fork, holds)
        assert operators.recording()
    finally:
        operators.stop(begun)
        operators.forget()


def test_a_recording_breaks_off_with_the_most_events_and_the_operators_run_on(monkeypatch):
    monkeypatch.setattr(operators, "MOST_EVENTS", 100)
    x, y = torch.zeros(4), torch.ones(4)
    operators.start()
    for _ in range(100):
        x.add_(y)
    operators.stop()
    assert operators.events_so_far() == 0
    with pytest.raises(NativeError, match="the step that was to be recorded did not end"):
        operators.log()
    assert x.tolist() == [100] * 4
    with Seen() as seen:
        x.add_(y)
    assert seen.writes(x) == [("add_", 0, 16)]


STOPPED_ELSEWHERE = """
import threading, time
import torch
from sentinel.profiler import operators

torch.set_num_threads(1)
ROUNDS, began, ended = 300, threading.Semaphore(0), threading.Semaphore(0)
many = [torch.ones(4) for _ in range(300)]  # it is within the recorder for most of the time

def train():
    for _ in range(ROUNDS):
        operators.start()
        began.release()
        while operators.recording():
            torch._foreach_add_(many, 1)
        ended.acquire()

thread = threading.Thread(target=train)
thread.start()
for number in range(ROUNDS):
    began.acquire()
    while not operators.events_so_far():
        time.sleep(0)
    operators.stop()
    if number % 2:
        operators.forget()
    else:
        assert len(operators.log().events) > 0
    ended.release()
thread.join()
print("all rounds")
"""


def test_a_recording_is_stopped_by_another_thread_while_operators_run():
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_ELSEWHERE], capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all rounds"), done.stderr


def test_an_operator_on_many_tensors_counts_each_once():
    many = [torch.ones(7) for _ in range(101)]
    with Seen() as seen:
        results = torch._foreach_mul(many, 2)
        torch._foreach_add_(many, 1)
    # what it makes of the number 2 comes and goes, maybe where a result is born later
    assert all([op for op, _, _ in seen.writes(result) if op != "copy_"] == ["mul"] for result in results)
    assert all([op for op, _, _ in seen.reads(tensor) if op != "copy_"] == ["mul", "add_"] for tensor in many)
    assert all([op for op, _, _ in seen.writes(tensor) if op != "copy_"] == ["add_"] for tensor in many)


class LinesOfBackward:
    """Which line each operator of backward is of: the one that called what made the node of the graph."""

    def __init__(self, run):
        with Seen() as seen:
            run()
        events = seen.log.events[seen.log.events["kind"] == OPERATOR]
        lines, first = ("", *seen.log.lines), run.__code__.co_firstlineno
        self.of = {
            (seen.log.ops[row["op"]], int(lines[row["line"]].rpartition(":")[2] or first) - first)
            for row in events[events["backward"] == 1]
        }


def test_operators_of_backward_are_told_by_the_line_whose_gradient_they_compute():
    w, x = torch.ones(64, 64, requires_grad=True), torch.ones(64, 64)

    def run():
        a = x @ w
        b = a.exp()
        with torch.no_grad():
            w.norm()
        (b @ w).sum().backward()

    found = LinesOfBackward(run).of
    assert {line for op, line in found if op == "mm"} == {1, 5}, "each of its own product, and none of no_grad's"
    assert {line for op, line in found if op == "mul"} == {2}


def test_a_graph_that_was_made_before_or_by_another_thread_has_no_lines():
    w = torch.ones(64, 64, requires_grad=True)
    before, elsewhere = w.exp().sum(), []

    def run():
        w.sin()  # as many numbers of nodes as the other thread has used
        before.backward()
        thread = threading.Thread(target=lambda: elsewhere.append(w.exp().sum()))
        thread.start()
        thread.join()
        elsewhere[0].backward()

    found = LinesOfBackward(run).of
    assert found
    assert {line for _, line in found} == {0}


def test_within_a_backward_of_ones_own_the_line_is_known_until_another_backward_runs_in_it():
    """Checkpointing runs forward within backward, and a backward within that."""
    w, x = torch.ones(64, 64, requires_grad=True), torch.ones(64, 64, requires_grad=True)

    def run():
        y = torch.utils.checkpoint.checkpoint(lambda v: (v @ w).exp(), x, use_reentrant=True)
        (y * 2).sum().backward()

    found = LinesOfBackward(run).of
    assert {("exp", 1), ("mul", 2), ("mul", 0)} <= found
    assert {line for op, line in found if op == "mm"} == {1, 0}, "computed again, and the gradients of that"


def test_whoever_records_leaves_gradients_as_they_are_given():
    """AccumulateGrad takes a gradient that nobody else holds: held by an observer it would be copied."""

    def pointers(records):
        w, seen = torch.ones(64, 64, requires_grad=True), []
        hook = w.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
        loss = (torch.ones(64, 64) @ w).sum()
        if records:
            with Seen():
                loss.backward()
        else:
            loss.backward()
        hook.remove()
        return seen == [w.grad.data_ptr()]

    assert pointers(records=False)
    assert pointers(records=True)
