"""What a session tells the kernel about huge pages, against what its plan allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import Tensor, nn  # noqa: E402

from sentinel.core.units import HUGE_PAGE_BYTES  # noqa: E402
from sentinel.migration.huge_pages import Placed, huge_ranges  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.binding import arena_start  # noqa: E402
from tests.training import train  # noqa: E402

ROWS, WIDTH, STEPS = 641, 1024, 6  # 2.5 MiB a tensor


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield torch.ones(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64)


def advised(base: int, nbytes: int) -> list[tuple[int, int]]:
    """(offset, nbytes) of the mappings within a range that may be huge pages; neighbours are one."""
    found: list[tuple[int, int]] = []
    low = high = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
        elif first == "VmFlags:" and "hg" in rest.split() and base <= low < base + nbytes:
            if found and sum(found[-1]) == low - base:
                low, _ = base + found[-1][0], found.pop()
            found.append((low - base, high - low))
    return found


@pytest.mark.slow
@pytest.mark.needs("compiler", "huge pages")
@pytest.mark.parametrize("fast", ["40%", "100%"])
def test_the_kernel_is_told_what_the_plan_allows(fast: str) -> None:
    told: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]] = []

    def look(step: int, model: nn.Module) -> None:
        session = current()
        if step < STEPS - 1 or session is None:
            return
        applying = session.context.applying
        memory, plan = session.context.memory, applying.current.plan
        start = arena_start(plan)
        if plan.migrations:
            expected = huge_ranges([Placed(plan, start)], memory.placement_bytes)
        else:
            expected = [(0, (plan.extent_bytes - start) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)]
        told.append((expected, advised(memory.placement_base, memory.placement_bytes)))
        assert bool(plan.migrations) == (fast == "40%")

    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid()) for _ in range(3)], nn.Linear(WIDTH, 10)
    )
    train(
        model,
        batches(),
        steps=STEPS,
        ours={"fast": fast, "slow": "emulated:cxl-asic-x8", "tracker": "ops"},
        before_step=look,
        report=lambda run: "",
    )
    ((expected, found),) = told
    assert expected
    assert found == expected
