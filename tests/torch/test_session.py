"""The user's calls: their order, what they refuse, and what is left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel import files  # noqa: E402
from sentinel.planner.make_plan import PlanOrder  # noqa: E402
from sentinel.session import current, planning, set_overrides  # noqa: E402
from sentinel.session import session as session_module  # noqa: E402
from sentinel.system import numa, probes, progress  # noqa: E402
from tests import warm  # noqa: E402
from tests.processes import until  # noqa: E402
from tests.torch.bit_identity_cases import ASKED, Job, job  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def train(work: Job, steps: range, *, profile_at: int | None = 0, **asked: Any) -> list[float]:
    losses = []
    for i in steps:
        if i == profile_at:
            sentinel.start_profile(**{**ASKED, **asked})
        losses.append(work.step(i))
        if i == profile_at:
            sentinel.end_profile()
    return losses


def save_plan_of(work: Job, steps: range, path: Path) -> None:
    """The plan of the second of the steps, whose session ends."""
    train(work, steps, profile_at=1)
    session = current()
    assert session is not None
    files.save(session.plan, path)
    sentinel.stop()


def test_without_a_session_the_calls_say_which_comes_first() -> None:
    sentinel.add_layer("nothing")  # no session: nothing happens
    with pytest.raises(sentinel.UsageError, match="start_profile"):
        sentinel.end_profile()
    with pytest.raises(sentinel.UsageError, match="start_profile"):
        sentinel.stop()


@pytest.mark.parametrize(
    ("argument", "value", "wanted"),
    [
        ("machine", 3, "a path, a name or a Machine"),
        ("plan", 4, "a path or a Plan"),
        ("plan", {"slots": []}, "a path or a Plan"),
        ("fast", 0.2, r"\"20%\", \"8GiB\" or bytes"),
        ("fast", True, r"\"20%\", \"8GiB\" or bytes"),
        ("slow", None, "a word such as"),
        ("slow", 1, "a word such as"),
        ("tracker", None, "a word such as"),
        ("policy", len, "the name of one"),
    ],
)
def test_an_argument_of_another_kind_is_refused_before_anything(argument: str, value: object, wanted: str) -> None:
    with pytest.raises(sentinel.UsageError, match=rf"start_profile\({argument}=.*{wanted}"):
        sentinel.start_profile(**{argument: value})  # type: ignore[arg-type]
    assert not sentinel.active()


@pytest.mark.parametrize("fast", ["1024TiB", 1 << 50])
def test_more_fast_memory_than_there_is_is_refused_before_anything(fast: str | int) -> None:
    work = job()
    before = [param.data_ptr() for model in work.models for param in model.parameters()]
    with pytest.raises(sentinel.UsageError, match=r"1024\.00 TiB of fast memory are requested"):
        sentinel.start_profile(work.models, work.optimizers, **{**ASKED, "fast": fast})
    assert not sentinel.active()
    assert [param.data_ptr() for model in work.models for param in model.parameters()] == before


def test_a_share_of_more_than_there_is_becomes_what_there_is_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "available_bytes", lambda request, machine: 0)
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(3), fast="100%")
    report = sentinel.report()
    said = [caveat for caveat in report.caveats if caveat.startswith("Fast='100%'")]
    assert len(said) == 1
    assert said[0].endswith("that is the budget.")
    assert report.headline["fast_capacity_bytes"] < report.headline["peak_bytes"]
    for load in (report.setup.profiled_load, report.setup.applied_load):
        assert load is not None
        assert load.cpu_ns > 0
        assert load.busy_share is None or 0 <= load.busy_share <= 1


def test_what_the_job_holds_of_the_fast_node_is_room_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "available_bytes", lambda request, machine: 0)
    work = job()
    nbytes = sum(param.nbytes for model in work.models for param in model.parameters())
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(2), fast=None)
    assert 0.9 * nbytes < sentinel.report().headline["fast_capacity_bytes"] <= nbytes


def test_a_profiled_step_that_nobody_ends_is_ended_with_one_warning() -> None:
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(70)]
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**ASKED)
        losses = [work.step(i) for i in range(60)]
        assert sentinel.active()  # sixty critics to a generator may be meant
        said = r"gone on for 65 optimizer steps; call sentinel.end_profile\(\)"
        with pytest.warns(RuntimeWarning, match=said) as told:
            losses += [work.step(i) for i in range(60, 70)]
        assert len(told) == 1
        assert not sentinel.active()
    assert losses == expected


def test_migrations_keep_to_the_rate_that_the_command_line_asks_for() -> None:
    work = job()
    set_overrides({"rate_limit": "7MB/s"})
    try:
        with sentinel.annotate(work.models, work.optimizers):
            train(work, range(3), rate_limit="1GiB/s")
    finally:
        set_overrides({})
    running = current()
    assert running is not None
    assert {link.bandwidth_bytes_per_s for link in running.context.machine.links} == {7 * 10**6}
    assert running.context.applying._bytes_per_s == 7 * 10**6
    sentinel.stop()
    assert any("no faster than 7MB/s" in note for note in running.notes)


def test_planning_and_the_bound_say_that_they_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    say = progress.say

    def heard(sentence: str, **more: bool) -> None:
        say(sentence, **more)
        told.append(sentence)

    def once_it_was_said(words: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*given: Any, **named: Any) -> Any:
            until(lambda: any(sentence.startswith(words) for sentence in told))
            return call(*given, **named)

        return waiting

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "say", heard)
    monkeypatch.setattr(PlanOrder, "made", once_it_was_said("planning ", PlanOrder.made))
    monkeypatch.setattr(planning, "bound", once_it_was_said("looking for the bound", planning.bound))
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(3))
    sentinel.stop()
    assert "sentinel: planning " in capsys.readouterr().err
    sentinel.report()
    said = r"sentinel: looking for the bound, for at most 10 s, \d+ s so far"
    assert re.search(said, capsys.readouterr().err)


def test_a_second_session_is_refused_and_the_first_goes_on() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**ASKED)
        with pytest.raises(sentinel.UsageError, match=r"running already, and profiling.*end_profile"):
            sentinel.start_profile(**ASKED)
        work.step(0)
        sentinel.end_profile()
        with pytest.raises(sentinel.UsageError, match=r"running already; call sentinel\.stop"):
            sentinel.start_profile(**ASKED)
        with pytest.raises(sentinel.UsageError, match="ended already"):
            sentinel.end_profile()
        train(work, range(1, 5), profile_at=None)
        assert sentinel.stop().step_ns is not None


def test_sessions_may_follow_each_other() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        for first in (0, 10):
            train(work, range(first, first + 5), profile_at=first)
            assert len(sentinel.stop().steps) > 0
    assert sentinel.report().headline["kind"] == "emulated"


def test_what_is_born_after_a_session_is_born_where_the_kernel_likes() -> None:
    """No memory policy of a plan's ranges stays behind: the next session may mean another node by them."""
    try:
        probes.mbind()
    except (probes.Missing, sentinel.SentinelError) as error:
        pytest.skip(f"needs mbind: {error}")
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(6))
        session = current()
        assert session is not None
        base, homes = session.context.memory.placement_base, session.context.applying._homes
        fast = session.flow.machine.fast.node if session.flow.machine is not None else None
        assert {numa.policy(base + offset) for offset, _, tier in homes if not tier} == {(numa.MPOL_PREFERRED, (fast,))}
        sentinel.stop()
    assert {numa.policy(base + offset) for offset, _, _ in homes} == {(numa.MPOL_DEFAULT, ())}


def test_a_step_without_a_layer_is_an_error_that_restores_stock_allocation() -> None:
    work = job()
    sentinel.start_profile(**ASKED)
    work.step(0)
    with pytest.raises(sentinel.UsageError, match=r"no layer.*add_layer"):
        sentinel.end_profile()
    assert not sentinel.active()
    work.step(1)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"fast": "20 percent"}, "20 percent"),
        ({"fast": -1}, "-1"),
        ({"slow": "emulated:nothing"}, "cxl-asic-x8"),
        ({"slow": "numa:77"}, "77"),
        ({"slow": "file:auto"}, "file"),
        ({"slow": "tape"}, "tape"),
        ({"tracker": "crystal-ball"}, "crystal-ball"),
        ({"policy": "guess"}, "first-touch"),
        ({"machine": "no-such-machine"}, "no-such-machine"),
        ({"machine": "missing.json"}, "missing.json"),
        ({"plan": "missing-plan.json"}, "missing-plan.json"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_changes(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(sentinel.SentinelError, match=says):
        sentinel.start_profile(**{**ASKED, **asked})
    assert not sentinel.active()


def test_the_first_step_gives_a_provisional_plan_and_the_next_whole_step_the_real_one() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        sentinel.start_profile(**ASKED)
        work.step(0)
        assert sentinel.end_profile().provisional
        work.step(1)
        work.step(2)
        session = current()
        assert session is not None
        assert session.plan is not None
        assert not session.plan.provisional
        assert "Optimizer state was born" in sentinel.report().text()


def test_add_layer_alone_is_enough() -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(256, 256), torch.nn.Linear(256, 16)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for step in range(6):
        if step == 1:
            sentinel.start_profile([first, second], optimizer, **ASKED)
        hidden = first(torch.ones(64, 256)).relu()
        sentinel.add_layer()
        loss = second(hidden).square().mean()
        sentinel.add_layer()
        optimizer.zero_grad()
        loss.backward()
        sentinel.add_layer("backward")
        optimizer.step()
        sentinel.add_layer("optimizer")
        if step == 1:
            plan = sentinel.end_profile()
    assert [str(layer) for layer in plan.layers] == ["layer#0", "layer#1", "backward", "optimizer"]
    run = sentinel.stop()
    assert run.steps["in_step"].all()
    assert len(run.steps) >= 3


def test_a_saved_plan_is_applied_without_profiling(tmp_path: Path) -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        save_plan_of(work, range(4), tmp_path / "plan.json")
    stock = [job().step(i) for i in range(1)]
    again = job()
    with sentinel.annotate(again.models, again.optimizers):
        losses = train(again, range(8), plan=tmp_path / "plan.json")
        session = current()
        assert session is not None
        assert session.profile is None, "the saved plan was not applied: the step was profiled"
        assert len(sentinel.stop().steps) >= 4
        assert ("plan", "machine", True) in sentinel.report().provenance  # whatever is free by now
    assert losses[:1] == stock


def test_a_saved_plan_that_is_checked_in_a_step_without_a_layer_is_an_error(tmp_path: Path) -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        save_plan_of(work, range(3), tmp_path / "plan.json")
    sentinel.start_profile(**{**ASKED, "plan": tmp_path / "plan.json"})
    work.step(3)
    with pytest.raises(sentinel.UsageError, match=r"nothing ticked in the step that a saved plan.*add_layer"):
        sentinel.end_profile()
    assert not sentinel.active()
    work.step(4)


def test_a_saved_plan_that_needs_more_than_is_asked_for_is_refused(tmp_path: Path) -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        save_plan_of(work, range(3), tmp_path / "plan.json")
        with pytest.raises(sentinel.UsageError, match=r"saved plan holds up to .* allows"):
            sentinel.start_profile(**{**ASKED, "fast": "5%", "plan": tmp_path / "plan.json"})
    assert not sentinel.active()


def test_a_saved_plan_of_another_step_is_noticed_and_the_step_is_profiled(tmp_path: Path) -> None:
    other = job("tied_weights")
    with sentinel.annotate(other.models, other.optimizers):
        save_plan_of(other, range(3), tmp_path / "plan.json")
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        losses = train(work, range(9), plan=tmp_path / "plan.json")
        session = current()
        assert session is not None
        assert session.profile is not None
        assert len(sentinel.stop().steps) >= 2
    assert "does not match this step" in sentinel.report().text()
    stock = job()
    assert losses == [stock.step(i) for i in range(9)]


def test_validation_between_steps_does_not_shift_the_ring() -> None:
    work = job("validation_between")
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(12), profile_at=1)
        assert sentinel.stop().steps["in_step"].all()


def test_an_exception_between_ticks_costs_that_step_only() -> None:
    work = job("exception_in_step")
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(10), profile_at=1)
        in_step = sentinel.stop().steps["in_step"].tolist()
    third, fifth = [False, True], [False, False, True]  # what was cut short, and the whole step that followed at once
    assert in_step == [True, *third, True, *fifth, True, True, True, True]


def test_the_budget_holds_in_every_layer() -> None:
    work = job("tied_weights")
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(8), profile_at=1, fast="30%")
        run = sentinel.stop()
    assert len(run.layers)
    assert (run.layers["fast_bytes"] <= run.fast_capacity_bytes).all()


def test_a_budget_below_the_bound_still_trains_and_says_by_how_much() -> None:
    work = job()
    stock = job()
    with sentinel.annotate(work.models, work.optimizers):
        losses = train(work, range(6), profile_at=1, fast="64KiB")
        run = sentinel.stop()
    assert losses == [stock.step(i) for i in range(6)]
    headline = sentinel.report().headline
    assert headline["fast_needed_bytes"] > headline["fast_capacity_bytes"] == 64 << 10
    assert (run.layers["fast_bytes"] <= 64 << 10).all()


def test_everything_fast_needs_no_migration() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(6), profile_at=1, fast="100%")
        run = sentinel.stop()
    assert not len(run.migrations)
    assert sentinel.report().headline["fast_served_fraction"] == 1.0


def test_without_a_slower_node_auto_applies_nothing_and_says_so() -> None:
    if len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1:
        pytest.skip("needs a host with one NUMA node: here auto finds a slower one")
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        train(work, range(4), profile_at=1, slow="auto")
        run = sentinel.stop()
    assert not len(run.steps)
    report = sentinel.report()
    assert report.headline["kind"] == "declared"
    assert report.headline["step_ns_applied"] is None
    assert report.headline["step_ns_predicted"] > 0
    assert "nothing was applied" in report.text()


def test_what_fails_inside_a_tick_ends_the_session_and_not_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    work, stock = job(), job()
    losses = []
    with sentinel.annotate(work.models, work.optimizers):
        losses += train(work, range(4), profile_at=1)
        session = current()
        assert session is not None

        def fail(_: object) -> None:
            raise sentinel.NativeError("move_pages", 5)

        monkeypatch.setattr(session.context.applying.current.engine, "begin_layer", fail)
        with pytest.warns(RuntimeWarning, match=r"training goes on.*move_pages"):
            losses.append(work.step(4))
        assert not sentinel.active()
        losses += train(work, range(5, 8), profile_at=None)
    assert losses == [stock.step(i) for i in range(8)]
    assert "ended by itself" in sentinel.report().text()


def test_an_error_at_a_prompt_leaves_the_session_running() -> None:
    typed = """
import torch, sentinel
from tests.torch.bit_identity_cases import CASES
job = CASES["plain"]()
h = sentinel.annotate(job.models, job.optimizers)
sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
job.stepp(0)
loss = job.step(0)
sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
plan = sentinel.end_profile()
print("layers", plan.n_layers > 0, sentinel.active())
"""
    ran = subprocess.run(
        [sys.executable, "-i", "-q"], input=typed, capture_output=True, text=True, check=True, timeout=600
    )
    assert ran.stdout.split("layers") == ["", " True True\n"], ran.stderr
    assert "AttributeError" in ran.stderr
    assert "a session is running already, and profiling; call sentinel.end_profile()" in ran.stderr


def test_ctrl_c_at_a_prompt_restores_stock_allocation() -> None:
    typed = """
import torch, sentinel
from tests.torch.bit_identity_cases import CASES
job = CASES["plain"]()
h = sentinel.annotate(job.models, job.optimizers)
sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
print("running", sentinel.active())
raise KeyboardInterrupt
print("running", sentinel.active())
"""
    ran = subprocess.run(
        [sys.executable, "-i", "-q"], input=typed, capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.stdout.split("running")[1:] == [" True\n", " False\n"], ran.stderr
    assert ran.returncode in (0, -signal.SIGINT)  # from Python 3.14 on the end of what is typed ends it by that signal


def test_ctrl_c_in_a_step_leaves_a_whole_model_and_stock_allocation() -> None:
    program = """
import os, signal, sys, torch, sentinel
from tests.torch.bit_identity_cases import CASES
torch.manual_seed(3)
job = CASES["plain"]()
sentinel.annotate(job.models, job.optimizers)
try:
    for i in range(50):
        if i == 1:
            sentinel.start_profile(fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
        if i == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGINT)
        job.step(i)
        if i == 1:
            sentinel.end_profile()
except KeyboardInterrupt:
    sentinel.stop()
    assert not sentinel.active()
    job.step(99)
    total = sum(float(p.sum()) for p in job.models[0].parameters())
    print("whole", total == total, i)
"""
    for at in (1, 6):
        ran = warm.run([sys.executable, "-c", program, str(at)])
        assert ran.stdout.split() == ["whole", "True", str(at)], ran.stderr
