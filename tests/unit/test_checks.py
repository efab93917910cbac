"""The runner of all checks: it goes on after a failure, forgets no file of the two-node machines, and adds up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import checks

ROOT = Path(__file__).parents[2]


def test_every_file_about_two_nodes_is_run_in_a_machine() -> None:
    by_test_vm = (ROOT / "tests/numa/test_vm.py").read_text()
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/numa").glob("test_*.py")}
    left = files - {*checks.IN_MACHINES, *checks.OWN_MACHINES}
    assert len(files) > 10
    assert {name for name in left if f'"{name}"' not in by_test_vm} == set()


def test_every_job_runs_something_that_is_there() -> None:
    for job in checks.jobs():
        for word in job.command:
            if word.startswith(("tests/", "tools/", ".ci/")):
                assert (ROOT / word).exists(), word


def test_a_job_that_fails_keeps_none_from_running(capsys: pytest.CaptureFixture[str]) -> None:
    told = "print('== 2 failed, 3 passed, 1 skipped in 7.50s ==')"
    jobs = [
        checks.Job("first", "lane", (sys.executable, "-c", f"{told}; raise SystemExit(3)")),
        checks.Job("second", "lane", (sys.executable, "-c", "import os; print(os.environ['WORD'])"), {"WORD": "there"}),
        checks.Job("beside", "other", (sys.executable, "-c", told.replace("2 failed, ", ""))),
    ]
    checks.Lanes(jobs).run()
    assert [job.failed for job in jobs] == [True, False, False]
    assert jobs[1].output == "there\n"
    assert "first: FAILED, exit code 3 after" in capsys.readouterr().out
    assert checks.summary([job.output for job in jobs]) == "2 failed, 6 passed, 2 skipped"


def test_a_job_that_does_not_exist_is_named_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["machine"]) == 2
    said = capsys.readouterr().err
    assert "no job is named machine" in said
    assert "machines" in said
