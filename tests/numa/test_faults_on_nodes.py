"""Two real nodes, and what goes wrong there: training stays bit-identical, and the report tells of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.numa import faults, vm_calls

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*moving .*training goes on:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*was born in fast memory with no room:RuntimeWarning"),
]

pytest.importorskip("torch")
import torch  # noqa: E402
from torch import nn  # noqa: E402

import sentinel  # noqa: E402
from sentinel.core.run import OUTCOMES, Run  # noqa: E402
from sentinel.migration import strays  # noqa: E402
from sentinel.migration.sightings import Sightings  # noqa: E402
from sentinel.migration.witness import MigrationWitness  # noqa: E402
from sentinel.reports import build_report  # noqa: E402
from sentinel.session import session  # noqa: E402
from sentinel.system import native  # noqa: E402

WIDTH = 96
STEPS = 8
MOVE_PAGES = 279


class Net(nn.Sequential):
    def __init__(self) -> None:
        hidden = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        super().__init__(*hidden, nn.Linear(WIDTH, 10))


@dataclass
class Trained:
    """What came of a training run; `run` and `text` of the report if it was ours."""

    losses: list[float]
    parameters: list[torch.Tensor]
    run: Run | None = None
    text: str = ""
    seen: Sightings | None = None

    def told(self, words: str) -> bool:
        assert self.run is not None
        return any(words in sentence for _, sentence in self.run.events) and words in self.text


Loader = Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]
Fault = Callable[[nn.Module], contextlib.AbstractContextManager[object]]


def in_process() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(32, WIDTH, generator=generator), torch.randint(0, 10, (32,), generator=generator)


def train(
    data: Loader = in_process,
    *,
    ours: bool,
    fault: Fault | None = None,
    at: int = 3,
    until: int = 6,
    watch: bool = False,
) -> Trained:
    """Eight steps; `fault` holds from step `at` to before step `until`. `watch`: by the witness."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if ours:
        handle = sentinel.annotate(model, optimizer)
    losses: list[float] = []
    with contextlib.ExitStack() as held:
        for step, (inputs, targets) in zip(range(STEPS), data(), strict=False):
            if ours and step == 1:
                sentinel.start_profile(model, optimizer, fast="20%", slow="numa:1", tracker="ops")
                if watch:
                    witness = MigrationWitness()
                    witness.start(arenas())
            if fault is not None and step == at:
                held.enter_context(fault(model))
            if step == until:
                held.close()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if ours and step == 1:
                sentinel.end_profile()
    trained = Trained(losses, [parameter.detach().clone() for parameter in model.parameters()])
    if ours:
        trained.run = sentinel.stop()
        if watch:
            trained.seen = witness.read()
            witness.stop()
        trained.text = " ".join(build_report(executed=trained.run).text().split())
        handle.remove()
    return trained


@pytest.fixture(autouse=True)
def one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """No better plan takes over in the middle: a run has the rows of the last plan only."""
    monkeypatch.setattr(session, "REFINE_STEPS", 1 << 30)


@cache
def stock() -> Trained:
    return train(ours=False)


def same(one: Trained, other: Trained) -> None:
    assert one.losses == other.losses
    assert all(map(torch.equal, one.parameters, other.parameters))
    assert one.run is None
    assert other.run is not None
    assert other.run.counters["migrated_bytes"] > 0
    assert not other.run.emulated


def failed(run: Run) -> set[int]:
    words = [OUTCOMES.index(word) for word in ("failed", "partial")]
    rows = run.migrations[[outcome in words for outcome in run.migrations["outcome"]]]
    return set(rows["errno"].tolist())


def test_without_a_fault_nothing_is_told() -> None:
    ours = train(ours=True)
    same(stock(), ours)
    assert ours.run is not None
    assert not failed(ours.run)
    assert [s for _, s in ours.run.events if "test and trial" not in s] == []
    assert "kernel_placed_pages" not in ours.run.counters
    assert ours.run.counters["overflow_bytes"] == 0
    assert sentinel.report().headline["kind"] == "executed"  # and its sums reconcile


@pytest.mark.parametrize("node", [1, 0])
def test_a_full_node(node: int) -> None:
    ours = train(ours=True, fault=lambda model: faults.full(node))
    same(stock(), ours)
    assert ours.run is not None
    assert failed(ours.run) == {errno.ENOMEM}
    assert ours.run.counters["stayed_ENOMEM"] > 0
    assert ours.told("Cannot allocate memory")


def test_pinned_pages() -> None:
    def pin(model: nn.Module) -> contextlib.AbstractContextManager[None]:
        weight = model[2].weight  # type: ignore[index]
        return faults.pinned(weight.data_ptr(), weight.untyped_storage().nbytes())

    ours = train(ours=True, fault=pin)
    same(stock(), ours)
    assert ours.run is not None
    assert failed(ours.run) <= {errno.EBUSY, errno.EAGAIN}
    assert failed(ours.run)
    assert ours.told("2.weight")


@pytest.mark.parametrize("nth", [2, 11])
def test_a_call_that_fails(nth: int) -> None:
    @contextlib.contextmanager
    def failing(_model: nn.Module) -> Iterator[None]:
        native.library().sn_system_fail(MOVE_PAGES, nth, errno.ENOMEM)
        yield
        assert native.library().sn_system_fail(MOVE_PAGES, 0, 0) == 0  # it came to that

    ours = train(ours=True, fault=failing)
    same(stock(), ours)
    assert ours.run is not None
    assert failed(ours.run) <= {errno.ENOMEM}
    assert bool(failed(ours.run)) == bool(ours.run.counters.get("stayed_ENOMEM", 0))


def _sum(model: nn.Module) -> float:
    """Of all parameters; by numpy, for tensors made in mid-step would be another dataflow."""
    return sum(float(parameter.detach().numpy().sum(dtype="float64")) for parameter in model.parameters())


def _sum_of(model: nn.Module, expected: float) -> None:
    os._exit(0 if _sum(model) == expected else 1)


@pytest.mark.parametrize("by", ["os.fork", "multiprocessing"])
def test_a_fork_in_the_middle_of_a_migration(by: str) -> None:
    """In the forward pass of each step, while pages move both ways; the child reads all parameters."""
    children: list[int | None] = []

    @contextlib.contextmanager
    def forking(model: nn.Module) -> Iterator[None]:
        def fork(*_: object) -> None:
            expected = _sum(model)
            if by == "os.fork":
                child = os.fork()
                if not child:
                    _sum_of(model, expected)
                children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            else:
                process = multiprocessing.get_context("fork").Process(target=_sum_of, args=(model, expected))
                process.start()
                process.join()
                children.append(process.exitcode)

        hook = model[4].register_forward_hook(fork)  # type: ignore[index]
        yield
        hook.remove()

    ours = train(ours=True, fault=forking)
    same(stock(), ours)
    assert children == [0] * 3
    assert ours.run is not None
    assert ours.run.counters["swept"] > 0
    assert ours.run.counters["overflow_bytes"] == 0


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), torch.tensor(index % 10)


def by_workers() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two workers, forked anew for each epoch of two batches."""
    loader = torch.utils.data.DataLoader(Samples(), batch_size=32, num_workers=2)
    while True:
        yield from loader


def test_workers_forked_again_every_epoch() -> None:
    """Writes of the parent to pages that workers share bring them back to fast memory; they are demoted again."""
    ours = train(by_workers, ours=True)
    same(train(by_workers, ours=False), ours)
    assert ours.run is not None
    assert not failed(ours.run)
    assert ours.run.counters["kernel_placed_pages"] > 0
    assert ours.told("copy-on-write after a fork")
    assert ours.run.counters["overflow_bytes"] == 0
    assert (ours.run.layers["fast_bytes"] <= ours.run.fast_capacity_bytes).all()


def test_pages_that_workers_share_wait_without_the_right_to_move_them() -> None:
    with faults.without_the_right_to_move_shared_pages():
        ours = train(by_workers, ours=True)
    same(train(by_workers, ours=False), ours)
    assert ours.run is not None
    assert failed(ours.run) == {errno.EACCES}
    assert ours.run.counters["stayed_EACCES"] > 0
    assert ours.told("Permission denied")
    assert "shared with a forked child" in ours.text


@pytest.mark.parametrize("mode", ["1", "2"])
def test_balancing_leaves_the_plan_alone(mode: str) -> None:
    """NUMA balancing (2: the kernel's tiering) at its most eager; pages without a policy show that it is at work."""
    assert vm_calls.has_debugfs()
    seen: list[Sightings] = []
    free = vm_calls.Pages(211)
    vm_calls.move_pages(free.addresses(), 1)

    @contextlib.contextmanager
    def eager(model: nn.Module) -> Iterator[None]:
        hook = model.register_forward_hook(lambda *_: free.touch() and None)
        witness = MigrationWitness()
        witness.start([*arenas(), (free.address, free.n_pages * vm_calls.PAGE)])
        with vm_calls.eager_balancing(mode, every_ms=10):
            yield
            end = time.monotonic() + 90
            while mode == "1" and free.nodes()[0] < 11 and time.monotonic() < end:
                assert free.touch()
                _sum(model)
        hook.remove()
        seen.append(witness.read())
        witness.stop()

    ours = train(ours=True, fault=eager, at=2, until=STEPS - 1)
    free.close()
    same(stock(), ours)
    in_arenas = seen[0].within(arenas())
    # Compaction moves pages about within a node: it makes room there, and undoes no plan.
    assert set(in_arenas.pages_by_reason()) - {"compaction"} == {"syscall"}
    if mode == "1":
        assert seen[0].pages(reason="numa_misplaced", to_node=0) > 0


def arenas() -> list[tuple[int, int]]:
    """Address and bytes of the memory that Sentinel manages."""
    spans = []
    for name in ("sn_exclusive_range", "sn_placement_range"):
        found = native.Range()
        assert getattr(native.library(), name)(ctypes.byref(found)) == 0
        spans.append((found.base, found.reserved_bytes))
    return spans


def test_the_witness_counts_what_the_engine_claims() -> None:
    """From before the first migration until all is home again; forked workers included, for strays are claimed too."""
    ours = train(by_workers, ours=True, watch=True)
    same(train(by_workers, ours=False), ours)
    assert ours.run is not None
    assert ours.seen is not None
    assert int(ours.run.migrations["step"].min()) == 0  # no row is missing
    claimed = int(ours.run.migrations["moved_bytes"].sum()) // vm_calls.PAGE
    assert ours.seen.pages_by_reason() == {"syscall": claimed}
    assert ours.seen.lost == 0  # a page that workers map too is unmapped there as well: those records match no move


def test_a_node_outside_the_cpuset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strays, "AUDIT_STEPS", 2)
    ours = train(ours=True, fault=lambda model: faults.only_node(0))
    same(stock(), ours)
    assert ours.run is not None
    assert errno.EACCES in failed(ours.run)
    assert ours.told("Permission denied")
    assert ours.run.counters["kernel_placed_pages"] > 0  # it brought them to node 0, whatever the plan said
    assert any("the kernel placed" in sentence for _, sentence in ours.run.events)
    assert "The kernel placed" in ours.text
