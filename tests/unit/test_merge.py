"""Two logs of one step merged into tensors and events."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.lifetimes import PREVIOUS
from sentinel.core.trace import BORN, FREED, OP, READ, TICK, WRITE, LayerId
from sentinel.profiler.merge import GradientSeen, Known, Step, merge
from sentinel.profiler.operators import MADE, OPERATOR, OPERATOR_DTYPE, OperatorLog

ALLOCATION_DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("address", "<u8"),
        ("nbytes", "<u8"),
        ("time_ns", "<u8"),
        ("layer", "<i4"),
        ("ordinal", "<i4"),
        ("flags", "<u4"),
        ("kind", "u1"),
    ]
)
ARENA = 1 << 40
SMALL, FALLBACK, FOREIGN = 1, 2, 4


class Logs:
    """Writes both logs, one seq after the other."""

    def __init__(self, n_layers, first=0):
        self.n_layers, self.first = n_layers, first
        self.seq = 1
        self.allocations, self.operands, self.ticks, self.gradients_seen = [], [], [], []
        self.ordinal = 0
        self.ops = ["mm", "add_", "linear"]

    def next(self):
        self.seq += 1
        return self.seq

    def alloc(self, address, nbytes, flags=0):
        ordinal = -1 if flags & FOREIGN else self.ordinal
        self.ordinal += not flags & FOREIGN
        self.allocations.append((self.next(), address, nbytes, self.seq, -9, ordinal, flags, 1))

    def free(self, address):
        self.allocations.append((self.next(), address, 0, self.seq, -9, -1, 0, 2))

    def operate(self, op, *operands, backward=0, line=0):
        """Operands: (kind, address, nbytes)."""
        seq = self.next()
        for kind, address, nbytes in operands:
            self.operands.append((seq, address, nbytes, 0, nbytes, self.ops.index(op), kind, backward, line))
        if any(kind != MADE for kind, _, _ in operands):
            self.operands.append((seq, 0, 0, seq, 11, self.ops.index(op), OPERATOR, backward, line))

    def see(self, name, address):
        self.gradients_seen.append(GradientSeen(self.next(), name, address))

    def tick(self):
        self.ticks.append(self.next())
        self.ordinal = 0

    def merged(self, before=(), after=(), ring=None):
        events = np.array(self.operands, OPERATOR_DTYPE)
        step = Step(
            first_seq=1,
            last_seq=self.next(),
            began_ns=0,
            tick_seqs=np.array(self.ticks, np.uint64),
            tick_ns=np.array(self.ticks, np.int64),
            first_layer=self.first,
            ring=ring or tuple(LayerId(f"b{i}", 0, "forward") for i in range(self.n_layers)),
            before=tuple(before),
            after=tuple(after),
            gradients_seen=tuple(self.gradients_seen),
        )
        flops = np.where(events["kind"] == OPERATOR, events["span"], 0).astype(np.int64)
        log = OperatorLog(events, tuple(self.ops), flops, 0, ("train.py:3", "train.py:9"))
        return merge(step, np.array(self.allocations, ALLOCATION_DTYPE), log, lambda address: address >= ARENA)


def named(tensors):
    return {t.name: t for t in tensors}


def test_an_allocation_an_operator_and_a_death():
    logs = Logs(2)
    logs.tick()
    logs.alloc(ARENA, 4096)
    logs.operate("mm", (WRITE, ARENA, 4096))
    logs.free(ARENA)
    logs.tick()
    tensors, events = logs.merged()
    (tensor,) = tensors
    assert (tensor.name, tensor.role, tensor.key, tensor.nbytes) == ("b1:forward/mm#0", "workspace", (1, 0), 4096)
    assert events["kind"].tolist() == [TICK, BORN, OP, WRITE, FREED, TICK]
    assert events["layer"].tolist() == [0, 1, 1, 1, 1, 1]
    assert events["nbytes"].tolist() == [0, 4096, 11, 4096, 4096, 0]


def test_an_address_has_one_tensor_after_the_other():
    logs = Logs(1)
    for _ in range(3):
        logs.alloc(ARENA, 4096)
        logs.operate("mm", (WRITE, ARENA, 4096))
        logs.free(ARENA)
    logs.tick()
    tensors, events = logs.merged()
    assert [t.name for t in tensors] == [f"b0:forward/mm#{i}" for i in range(3)]
    assert [t.key for t in tensors] == [(0, 0), (0, 1), (0, 2)]
    assert events["tensor"][events["kind"] == WRITE].tolist() == [0, 1, 2]


def test_the_outermost_operator_gives_the_name():
    logs = Logs(1)
    logs.alloc(ARENA, 4096)
    logs.operate("mm", (WRITE, ARENA, 4096))
    logs.operate("linear", (MADE, ARENA, 4096))
    logs.tick()
    tensors, events = logs.merged()
    assert tensors[0].name == "b0:forward/linear#0"
    assert (events["kind"] == WRITE).sum() == 1


def test_what_backward_reads_of_forward_is_an_activation():
    logs = Logs(2)
    for address in (ARENA, ARENA + 4096, ARENA + 8192):
        logs.alloc(address, 4096)
    logs.operate("mm", (WRITE, ARENA, 4096), (WRITE, ARENA + 4096, 4096))
    logs.tick()
    logs.operate("mm", (READ, ARENA, 4096), (WRITE, ARENA + 8192, 4096), backward=1)
    logs.operate("mm", (READ, ARENA + 8192, 4096), backward=1)
    logs.tick()
    tensors, _ = logs.merged()
    assert [t.role for t in tensors] == ["activation", "workspace", "workspace"]


def test_names_of_models_hold_and_gradients_are_recognised():
    logs = Logs(1)
    logs.free(ARENA + 4096)  # the gradient of the step before
    logs.alloc(ARENA + 8192, 512)
    logs.operate("mm", (READ, ARENA, 4096), (WRITE, ARENA + 8192, 512), backward=1)
    logs.see("w.grad", ARENA + 8192)
    logs.alloc(ARENA + 16384, 2048)
    logs.tick()
    before = [Known("w", "param", ARENA, 4096, ("tied",)), Known("w.grad", "grad", ARENA + 4096, 512)]
    after = [Known("w", "param", ARENA, 4096), Known("w.exp_avg", "optimizer", ARENA + 16384, 2048)]
    tensors, _ = logs.merged(before, after)
    found = named(tensors)
    assert set(found) == {"w", "w.grad", "w.grad" + PREVIOUS, "w.exp_avg"}
    assert found["w"].aliases == ("tied",)
    assert found["w"].key is None
    assert (found["w.grad"].key, found["w.grad"].role) == ((0, 0), "grad")
    assert found["w.grad" + PREVIOUS].key is None
    assert (found["w.exp_avg"].role, found["w.exp_avg"].key) == ("optimizer", (0, 1))


def test_a_gradient_that_stays_keeps_its_name():
    logs = Logs(1)
    logs.operate("add_", (WRITE, ARENA, 512), backward=1)
    logs.see("w.grad", ARENA)
    logs.tick()
    held = [Known("w.grad", "grad", ARENA, 512)]
    tensors, _ = logs.merged(held, held)
    assert [t.name for t in tensors] == ["w.grad"]


def test_ordinals_go_on_from_the_last_stretch_to_the_first():
    """Layer 0 begins with the last tick: what comes after it is its start, in every step but the recorded one."""
    logs = Logs(2)
    logs.alloc(ARENA, 4096)
    logs.tick()
    logs.tick()
    logs.alloc(ARENA + 4096, 4096)
    logs.alloc(ARENA + 8192, 4096)
    tensors, _ = logs.merged()
    assert [t.key for t in tensors] == [(0, 2), (0, 0), (0, 1)]


def test_a_recording_that_begins_at_the_first_tick():
    logs = Logs(3, first=1)
    logs.alloc(ARENA, 4096)
    logs.tick()
    logs.tick()
    logs.alloc(ARENA + 4096, 4096)
    logs.tick()
    tensors, events = logs.merged()
    assert [t.key for t in tensors] == [(1, 0), (0, 0)]
    assert events["layer"].tolist() == [1, 1, 2, 0, 0]


def test_memory_that_is_not_ours_says_why():
    logs = Logs(2)
    logs.alloc(100, 64, SMALL)
    logs.alloc(200, 5000, FALLBACK)
    logs.alloc(9000, 5000, FOREIGN)
    logs.operate("mm", (READ, 20_000, 777))
    logs.operate("mm", (READ, ARENA, 4096))
    logs.tick()
    logs.tick()
    tensors, _ = logs.merged()
    reasons = {t.nbytes: (t.managed, t.reason, t.role) for t in tensors}
    assert reasons[64][:2] == (False, "smaller than 1 KiB")
    assert reasons[5000][0] is False
    assert reasons[777][0] is False
    assert "not from torch's allocator" in reasons[777][1]
    assert reasons[777][2] == "input"
    assert reasons[4096] == (True, "", "input")


def test_small_storages_of_one_stretch_are_one_tensor_of_their_peak():
    logs = Logs(2)
    logs.alloc(100, 64, SMALL)
    logs.alloc(200, 32, SMALL)
    logs.operate("mm", (READ, 100, 64), (WRITE, 200, 32))
    logs.free(100)
    logs.free(200)
    logs.alloc(100, 80, SMALL)
    logs.free(100)
    logs.alloc(300, 16, SMALL)  # outlives the layer
    logs.tick()
    logs.free(300)
    logs.tick()
    tensors, events = logs.merged()
    found = [(t.name, t.nbytes) for t in tensors]
    assert found == [("b0:forward/small storages#0", 96), ("b0:forward/unwritten#0", 16)]
    assert events["kind"].tolist() == [BORN, OP, READ, WRITE, FREED, BORN, TICK, FREED, TICK]
    born, freed = (int(events["nbytes"][events["kind"] == kind].sum()) for kind in (BORN, FREED))
    assert born == freed == 112


def test_what_was_logged_before_or_after_the_step_is_left_out():
    logs = Logs(1)
    logs.seq = -1
    logs.alloc(ARENA, 4096)
    logs.seq = 1
    logs.tick()
    tensors, events = logs.merged()
    assert tensors == ()
    assert events["kind"].tolist() == [TICK]


def test_a_tensor_is_told_by_the_line_that_made_it():
    logs = Logs(1)
    logs.alloc(ARENA, 4096)
    logs.operate("mm", (WRITE, ARENA, 4096), (MADE, ARENA, 4096), line=1)
    logs.operate("add_", (WRITE, ARENA, 4096), line=2)  # only changes it
    logs.alloc(ARENA + 4096, 4096)
    logs.operate("mm", (WRITE, ARENA + 4096, 4096))  # from a line that is not known
    logs.tick()
    tensors, _ = logs.merged(before=[Known("w", "param", ARENA + 8192, 4096)])
    assert [(t.name, t.source) for t in tensors] == [
        ("w", ""),
        ("b0:forward/mm#0", "train.py:3"),
        ("b0:forward/mm#1", ""),
    ]


def test_what_backward_made_is_told_by_the_line_whose_gradient_it_is():
    logs = Logs(1)
    logs.alloc(ARENA, 4096)
    logs.operate("mm", (WRITE, ARENA, 4096), (MADE, ARENA, 4096), line=1, backward=True)
    logs.alloc(ARENA + 4096, 4096)
    logs.operate("mm", (WRITE, ARENA + 4096, 4096), backward=True)  # of an operator that is not known
    logs.operate("add_", (WRITE, ARENA + 4096, 4096), line=2, backward=True)  # made by somebody else before
    logs.tick()
    tensors, _ = logs.merged()
    assert [t.source for t in tensors] == ["backward of train.py:3", ""]
