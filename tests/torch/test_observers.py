"""What sessions tell observers, and that training does not notice."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn
from torch.optim import Optimizer

import sentinel
from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.executed.stock import StockSession
from sentinel.runtime import RUNTIME
from sentinel.session import current, set_overrides
from sentinel.session.state import Over
from tests import warm
from tests.torch.bit_identity_cases import ASKED, Job, job

pytestmark = pytest.mark.needs("torch", "compiler")

STEPS = 6


class Log(sentinel.Observer):
    """Lists what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.plans: list[Plan] = []
        self.models: Sequence[nn.Module] = ()

    def session_started(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.models = list(models)
        self.told.append("session")

    def plan_made(self, plan: Plan) -> None:
        self.plans.append(plan)

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        lasting = [number for number, block in enumerate(plan.blocks) if block.persistent]
        assert all(nbytes > 0 for number in lasting for _, nbytes in ranges(number))
        self.told.append("plan")

    def step_began(self) -> None:
        self.told.append("began")

    def layer_began(self, layer: int) -> None:
        self.told.append(str(layer))

    def step_ended(self) -> None:
        self.told.append("ended")

    def session_ended(self) -> None:
        self.told.append("over")


class Failing(sentinel.Observer):
    """Raises in the middle of a step."""

    def layer_began(self, layer: int) -> None:
        if layer == 2:
            raise RuntimeError("out of paper")


class Stopping(sentinel.Observer):
    """Stops the session as it is told `when`, the `count`-th time."""

    def __init__(self, when: str, count: int) -> None:
        self.stopped = False
        self._left = count
        setattr(self, when, self._stop)

    def _stop(self, *_: object) -> None:
        self._left -= 1
        if not self._left:
            self.stopped = True
            sentinel.stop()


class InterruptedAtTheEnd(sentinel.Observer):
    """Ctrl-C comes as it is told of the end, once."""

    def __init__(self) -> None:
        self.told = 0

    def session_ended(self) -> None:
        self.told += 1
        if self.told == 1:
            raise KeyboardInterrupt


def trained(work: Job) -> list[float]:
    """Losses of STEPS steps, the first one profiled."""
    losses = []
    with sentinel.annotate(work.models, work.optimizers):
        for i in range(STEPS):
            if i == 0:
                sentinel.start_profile(**ASKED)
            losses.append(work.step(i))
            if i == 0:
                sentinel.end_profile()
        sentinel.stop()
    return losses


def stock() -> list[float]:
    work = job()
    return [work.step(i) for i in range(STEPS)]


def test_it_is_told_of_the_session_its_plans_steps_and_layers() -> None:
    work, log = job(), Log()
    with sentinel.observe(log) as watch:
        assert trained(work) == stock()
    assert watch.raised is None
    assert log.told[0] == "session"
    assert log.told[-1] == "over"
    assert log.told.count("over") == 1
    assert log.models == work.models
    assert log.plans
    length = log.plans[-1].n_layers
    at = log.told.index("ended")
    whole = ["began", *map(str, range(length)), "ended"]
    assert log.told[at + 1 : at + 1 + len(whole)] == whole
    assert "plan" in log.told[:at]


def test_one_that_raises_costs_a_sentence_and_not_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    with sentinel.observe(Failing()) as watch, sentinel.observe(log):
        assert trained(job()) == stock()
        assert len(RUNTIME.watches) == 1
    assert str(watch.raised) == "out of paper"
    assert capsys.readouterr().err.count("out of paper") == 1
    assert log.told.count("ended") >= 2
    assert sentinel.report().headline["steps"] >= 2


@pytest.mark.parametrize(
    ("when", "count"),
    [
        ("session_started", 1),
        ("plan_made", 1),
        ("plan_made", 2),
        ("plan_applied", 1),
        ("step_began", 2),
        ("layer_began", 7),
        ("step_ended", 1),
        ("step_ended", 3),
    ],
)
def test_a_session_that_an_observer_stops_is_over_and_stays_so(when: str, count: int) -> None:
    work, expected = job(), stock()
    losses = []
    with sentinel.annotate(work.models, work.optimizers), sentinel.observe(observer := Stopping(when, count)) as watch:
        for i in range(STEPS):
            if i == 0:
                sentinel.start_profile(**ASKED)
            losses.append(work.step(i))
            if i == 0 and sentinel.active():
                sentinel.end_profile()
            session = current()
            assert session is not None
            if observer.stopped:
                assert (session.state, RUNTIME.sink, RUNTIME.memory) == (Over.ENDED, None, None)
                assert not any(bucket.engine for bucket in session.context.applying.buckets)
    assert observer.stopped
    assert watch.raised is None
    assert losses == expected
    with pytest.raises(UsageError, match="no session is running"):
        sentinel.stop()


def test_an_interrupt_at_the_end_leaves_nobody_without_word_of_it() -> None:
    work, log, interrupted = job(), Log(), InterruptedAtTheEnd()
    with sentinel.observe(interrupted), sentinel.observe(log):
        with pytest.raises(KeyboardInterrupt):
            trained(work)
        assert not sentinel.active()
    assert log.told[-1] == "over"
    assert interrupted.told == 2


def test_stock_training_tells_the_same_steps_and_no_plan() -> None:
    log = Log()
    set_overrides({}, StockSession)
    try:
        with sentinel.observe(log):
            assert trained(job()) == stock()
    finally:
        set_overrides({})
    assert log.plans == []
    assert "plan" not in log.told
    assert (log.told[0], log.told[-1]) == ("session", "over")
    length = 1 + max(int(word) for word in log.told if word.isdigit())
    assert log.told.count("ended") == STEPS - 1  # all but the profiled one
    at = log.told.index("ended")
    assert log.told[at + 1 :][: length + 2] == ["began", *map(str, range(length)), "ended"]


def test_the_program_on_the_page_says_what_it_sees(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-it-works.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / "program.py").write_text(program)
    done = warm.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert re.fullmatch(r"[\d,]+ bytes migrate in a step on .*", said[0])
    steps = [line for line in said if line.startswith("a step of ")]
    assert len(steps) >= 4
    assert len(set(steps)) == 1
