"""A running training step becomes a Trace, and that a Profile, whose content is known."""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import numpy as np
import torch
from torch import nn

from sentinel.core.attribution import attribute
from sentinel.core.errors import UsageError
from sentinel.core.step_follower import StepFollower
from sentinel.core.trace import BORN, FREED, PAGE_RUN_DTYPE, ROLES, LayerId, Quality
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import calling_lines, names, operators, ticks
from sentinel.profiler.annotate import annotate
from sentinel.profiler.pages.protocol import PageSamples
from sentinel.profiler.record import StepRecorder
from sentinel.runtime import RUNTIME

pytestmark = pytest.mark.needs("compiler")

BATCH, WIDTH = 64, 96


@pytest.fixture
def memory():
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


class Recording:
    """A sink that records the steps run while it is entered."""

    def __init__(self, memory, models, optimizers):
        self.memory, self.models, self.optimizers = memory, models, optimizers
        self.follower, self.recorder = StepFollower(), StepRecorder()

    def __enter__(self):
        self.memory.record()
        self.recorder.start(self.models, self.optimizers)
        self.memory.tick(0)
        RUNTIME.sink = self
        return self

    def __exit__(self, *_):
        RUNTIME.sink = None
        self.ring = self.follower.learn()
        held = names.persistent_tensors(self.models, self.optimizers)
        self.trace = self.recorder.finish(self.memory.events(), self.ring, held)
        self.memory.pass_through()

    def tick(self, name, phase, source):
        layer = self.follower.tick((name, phase)).layer
        assert layer is not None
        self.recorder.tick(layer - 1)
        self.memory.tick(layer)

    def step_boundary(self):
        self.follower.boundary()


def job(depth=3, kind=torch.optim.AdamW):
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)))
    return model, kind(model.parameters(), lr=0.01)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(BATCH, WIDTH)).square().mean().backward()
    optimizer.step()


@pytest.fixture
def recorded(memory):
    model, optimizer = job()
    annotation = annotate(model, optimizer)
    step(model, optimizer)
    recordings = []
    for _ in range(2):
        with Recording(memory, [model], [optimizer]) as recording:
            step(model, optimizer)
        recordings.append(recording)
    annotation.remove()
    return recordings


def test_tensors_have_the_names_roles_and_lives_that_the_model_gives_them(recorded):
    profile = attribute(recorded[1].trace)
    layer = {str(identity): i for i, identity in enumerate(profile.layers)}
    rows = dict(zip(profile.names, profile.tensors, strict=True))
    for i in range(3):
        weight, grad = rows[f"{i}.weight"], rows[f"{i}.weight.grad"]
        assert ROLES[weight["role"]] == "param"
        assert weight["persistent"]
        assert ROLES[rows[f"{i}.weight.exp_avg"]["role"]] == "optimizer"
        assert ROLES[grad["role"]] == "grad"
        # born in the backward of its block, freed by zero_grad at the start of the next step
        assert (grad["start"], grad["stop"]) == (layer[f"{i}:backward"], len(profile.layers) + 1)
    hidden = rows["0:forward/linear#0"]  # input of block 1, so it is read in that one's backward
    assert ROLES[hidden["role"]] == "activation"
    assert hidden["nbytes"] == BATCH * WIDTH * 4
    assert (hidden["start"], hidden["stop"]) == (layer["0:forward"], layer["1:backward"] + 1)


def test_parameters_are_touched_where_the_model_uses_them(recorded):
    profile = attribute(recorded[1].trace)
    layer = {str(identity): i for i, identity in enumerate(profile.layers)}
    index = profile.names.index("1.weight")
    tensor = profile.extents["tensor"][profile.accesses["extent"]]
    rows = profile.accesses[tensor == index]
    used = {int(row["layer"]): (bool(row["reads"]), bool(row["writes"])) for row in rows}
    optimizer = [at for at, (_, writes) in used.items() if writes]
    assert used[layer["1:forward"]] == (True, False)
    assert used[layer["1:backward"]] == (True, False)
    assert len(used) == 3
    assert len(optimizer) == 1
    assert profile.layers[optimizer[0]].phase == "optimizer"
    assert rows[0]["read_bytes"] == WIDTH * WIDTH * 4


def test_two_recordings_of_one_step_are_the_same(recorded):
    one, other = (attribute(recording.trace) for recording in recorded)
    assert one.layers == other.layers
    assert one.names == other.names
    assert np.array_equal(one.tensors, other.tensors)
    assert np.array_equal(one.accesses, other.accesses)
    assert np.array_equal(one.flops, other.flops)


def test_bytes_born_are_freed_or_alive_and_everything_is_known(recorded):
    trace = recorded[1].trace
    nbytes = {kind: trace.events["nbytes"][trace.events["kind"] == kind].sum() for kind in (BORN, FREED)}
    freed = set(trace.events["tensor"][trace.events["kind"] == FREED].tolist())
    born = set(trace.events["tensor"][trace.events["kind"] == BORN].tolist())
    size = [t.nbytes for t in trace.tensors]
    assert nbytes[BORN] == sum(size[i] for i in born & freed) + sum(size[i] for i in born - freed)
    profile = attribute(trace)
    assert profile.notes == ()
    assert not profile.provisional
    assert trace.quality.lost == 0
    products = 8 * 2 * BATCH * WIDTH * WIDTH  # three forward, five backward: the first needs no input gradient
    assert products < profile.flops.sum() < 1.1 * products


def test_the_first_step_is_provisional_since_it_bears_optimizer_state(memory):
    model, optimizer = job()
    with annotate(model, optimizer), Recording(memory, [model], [optimizer]) as recording:
        step(model, optimizer)
    profile = attribute(recording.trace)
    assert profile.provisional
    assert profile.tensors[profile.names.index("0.weight.exp_avg")]["persistent"]


def test_gradients_that_are_kept_are_persistent(memory):
    model, optimizer = job(kind=torch.optim.SGD)
    with annotate(model, optimizer):
        step(model, optimizer)
        with Recording(memory, [model], [optimizer]) as recording:
            optimizer.zero_grad(set_to_none=False)
            model(torch.ones(BATCH, WIDTH)).square().mean().backward()
            optimizer.step()
    profile = attribute(recording.trace)
    assert profile.tensors[profile.names.index("0.weight.grad")]["persistent"]


def test_ticks_by_hand_and_no_model(memory):
    model, optimizer = job()
    step(model, optimizer)
    with Recording(memory, [], []) as recording:
        x = torch.ones(BATCH, WIDTH)
        optimizer.zero_grad()
        for layer in model:
            x = layer(x)
            ticks.add_layer()
        x.square().mean().backward()
        ticks.add_layer("backward")
        optimizer.step()
        ticks.add_layer("optimizer")
    profile = attribute(recording.trace)
    assert [str(i) for i in profile.layers] == ["layer#0", "layer#1", "layer#2", "backward", "optimizer"]
    unnamed = [name for name in profile.names if name.startswith(("workspace#", "input#"))]
    assert len(unnamed) >= 6
    found = names.persistent_tensors([], [optimizer])
    assert {role for _, _, role in found} == {"param", "optimizer", "grad"}
    assert found[0][0] == "param.0"


def test_less_than_a_round_is_refused(memory):
    recorder = StepRecorder()
    recorder.start([], [])
    recorder.tick(0)
    ring = [LayerId("a"), LayerId("b")]
    with pytest.raises(UsageError, match="1 ticks"):
        recorder.finish(memory.events(), ring, [])
    recorder.abandon()


def test_a_recorder_that_could_not_start_ends_no_other(memory):
    one, other = StepRecorder(), StepRecorder()
    one.start([], [])
    with pytest.raises(UsageError, match="recorded already"):
        other.start([], [])
    other.abandon()
    x = torch.ones(1000)
    x.add_(1)
    one.tick(0)
    trace = one.finish(memory.events(), [LayerId("a")], [])
    assert "add_" in trace.ops


def test_a_recording_that_is_abandoned_leaves_nothing_behind():
    recorder = StepRecorder()
    recorder.start([], [])
    torch.ones(1000).add_(1)
    assert operators.events_so_far()
    recorder.abandon()
    assert not operators.events_so_far()


def test_the_step_ends_with_stop(memory):
    recorder = StepRecorder()
    recorder.start([], [])
    recorder.tick(0)
    recorder.stop()
    torch.ones(1000).add_(1)
    trace = recorder.finish(memory.events(), [LayerId("a")], [])
    assert trace.events["kind"].tolist() == [5]


def test_tied_parameters_are_one_tensor_with_two_names():
    model = nn.Module()
    model.one, model.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    model.two.weight = model.one.weight
    assert [name for name, _, _ in names.persistent_tensors([model])] == ["one.weight"]
    assert names.aliases([model]) == {"one.weight": ("two.weight",)}


def test_names_of_the_second_model_start_with_its_ordinal():
    one, two = nn.BatchNorm1d(4), nn.Linear(3, 3)
    found = [(name, role) for name, _, role in names.persistent_tensors([one, two])]
    assert ("weight", "param") in found
    assert ("running_mean", "buffer") in found
    assert ("1:weight", "param") in found


class Arming(Recording):
    """Like a page tracker, it takes time at each tick, and tells how much it took."""

    ARM_NS = 20_000_000

    def tick(self, name, phase, source):
        super().tick(name, phase, source)
        time.sleep(self.ARM_NS / 1e9)
        self.recorder.resume()

    def __exit__(self, *_):
        RUNTIME.sink = None
        self.ring = self.follower.learn()
        length = len(self.ring)
        spent = dict.fromkeys(range(length), self.ARM_NS) | {length: self.ARM_NS}  # the last stretch is layer 0's
        samples = PageSamples(np.zeros(0, PAGE_RUN_DTYPE), Quality("arming", "touched layers"), spent)
        held = names.persistent_tensors(self.models, self.optimizers)
        self.trace = self.recorder.finish(self.memory.events(), self.ring, held, samples)
        self.memory.pass_through()


def test_what_the_tracker_took_is_in_its_layers_time_and_told_layer_by_layer(memory):
    model, optimizer = job()
    annotation = annotate(model, optimizer)
    step(model, optimizer)
    with Arming(memory, [model], [optimizer]) as recording:
        step(model, optimizer)
    annotation.remove()
    trace, told = recording.trace, recording.trace.quality
    assert len(told.layer_overhead_ns) == len(trace.layers)
    assert sum(told.layer_overhead_ns) == told.overhead_ns
    assert (trace.layer_ns >= Arming.ARM_NS).all()
    assert told.layer_overhead_ns[0] >= 2 * Arming.ARM_NS
    assert min(told.layer_overhead_ns) >= Arming.ARM_NS
    profile = attribute(trace)
    least = (0.05 * trace.layer_ns).astype(int)
    assert profile.layer_ns.tolist() == np.maximum(trace.layer_ns - told.layer_overhead_ns, least).tolist()


@pytest.mark.parametrize("pages", [True, False])
def test_operators_of_other_threads_are_lost_by_the_recorder_and_not_by_the_page_tracker(memory, pages):
    recorder = StepRecorder()
    recorder.start([], [])
    x = torch.ones(1000)
    other = threading.Thread(target=x.add_, args=(1,))
    other.start()
    other.join(60)
    assert not other.is_alive()
    recorder.tick(0)
    samples = PageSamples(np.zeros(0, PAGE_RUN_DTYPE), Quality("ebpf", "touched layers", lost=2), {}) if pages else None
    quality = recorder.finish(memory.events(), [LayerId("a")], [], samples).quality
    assert quality.lost == (2 if pages else 1)
    assert [note for note in quality.notes if "other threads" in note] == [
        "1 operators of other threads were not recorded"
    ] * pages


def test_a_tensor_is_told_by_the_line_of_the_program_that_made_it(memory):
    model, optimizer = job()
    annotation = annotate(model, optimizer)
    lines = inspect.getsourcelines(two_lines)[1]

    def made_at(line):
        return f"{Path(__file__).name}:{lines + line}"

    def run():
        optimizer.zero_grad()
        two_lines(model, torch.ones(BATCH, WIDTH)).backward()
        optimizer.step()

    run()
    for _ in range(2):
        with Recording(memory, [model], [optimizer]) as recording:
            run()
    annotation.remove()
    folder = f"{Path(__file__).parent.name}/"  # which stands there where the tests run from above it
    made = {t.name: t.source.replace(f"tests/{folder}", "") for t in recording.trace.tensors}
    assert made["0:forward/linear#0"] == made_at(1), "the frames of torch are passed over"
    of_mul = {source for name, source in made.items() if "/mul#" in name}
    assert of_mul == {made_at(2), f"backward of {made_at(2)}"}
    assert made["0.weight"] == "", "it is older than the step"
    gradients = {t.name: made[t.name] for t in recording.trace.tensors if t.role == "grad" and t.key is not None}
    assert set(gradients.values()) == {f"backward of {made_at(1)}"}
    assert {"0.weight.grad", "1.bias.grad"} <= set(gradients)
    profile = attribute(recording.trace)
    assert dict(zip(profile.names, profile.sources, strict=True))["0:forward/linear#0"].endswith(made_at(1))
    assert not calling_lines.seen(), "what was noted was given back"


def two_lines(model, value):
    output = model(value)
    return (output * 2.0).mean()
