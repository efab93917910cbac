"""Steps whose layers come in another order than those profiled: right, without migrations, and the report says so.
Where they do for good, or where the profiled step was none to go by, another one is profiled."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.errors import PlanError  # noqa: E402
from sentinel.core.layer_cycle import ROUNDS, UNSEEN_ROUNDS  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.applying import Applying  # noqa: E402
from sentinel.session.applying_plans import (  # noqa: E402
    NO_PLAN,
    NO_STEP,
    ApplyingPlans,
)
from sentinel.session.planning import Planning  # noqa: E402
from sentinel.session.session import Session  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")
HERE, THERE = (0, 1, 2, 3), (0, 2, 1, 3)  # the same blocks, all of one size
STRAY = "did not tick like the profiled one"


class Reordered:
    """A small network that goes through its blocks in the order given, on as many rows as given."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.GELU()) for _ in range(4)
        )
        self.optimizer = torch.optim.Adam(self.blocks.parameters(), lr=1e-3)

    def change_optimizer(self, now: bool) -> None:
        if now:
            self.optimizer = torch.optim.SGD(self.blocks.parameters(), lr=1e-2, momentum=0.9)  # type: ignore[assignment]

    def step(self, i: int, order: Sequence[int], rows: int = 32) -> float:
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(i))
        for number in order:
            if number < 0:  # what a batch that is no good, or too large, may end in
                return float("nan")
            x = self.blocks[number](x)
        loss = x.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def trained(steps: Sequence[tuple[Any, ...]], *, another_optimizer_at: int | None = None) -> Session:
    """A session that has run these steps of (order, rows), the first profiled, as the same ones ran without it."""
    stock, work = Reordered(), Reordered()
    expected = []
    for i, step in enumerate(steps):
        stock.change_optimizer(i == another_optimizer_at)
        expected.append(stock.step(i, *step))
    losses = []
    with sentinel.annotate(work.blocks, work.optimizer):
        for i, step in enumerate(steps):
            if i == 0:
                sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
            work.change_optimizer(i == another_optimizer_at)
            losses.append(work.step(i, *step))
            if i == 0:
                sentinel.end_profile()
    assert str(losses) == str(expected)  # of which one may be no number
    for mine, theirs in zip(work.blocks.parameters(), stock.blocks.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    session = current()
    assert session is not None
    return session


def blocks_of(session: Session) -> list[int]:
    """The blocks that the present plan goes forward through, in order."""
    assert session.plan is not None
    numbers = [int(layer.name.split(".")[0]) for layer in session.plan.layers if layer.phase == "forward"]
    return [number for number, _ in itertools.groupby(numbers)]


def test_steps_in_another_order_run_without_migrations_and_are_told() -> None:
    session = trained([(HERE,)] * 5 + [(THERE,), (HERE,)] * 4)
    assert isinstance(session.state, ApplyingPlans)
    (bucket,) = session.context.applying.buckets
    assert bucket.plan.layers == session.context.follower.layers
    run = sentinel.stop()
    assert STRAY in sentinel.report().text()
    assert run.counters.steps_out_of_step >= 3
    for step in run.steps["step"][~run.steps["in_step"]]:
        assert (run.layers["step"] == step).sum() < bucket.plan.n_layers  # until they went another way


def test_steps_in_one_order_have_nothing_to_tell() -> None:
    """Negative control."""
    trained([(HERE,)] * 13)
    assert STRAY not in sentinel.report().text()


def test_a_step_in_another_order_that_was_to_be_recorded_takes_no_plan_away() -> None:
    """A size that no plan knows comes twice, and is due again: then comes the other order."""
    session = trained([(HERE,)] * 6 + [(HERE, 64), (HERE,), (HERE, 64), (HERE,)] + [(THERE, 64)] * 3 + [(HERE,)] * 4)
    assert isinstance(session.state, ApplyingPlans)
    assert session.state.shapes.in_vain == 1
    for bucket in session.context.applying.buckets:
        assert bucket.plan.layers == session.context.follower.layers
    assert any("another order" in note for note in session.notes)
    run = sentinel.stop()
    assert run.steps["in_step"][-3:].all()


def test_another_order_for_good_is_profiled_and_planned() -> None:
    few = (0, 2, 3)
    session = trained([(HERE,)] * 6 + [(few,)] * (ROUNDS + 12))
    (bucket,) = session.context.applying.buckets
    assert bucket.plan.layers == session.context.follower.layers
    assert blocks_of(session) == list(few)
    run = sentinel.stop()
    assert run.counters.steps_out_of_step == 0
    assert run.counters.steps >= 8
    assert run.counters.steps_before >= ROUNDS
    assert (run.layers["fast_bytes"] <= run.fast_capacity_bytes).all()
    assert len(run.migrations)
    text = sentinel.report().text()
    assert "the job goes through other layers" in text
    assert STRAY not in text


def test_there_and_back_is_profiled_twice_and_not_sooner_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.core.step_follower.STEPS_BETWEEN_CHANGES", 30)
    session = trained([(HERE,)] * 5 + [(THERE,)] * (ROUNDS + 4) + [(HERE,)] * 40)
    assert session.context.follower.n_changes == 2
    assert [note.split()[:3] for note in session.notes if "other layers" in note] == [
        ["after", "19", "optimizer"],
        ["after", "30", "optimizer"],
    ]
    assert sentinel.stop().steps["in_step"][-3:].all()


def test_a_profiled_step_that_was_none_is_told_of_as_long_as_it_is_gone_by() -> None:
    session = trained([((0, 1, -1),)] + [(HERE,)] * (UNSEEN_ROUNDS - 2))
    assert NO_STEP in session.notes
    sentinel.stop()
    assert any(said.startswith("No optimizer stepped") for said in sentinel.report().grades.serious)


def test_another_order_now_and_then_is_profiled_never() -> None:
    """Negative control: the same layers, two steps of three in order."""
    session = trained([(HERE,)] * 5 + [(HERE,), (HERE,), (THERE,)] * (ROUNDS + 2))
    assert session.context.follower.n_changes == 0
    assert blocks_of(session) == list(HERE)


@pytest.mark.parametrize("cut", [(0, 1, -1), (0, 1, 2, 3, -1), (0, 1, 0, 1, 2, 3)])
def test_a_profiled_step_that_was_none_to_go_by_is_profiled_again(cut: tuple[int, ...]) -> None:
    """It ended in its forward, which the script survived; or a part of it ran twice."""
    session = trained([(cut,)] + [(HERE,)] * (UNSEEN_ROUNDS + 12))
    blocks = blocks_of(session)
    assert NO_STEP not in session.notes, "that was of a profile which is gone"
    run = sentinel.stop()
    if session.context.follower.n_changes:  # else the first whole step was profiled instead anyway
        found = sentinel.report().grades
        assert any("cut short or unusual" in said for said in found.method)
        assert not any("cut short" in said for said in found.serious)
    assert blocks == list(HERE)
    assert session.plan is not None
    assert {layer.phase for layer in session.plan.layers} == {"forward", "backward", "optimizer"}
    assert run.steps["in_step"][-3:].all()


def test_an_optimizer_that_nobody_annotated_takes_over_and_is_heard() -> None:
    session = trained([(HERE,)] * (5 + ROUNDS + 10), another_optimizer_at=5)
    assert session.context.follower.n_changes == 1
    assert session.profile is not None
    assert {layer.phase for layer in session.profile.layers} == {"forward", "backward"}
    assert any(name.endswith(".momentum_buffer") for name in session.profile.names)
    run = sentinel.stop()
    assert run.steps["in_step"].all()
    assert len(run.steps) >= 5


def test_hooks_of_the_script_outlast_a_change_of_layers() -> None:
    """It is found within a hook of the optimizer, while torch goes through all of them."""
    work, seen = Reordered(), []
    for i in range(6 + ROUNDS + 6):
        if i == 0:
            sentinel.start_profile(work.blocks, work.optimizer, fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
            work.optimizer.register_step_post_hook(lambda *_: seen.append(None))
        x = torch.randn(32, 96)
        for number in HERE if i < 6 else (0, 2, 3):
            x = work.blocks[number](x)
            sentinel.add_layer(f"{number}")
        x.square().mean().backward()
        work.optimizer.step()
        work.optimizer.zero_grad()
        if i == 0:
            sentinel.end_profile()
    session = current()
    assert session is not None
    assert session.context.follower.n_changes == 1
    assert len(seen) == 6 + ROUNDS + 6
    sentinel.stop()


def test_an_optimizer_that_took_over_is_free_to_go_when_the_next_one_does() -> None:
    work, made = Reordered(), list[weakref.ref[Any]]()
    with sentinel.annotate(work.blocks, work.optimizer):
        asked: dict[str, Any] = {"fast": "30%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"}
        sentinel.start_profile(work.blocks, work.optimizer, **asked)  # so this one stays
        work.step(0, HERE)
        sentinel.end_profile()
        for i in range(1, 12):
            work.change_optimizer(i >= 4)
            made.append(weakref.ref(work.optimizer))
            work.step(i, HERE)
        session = current()
        assert session is not None
        assert isinstance(session.state, ApplyingPlans)
        gc.collect()
        assert [each() for each in made[3:]] == [None] * 7 + [work.optimizer]
        assert session.context.job.optimizers == [made[0](), work.optimizer]
        sentinel.stop()
        assert session.context.job.optimizers == []


def test_a_step_that_is_cut_short_costs_itself_only() -> None:
    trained([(HERE,)] * 6 + [((0, 1, -1),)] + [(HERE,)] * 5)
    in_step = sentinel.stop().steps["in_step"].tolist()
    assert in_step[-4:] == [True] * 4
    assert in_step.count(False) == 1


def test_a_new_plan_that_cannot_take_over_leaves_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise sentinel.NativeError("sn_mover_create", 11)

    monkeypatch.setattr("sentinel.session.applying.Applying.supersede", fail)
    session = trained([(HERE,)] * 6 + [(THERE,)] * (ROUNDS + 6) + [(HERE,)] * 6)
    assert isinstance(session.state, ApplyingPlans)
    assert any("the previous plan goes on" in note for note in session.notes)
    assert sentinel.stop().steps["in_step"][-4:].all()


@pytest.mark.parametrize("failing", ["planning", "applying"])
def test_other_layers_that_get_no_plan_leave_the_one_before_and_are_not_said_to_be_cut_short(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Planning.begin

    def refuse(*asked: Any) -> Any:
        if failing == "applying" or len(asked) == 2:  # of a new cycle: none is planned for beside it
            raise PlanError("nothing fits")
        return begin(*asked)

    if failing == "planning":
        monkeypatch.setattr(Planning, "begin", refuse)
    else:
        monkeypatch.setattr(Applying, "supersede", refuse)
    session = trained([(HERE,)] * 6 + [((0, 2, 3),)] * (ROUNDS + 6) + [(HERE,)] * 4)
    assert blocks_of(session) == list(HERE)
    assert [note for note in session.notes if "the previous plan goes on: nothing fits" in note]
    assert NO_PLAN not in session.notes
    assert sentinel.stop().steps["in_step"][-3:].all()


def test_a_model_and_an_optimizer_that_the_script_drops_are_free_to_go() -> None:
    """They are annotated. What start_profile was given itself is kept until the session ends."""
    for given in (False, True):
        work = Reordered()
        held = [weakref.ref(work.blocks), weakref.ref(work.optimizer)]
        sentinel.annotate(work.blocks, work.optimizer)
        kept = (work.blocks, work.optimizer) if given else ()
        sentinel.start_profile(*kept, fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
        work.step(0, HERE)
        sentinel.end_profile()
        for i in range(1, 6):
            work.step(i, HERE)
        del work, kept
        gc.collect()
        assert [each() is not None for each in held] == [given, given]
        other = Reordered()  # whoever is next trains on
        for i in range(3):
            other.step(i, HERE)
        sentinel.stop()
        sentinel.report()
        gc.collect()
        assert [each() for each in held] == [None, None]


def test_an_optimizer_that_another_one_replaces_is_free_to_go() -> None:
    work = Reordered()
    held = weakref.ref(work.optimizer)
    sentinel.annotate(work.blocks, work.optimizer)
    sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
    work.step(0, HERE)
    sentinel.end_profile()
    for i in range(1, 12):
        work.change_optimizer(i == 6)
        work.step(i, HERE)
    gc.collect()
    assert held() is None
    sentinel.stop()


def test_a_tensor_keeps_its_name_when_an_optimizer_that_came_before_is_dropped() -> None:
    """Of parameters in no model the optimizers alone know; a plan goes by their names."""
    work = Reordered()
    bare = [torch.ones(64, 64, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([each], momentum=0.9) for each in bare]
    sentinel.annotate(work.blocks, [*optimizers, work.optimizer])
    sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
    session = current()
    assert session is not None

    def step() -> None:
        for each in bare:
            each.grad = torch.ones_like(each)
        for optimizer in optimizers:
            optimizer.step()
        work.step(0, HERE)

    step()
    sentinel.end_profile()
    step()
    addresses = session.context.job.addresses()
    assert addresses["param.1"] == bare[1].untyped_storage().data_ptr()
    del optimizers[0]
    gc.collect()
    assert len(session.context.job.optimizers) == 2
    now = session.context.job.addresses()
    assert "param.0" not in now
    assert {name: at for name, at in addresses.items() if name.startswith("param.1")} == {
        name: at for name, at in now.items() if name.startswith("param.")
    }
    another = torch.optim.SGD([torch.ones(64, 64, requires_grad=True)])  # gets a number of its own
    session.context.job._found.join(another)
    assert "param.2" in session.context.job.addresses()
    sentinel.stop()


def _placed(work: Reordered) -> None:
    """Its first step is profiled, and later ones follow the plan."""
    sentinel.annotate(work.blocks, work.optimizer)
    sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
    work.step(0, HERE)
    sentinel.end_profile()


def test_the_next_model_of_the_same_layers_takes_the_place_of_one_that_is_gone() -> None:
    """As of several folds: plans go on with its tensors, and the bits are those of stock."""
    stock = Reordered()
    expected = [stock.step(i, HERE) for i in range(8)]
    work = Reordered()
    _placed(work)
    for i in range(1, 6):
        work.step(i, HERE)
    session = current()
    assert session is not None
    before = set(session.context.job.addresses())
    del work
    gc.collect()
    work = Reordered()
    sentinel.annotate(work.blocks, work.optimizer)
    assert [work.step(i, HERE) for i in range(8)] == expected
    assert set(session.context.job.addresses()) >= {name for name in before if not name.endswith(".grad")}
    assert all(session.context.memory.contains(p.data_ptr()) for p in work.blocks.parameters() if p.numel() >= 1024)
    bucket = session.context.applying.current
    assert bucket.ranges is not None
    places = {at for number, _ in enumerate(bucket.plan.blocks) for at, _ in bucket.ranges(number)}
    assert {p.data_ptr() for p in work.blocks.parameters() if p.numel() >= 1024} <= places
    assert sentinel.stop().steps["in_step"][-3:].all()
    for mine, theirs in zip(work.blocks.parameters(), stock.blocks.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_model_that_is_annotated_while_none_is_gone_is_left_alone() -> None:
    """Another thread's, or one that is not trained: to move its tensors is no business of the session."""
    work, other = Reordered(), Reordered()
    _placed(work)
    for i in range(1, 6):
        work.step(i, HERE)
        if i == 3:
            sentinel.annotate(other.blocks, other.optimizer)
    session = current()
    assert session is not None
    assert not any(session.context.memory.contains(p.data_ptr()) for p in other.blocks.parameters())
    assert not any("moved into managed memory" in note for note in session.context.notes)
    sentinel.stop()


def test_the_next_model_goes_though_it_holds_its_optimizer() -> None:
    work = Reordered()
    _placed(work)
    for i in range(1, 3):
        work.step(i, HERE)
    del work
    gc.collect()
    work = Reordered()
    work.blocks.__dict__["own_optimizer"] = work.optimizer
    sentinel.annotate(work.blocks, work.optimizer)
    for i in range(3):
        work.step(i, HERE)
    gone = weakref.ref(work.blocks)
    del work
    gc.collect()
    assert gone() is None
    sentinel.stop()
