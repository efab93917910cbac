"""Tensors in huge pages on two real nodes: each block is where the engine has it, and no neighbour moves along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_plan"),
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
import torch  # noqa: E402
from torch import nn  # noqa: E402

import sentinel  # noqa: E402
from sentinel.core.run import Run  # noqa: E402
from sentinel.core.units import HUGE_PAGE_BYTES  # noqa: E402
from sentinel.migration.witness import MigrationWitness  # noqa: E402
from sentinel.reports.sections import witness_table  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.applying import Applying  # noqa: E402
from sentinel.system import numa  # noqa: E402
from tests.seen_pages import pages  # noqa: E402
from tests.training import Trained, assert_same, train  # noqa: E402

ASKED = {"fast": "40%", "slow": "numa:1", "tracker": "ops"}
ROWS, WIDTH, LAYERS, STEPS = 641, 1024, 6, 7  # 2.5 MiB a tensor, of no whole number of huge pages
ALL_ADDRESSES = (0, 1 << 47)
PROOF_PAGES = 2  # the session's own witness proves itself by moving a page there and back


class Scale(nn.Module):
    """Keeps what comes in and what goes out for the backward pass, and computes little: no exponential, which an
    emulated processor computes for minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(inputs * self.weight)


class Sum(nn.Module):
    """Ten classes, each the sum of some columns."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs[:, :1000].reshape(len(inputs), 10, 100).sum(dim=2)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(ROWS, WIDTH, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator)
    while True:
        yield inputs, labels


def misplaced_bytes(applying: Applying) -> int:
    """Of blocks that are alive and not on their way: what is on another node than the engine has them."""
    bucket = applying.current
    if bucket.engine is None or bucket.ranges is None:
        return 0
    engine, node_of, found = bucket.engine, {0: 1, 1: 0}, 0
    for index, held in enumerate(engine._table.held):
        if held and not engine._moves.of(index):
            found += numa.bytes_on(node_of[engine._table.tier[index]], bucket.ranges(index))
    return found


def huge_bytes_of_arena() -> int:
    """Of the placement arena, by the kernel's list of mappings."""
    session = current()
    assert session is not None
    memory = session.context.memory
    low = found = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            low = int(first.split("-")[0], 16)
        elif (
            first == "AnonHugePages:" and memory.placement_base <= low < memory.placement_base + memory.placement_bytes
        ):
            found += int(rest.split()[0]) << 10
    return found


def test_blocks_in_huge_pages_move_alone_and_every_page_is_accounted_for(capfd: pytest.CaptureFixture[str]) -> None:
    misplaced: list[int] = []
    huge: list[int] = []

    def look(module: nn.Module, inputs: object, outputs: object) -> None:
        session = current()
        if session is not None and session.context.applying.buckets:
            misplaced.append(misplaced_bytes(session.context.applying))
            huge.append(huge_bytes_of_arena())

    def trained(ours: dict[str, str] | None) -> Trained:
        torch.manual_seed(0)
        model = nn.Sequential(*[Scale() for _ in range(LAYERS)], Sum())
        if ours:
            for module in (model[2], model[5]):
                module.register_forward_hook(look)
        return train(model, batches(), steps=STEPS, ours=ours, report=verdict)

    def verdict(run: Run | None) -> str:
        return witness_table.verdict(run)

    stock = trained(None)
    witness = MigrationWitness()
    witness.start([ALL_ADDRESSES])
    ours = trained(ASKED)
    seen = witness.read()
    witness.stop()
    said = capfd.readouterr().err
    assert "training goes on" not in said  # what within a step was warned of, and raises nothing there
    assert "the report" not in said
    run = assert_same(stock, ours)
    assert len(set(run.migrations["step"].tolist())) >= 4
    claimed_pages = int(run.migrations["moved_bytes"].sum()) // 4096
    assert misplaced
    assert not any(misplaced)
    assert max(huge) >= HUGE_PAGE_BYTES  # how many it finds whole is for the kernel to say
    assert int((seen.moves["n_pages"] == 512).sum()) >= STEPS - 3
    seen_pages = pages(seen, reason="syscall", own=True) - PROOF_PAGES
    assert seen_pages == claimed_pages > 100
    assert pages(seen, reason="syscall", to_node=1) > 50
    assert (seen.lost, seen.unmatched) == (0, 0)
    headline = sentinel.report().headline
    assert (headline["moved_pages"], headline["witness_pages"]) == (claimed_pages, seen_pages)
    assert run.counters.overflow_bytes == 0
    assert ours.text.startswith("engine and witness agree")
