"""A node that goes offline under a job: run in `tools/numa_vm/run --removable`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

import pytest

from tests.numa import faults

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_plan"),
    pytest.mark.filterwarnings("ignore:.*moving .*training goes on:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*was born in fast memory with no room:RuntimeWarning"),
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from sentinel.migration.sightings import Sightings  # noqa: E402
from sentinel.migration.witness import MigrationWitness  # noqa: E402
from tests.numa.training import STEPS, arenas, failed, same, stock, train  # noqa: E402
from tests.seen_pages import pages  # noqa: E402

NODE = 1


@pytest.fixture(autouse=True)
def removable() -> None:
    if not faults.may_go_offline(NODE):
        pytest.skip("needs nodes of which one may go offline: tools/numa_vm/run --removable")


@pytest.mark.parametrize("back", [False, True])
def test_a_node_taken_offline(back: bool) -> None:
    """In the middle of a forward pass, with migrations under way; `back`: for two steps."""
    seen: list[Sightings] = []

    @contextlib.contextmanager
    def offline(model: nn.Module) -> Iterator[None]:
        witness, gone = MigrationWitness(), contextlib.ExitStack()
        witness.start(arenas())

        def go(*_: object) -> None:
            hook.remove()
            gone.enter_context(faults.offline(NODE))

        hook = model.get_submodule("4").register_forward_hook(go)
        with gone:
            yield
            assert NODE not in faults.nodes_with_memory()
        seen.append(witness.read())
        witness.stop()

    ours = train(ours=True, fault=offline, at=3, until=5 if back else STEPS)
    run = same(stock(), ours)
    assert errno.ENODEV in failed(run)
    assert ours.told("No such device")
    assert pages(seen[0], reason="memory_hotplug", to_node=0) > 0
    assert run.counters.kernel_placed_pages > 0  # it brought them to node 0, whatever the plan said
    assert any("the kernel placed" in sentence for _, sentence in run.events)
    assert "The kernel placed" in ours.text
    assert run.witnessed is not None
    assert ("memory_hotplug", 0) in {(row.reason, row.node) for row in run.witnessed.moved_by}
    assert "memory hotplug" in ours.text
    assert "engine and witness agree" in ours.text
    moved_there = run.migrations[(run.migrations["target"] == 1) & (run.migrations["moved_bytes"] > 0)]
    assert bool((moved_there["step"] >= 3).any()) == back  # of the applied steps, that which it is back in
