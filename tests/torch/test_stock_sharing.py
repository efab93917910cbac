"""False sharing of stock allocation, replayed: held against the real addresses of a step that malloc served."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sentinel.core.attribution import attribute
from sentinel.core.errors import CapabilityError
from sentinel.core.false_sharing import FalseSharing, false_sharing
from sentinel.core.step_follower import StepFollower
from sentinel.core.units import PAGE_BYTES
from sentinel.migration.adopt import adopt
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import malloc_layout, names, record
from sentinel.profiler.annotate import annotate
from sentinel.runtime import RUNTIME
from tests.torch.full_heap import filled

pytestmark = pytest.mark.needs("compiler")

NONE = np.zeros(0, np.int64)


@pytest.fixture
def memory():
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


class Recording:
    """Records the steps run while it is entered; `by_malloc`: with all of it where stock PyTorch has it."""

    def __init__(self, memory, model, optimizer, by_malloc):
        self.memory, self.model, self.optimizer, self.by_malloc = memory, model, optimizer, by_malloc
        self.follower, self.recorder = StepFollower(), record.StepRecorder()

    def __enter__(self):
        if self.by_malloc:
            self.memory.place(NONE.reshape(0, 2), NONE, NONE, 0, log=True)
        else:
            self.memory.record()
        self.recorder.start([self.model], [self.optimizer])
        self.memory.tick(0)
        RUNTIME.sink = self
        return self

    def __exit__(self, *_):
        RUNTIME.sink = None
        held = names.persistent_tensors([self.model], [self.optimizer])
        self.trace = self.recorder.finish(self.memory.events(), self.follower.learn(), held)
        self.memory.pass_through()

    def tick(self, name, phase, source):
        layer = self.follower.tick((name, phase)).layer
        self.recorder.tick(layer - 1)
        self.memory.tick(layer)

    def step_boundary(self):
        self.follower.boundary()


def job(width, depth=5):
    torch.manual_seed(3)
    blocks = (nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(depth))
    model = nn.Sequential(*blocks)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model, optimizer, rows=17):
    optimizer.zero_grad()
    model(torch.ones(rows, model[0][0].in_features)).square().mean().backward()
    optimizer.step()


def real_sharing(recorded_step, allocations, tensors, events):
    """The same count over the addresses that malloc really gave."""
    blocks = malloc_layout.blocks_of(recorded_step, allocations, tensors, events)
    rows = malloc_layout.of_step(recorded_step, allocations)
    address = [tensors[index].address for index in blocks.tensor[: blocks.before]]
    address += rows["address"][rows["kind"] == malloc_layout.ALLOC].astype(np.int64).tolist()
    calls = malloc_layout.two_rounds(blocks)
    found = np.array([address[block] if nbytes else 0 for block, nbytes in calls], np.int64)
    return false_sharing(
        *malloc_layout.placed(recorded_step, blocks, found, events), len(recorded_step.ring), "observed"
    )


def test_the_replay_is_of_the_size_of_what_malloc_really_did(memory, monkeypatch):
    observed: list[FalseSharing] = []
    replayed = malloc_layout.stock_sharing

    def both(*arguments):
        observed.append(real_sharing(*arguments))
        return replayed(*arguments)

    monkeypatch.setattr(record, "stock_sharing", both)
    model, optimizer = job(96, depth=12)
    annotation = annotate(model, optimizer)
    for _ in range(2):
        step(model, optimizer)
    with Recording(memory, model, optimizer, by_malloc=True) as recording:
        step(model, optimizer)
    annotation.remove()
    told, real = recording.trace.sharing, observed[0]
    assert real.pages > 10
    assert real.pages / 3 < told.pages < real.pages * 3
    assert told.tensors == real.tensors
    assert max(told.layer_cold_bytes) > 0


def test_it_is_told_of_a_profiled_step_and_reaches_the_profile(memory):
    model, optimizer = job(96)
    annotation = annotate(model, optimizer)
    step(model, optimizer)
    adopt(memory, [(name, tensor) for name, tensor, _ in names.persistent_tensors([model], [optimizer])])
    with Recording(memory, model, optimizer, by_malloc=False) as recording:
        step(model, optimizer)
    annotation.remove()
    found = recording.trace.sharing
    assert found is attribute(recording.trace).sharing
    assert found.nbytes == found.pages * PAGE_BYTES > 0
    assert len(found.layer_pages) == len(recording.trace.layers)
    assert max(found.layer_pages) <= found.pages
    assert found.how.startswith("replayed")


class Frozen(nn.Module):
    """Weights of whole megabytes and nothing small: stock allocation maps each by itself."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.ones(8 << 20) for _ in range(3)])

    def forward(self, x):
        for weight in self.weights:
            x = torch.mul(x, weight)
        return x.view(-1)


@pytest.fixture
def heap_without_room():
    """What other tests of this process have freed would hold what is to be mapped by itself."""
    kept = filled(32 << 20)
    yield
    kept.clear()


def test_large_tensors_share_nothing(heap_without_room, memory):
    model = Frozen().requires_grad_(False)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(8 << 20))], lr=0.1)
    annotation = annotate(model.weights)
    x = torch.ones(8 << 20)
    with Recording(memory, model, optimizer, by_malloc=False) as recording:
        for name in ("a", "b"):
            model(x)
            RUNTIME.sink.tick(name, "", "test")
    annotation.remove()
    assert recording.trace.sharing.tensors > 4
    assert recording.trace.sharing.pages == 0


def test_what_cannot_be_replayed_is_unknown_and_says_why(memory, monkeypatch):
    def refused(calls):
        raise CapabilityError("replaying allocations through malloc", "it refused 7 bytes", "ask for less")

    monkeypatch.setattr(malloc_layout, "replay", refused)
    model, optimizer = job(32, 2)
    annotation = annotate(model, optimizer)
    step(model, optimizer)
    with Recording(memory, model, optimizer, by_malloc=False) as recording:
        step(model, optimizer)
    annotation.remove()
    assert recording.trace.sharing is None
    assert any("false sharing" in note and "7 bytes" in note for note in recording.trace.quality.notes)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([4, 700, 5000, 1 << 25])), max_size=40), st.integers(0, 4))
def test_no_call_of_two_rounds_frees_what_is_not_there(makes, before):
    """A log of any shape: each entry makes a block, or ends the one of its number that is alive."""
    blocks = malloc_layout.Blocks(4)
    alive = {number: blocks.add(100 + number, -1, number, stays=4096 * number) for number in range(before)}
    blocks.before = before
    for number, nbytes in makes:
        if number in alive:
            block = alive.pop(number)
            blocks.end(block, 1)
            blocks.calls.append((block, 0))
        else:
            alive[number] = blocks.add(nbytes, 1, -1)
            blocks.calls.append((alive[number], nbytes))
    held = set()
    for block, nbytes in malloc_layout.two_rounds(blocks):
        assert (block in held) == (nbytes == 0)
        held ^= {block}
        assert nbytes < malloc_layout.APART_BYTES
    for block in set(alive.values()) - set(range(before)):
        assert (block in held) == (blocks.nbytes[block] < malloc_layout.APART_BYTES)
