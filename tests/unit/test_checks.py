"""The runner of all checks: it goes on after a failure, forgets no file of the two-node machines, and adds up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import long_tests
from tools import checks

ROOT = Path(__file__).parents[2]


def test_every_file_about_two_nodes_is_run_in_a_machine() -> None:
    by_test_vm = (ROOT / "tests/numa/test_vm.py").read_text()
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/numa").glob("test_*.py")}
    left = files - {*checks.IN_MACHINES, *checks.OWN_MACHINES}
    assert len(files) > 10
    assert {name for name in left if f'"{name}"' not in by_test_vm} == set()


def test_every_file_with_long_tests_about_two_nodes_is_run_in_a_machine() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests/numa").glob("test_*.py")}
    found = {name for name, text in texts.items() if "mark.long" in text and '"two nodes"' in text}
    assert found == {file for files in checks.LONG_ON_NODES.values() for file in files}


def test_every_job_runs_something_that_is_there() -> None:
    for job in (*checks.jobs(), *checks.long_jobs()):
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


def test_the_end_says_why_a_job_failed() -> None:
    native = """ 9/33 Test #11: test_frames_fork ...........Subprocess aborted***Exception:   0.46 sec
/a/test_frames_fork.cpp:12: not so: holds(bytes)
97% tests passed, 1 tests failed out of 33
The following tests FAILED:
\t 11 - test_frames_fork (Subprocess aborted)
\t 12 - test_move_pages (Skipped)
Errors while running CTest
make: *** [Makefile:79: native-test] Error 8
"""
    assert checks.reasons(native) == [
        "/a/test_frames_fork.cpp:12: not so: holds(bytes)",
        "\t 11 - test_frames_fork (Subprocess aborted)",
        "make: *** [Makefile:79: native-test] Error 8",
    ]
    race = "WARNING: ThreadSanitizer: data race (pid=1)"
    assert checks.reasons(f"{race}\n" * 30) == [race]
    tests = ["E   AssertionError: assert 1 == 2", "FAILED tests/a.py::test_a - AssertionError: assert 1 == 2"]
    assert checks.reasons("\n".join([*tests, "1 failed in 2.00s"])) == tests
    assert checks.reasons("a\nb\nc\nKilled\n") == ["b", "c", "Killed"]


def test_a_long_job_says_now_and_then_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "LOOK_EVERY_S", 0.05)
    waits = "import time; print('first'); print('half way', flush=True); time.sleep(1); print('done')"
    job = checks.Job("job", "lane", (sys.executable, "-c", waits))
    checks.Lanes([job]).run()
    assert job.output == "first\nhalf way\ndone\n"
    assert "-- job: goes on; so far its last line is: half way\n" in capsys.readouterr().out


def _job(tmp_path: Path, outcomes: str, *tests: str, more: str = "") -> checks.Job:
    """A job whose `tests` failed, and fail again in its run of that number if `outcomes` has an F there."""
    again = (
        "import os, sys, pathlib\n"
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "with runs.open('a') as file: print(*sys.argv[1:], file=file)\n"
        f"sys.exit({outcomes!r}[len(runs.read_text().splitlines()) - 1] == 'F')\n"
    )
    output = "".join(f"failed test: {test}\n" for test in tests) + more
    return checks.Job("job", "lane", (), alone=(sys.executable, "-c", again), failed=True, output=output)


def test_what_failed_beside_other_work_passes_if_it_passes_twice_alone(tmp_path: Path) -> None:
    job = _job(tmp_path, "..", "tests/a.py::test_a[1 - x]", "tests/b.py::test_b")
    assert checks.run_again([job]) == ["tests/a.py::test_a[1 - x]", "tests/b.py::test_b"]
    assert not job.failed
    assert (tmp_path / "runs").read_text() == "tests/a.py::test_a[1 - x] tests/b.py::test_b\n" * 2


@pytest.mark.parametrize("outcomes", ["F", ".F"])
def test_what_fails_once_more_has_failed(tmp_path: Path, outcomes: str) -> None:
    job = _job(tmp_path, outcomes, "tests/a.py::test_a")
    assert checks.run_again([job]) == []
    assert job.failed
    assert len((tmp_path / "runs").read_text().splitlines()) == len(outcomes)


def test_wrong_bytes_many_failures_and_failures_of_no_test_are_not_run_again(tmp_path: Path) -> None:
    bytes_differ = f"{checks.NEVER_AGAIN[0]}::test_bits"
    jobs = [
        _job(tmp_path, "..", "tests/a.py::test_a", bytes_differ),
        _job(tmp_path, "..", *(f"tests/a.py::test_{index}" for index in range(checks.MOST_AGAIN + 1))),
        _job(tmp_path, "..", "tests/a.py::test_a", more=checks.OTHER_FAILURE),
        _job(tmp_path, "..", more="Segmentation fault"),
        checks.Job("native", "lane", (), failed=True, output="failed test: tests/a.py::test_a"),
    ]
    assert checks.run_again(jobs) == []
    assert all(job.failed for job in jobs)
    assert not (tmp_path / "runs").exists()
    for name in checks.NEVER_AGAIN:
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text()


def test_a_run_names_the_tests_that_failed_and_says_what_else_did(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', ['a - b'])\ndef test_no(x): assert not x\ndef test_yes(): pass\n"
    )
    (tmp_path / "test_unreadable.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    here = ("--rootdir", str(tmp_path), "-c", os.devnull, "-p", "no:cacheprovider")
    pytest_here = (sys.executable, "-m", "pytest", *here)
    for beside in ((), ("-n", "1")):
        for files, more in ((["test_two.py"], False), (["test_two.py", "test_unreadable.py"], True)):
            job = checks.Job("job", "lane", (), {"PYTHONPATH": str(ROOT)}, alone=("alone",))
            options = ("--continue-on-collection-errors", "-W", "ignore", *beside)
            done = job.run((*pytest_here, *options, *(str(tmp_path / name) for name in files)))
            job.failed, job.output = done.returncode != 0, done.stdout
            assert job.failed
            assert ("failed test: test_two.py::test_no[a - b]" in done.stdout.splitlines()) or more, done.stdout
            assert bool(job.to_run_again()) is not more, done.stdout


def _ran(tmp_path: Path, body: str, *options: str) -> checks.Job:
    """A job that ran one test, `test_one`, of that body."""
    (tmp_path / "test_one.py").write_text(f"import os, time\ndef test_one(): {body}\n")
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    here = ("--rootdir", str(tmp_path), "-c", os.devnull, "-p", "no:cacheprovider", "-W", "ignore", *options)
    job = checks.Job("job", "lane", (), {"PYTHONPATH": str(ROOT)}, alone=("alone",), failed=True)
    job.output = job.run((sys.executable, "-m", "pytest", *here, str(tmp_path / "test_one.py"))).stdout
    return job


def test_a_process_that_crashed_is_not_bad_luck(tmp_path: Path) -> None:
    """Pytest-xdist makes a report of a test of it."""
    job = _ran(tmp_path, "os.abort()", "-n", "1")
    assert "1 failed" in job.output
    assert job.to_run_again() == []


def test_a_test_that_hung_is_not_run_again(tmp_path: Path) -> None:
    job = _ran(tmp_path, "time.sleep(60)", "--timeout", "1")
    assert "failed test: test_one.py::test_one" in job.output.splitlines()
    assert job.to_run_again() == []


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


def test_two_jobs_share_the_tests_of_this_host() -> None:
    """What one chooses by its mark the other leaves; of slow tests, those that train come first."""
    quick, slow = (job.command for job in checks.jobs() if job.name in ("tests", checks.SLOW_TESTS))
    assert set(quick) ^ set(slow) == {checks.QUICK[1], checks.SLOW[1], *checks.FOLDERS}
    assert (slow[-len(checks.FOLDERS) :], checks.FOLDERS[0]) == (tuple(checks.FOLDERS), "tests/torch")
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [file for file in files if not file.startswith(tuple(f"{folder}/" for folder in checks.FOLDERS))] == []


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


def test_a_long_job_without_tests_of_pytest_has_a_row_of_its_own() -> None:
    """As where no machine boots: else its tests would be missing from the page as if there were none."""
    told = "1.50s call     tests/a.py::one\nPASSED tests/a.py::one\nFAILED tests/a.py::two - AssertionError: no\n"
    job = checks.Job("a proof", "long", (), failed=True, took_s=7.0)
    assert long_tests.results_of(job) == [{"test": "a proof", "verdict": "failed", "took_s": 7.0}]
    no_pytest = checks.Job("native", "long", (), took_s=7.0, output="100% tests passed")
    assert long_tests.results_of(no_pytest) == [{"test": "native", "verdict": "passed", "took_s": 7.0}]
    job.output = told
    assert long_tests.results_of(job) == [
        {"test": "tests/a.py::one", "verdict": "passed", "took_s": 1.5},
        {"test": "tests/a.py::two", "verdict": "failed", "took_s": 0.0},
    ]
