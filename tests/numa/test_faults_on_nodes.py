"""Two real nodes, and what goes wrong there: training stays bit-identical, and the report tells of it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from functools import cache

import pytest

from tests.numa import faults, vm_calls

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_plan"),
    pytest.mark.filterwarnings("ignore:.*moving .*training goes on:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*was born in fast memory with no room:RuntimeWarning"),
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
import torch  # noqa: E402
from torch import nn  # noqa: E402

import sentinel  # noqa: E402
from sentinel.migration.sightings import Sightings  # noqa: E402
from sentinel.migration.witness import MigrationWitness  # noqa: E402
from sentinel.system import native  # noqa: E402
from tests.numa.training import STEPS, WIDTH, arenas, failed, same, stock, train  # noqa: E402
from tests.processes import until  # noqa: E402
from tests.seen_pages import pages, pages_by_reason, within  # noqa: E402
from tests.training import Trained, fork_in_each_forward, total  # noqa: E402

MOVE_PAGES = 279


def test_without_a_fault_nothing_is_told() -> None:
    ours = train(ours=True)
    run = same(stock(), ours)
    assert not failed(run)
    assert run.events == ()
    assert not run.counters.kernel_placed_pages
    assert run.counters.overflow_bytes == 0
    assert sentinel.report().headline["kind"] == "executed"  # and its sums reconcile


@pytest.mark.parametrize("node", [1, 0])
def test_a_full_node(node: int) -> None:
    ours = train(ours=True, fault=lambda model: faults.full(node))
    run = same(stock(), ours)
    assert failed(run) == {errno.ENOMEM}
    assert run.counters.stayed["ENOMEM"] > 0
    assert ours.told("Cannot allocate memory")


def test_pinned_pages() -> None:
    def pin(model: nn.Module) -> contextlib.AbstractContextManager[None]:
        weight = model[2].weight  # type: ignore[index]
        return faults.pinned(weight.data_ptr(), weight.untyped_storage().nbytes())

    ours = train(ours=True, fault=pin)
    run = same(stock(), ours)
    assert failed(run) <= {errno.EBUSY, errno.EAGAIN}
    assert failed(run)
    assert ours.told("2.weight")


@pytest.mark.parametrize("nth", [2, pytest.param(11, marks=pytest.mark.long)])
def test_a_call_that_fails(nth: int) -> None:
    @contextlib.contextmanager
    def failing(_model: nn.Module) -> Iterator[None]:
        native.library().sn_system_fail(MOVE_PAGES, nth, errno.ENOMEM)
        yield
        assert native.library().sn_system_fail(MOVE_PAGES, 0, 0) == 0  # it came to that

    ours = train(ours=True, fault=failing)
    run = same(stock(), ours)
    assert failed(run) <= {errno.ENOMEM}
    assert bool(failed(run)) == bool(run.counters.stayed.get("ENOMEM", 0))


@pytest.mark.parametrize("by", ["os.fork", pytest.param("multiprocessing", marks=pytest.mark.long)])
def test_a_fork_in_the_middle_of_a_migration(by: str) -> None:
    """While pages move both ways."""
    children: list[int | None] = []

    @contextlib.contextmanager
    def forking(model: nn.Module) -> Iterator[None]:
        hook = fork_in_each_forward(model, by, children)
        yield
        hook.remove()

    ours = train(ours=True, fault=forking)
    run = same(stock(), ours)
    assert children == [0] * 3
    assert run.counters.swept > 0
    assert run.counters.overflow_bytes == 0


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), torch.tensor(index % 10)


def by_workers() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two workers, forked again for each epoch of two batches."""
    loader = torch.utils.data.DataLoader(Samples(), batch_size=32, num_workers=2)
    while True:
        yield from loader


@cache
def stock_by_workers() -> Trained:
    """What stock PyTorch makes of `by_workers`."""
    return train(by_workers, ours=False)


def test_pages_that_workers_share_wait_without_the_right_to_move_them() -> None:
    with faults.without_the_right_to_move_shared_pages():
        ours = train(by_workers, ours=True)
    run = same(stock_by_workers(), ours)
    assert failed(run) == {errno.EACCES}
    assert run.counters.stayed["EACCES"] > 0
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
            if mode == "1":
                until(lambda: (total(model), free.touched_nodes()[0] >= 11)[1], 0)
        hook.remove()
        seen.append(witness.read())
        witness.stop()

    ours = train(ours=True, fault=eager, at=2, until=STEPS - 1)
    free.close()
    same(stock(), ours)
    in_arenas = within(seen[0], arenas())
    # Compaction moves pages about within a node: it makes room there, and undoes no plan.
    assert set(pages_by_reason(in_arenas)) - {"compaction"} == {"syscall"}
    if mode == "1":
        assert pages(seen[0], reason="numa_misplaced", to_node=0) > 0


def test_workers_are_forked_again_every_epoch_and_the_witness_counts_what_the_engine_claims() -> None:
    """From before the first migration until all is home again; forked workers included, for strays are claimed too:
    writes of the parent to pages that workers share bring them back to fast memory; they are demoted again."""
    seen: list[Sightings] = []

    @contextlib.contextmanager
    def watched(_model: nn.Module) -> Iterator[None]:
        witness = MigrationWitness()
        witness.start(arenas())
        yield
        seen.append(witness.read())
        witness.stop()

    ours = train(by_workers, ours=True, fault=watched, at=1, until=STEPS)
    run = same(stock_by_workers(), ours)
    assert int(run.migrations["step"].min()) == 0  # no row is missing
    claimed = int(run.migrations["moved_bytes"].sum()) // vm_calls.PAGE
    by_reason = pages_by_reason(seen[0])
    by_reason.pop("compaction", None)  # which moves pages about within a node, whenever the kernel wants to
    assert by_reason == {"syscall": claimed}
    assert seen[0].lost == 0  # a page that workers map too is unmapped there as well: those records match no move
    assert not failed(run)
    assert run.counters.kernel_placed_pages > 0
    assert ours.told("copy-on-write after a fork")
    assert run.counters.overflow_bytes == 0
    assert (run.layers["fast_bytes"] <= run.fast_capacity_bytes).all()


def test_a_node_outside_the_cpuset() -> None:
    ours = train(ours=True, fault=lambda model: faults.only_node(0))
    run = same(stock(), ours)
    assert errno.EACCES in failed(run)
    assert ours.told("Permission denied")
    assert run.counters.kernel_placed_pages > 0  # it brought them to node 0, whatever the plan said
    assert any("the kernel placed" in sentence for _, sentence in run.events)
    assert "The kernel placed" in ours.text
