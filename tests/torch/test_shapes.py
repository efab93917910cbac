"""Steps that come in a few shapes: a plan for each, told apart by what a step asks for first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel import tiers  # noqa: E402
from sentinel.reports.sections.shape_table import TITLE  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.applying_plans import ApplyingPlans  # noqa: E402
from sentinel.session.binding import changed_homes  # noqa: E402
from sentinel.session.shapes import IN_VAIN, MOST, ShapeScheduler  # noqa: E402

ASKED: dict[str, Any] = {"fast": "30%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"}


class Shaped:
    """A small transformer that is fed sequences of the lengths given, one a step."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.embed, self.head = torch.nn.Embedding(53, 64), torch.nn.Linear(64, 53)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(64, 2, 96, dropout=0.1, batch_first=True) for _ in range(4)
        )
        self.model = torch.nn.ModuleDict({"embed": self.embed, "blocks": self.blocks, "head": self.head})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, i: int, tokens: int, batch: int = 8) -> float:
        words = torch.randint(0, 53, (batch, tokens), generator=torch.Generator().manual_seed(i))
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        loss = torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def stock(lengths: Sequence[int]) -> tuple[list[float], list[Any]]:
    job = Shaped()
    return [job.step(i, tokens) for i, tokens in enumerate(lengths)], list(job.model.parameters())


def managed(lengths: Sequence[int], **asked: Any) -> tuple[list[float], list[Any]]:
    """The same under a session that is left running; its first step is profiled."""
    job = Shaped()
    losses = []
    with sentinel.annotate(job.model, job.optimizer):
        for i, tokens in enumerate(lengths):
            if i == 0:
                sentinel.start_profile(**{**ASKED, **asked})
            losses.append(job.step(i, tokens))
            if i == 0:
                sentinel.end_profile()
    return losses, list(job.model.parameters())


def assert_same(one: tuple[list[float], list[Any]], other: tuple[list[float], list[Any]]) -> None:
    assert one[0] == other[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


@pytest.mark.needs("torch", "compiler")
def test_each_shape_gets_a_plan_of_three_tiers() -> None:
    two = tiers.machine_for(ASKED["slow"])
    slowest = replace(two.tiers[1], name="slowest", read_bytes_per_s=two.tiers[1].read_bytes_per_s // 2)
    more = (replace(link, source=2 * link.source, target=2 * link.target) for link in two.links)
    three = replace(two, tiers=(*two.tiers, slowest), links=(*two.links, *more))
    lengths = [24] * 6 + [24, 56] * 5
    expected = stock(lengths)
    assert_same(expected, managed(lengths, machine=three, slow="auto"))
    session = current()
    assert session is not None
    assert sentinel.active(), session.notes
    assert session.plan is not None
    assert len(session.plan.tier_names) == 3
    buckets = session.context.applying.buckets
    assert [len(bucket.plan.tier_names) for bucket in buckets] == [3, 3]
    assert buckets[1].taken_over > 1


@pytest.mark.needs("torch", "compiler")
def test_two_shapes_that_take_turns_get_a_plan_each_and_are_not_profiled_again(tmp_path: Path) -> None:
    lengths = [24, 56] * 9
    expected = stock(lengths)
    assert_same(expected, managed(lengths))
    session = current()
    assert session is not None
    applying = session.context.applying
    assert len(applying.buckets) == 2
    assert isinstance(session.state, ApplyingPlans)
    assert session.state.shapes.in_vain == 0
    assert applying.strangers.steps == 2  # seen twice, then recorded
    run = sentinel.stop()
    report = sentinel.report()
    table = report.frames()["buckets"]
    assert table["bucket"].tolist() == ["0", "1", "unknown"]
    assert table["steps"].tolist() == [bucket.served.steps for bucket in applying.buckets] + [2]
    assert table["taken_over"].tolist()[0] >= 5
    assert TITLE in report.text()
    assert "a step with other operators or sizes came a second time" in report.text()
    report.write(tmp_path / "report.html")
    assert TITLE in (tmp_path / "report.html").read_text()
    budgets = set()
    for bucket in applying.buckets:
        assert bucket.served.missed_bytes + bucket.served.fitted_bytes < 0.02 * bucket.served.asked_bytes
        executed = bucket.executed
        assert executed is not None
        assert executed.steps["in_step"].all(), "a plan took over too late for the first layer"
        assert (executed.layers["fast_bytes"] <= executed.fast_capacity_bytes).all()
        assert len(executed.migrations)
        budgets.add(executed.fast_capacity_bytes)
    assert len(budgets) == 1
    assert sum(bucket.served.steps for bucket in applying.buckets) == len(lengths) - 2 - 2 - 2
    assert applying.main.executed is not None
    assert run.steps is applying.main.executed.steps


@pytest.mark.needs("torch", "compiler")
def test_one_shape_alone_has_one_bucket() -> None:
    """Negative control: nothing is profiled again where nothing changes."""
    managed([24] * 9)
    session = current()
    assert session is not None
    (bucket,) = session.context.applying.buckets
    assert bucket.served.steps == 9 - 3  # profiled, waited, recorded
    assert bucket.served.missed_bytes == bucket.served.fitted_bytes == session.context.applying.strangers.steps == 0
    assert "buckets" not in sentinel.report().frames()
    assert TITLE not in sentinel.report().text()


@pytest.mark.needs("torch", "compiler")
def test_shapes_at_random_train_bit_identically_and_get_a_plan_each() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = [(16, 40, 64)[int(torch.randint(0, 3, (), generator=generator))] for _ in range(40)]
    expected = stock(lengths)
    assert_same(expected, managed(lengths, fast="20%"))
    session = current()
    assert session is not None
    assert len(session.context.applying.buckets) == 3
    assert isinstance(session.state, ApplyingPlans)
    assert session.state.shapes.in_vain <= IN_VAIN


def homes(cuts: list[int], tiers: list[int]) -> tuple[tuple[int, int, int], ...]:
    """Ranges between the cuts, each with its tier; those of tier -1 have none and are left out."""
    ranges = zip(cuts, cuts[1:], tiers, strict=False)
    return tuple((low, high - low, tier) for low, high, tier in ranges if tier >= 0 and high > low)


@given(st.data())
def test_only_ranges_whose_home_changed_are_bound_anew(data: st.DataObject) -> None:
    """Against a slow oracle: the tier of each place."""
    drawn = [
        homes(
            sorted(data.draw(st.lists(st.integers(0, 40), min_size=2, max_size=7))),
            data.draw(st.lists(st.integers(-1, 1), min_size=6, max_size=6)),
        )
        for _ in range(2)
    ]

    def tier_at(ranges: Iterable[tuple[int, int, int]], place: int) -> int | None:
        return next((tier for low, nbytes, tier in ranges if low <= place < low + nbytes), None)

    changed = changed_homes(*drawn)
    for place in range(41):
        before, after = (tier_at(each, place) for each in drawn)
        expected = None if before == after else -1 if after is None else after
        assert tier_at(changed, place) == expected
    for (low, nbytes, tier), (following, _, other) in pairwise(changed):
        assert low + nbytes < following or (low + nbytes == following and tier != other)  # sorted, and joined
    assert changed_homes(drawn[0], drawn[0]) == []


def test_what_comes_again_is_expected_after_as_many_steps() -> None:
    every_other, in_turn = ShapeScheduler(), []
    for step in range(1, 12):
        if every_other.ended(step, unknown=step % 2 == 0):
            in_turn.append(step + 1)
    assert in_turn == [6, 8, 10, 12]  # seen at 2 and 4
    epochs = ShapeScheduler()
    assert [s + 1 for s in range(1, 120) if epochs.ended(s, unknown=s % 37 == 0)] == [111]
    fresh = ShapeScheduler()
    assert [s + 1 for s in range(1, 5) if fresh.ended(s, unknown=True)] == [3, 4, 5]


def test_what_is_never_seen_twice_is_never_recorded() -> None:
    scheduler = ShapeScheduler()
    assert not any(scheduler.ended(step, unknown=step == 7) for step in range(1, 200))


def test_recording_known_shapes_in_vain_has_an_end() -> None:
    scheduler = ShapeScheduler()
    recorded = 0
    for step in range(1, 500):
        if scheduler.ended(step, unknown=True):
            recorded += 1
            scheduler.recorded(known=True)
    assert recorded == IN_VAIN
    assert MOST == 10
