"""Training under a memory budget whose overflow is in a file, without a plan: the same bits as stock PyTorch."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import sentinel  # noqa: E402
from sentinel.core.granule_uses import READS  # noqa: E402
from sentinel.core.units import format_bytes, parse_bytes  # noqa: E402
from sentinel.reports.sections.storage_table import TITLE  # noqa: E402
from sentinel.session.fused_steps import FUSED  # noqa: E402
from sentinel.session.passive import PassiveSession  # noqa: E402
from sentinel.session.storage_figures import bound_of  # noqa: E402
from sentinel.system import limits, native, scratch_disk  # noqa: E402
from sentinel.system.disks import Mount, disk_of  # noqa: E402
from sentinel.system.limits import LimitedGroup  # noqa: E402
from sentinel.tiers import file_tier, pool_cap  # noqa: E402
from sentinel.tiers.ahead import AheadCounters, ahead_counters  # noqa: E402
from sentinel.tiers.file_tier import FileTier, is_file  # noqa: E402
from sentinel.tiers.frames import FRAME_BYTES  # noqa: E402
from sentinel.tiers.pool_cap import LEAST_POOL_BYTES, taken_bytes  # noqa: E402
from tests import warm  # noqa: E402
from tests.read_ahead import granule_uses  # noqa: E402
from tests.torch import passive_cases as cases  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")
ROOT = Path(__file__).parents[2]


SGD = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.5, "dampening": 0.0, "nesterov": False, "maximize": False}
SGD |= {"is_first_step": False}


ALONE = ("an_array_grows",)
"""In a process of their own: a cap counts part of the pages that a forked child shares with its parent."""


def run(*words: object) -> list[dict[str, Any]]:
    """What passive_cases prints of each case."""
    command = [sys.executable, "-m", "tests.torch.passive_cases", *map(str, words)]
    if words[0] in ALONE:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    else:
        done = warm.run(command, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return [dict(json.loads(line)) for line in done.stdout.splitlines() if line.startswith('{"found')]


@pytest.fixture(scope="module")
def stock_of(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What stock PyTorch makes of each case that is tested, all in one process: it imports torch once."""
    name = test_training_is_the_same_bit_for_bit.__name__
    tested = [item for item in request.session.items if item.path == request.path and item.originalname == name]
    names = [item.callspec.params["case"] for item in tested]
    return dict(zip(names, run("--stock", *names), strict=True))


QUICK = ("workers_fork",)
"""Of the cases, those that are not only run before a change lands."""
LONG = (
    "whatever_comes_second",  # as the first, with other random numbers
    "whatever_comes_third",
    "saved_in_mid_step",  # as saved_and_loaded, and what reads in mid-step is read_by_a_thread
    "fused_steps_beyond_the_budget",  # one such operator, and what calls it for each tensor, have tests below
    "averaged_by_a_thread",  # as read_by_a_thread and written_by_stores
)


def marks_of(case: str) -> tuple[pytest.MarkDecorator, ...]:
    if case in QUICK:
        return ()
    return (pytest.mark.slow, pytest.mark.long) if case in LONG else (pytest.mark.slow,)


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks_of(case)) for case in sorted(cases.CASES)])
def test_training_is_the_same_bit_for_bit(
    case: str, folder: Path, stock_of: dict[str, dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    stock, (ours,) = stock_of[case], run(case, folder)
    assert ours["found"] == stock["found"]
    assert not ours["found"].get("strange")
    told = ours["storage"]
    for name, count in ours["counted"].items():
        record_property(name, count)
    if case in ("written_by_stores", "written_by_readinto"):
        assert ours["found"]["own"]
        assert ours["counted"]["writes"] == 10 * cases.STEPS
        assert ours["counted"]["retries"] == ours["counted"]["faults"]
        assert stock["counted"]["faults"] == 0
        assert told["carried_pages"] > 0
    if case == "trained_on_after_the_end":
        assert ours["counted"]["away"] > 0
        assert told["read_bytes"] > ours["counted"]["read_bytes"]
    assert told["tensor_peak_bytes"] > 2 * told["least_pool_bytes"]
    assert told["read_bytes"] > 0
    assert told["written_bytes"] > 0
    assert told["failed"] == 0
    assert told["too_large"] == 0
    assert "more than 44.00 MiB" not in ours["text"]
    if case in ("plain_mlp", "plain_gpt", "operands_beyond_the_budget", "fused_steps_beyond_the_budget"):
        assert told["refused"] == 0
        assert told["resident_bytes"] <= told["pool_bytes"] * 1.01
        assert told["dropped_granules"] > 0
    if "fork" in case:
        assert told["fork_bytes"] > 0
    # One takes two steps, of two optimizers; one ends in the middle of what would be the recorded step.
    assert (told["recorded"] > 0) == (case not in ("a_child_trains", "trained_on_after_the_end"))
    if case in ("plain_mlp", "plain_gpt"):
        assert told["recorded"] == 1
        assert told["missed"] < told["matched"] / 20
        assert told["hit_bytes"] + told["late_bytes"] > 0
        assert "No step was recorded" not in ours["text"]
    if case == "an_array_grows":
        assert told["least_pool_bytes"] == LEAST_POOL_BYTES < told["pool_bytes"] <= told["most_pool_bytes"]
        assert told["most_taken_bytes"] > told["taken_bytes"] + cases.ARRAY_BYTES
        assert "is the cap on this process and its children" in " ".join(ours["text"].split())


def begin(folder: Path, fast: str | None = "16MiB", **more: Any) -> PassiveSession:
    sentinel.start_profile(fast=fast, slow=f"file:{folder}=256MiB", **more)
    session = sentinel.runtime.RUNTIME.sink
    assert isinstance(session, PassiveSession)
    return session


def frames_of(session: PassiveSession) -> Any:
    assert session._framed is not None
    return session._framed.counters()


def test_pages_of_the_file_that_no_operator_has_read_are_told_apart(folder: Path) -> None:
    """As `torch.save` leaves them. Together with frames they look as if the budget had been exceeded."""
    begin(folder)
    held = [torch.ones(1 << 20) for _ in range(8)]  # 32 MiB in 16
    assert sum(float(each.numpy().sum()) for each in held) == 8 << 20
    report = sentinel.report()
    told = report.setup.storage
    assert told.cached_bytes >= 12 << 20
    assert told.resident_bytes - told.cached_bytes <= told.pool_bytes * 1.01
    assert "of the file in its page cache" in report.text()
    assert "file 256.00 MiB reserved on its disk" in " ".join(report.text().split())


def test_parameters_of_a_mapped_checkpoint_are_told(folder: Path, tmp_path: Path) -> None:
    """As `from_pretrained` leaves them: trained in ordinary memory, of which a report said nothing."""
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(8 << 20))
    begin(folder)
    model = torch.nn.ModuleList([torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)])
    for number, layer in enumerate(model[:2]):
        mapped = torch.UntypedStorage.from_file(str(path), False, 8 << 20)
        layer.weight = torch.nn.Parameter(torch.tensor([]).set_(mapped, number << 20, (1024, 1024)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        sum(layer(torch.ones(4, 1024)).sum() for layer in model).backward()
        optimizer.step()
        optimizer.zero_grad()
    told = " ".join(sentinel.report().text().split())
    assert "16.00 MiB of parameters are in memory that is not torch's own" in told


@pytest.mark.parametrize("ahead", [True, False])
def test_nothing_is_read_ahead_where_that_is_not_wanted(folder: Path, ahead: bool) -> None:
    session = begin(folder)
    if not ahead:
        session.read_nothing_ahead()
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)])  # 32 MiB in 16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        model(torch.ones(4, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    told = session.report(bounded=False).facts.setup.storage
    sentinel.stop()
    assert told is not None
    assert told.read_bytes > 0
    assert (told.recorded > 0) == (told.hit_bytes + told.late_bytes > 0) == ahead
    assert (told.demanded_bytes > 0) or ahead


def test_a_report_says_what_a_step_takes_at_least(folder: Path) -> None:
    session = begin(folder)
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)])  # 32 MiB in 16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        model(torch.ones(4, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(4):  # what the file has already is not written again: for long enough all goes one way
        for parameter in model.parameters():
            parameter.detach().sum()
    running = session.report().facts.setup.storage
    sentinel.stop()
    told = session.report().facts.setup.storage
    assert running is not None
    assert told is not None
    assert running.bound_ns > 0
    assert told.recorded > 0
    assert 0 < told.bound_compute_ns <= told.bound_ns
    assert told.bound_read_bytes >= 8 << 20  # backward needs again what forward has brought, and what it changed
    assert told.read_alone_bytes_per_s + told.write_alone_bytes_per_s > 0
    assert told.step_ns > 0
    assert "at least" in session.report().text()


def test_a_loop_that_keeps_its_output_is_followed(folder: Path) -> None:
    """What the step before has made is alive while this one makes its own, so addresses are those of two steps ago."""
    session = begin(folder)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(6)])  # 24 MiB in 16
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places, missed = [], []
    for _ in range(16):
        output = model(torch.ones(256, 1024))  # of 1 MiB
        places.append(output.data_ptr())
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        missed.append(ahead_counters().missed)
    told = session.report().facts.setup.storage
    sentinel.stop()
    assert places[-1] != places[-2] == places[-4]
    assert missed[-1] == missed[-6]  # each operator was found in the last five steps
    assert told is not None
    assert told.matched > told.missed
    assert 0 < told.bound_ns <= told.step_ns
    assert told.bound_read_bytes < 2 * told.tensor_peak_bytes  # of a step, not of a round


def test_without_a_record_or_a_rate_there_is_no_bound() -> None:
    uses = granule_uses([1000, 1000], [{0: READS}, {1: READS}])
    known = AheadCounters(read_alone_bytes=1 << 24, read_alone_ns=1 << 24)
    hour = 3600 * 10**9
    assert bound_of(None, FRAME_BYTES, known, hour) is None
    assert bound_of(uses, FRAME_BYTES, AheadCounters(), hour) is None
    found = bound_of(uses, FRAME_BYTES, known, hour)
    assert found is not None
    assert found.step_ns == pytest.approx(2 * FRAME_BYTES, rel=1e-6)  # at a byte a ns
    written = bound_of(uses, FRAME_BYTES, AheadCounters(write_alone_bytes=1 << 24, write_alone_ns=1 << 24), hour)
    assert written is not None
    assert written.step_ns == written.compute_ns == 2000


def test_a_bound_of_steps_that_were_recorded_together_is_of_one() -> None:
    uses = granule_uses([1000, 1000], [{0: READS}, {1: READS}])
    known = AheadCounters(read_alone_bytes=1 << 24, read_alone_ns=1 << 24)
    alone, of_two = (bound_of(uses, FRAME_BYTES, known, 3600 * 10**9, steps) for steps in (1, 2))
    assert alone is not None
    assert of_two is not None
    assert (of_two.step_ns, of_two.compute_ns) == (alone.step_ns // 2, 1000)
    assert of_two.read_bytes == alone.read_bytes // 2 > 0


def test_a_bound_is_never_above_a_step_that_was_seen() -> None:
    """The step that was recorded may be slower than later ones."""
    slow = granule_uses([10**9, 10**9], [{0: READS}, {1: READS}])
    known = AheadCounters(read_alone_bytes=1 << 24, read_alone_ns=1 << 24)
    found = bound_of(slow, FRAME_BYTES, known, 10**8)
    assert found is not None
    assert found.step_ns == found.compute_ns == 10**8
    found = bound_of(slow, FRAME_BYTES, known, 1000)  # faster than reading at that rate
    assert found is not None
    assert (found.step_ns, found.compute_ns) == (1000, 1000)


def test_what_dies_gives_its_frames_back(folder: Path) -> None:
    session = begin(folder)
    held = [torch.full((1 << 20,), float(i)) for i in range(8)]  # 4 MiB each, in 8 frames
    assert frames_of(session).live_bytes == 8 << 22
    del held[2:]
    told = frames_of(session)
    assert told.live_bytes == 2 << 22
    assert sum(told.frames.in_state[1:]) == 4
    assert [float(tensor[-1]) for tensor in held] == [0.0, 1.0]
    del held
    told = frames_of(session)
    assert (told.live_bytes, told.frames.free_frames, told.frames.in_state[0]) == (0, 8, 256)


def test_neighbours_share_a_granule_until_both_have_died(folder: Path) -> None:
    session = begin(folder)
    ends = [torch.full((3 << 17,), 1.0), torch.full((3 << 17,), 2.0), torch.full((3 << 17,), 3.0)]  # 1.5 MiB each
    assert sum(frames_of(session).frames.in_state[1:]) == 3
    del ends[1]
    others = [torch.full((1 << 19,), 7.0) for _ in range(12)]  # push them out
    assert [float(tensor.sum()) / (3 << 17) for tensor in ends] == [1.0, 3.0]
    assert all(float(other.sum()) == 7.0 * (1 << 19) for other in others)


def beside_the_frames(session: PassiveSession) -> int:
    """Bytes of the session's tensors in pages that no frame gives, by the kernel's own account."""
    assert session._framed is not None
    begin, total, ours = session._framed.facts.base, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            ours = begin <= int(first.partition("-")[0], 16) < begin + session._framed.facts.granules * FRAME_BYTES
        elif ours and first == "Anonymous:":
            total += int(rest.split()[0]) << 10
    return total


def test_an_operator_that_does_not_fit_takes_no_more_than_the_budget(folder: Path) -> None:
    """Of 96 MiB it writes 72. What it had made beside 16 MiB of memory is in frames when it ends."""
    torch.manual_seed(5)
    lists = [[torch.rand(1024, 1024) for _ in range(6)] for _ in range(4)]
    steps = [torch.ones(()) for _ in range(6)]
    rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    rates |= {"amsgrad": False, "maximize": False}
    session = begin(folder)
    ours = [[tensor.clone() for tensor in each] for each in lists]
    assert frames_of(session).live_bytes == 96 << 20
    for _ in range(2):
        for tensors in (lists, ours):
            torch.ops.aten._fused_adamw_(*tensors, [], steps, **rates)
        assert beside_the_frames(session) <= FRAME_BYTES
    told = frames_of(session)
    assert told.too_large == 2
    assert told.frames.carried_pages > 0
    assert told.frames.kept == 0
    text = " ".join(sentinel.report().text().split())
    assert "2 operators, first aten::_fused_adamw_, used up to 96.00 MiB at once, more than 16.00 MiB" in text
    for expected, found in zip(lists, ours, strict=True):
        assert all(map(torch.equal, expected, found))


def test_fused_steps_are_called_for_each_tensor_until_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [getattr(torch, name) for name in FUSED]
    monkeypatch.setattr(torch, FUSED[0], before[0])  # is put back
    begin(folder)
    assert all(getattr(torch, name) is not own for name, own in zip(FUSED, before, strict=True))
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    torch._fused_sgd_(tensors, [torch.ones(2), torch.ones(3)], [], **SGD)
    with pytest.raises(RuntimeError, match="n_tensors"):
        torch._fused_sgd_(tensors, [torch.ones(2)], [], **SGD)
    assert [tensor.tolist() for tensor in tensors] == [[0.5] * 2, [1.5] * 3]
    theirs = print
    monkeypatch.setattr(torch, FUSED[0], theirs)
    sentinel.stop()
    assert [getattr(torch, name) for name in FUSED] == [theirs, *before[1:]]


Moved = Callable[[Callable[[], object]], tuple[int, int]]


@pytest.fixture
def moved(folder: Path) -> Moved:
    """Runs a call on what is away, and gives the MiB that were read, and those that came unread."""
    session = begin(folder)
    others = [torch.full((1 << 20,), 7.0) for _ in range(6)]

    def run(call: Callable[[], object]) -> tuple[int, int]:
        assert [float(other.sum()) for other in others] == [7.0 * (1 << 20)] * 6
        before = frames_of(session).frames
        call()
        after = frames_of(session).frames
        return (after.read_bytes - before.read_bytes) >> 20, (after.unread_bytes - before.unread_bytes) >> 20

    return run


def test_what_is_to_be_zero_is_not_read(moved: Moved) -> None:
    tensor = torch.ones(1 << 20)
    for call in (tensor.zero_, tensor.view(1024, 1024).T.zero_, lambda: torch.nn.init.zeros_(tensor)):
        assert moved(call) == (0, 4)
        assert not tensor.any()
        tensor.add_(1)
    neighbour = torch.full((3 << 18,), 6.0)  # 3 MiB: shares a granule with what follows
    other = torch.ones(3 << 18)
    assert moved(other.zero_) == (2, 2)
    assert torch.equal(neighbour, torch.full_like(neighbour, 6.0))
    assert not other.any()


class Looks(TorchDispatchMode):
    """Reads what is to be zero, before it is."""

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten.zero_.default:
            assert float(given[0].sum()) == 3.0 * (1 << 20)
        return function(*given, **(named or {}))


def test_what_may_be_read_or_refused_is_read(moved: Moved) -> None:
    tensor, source = torch.full((1 << 20,), 3.0), torch.full((1 << 20,), 3.0)
    parameter = torch.nn.Parameter(source.clone())

    def refused(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with pytest.raises(RuntimeError):
                call()

        return run

    calls = [
        refused(parameter.zero_),
        refused(lambda: parameter.view(-1).zero_()),
        lambda: tensor[:0].zero_(),
        lambda: torch._lazy_clone(tensor).zero_(),
        lambda: tensor.copy_(source),
        lambda: tensor.fill_(3.0),
        lambda: tensor.mul_(1),
    ]
    for call in calls:
        assert moved(call)[1] == 0
        assert all(torch.equal(each, source) for each in (tensor, parameter.detach()))
    with Looks():
        assert moved(tensor.zero_)[1] == 0
    assert not tensor.any()


def test_small_tensors_stay_in_ordinary_memory(folder: Path) -> None:
    session = begin(folder)
    held = [torch.ones((1 << 18) - 1), torch.ones(1 << 18)]
    assert frames_of(session).live_bytes == 1 << 20
    assert held[0].sum() + 1 == held[1].sum()


def test_a_tensor_larger_than_the_budget_is_told(folder: Path) -> None:
    begin(folder)
    large = torch.ones(5 << 20)
    assert float(large.sum()) == 5 << 20
    assert "1 allocation (20.00 MiB added up) found no room" in " ".join(sentinel.report().text().split())


def test_what_was_built_before_moves_in_where_it_is_named(folder: Path) -> None:
    model = torch.nn.Linear(1024, 1024)
    before = model.weight.detach().clone()
    session = begin(folder, model=model)
    assert frames_of(session).live_bytes == 4 << 20
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_was_built_before_is_told_where_it_is_not_named(folder: Path, frozen: bool) -> None:
    gc.unfreeze()  # what the collection of tests has frozen
    gc.collect()
    model = torch.nn.Linear(1024, 1024)
    if frozen:
        gc.freeze()
    session = begin(folder)
    assert bool(gc.get_freeze_count()) == frozen
    gc.unfreeze()
    assert frames_of(session).live_bytes == 0
    assert "4.00 MiB of parameters were there before" in " ".join(sentinel.report().text().split())
    del model


def test_what_stays_where_it_was_though_it_is_named_hides_nothing_that_is_not(folder: Path) -> None:
    gc.collect()
    model, unnamed = torch.nn.Linear(8, 8), torch.nn.Linear(1024, 1024)
    model.register_buffer("table", torch.ones(1024, 1024))
    held = model.table.numpy()  # so that it cannot move
    session = begin(folder, model=model)
    assert [name for name, _, _ in session._left] == ["table"]
    assert "4.00 MiB of parameters were there before" in " ".join(sentinel.report().text().split())
    del held, unnamed


def test_nothing_is_left_over(folder: Path) -> None:
    """Tensors that live on are brought in as before; with the last of them, memory and file go."""
    gc.collect()  # what earlier tests left open in cycles is not closed meanwhile
    descriptors = len(os.listdir("/proc/self/fd"))
    begin(folder)
    held = [torch.full((1 << 20,), float(i)) for i in range(12)]
    assert len(os.listdir("/proc/self/fd")) > descriptors
    sentinel.stop()
    assert not sentinel.active()
    fresh = torch.ones(1 << 20)
    assert [float(tensor.sum()) for tensor in held] == [i * float(1 << 20) for i in range(12)]
    assert sentinel.report().setup.storage.tensor_peak_bytes == 12 << 22
    with pytest.raises(sentinel.UsageError, match="tensors of an earlier session"):
        begin(folder)
    assert not sentinel.active()
    del held
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert "memfd:sentinel-frames" not in Path("/proc/self/maps").read_text()
    begin(folder)
    assert float(fresh.sum()) == 1 << 20


CLOSES_DESCRIPTORS = """
import ctypes, os, signal, sys
import torch, sentinel
folder = sys.argv[1]
sentinel.start_profile(fast="16MiB", slow=f"file:{folder}=256MiB")
framed = sentinel.runtime.RUNTIME.sink._framed
tensors = [torch.full((1 << 20,), float(i)) for i in range(16)]
child = os.fork()  # as long as it lives it reads what is away
if child == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its parent, however that ends
    os.closerange(0, 3)
    signal.alarm(600)
    signal.pause()
before = framed.counters().frames
os.closerange(3, 256)
theirs = [os.open(os.path.join(folder, f"theirs-{i}"), os.O_RDWR | os.O_CREAT) for i in range(64)]
for tensor in tensors:
    tensor += 1
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
frames = framed.counters().frames
moved = frames.read_bytes - before.read_bytes, frames.written_bytes - before.written_bytes
print(min(moved) >= 32 << 20, frames.generations)
print([float(tensor.double().mean()) for tensor in tensors] == [i + 1.0 for i in range(16)])
sentinel.stop()
for each in theirs:
    assert os.write(each, b"theirs") == 6
print({os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)})
"""


def test_a_program_that_closes_all_descriptors_loses_no_byte(folder: Path, tmp_path: Path) -> None:
    """Tensors go on leaving and arriving, and what it opens next is not taken for a file of ours."""
    (tmp_path / "closes.py").write_text(CLOSES_DESCRIPTORS)
    done = warm.run([sys.executable, str(tmp_path / "closes.py"), str(folder)], cwd=ROOT, timeout=600)
    assert (done.returncode, done.stdout) == (0, "True 0\nTrue\n{6}\n"), done.stderr


def test_what_a_session_wrote_in_an_hour_is_the_same_an_hour_after_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    begin(folder)
    kept = [torch.ones(1 << 20) for _ in range(8)]  # 32 MiB in 16
    now += 3600
    sentinel.stop()
    now += 3600
    report = sentinel.report().facts.setup
    assert report.storage is not None
    assert report.storage.written_bytes >= 16 << 20
    said = f"{format_bytes(report.storage.written_bytes)} an hour are written to the disk, which wears."
    assert said in report.notes
    assert all(bool((tensor == 1).all()) for tensor in kept)


def test_a_model_that_nobody_uses_any_more_is_not_in_the_way(folder: Path) -> None:
    """One that is part of a cycle lives until Python looks for cycles."""
    begin(folder)
    model = torch.nn.Linear(1024, 1024)
    model.itself = [model]
    gc.disable()
    try:
        del model
        sentinel.stop()
        assert frames_of(begin(folder)).live_bytes == 0
    finally:
        gc.enable()


def test_ticks_and_the_end_of_a_profile_lead_to_nothing(folder: Path) -> None:
    session = begin(folder)
    sentinel.add_layer("a")
    assert sentinel.end_profile().provisional
    with pytest.raises(sentinel.UsageError, match="running already"):
        sentinel.start_profile()
    report = sentinel.report()
    assert report.headline["kind"] == "passive"
    assert report.frames()["storage"]["figure"].tolist()[0] == "pool_bytes"
    assert session.request.slow in report.text()
    assert TITLE in report.text()
    for suffix in ("html", "json", "csv", "txt", "trace"):
        assert report.write(folder / f"report.{suffix}")


def test_the_page_shows_what_is_known_without_a_plan(folder: Path) -> None:
    begin(folder)
    kept = [torch.ones(1 << 20) for _ in range(8)]
    page = folder / "report.html"
    sentinel.report().write(page)
    text = page.read_text()
    cards = text[text.index('<div class="cards">') : text.index("All figures")]
    assert "Memory for tensors" in cards
    assert "unknown" not in cards
    assert "The plan has no migrations" not in text
    assert "of memory for 32.00 MiB of tensors" in text
    assert all(bool((tensor == 1).all()) for tensor in kept)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"fast": "1MiB"}, "less than one frame of 2.00 MiB"),
        ({"fast": "20%"}, "a share of the footprint is not possible"),
        ({"fast": None}, "needs a budget"),
        ({"slow": "file:"}, "names no directory"),
        (
            {"slow": "file:auto"},
            'no local disk but .* has 16.00 MiB free .* slow="file:/var/tmp", or SENTINEL_SCRATCH=',
        ),
        ({"cap": "20%"}, "cap='20%' is a share"),
        ({"cap": "much"}, "'much' is not an amount"),
        ({"cap": 3.0}, "type float is not accepted"),
        ({"cap": "64MiB"}, "this process takes .* already, 128.00 MiB stay free, and tensors need 8.00 MiB"),
        ({"cap": "8GiB", "slow": "numa:1"}, 'what exceeds a cap needs a file.* or "file:auto"'),
        ({"cap": "8GiB", "slow": "auto"}, 'no local disk but .* slow="file:/var/tmp", or SENTINEL_SCRATCH='),
        ({"cap": "4096TiB", "fast": None}, "cap='4096TiB' allows tensors .* this host has .* left; give at most"),
        ({"slow": "file:/no/such/place"}, "is not a directory"),
        ({"slow": "file:/dev/shm"}, "is tmpfs, which is in memory"),
        ({"slow": "file:{}=4MiB"}, "is too small beside memory of"),
        ({"machine": "cxl-m5"}, "leave machine out"),
        ({"rate_limit": "1GiB/s"}, "leave rate_limit out"),
        ({"tracker": "ops"}, "leave tracker out"),
        ({"policy": "lru"}, "leave policy out"),
        ({"fast": "4096TiB"}, "this host has .* left; give at most"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_changes(
    asked: dict[str, Any], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "limited_groups", lambda *_: [])
    monkeypatch.delenv(scratch_disk.NAMED, raising=False)
    monkeypatch.setattr(scratch_disk, "mounts", lambda root: ())
    monkeypatch.setattr(scratch_disk, "mount_of", lambda path, root: Mount(Path("/"), "ext4"))
    words = {"fast": "8MiB", "slow": f"file:{folder}=64MiB", **asked}
    words["slow"] = words["slow"].format(folder)
    with pytest.raises(sentinel.UsageError, match=says):
        sentinel.start_profile(**words)
    assert not sentinel.active()
    assert not list(folder.iterdir())


def test_a_full_disk_is_left_for_another_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that it has no room for would be refused later. One helps where half of the free room is too little."""
    disk = disk_of(str(folder))
    for free, remedy in ((1 << 20, "name a directory on a disk with more room"), (12 << 20, f"file:{folder}=12MiB")):
        monkeypatch.setattr(file_tier, "disk_of", lambda _, free=free: replace(disk, free_bytes=free))
        with pytest.raises(sentinel.UsageError, match=f"too small beside memory of.* free; .*{re.escape(remedy)}"):
            FileTier.asked(f"file:{folder}", "8MiB")


def test_a_directory_of_somebody_else_is_refused() -> None:
    if (pid := os.fork()) == 0:  # root may write everywhere, and what gave up its rights does not get them back
        code = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with pytest.raises(sentinel.UsageError, match="/ may not be written to"):
                FileTier.asked("file:/", "8MiB")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_file_without_a_size_takes_what_the_host_and_the_disk_have(folder: Path) -> None:
    tier = FileTier.asked(f"file:{folder}", "9MiB")
    assert tier.fast_bytes == 4 * FRAME_BYTES
    assert tier.file_bytes <= disk_of(folder).free_bytes
    assert is_file("file:x")
    assert not is_file("numa:1")


def test_a_folder_whose_name_ends_like_a_size_is_a_folder(folder: Path) -> None:
    for name in ("seed=1", "lr=0.1"):
        (folder / name).mkdir()
        assert FileTier.asked(f"file:{folder / name}", "8MiB").folder == str(folder / name)
        assert FileTier.asked(f"file:{folder / name}=64MiB", "8MiB").file_bytes == 64 << 20


def test_a_file_is_no_larger_than_the_kernel_lets_a_process_map(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "most_mappings", lambda: 100)  # 88 granules
    monkeypatch.setattr(limits, "host_bytes", lambda: 1 << 50)
    most = 88 * FRAME_BYTES
    assert FileTier.asked(f"file:{folder}", "8MiB").file_bytes <= most
    sized = f"file:{folder}=176MiB"
    for slow, fast, what in (
        (f"file:{folder}=177MiB", "8MiB", sized),
        (f"file:{folder}", "178MiB", "fast=176MiB"),
        (f"file:{folder}=177MiB", "178MiB", f"{sized} and fast=176MiB"),
    ):
        with pytest.raises(sentinel.UsageError, match=f"no more than {what}, or allow more mappings"):
            FileTier.asked(slow, fast)
    assert FileTier.asked(f"file:{folder}=176MiB", "8MiB").file_bytes == most
    sentinel.start_profile(fast="8MiB", slow=f"file:{folder}=128MiB")
    session = sentinel.runtime.RUNTIME.sink
    assert isinstance(session, PassiveSession)
    assert session._framed is not None
    assert (session._framed.facts.granules, session._framed.facts.regions) == (88, 64)


def test_processes_of_one_job_share_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "most_mappings", lambda: 1 << 31)
    monkeypatch.setattr(limits, "host_bytes", lambda: 1 << 50)
    alone = FileTier.asked(f"file:{folder}", "8MiB").file_bytes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert FileTier.asked(f"file:{folder}", "8MiB").file_bytes == pytest.approx(alone / 4, rel=0.2)


def test_an_amount_for_the_node_is_divided_among_the_processes_of_any_launcher(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("PROCID", "1"), ("STEP_NUM_TASKS", "2"), ("LOCALID", "1"), ("STEP_TASKS_PER_NODE", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert FileTier.asked(f"file:{folder}=256MiB", "16MiB/node").fast_bytes == 8 << 20
    assert FileTier.asked(f"file:{folder}=256MiB", "16MiB").fast_bytes == 16 << 20


def test_more_memory_than_there_is_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 64 << 20)
    with pytest.raises(sentinel.UsageError, match=r"64\.00 MiB left; give at most 64MiB"):
        FileTier.asked(f"file:{folder}=256MiB", "65MiB")
    assert FileTier.asked(f"file:{folder}=256MiB", "64MiB").fast_bytes == 64 << 20


def test_processes_of_one_job_share_what_the_host_has_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where some of them have taken theirs."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for left, shared in ((256, 0), (128, 128)):
        monkeypatch.setattr(limits, "available_bytes", lambda left=left: left << 20)
        monkeypatch.setattr(limits, "shared_bytes", lambda shared=shared: shared << 20)
        assert FileTier.asked(f"file:{folder}=256MiB", "64MiB").fast_bytes == 64 << 20
        assert FileTier.asked(f"file:{folder}=256MiB", "256MiB/node").fast_bytes == 64 << 20
        says = r"'66MiB' allows the tensors of each of 4 processes 66.00 MiB .* has 256.00 MiB left; give at most 64MiB"
        with pytest.raises(sentinel.UsageError, match=says):
            FileTier.asked(f"file:{folder}=256MiB", "66MiB")


def test_shared_memory_of_others_is_not_what_a_job_has_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(limits, "available_bytes", lambda: 64 << 20)
    monkeypatch.setattr(limits, "shared_bytes", lambda: 64 << 30)
    with pytest.raises(sentinel.UsageError, match=r"'65MiB' allows the tensors of each of 2 processes 65\.00 MiB"):
        FileTier.asked(f"file:{folder}=256MiB", "65MiB")


def test_a_container_that_may_have_more_than_the_host_has_left_is_refused_in_words_of_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = LimitedGroup(1 << 30, 1 << 30, tmp_path, tmp_path, tmp_path, "idle", "busy")
    monkeypatch.setattr(limits, "limited_groups", lambda *_: [group])
    monkeypatch.setattr(limits, "host_bytes", lambda: 2 << 30)
    monkeypatch.setattr(limits, "available_bytes", lambda: 512 << 20)
    says = r"^the container's limit allows tensors 896.00 MiB .* has 512.00 MiB left; give fast, at most 512MiB"
    with pytest.raises(sentinel.UsageError, match=says):
        FileTier.asked(f"file:{folder}=1GiB", None)
    assert FileTier.asked(f"file:{folder}=1GiB", "256MiB").fast_bytes == 256 << 20


def test_a_cap_that_leaves_too_little_is_refused_with_one_that_would_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_cap, "taken_bytes", lambda: 400 << 20)  # its part of pages that others map comes and goes
    with pytest.raises(sentinel.UsageError, match="allow at least") as refused:
        FileTier.asked(f"file:{folder}=1GiB", None, "64MiB")
    enough = refused.value.remedy.split()[-1]
    tier = FileTier.asked(f"file:{folder}=1GiB", None, enough)
    assert tier.cap is not None
    assert LEAST_POOL_BYTES <= tier.fast_bytes <= LEAST_POOL_BYTES + (64 << 20)
    assert tier.cap.most_bytes <= parse_bytes(enough)
    assert FileTier.asked(f"file:{folder}=1GiB", "16MiB", enough).fast_bytes == 16 << 20


def test_under_a_cap_the_pool_is_what_the_rest_leaves(folder: Path) -> None:
    """What this process takes is looked at twice: its part of pages that others map changes as they come and go."""
    room = 200 << 20
    cap = (taken_bytes() + room) * 8 // 7
    session = begin(folder, None, cap=cap)
    told = sentinel.report().setup.storage
    assert told.cap_bytes == cap
    assert session._tier.cap is not None
    rests = [cap - taken - told.spare_bytes for taken in (session._tier.cap.taken_bytes, told.taken_bytes)]
    assert min(room, *rests) - (32 << 20) <= told.pool_bytes <= max(rests) + (32 << 20)
    assert told.spare_bytes == max(cap // 8, 128 << 20)
    assert (sentinel.report().setup.cap, sentinel.report().setup.fast) == (str(cap), None)
    assert told.resident_bytes <= told.pool_bytes * 1.01


@pytest.mark.parametrize(("ranks", "fills"), [(1, "own"), (2, "own"), (1, "around")])
def test_the_default_is_what_the_container_leaves(
    ranks: int, fills: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is a cgroup around the container that fills later, as that of a pod or a slice."""

    def group(name: str, limit_mib: int, used_mib: int) -> LimitedGroup:
        limit, used, stat = (tmp_path / f"{name}.{file}" for file in ("limit", "used", "stat"))
        limit.write_text(f"{limit_mib << 20}\n")
        used.write_text(f"{used_mib << 20}\n")
        stat.write_text(f"idle {4 << 20}\n")
        return LimitedGroup(limit_mib - used_mib + 4 << 20, limit_mib << 20, limit, used, stat, "idle", "busy")

    groups = [group("own", 1024, 800), group("around", 2048, 1024)]
    monkeypatch.setattr(limits, "limited_groups", lambda *_: groups)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(limits, "host_bytes", lambda: 4 << 30)
    begin(folder, None)
    told = sentinel.report().setup.storage
    assert told.spare_bytes == 128 << 20
    assert told.pool_bytes == (228 - 128) // ranks << 20
    said = " ".join(sentinel.report().text().split())
    assert "1.00 GiB is the cap on the memory cgroup that had least left at the start:" in said
    (tmp_path / f"{fills}.used").write_text(f"{(928 if fills == 'own' else 1952) << 20}\n")
    native.function("sn_framed_look", None)()
    torch.ones(1 << 20)
    over = (928 - 4 + 128 - 1024) // ranks << 20
    now = sentinel.report().setup.storage
    looks = now.looks - told.looks  # a slow host looks more than once, and finds the same each time
    assert looks > 0
    assert now.pool_bytes == max(told.pool_bytes - looks * over, LEAST_POOL_BYTES)
    sentinel.stop()
    monkeypatch.setattr(limits, "host_bytes", lambda: 1 << 30)
    with pytest.raises(sentinel.UsageError, match="no container limits this process"):
        FileTier.asked(f"file:{folder}", None)


def test_a_disk_is_found_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(scratch_disk.NAMED, str(folder))
    sentinel.start_profile(fast="8MiB", slow="file:auto=64MiB")
    said = f"file:auto is {folder}: {disk_of(folder).file_system}, "
    assert said in capsys.readouterr().err
    assert said in " ".join(sentinel.report().setup.notes)
    monkeypatch.setenv(scratch_disk.NAMED, "/dev/shm")
    with pytest.raises(sentinel.UsageError, match="is tmpfs, which is in memory"):
        FileTier.asked("file:auto", "8MiB")
