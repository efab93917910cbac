"""What a run tells on the terminal, and what it has written by then, while a real session goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

import torch

import sentinel
from sentinel import files
from sentinel.cli.kept_files import KeptFiles
from sentinel.cli.story import Story, planned, tell_end
from sentinel.reports import Setup
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
    assert said[0] == "sentinel: step 2 is watched"
    assert said[1].startswith("sentinel: planned: ")
    assert "of fast memory, 49% of the footprint; " in said[1]  # whole pages of a few
    assert "times a stock step" in said[1]
    assert said[2:] == ["sentinel: applied from step 3 on"]
    profile = files.load_profile(tmp_path / "p.st")
    assert files.load_plan(tmp_path / "plan.json").origin["profile"] == files.digest(profile)
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["kind"] == "emulated"
    assert not (tmp_path / "run.st").exists()
    kept.write_nouns(sentinel.stop())
    assert len(files.load_run(tmp_path / "run.st").steps) >= 2


def test_where_nothing_can_be_applied_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    train(3, Story(), KeptFiles(), "cxl-asic-x8")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in said] == [" step 2 is watched", " planned", " nothing is applied"]


def test_a_budget_for_everything_is_told_as_one() -> None:
    roomy = replace(PLAN, capacity_bytes=(PLAN.footprint_bytes, *PLAN.capacity_bytes[1:]))
    assert "so nothing moves; `--fast 20%` leaves it less" in planned(roomy)


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
