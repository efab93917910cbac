"""The runner of all checks: it goes on after a failure, forgets no file of the two-node machines, and adds up."""

from __future__ import annotations

import os
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


def test_a_lane_that_is_through_takes_the_last_job_that_has_not_begun(tmp_path: Path) -> None:
    """The first of the long lane waits for its last one."""
    done = tmp_path / "done"
    wait = (
        f"import os, time\nfor _ in range(1200): os.path.exists({str(done)!r}) and exit(0) or time.sleep(0.1)\nexit(1)"
    )
    jobs = [
        checks.Job("first", "long", (sys.executable, "-c", wait)),
        checks.Job("middle", "long", (sys.executable, "-c", f"open({str(done)!r}).close()")),
        checks.Job("last", "long", (sys.executable, "-c", f"open({str(done)!r}, 'w').close()")),
        checks.Job("short", "other", (sys.executable, "-c", "")),
    ]
    checks.Lanes(jobs).run()
    assert [job.failed for job in jobs] == [False] * 4


def test_jobs_keep_byte_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    job = checks.Job("job", "lane", (sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"))
    checks.Lanes([job]).run()
    assert job.output == "False\n"
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"


def test_a_job_that_does_not_exist_is_named_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["machine"]) == 2
    said = capsys.readouterr().err
    assert "no job is named machine" in said
    assert "machines" in said
