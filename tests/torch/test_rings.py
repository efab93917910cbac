"""Steps whose layers come in another order than those profiled: right, without migrations, and the report says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

import sentinel  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.course import State  # noqa: E402
from sentinel.session.session import Session  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")
HERE, THERE = (0, 1, 2, 3), (0, 2, 1, 3)  # the same blocks, all of one size
STRAY = "did not tick like the profiled one"


@pytest.fixture(autouse=True)
def _end_sessions() -> Iterator[None]:
    yield
    if sentinel.active():
        sentinel.stop()


class Reordered:
    """A small network that goes through its blocks in the order given, on as many rows as given."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.GELU()) for _ in range(4)
        )
        self.optimizer = torch.optim.Adam(self.blocks.parameters(), lr=1e-3)

    def step(self, i: int, order: Sequence[int], rows: int = 32) -> float:
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(i))
        for number in order:
            x = self.blocks[number](x)
        loss = x.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def trained(steps: Sequence[tuple[Any, ...]]) -> Session:
    """A session that has run these steps of (order, rows), the first profiled, as the same ones ran without it."""
    stock, work = Reordered(), Reordered()
    expected = [stock.step(i, *step) for i, step in enumerate(steps)]
    losses = []
    with sentinel.annotate(work.blocks, work.optimizer):
        for i, step in enumerate(steps):
            if i == 0:
                sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
            losses.append(work.step(i, *step))
            if i == 0:
                sentinel.end_profile()
    assert losses == expected
    for mine, theirs in zip(work.blocks.parameters(), stock.blocks.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    session = current()
    assert session is not None
    return session


def test_steps_in_another_order_run_without_migrations_and_are_told() -> None:
    session = trained([(HERE,)] * 5 + [(THERE,), (HERE,)] * 4)
    assert session.state is State.APPLYING
    (bucket,) = session._applying.buckets
    assert bucket.plan.layers == session._clock.ring
    run = sentinel.stop()
    assert STRAY in sentinel.report().text()
    assert run.counters["steps_out_of_step"] >= 3
    for step in run.steps["step"][~run.steps["in_step"]]:
        assert (run.layers["step"] == step).sum() < bucket.plan.n_layers  # until they went another way


def test_steps_in_one_order_have_nothing_to_tell() -> None:
    """Negative control."""
    trained([(HERE,)] * 13)
    assert STRAY not in sentinel.report().text()


def test_a_step_in_another_order_that_was_to_be_recorded_takes_no_plan_away() -> None:
    """A size that no plan knows comes twice, and is due again: then comes the other order."""
    session = trained([(HERE,)] * 6 + [(HERE, 64), (HERE,), (HERE, 64), (HERE,)] + [(THERE, 64)] * 3 + [(HERE,)] * 4)
    assert session.state is State.APPLYING
    assert session._lookout.in_vain == 1
    for bucket in session._applying.buckets:
        assert bucket.plan.layers == session._clock.ring
    assert any("another order" in note for note in session._notes)
    run = sentinel.stop()
    assert run.steps["in_step"][-3:].all()
