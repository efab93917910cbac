"""What a run tells on the terminal, and what it has written by then, while a real session goes on."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch

import sentinel
from sentinel import files
from sentinel.cli.early_end import StepLimit
from sentinel.cli.kept_files import KeptFiles
from sentinel.cli.run import finish
from sentinel.cli.script_session import wherever_the_script_goes
from sentinel.cli.story import Story, planned, tell_end
from sentinel.reports import Setup
from sentinel.runtime import RUNTIME
from sentinel.session import set_overrides
from sentinel.session.applying import Applying
from sentinel.session.auto import Follower
from sentinel.session.optimizer_steps import after_each_step
from tests.unit.report_builders import PLAN, full_report

pytestmark = pytest.mark.needs("torch", "compiler")


def train(steps: int, story: Story, kept: KeptFiles, slow: str) -> None:
    """Steps of an annotated model, of which the second is profiled."""

    def stepped() -> None:
        story.steps += 1
        kept.stepped()

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    undo = after_each_step(stepped)
    with sentinel.annotate(model, optimizer), sentinel.observe(kept), sentinel.observe(story):
        for step in range(steps):
            if step == 1:
                sentinel.start_profile(fast="50%", slow=slow, tracker="ops")
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                sentinel.end_profile()
    undo()
    optimizer.step()
    assert story.steps == steps


def test_a_session_is_told_and_kept_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentinel.cli import kept_files

    monkeypatch.setattr(kept_files, "FIRST_S", 0.0)
    story, kept = Story(), KeptFiles(*(str(tmp_path / name) for name in ("r.json", "plan.json", "p.st", "run.st")))
    train(6, story, kept, "emulated:cxl-asic-x8")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "sentinel: the step after 1 optimizer step is profiled"
    assert said[1].startswith("sentinel: planned: ")
    assert "of fast memory, 49% of the footprint; " in said[1]  # whole pages of a few
    assert "times a stock step" in said[1]
    assert said[2:] == ["sentinel: the plan is applied from now on, after 2 optimizer steps"]
    profile = files.load_profile(tmp_path / "p.st")
    assert files.load_plan(tmp_path / "plan.json").origin["profile"] == files.digest(profile)
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["kind"] == "emulated"
    assert not (tmp_path / "run.st").exists()
    kept.write_nouns(sentinel.stop())
    assert len(files.load_run(tmp_path / "run.st").steps) >= 2


def test_where_nothing_can_be_applied_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    train(3, Story(), KeptFiles(), "cxl-asic-x8")
    said = capsys.readouterr().err.splitlines()
    begins = " the step after 1 optimizer step is profiled"
    assert [line.split(":")[1] for line in said] == [begins, " planned", " nothing is applied"]
    assert "this host has no slower memory" in said[2]


def test_a_session_that_ends_before_its_plan_is_applied_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Applying) -> None:
        raise sentinel.NativeError("sn_mover_create", 11)

    monkeypatch.setattr(Applying, "start", fail)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sentinel.observe(Story()), sentinel.annotate(model, optimizer):
        sentinel.start_profile(fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        with pytest.raises(sentinel.NativeError):
            sentinel.end_profile()
    assert not sentinel.active()
    said = capsys.readouterr().err
    assert "nothing is applied: the session ended before the plan could be" in said
    assert "no slower memory" not in said


@pytest.mark.parametrize("failed", [True, False])
def test_a_dry_run_whose_last_step_is_the_watched_one_ends_as_the_script_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failed: bool
) -> None:
    monkeypatch.setattr(RUNTIME, "last", None)
    set_overrides({"fast": "50%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"})
    follower, limit = Follower(), StepLimit(None, dry=True)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with sentinel.observe(limit):
            for _ in range(3):
                model(torch.ones(8, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            assert sentinel.active()
            given = argparse.Namespace(script="train.py", quiet=True, dry_run=True, fast="50%")
            finish(given, follower, KeptFiles(), limit, failed=failed)
    finally:
        set_overrides({})
        if sentinel.active():
            sentinel.stop()
    assert "How much fast memory?" in capsys.readouterr().err
    assert RUNTIME.finder is None


def test_plans_and_machines_are_found_wherever_the_script_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = wherever_the_script_goes({"plan": "plan.json", "machine": "m.json"})
    assert found == {"plan": str(tmp_path / "plan.json"), "machine": str(tmp_path / "m.json")}
    named = {"machine": "cxl-m5"}
    assert wherever_the_script_goes(named) == named


def test_a_budget_for_everything_is_told_as_one() -> None:
    roomy = replace(PLAN, capacity_bytes=(PLAN.footprint_bytes, *PLAN.capacity_bytes[1:]))
    assert "so nothing moves; give less, such as `--fast 20%`" in planned(roomy)


def test_the_end_is_told_in_a_handful_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    report = full_report()
    tell_end(report)
    said = capsys.readouterr().err.splitlines()
    words = [line.removeprefix("sentinel: ").split()[0] for line in said]
    assert words == ["Emulated:", "memory", "speed", "once", "next"]  # its caveats are of method
    assert report.heading.done in said[0]
    doubtful = full_report(setup=Setup(notes=("the session ended by itself: why", "tracker not taken: uffd")))
    tell_end(doubtful)
    assert "but     The session ended by itself: why." in capsys.readouterr().err
