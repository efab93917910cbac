"""What a step on fake tensors is said to need is what the same step is recorded to need."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import sentinel
from sentinel import session
from sentinel.cli.estimate import to_buy
from sentinel.cli.fast_memory_curve import point_at
from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.profile import Profile
from sentinel.core.trace import ROLES
from sentinel.planner.sweep import Comparison, curve, knee, make_subject
from sentinel.profiler.estimate.composed_kernels import KERNELS
from sentinel.profiler.estimate.fake_job import FakeJob, job_of
from sentinel.profiler.estimate.fake_recorder import FakeRecorder
from sentinel.profiler.estimate.fake_step import estimated
from sentinel.profiler.estimate.kernel_memory import RULES
from sentinel.profiler.estimate.known_values import KnownValues
from sentinel.profiler.estimate.memory_needs import needs_of
from sentinel.profiler.estimate.schema_accesses import describe
from sentinel.profiler.estimate.time_model import measured_flops_per_s, timed
from sentinel.runtime import RUNTIME
from sentinel.tiers import machine_for
from tests import warm
from tests.builders import GB, MIB, make_machine

pytestmark = pytest.mark.needs("torch", "compiler")

ROOT = Path(__file__).parents[2]


def mlp() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())])
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(64, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"model": model, "optimizer": optimizer, "step": step}


def recorded(make: Callable[[], dict[str, Any]], *, annotated: bool = True) -> Profile:
    """The same job in memory, its second step recorded by its operators."""
    job = job_of(make(), "the job")
    job.step()
    annotation = sentinel.annotate(job.models, job.optimizers) if annotated else None
    sentinel.start_profile(job.models, job.optimizers, slow="emulated:cxl-asic-x8", tracker="ops")
    try:
        job.step()
        sentinel.end_profile()
        last = session.current()
        assert last is not None
        assert last.profile is not None
        return last.profile
    finally:
        sentinel.stop()
        if annotation is not None:
            annotation.remove()


def bytes_of(profile: Profile) -> np.ndarray:
    """(L,) bytes that the operators of each layer read and write."""
    a = profile.accesses
    return np.bincount(a["layer"], a["read_bytes"] + a["written_bytes"], profile.n_layers)


def compared(make: Callable[[], dict[str, Any]], *, annotated: bool = True) -> tuple[float, float, float]:
    """How far the estimate is off: the peak of what is alive, bytes of the worst layer that matters, all bytes."""
    guess, real = estimated(make, make.__name__), recorded(make, annotated=annotated)
    assert guess.layers == real.layers
    peaks = [p.live_peak_bytes + p.unmanaged_peak_bytes for p in (guess, real)]
    mine, theirs = bytes_of(guess), bytes_of(real)
    matters = theirs > 0.001 * theirs.sum()
    layers = np.abs(mine / np.maximum(theirs, 1) - 1)[matters]
    found = abs(peaks[0] / peaks[1] - 1), float(layers.max()), abs(mine.sum() / theirs.sum() - 1)
    print(f"{make.__name__}: peak {found[0]:.4f}, worst layer {found[1]:.4f}, all layers {found[2]:.4f}")
    return found


def test_a_network_of_layers() -> None:
    peak, layer, _ = compared(mlp)
    assert peak < 0.01
    assert layer < 0.01


def images() -> dict[str, Any]:
    """Convolutions that oneDNN computes in a layout of its own, with channels that fill its blocks and do not."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 5, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 40, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(40), nn.ReLU()),
        nn.Sequential(nn.Conv2d(40, 64, 1), nn.BatchNorm2d(64), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(16, 1, 32, 32)).square().mean().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer, "step": step}


def test_what_convolutions_allocate_inside_is_counted() -> None:
    peak, layer, _ = compared(images)
    assert peak < 0.03
    assert layer < 0.05


def clicks() -> dict[str, Any]:
    """A table whose gradients are sparse."""
    torch.manual_seed(0)
    table, head = nn.EmbeddingBag(5000, 32, mode="sum", sparse=True), nn.Linear(32, 1)
    optimizer = torch.optim.Adagrad([*table.parameters(), *head.parameters()], lr=0.1)
    wanted = torch.arange(4096).reshape(1024, 4)

    def step() -> None:
        optimizer.zero_grad()
        head(table(wanted.clone())).square().mean().backward()
        optimizer.step()

    return {"model": [table, head], "optimizer": optimizer, "step": step}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_gradient_has_the_rows_that_were_looked_up() -> None:
    peak, layer, _ = compared(clicks)
    assert peak < 0.03
    assert layer < 0.05


def popular() -> dict[str, Any]:
    """As `clicks`, but a batch names 4096 of 300 rows."""
    made = clicks()
    table, head = made["model"]
    random = torch.Generator().manual_seed(7)

    def step() -> None:
        made["optimizer"].zero_grad()
        wanted = torch.randint(300, (1024, 4), generator=random)
        wanted.remainder_(299)
        head(table(wanted)).square().mean().backward()
        made["optimizer"].step()

    return {**made, "step": step}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_rows_that_a_batch_names_again_are_added_up() -> None:
    peak, layer, _ = compared(popular)
    assert peak < 0.03
    assert layer < 0.05


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_rows_that_nobody_knows_are_an_upper_bound() -> None:
    def job(wanted: torch.Tensor) -> tuple[nn.Module, torch.Tensor, None, Any]:
        return nn.EmbeddingBag(5000, 32, mode="sum", sparse=True), wanted, None, torch.optim.Adagrad

    def optimizers_bytes(make: Callable[[], torch.Tensor]) -> int:
        return int(bytes_of(estimated(lambda: job(make()), "job"))[-1])

    unknown = optimizers_bytes(lambda: torch.empty(1024, 4, dtype=torch.long))
    different = optimizers_bytes(lambda: torch.arange(4096).reshape(1024, 4))
    alike = optimizers_bytes(lambda: torch.zeros(1024, 4, dtype=torch.long))
    assert unknown == different > 2 * alike


def test_integers_are_known_as_far_as_they_follow_from_what_is_known() -> None:
    mine = torch.arange(4)  # of the user's, in memory before the job
    with FakeTensorMode(allow_non_fake_inputs=True), FakeRecorder() as recorder:
        known = recorder.known.value

        def told(tensor: torch.Tensor) -> list[Any] | None:
            value = known(tensor)
            return None if value is None else value.tolist()

        a = torch.arange(6).reshape(2, 3)
        a[1] += 10
        assert told(a.T) == [[0, 13], [1, 14], [2, 15]]
        assert a.max().item() == 15
        assert told(torch.cat([mine, a[0]])[2:]) == [2, 3, 0, 1, 2]
        view = mine[1:]
        assert told(view) == [1, 2, 3]
        view += 1  # the user's tensor stays as it is, so nothing is known of what the job would find there
        assert told(view) is None
        assert told(mine) is None
        a[0] += torch.empty(3, dtype=torch.long)
        assert told(a) is None
        assert told(torch.randint(9, (3,)).float()) is None
        assert told(torch.empty(3, dtype=torch.long)) is None
        b = torch.zeros(3, dtype=torch.long)
        before = list(recorder.known._storages)
        del b
        assert len(recorder.known._storages) == len(before) - 1
    assert mine.tolist() == [0, 1, 2, 3]


def test_a_real_tensor_is_known_until_it_is_written() -> None:
    known, mine = KnownValues(), torch.arange(3)
    assert known.value(mine) is mine
    assert known.value(torch.ones(3)) is None
    known.lose([mine])
    assert known.value(mine) is None
    known.forget(mine.untyped_storage()._cdata)
    assert known.value(mine) is mine


def test_names_roles_and_keys_are_those_of_a_recording() -> None:
    """But for activations, which a recording names after the outermost operator: linear, here addmm."""
    guess, real = estimated(mlp, "mlp"), recorded(mlp)
    columns = ["role", "nbytes", "start", "stop", "persistent", "managed"]
    rows = {name: real.tensors[i] for i, name in enumerate(real.names)}
    for i in np.flatnonzero(guess.tensors["persistent"]).tolist():
        assert guess.tensors[columns][i] == rows[guess.names[i]][columns], guess.names[i]
    roles = ("param", "optimizer", "grad")
    for made, other in ((guess, real), (real, guess)):
        named = {n for n, t in zip(made.names, made.tensors, strict=True) if ROLES[t["role"]] in roles}
        assert named <= set(other.names)
    assert guess.flops.sum() == pytest.approx(real.flops.sum(), rel=0.02)  # in parts, operators count other elements


def test_it_says_what_it_is_and_leaves_nothing() -> None:
    made = estimated(mlp, "mlp")
    assert made.is_estimated
    assert "Estimated from shapes" in made.notes[-1]
    assert not recorded(mlp).is_estimated
    assert RUNTIME.sink is None
    assert not RUNTIME.models
    assert not RUNTIME.optimizers


def test_what_depends_on_values_is_named() -> None:
    def job() -> dict[str, Any]:
        made = mlp()
        return {**made, "step": lambda: torch.ones(3).nonzero()}

    with pytest.raises(CapabilityError, match=r"estimating operator aten\.nonzero\.default"):
        estimated(job, "job")
    assert RUNTIME.sink is None


def test_a_job_on_another_device_is_told_to_be_on_the_cpu() -> None:
    def job() -> tuple[nn.Module, torch.Tensor]:
        return nn.Linear(64, 64), torch.empty(32, 64, device="cuda")

    with pytest.raises(UsageError, match="job makes a tensor on cuda:0; make all of it on the CPU"):
        estimated(job, "job")


def test_a_loss_that_is_asked_for_is_a_number() -> None:
    heard = []

    def job() -> dict[str, Any]:
        made = mlp()

        def step() -> None:
            made["step"]()
            heard.append(torch.ones(3).sum().item())

        return {**made, "step": step}

    estimated(job, "job")
    assert heard == [1.0, 1.0]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "job gives NoneType"),
        ((nn.Linear(2, 2),), "job gives a tuple of 1"),
        ((nn.Linear(2, 2), torch.ones(2), 3), "its loss, int, cannot be called"),
        ((nn.Linear(2, 2), torch.ones(2), None, lambda _: 3), "its optimizer gives int"),
        ({"model": nn.Linear(2, 2)}, "job gives a dict with model"),
        ({"model": 3, "step": print}, "job: model: int is no Module"),
    ],
)
def test_what_is_no_job(made: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        job_of(made, "job")


def test_an_error_of_the_factory_is_told_with_its_name() -> None:
    def job() -> None:
        raise ZeroDivisionError("no weights here")

    with pytest.raises(UsageError, match="job failed on fake tensors: ZeroDivisionError: no weights here"):
        estimated(job, "job")


def test_an_error_of_the_optimizers_factory_is_told_so_too() -> None:
    def job() -> tuple[nn.Module, torch.Tensor, None, Callable[[Any], torch.optim.Optimizer]]:
        return nn.Linear(64, 64), torch.empty(32, 64), None, lambda parameters: torch.optim.SGD(parameters, lr=-1.0)

    with pytest.raises(UsageError, match="job failed on fake tensors: ValueError: Invalid learning rate"):
        estimated(job, "job")


def test_a_model_and_inputs_are_enough() -> None:
    def job() -> tuple[nn.Module, torch.Tensor]:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.empty(32, 64)

    assert isinstance(job_of(job(), "job"), FakeJob)
    made = estimated(job, "job")
    assert {"0.weight", "0.weight.grad", "0.weight.exp_avg"} <= set(made.names)


def verb(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-m", "sentinel", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )


@pytest.mark.slow
def test_the_verb_of_the_tutorial(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (program,) = [text.partition("```")[0] for text in page.split("```python\n") if "def mlp" in text]
    (tmp_path / "models.py").write_text(program)
    (command,) = [line for line in page.splitlines() if line.startswith("sentinel estimate")]
    done = verb(tmp_path, *command.split()[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("estimated from shapes: nothing was run")
    assert "To buy: " in done.stdout
    assert ["parameters", "32.03", "MiB"] in [line.split()[:3] for line in done.stdout.splitlines()]
    found = json.loads(verb(tmp_path, "plan", "e.safetensors", "--machine", "cxl-m2", "--fast", "20%", "--json").stdout)
    assert found["footprint_bytes"] > 4 * 8 * 1024 * 1024 * 4
    told = verb(tmp_path, "plan", "e.safetensors", "--machine", "cxl-m2", "--fast", "20%").stdout
    assert "The profile is an estimate" in told
    assert (
        "e is an estimate"
        in verb(
            tmp_path, "compare", "e.safetensors", "--machine", "cxl-m2", "--fast", "20%", "--policies", "sentinel"
        ).stdout
    )


def test_an_operator_is_described_by_its_schema() -> None:
    aten = torch.ops.aten
    added = describe(aten.add_.Tensor)
    assert (added.name, added.touches, added.reads[:2], added.writes[:2]) == ("add_", True, (True, True), (True, False))
    assert not describe(aten.view.default).touches
    assert not describe(torch.ops.prim.device.default).touches
    assert not describe(aten.empty.memory_format).touches
    assert describe(aten.embedding.default).table == "gather"
    assert not describe(aten.copy_.default).reads[0]
    assert describe(aten.native_batch_norm.default).writes[3:5] == (True, True)


def test_rules_take_what_their_operators_take() -> None:
    for operator, kernel in KERNELS.items():
        positional = [a.name for a in operator._schema.arguments if not a.kwarg_only]
        by_name = {a.name: a for a in operator._schema.arguments if a.kwarg_only}
        inspect.signature(kernel).bind("known", *positional, **by_name)
    for operator, rule in RULES.items():
        inspect.signature(rule).bind("born", "result", *operator._schema.arguments)


def test_storages_are_born_used_and_freed() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), FakeRecorder() as recorder:
        recorder.recording = True
        a = torch.empty(1024)
        b = (a[:512] * 2).sum()
        assert recorder.address(a) != recorder.address(b)
        assert (recorder.manages(recorder.address(a)), recorder.manages(recorder.address(b))) == (1, 0)
        del a
    allocations, log = recorder.logs()
    assert allocations["nbytes"].tolist() == [4096, 2048, 4, 2048, 4096]
    assert log.ops == ("mul", "sum")
    spans = log.events["span"][log.events["kind"] != 4].tolist()
    assert spans == [2048, 2048, 2048, 4]


@pytest.mark.parametrize(("kind", "extra"), [(torch.float32, 0), (torch.bfloat16, 1)])
def test_a_mean_is_a_sum_that_is_divided_in_place(kind: torch.dtype, extra: int) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), FakeRecorder() as recorder:
        a = torch.empty(64, 16, 4, 4, dtype=kind)
        recorder.recording = True
        b = a.mean((-1, -2), keepdim=True)
    assert (b.shape, b.dtype) == ((64, 16, 1, 1), kind)
    _, log = recorder.logs()
    assert [log.ops[row["op"]] for row in log.events[log.events["kind"] == 4]][extra : extra + 2] == ["sum", "div_"]
    spans = log.events["span"][log.events["kind"] != 4].tolist()
    assert spans[2 * extra : 2 * extra + 4] == [64 << 10, 4096, 4096, 4096]


def test_times_are_the_larger_of_operations_and_bytes() -> None:
    made = estimated(mlp, "mlp")
    fast = make_machine(fast_bw=100 * GB).fast
    slow_compute, slow_memory = timed(made, fast, 1e6), timed(made, fast, 1e18)
    assert slow_compute.step_ns_plain == pytest.approx(np.maximum(made.flops, 0).sum() * 1e3, rel=0.01)
    assert slow_memory.step_ns_plain == pytest.approx(bytes_of(made).sum() / 100, rel=0.01)
    assert measured_flops_per_s() > 1e6


def test_what_it_needs_and_what_to_buy() -> None:
    machine = make_machine(64 * MIB, promote=GB, demote=GB)
    made = timed(estimated(mlp, "mlp"), machine.fast, 1e12)
    needs = needs_of(made)
    weights = 6 * (256 * 256 + 256) * 4
    assert needs["param_bytes"] == weights
    assert needs["optimizer_bytes"] == 2 * weights + 12 * 4
    subject = make_subject("mlp", made, machine)
    points = tuple(curve(subject, made, machine, {"1%": 81920, "100%": subject.footprint_bytes}))
    at = knee(points)
    found = Comparison("built", (), (subject,), (), points, () if at is None else (at,))
    assert point_at(found, "1%") is None, "of a page or more, rounded"
    here = point_at(found, "100%")
    assert here is not None
    assert here.speed == pytest.approx(1)
    assert "of fast memory; slow gains nothing here." in to_buy(found, machine, here, "100%")
    three = machine_for("cxl-asic-x8=6MiB+cxl-worst")
    assert at is not None
    told = to_buy(replace(found, knees=(replace(at, fast_bytes=subject.footprint_bytes - MIB),)), three, None, None)
    assert " and 1.00 MiB of cxl-asic-x8 and cxl-worst, for " in told, "of the first one there may be less"
