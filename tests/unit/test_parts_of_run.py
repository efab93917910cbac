"""What `sentinel run` adds to a script, part by part: files by rank, early ends, the curve."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sentinel import files, planner
from sentinel.cli import early_end, fast_memory_curve, kept_files, live, run
from sentinel.cli.early_end import Enough, StepLimit
from sentinel.cli.kept_files import DEFAULT_REPORT, KeptFiles, require_form
from sentinel.core.counters import Counters
from sentinel.core.errors import FormatError, UsageError
from sentinel.core.pins import Pins
from sentinel.core.run import MIGRATION_DTYPE
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports import Report
from sentinel.reports.html.shell import document
from sentinel.runtime import RUNTIME
from sentinel.system import affinity, progress
from sentinel.system.configuration import Setting
from sentinel.system.launched import of_this_rank
from tests.builders import MIB, make_profile, param
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, executed, full_report


def asked(**given: str) -> argparse.Namespace:
    names = ("report", "save_plan", "save_profile", "save_run", "plan", "machine")
    return argparse.Namespace(**{name: given.get(name) for name in names})


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "out/r.html"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "out/r.html"),
        ({"RANK": "1", "WORLD_SIZE": "x"}, "out/r.html"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "out/r.rank1.html"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "out/r.html"),  # a batch script, before srun
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, "out/r.rank3.html"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "RANK": "5", "WORLD_SIZE": "8"}, "out/r.rank5.html"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "out/r.rank1.html"),
    ],
)
def test_processes_of_one_job_write_files_of_their_own(environment: dict[str, str], name: str) -> None:
    assert of_this_rank("out/r.html", environment) == name
    assert of_this_rank("-", environment) == "-"


def test_names_have_the_rank_from_where_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Lightning's own launcher, which says so as `fit()` begins: then the script may be elsewhere."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    kept = KeptFiles.asked_for(asked(report="r.json", save_plan="plan.json"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    kept.session_started([], [])
    assert kept.placed(kept.report) == str(tmp_path / "r.rank1.json")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["r.rank1.json"]
    told = json.loads((tmp_path / "r.rank1.json").read_text())["rank"]
    assert (told["rank"], told["size"], told["state"]) == (1, 2, "trains")


def test_what_could_not_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        require_form(str(tmp_path / "r.docx"))
    with pytest.raises(FormatError, match="there is no folder"):
        KeptFiles.asked_for(asked(save_plan=str(tmp_path / "none" / "plan")))
    assert KeptFiles.asked_for(asked(report="-")).report == "-"


def test_no_output_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("x.json")
    for given in (
        {"save_profile": "same.out", "save_plan": "same.out"},
        {"report": "x.json", "save_plan": str(tmp_path / "x.json")},
        {"save_run": "link", "save_plan": "x.json"},
    ):
        with pytest.raises(UsageError, match=r"two outputs would be written to .*; give each a file of its own"):
            KeptFiles.asked_for(asked(**given))


def test_what_a_rank_writes_for_its_report_is_no_other_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its facts are in a .json beside its page, and the report over all ranks has the name without a rank."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for plan in ("run.json", "./run.json"):
        with pytest.raises(UsageError, match=r"two outputs would be written to .*run\.rank0\.json"):
            KeptFiles.asked_for(asked(report="run.html", save_plan=plan))
    with pytest.raises(UsageError, match=r"run\.json is read, and would be replaced"):
        KeptFiles.asked_for(asked(report="run.json", machine="./run.json"))
    assert KeptFiles.asked_for(asked(report="run.html", save_plan="plan.json")).report == "run.rank0.html"
    capsys.readouterr()
    assert KeptFiles.asked_for(asked(save_plan="sentinel-report.json")).report == ""
    assert "without --report there is no report" in capsys.readouterr().err


def test_what_a_run_reads_is_no_output_whoever_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RUNTIME, "configured", {"plan": Setting(str(tmp_path / "p.json"), "SENTINEL_PLAN")})
    with pytest.raises(UsageError, match=r"p\.json is read, and would be replaced"):
        KeptFiles.asked_for(asked(save_plan="p.json"))
    with pytest.raises(UsageError, match=r"train\.py is read, and would be replaced"):
        KeptFiles.asked_for(asked(save_plan="train.py"), str(tmp_path / "train.py"))
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"p\.rank0\.json is read, and would be replaced"):
        KeptFiles.asked_for(asked(save_plan="p.json"))


def test_a_default_report_that_cannot_be_written_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert KeptFiles.asked_for(asked()).report == DEFAULT_REPORT
    assert capsys.readouterr().err == ""
    (tmp_path / DEFAULT_REPORT).mkdir()
    assert KeptFiles.asked_for(asked()).report == ""
    assert f"{DEFAULT_REPORT}: file: is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("ours", [True, False])
def test_only_an_earlier_report_is_overwritten_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ours: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(DEFAULT_REPORT).write_text(document("a page", "") if ours else "<!doctype html>notes of another kind")
    assert KeptFiles.asked_for(asked()).report == (DEFAULT_REPORT if ours else "")
    assert ("not overwritten: give --report FILE" in capsys.readouterr().err) == (not ours)
    assert KeptFiles.asked_for(asked(report=DEFAULT_REPORT)).report == DEFAULT_REPORT


def test_files_are_where_they_were_asked_for_though_the_script_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = KeptFiles(profile="p")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    kept.profile_made(PROFILE)
    assert files.digest(files.load_profile(tmp_path / "p")) == files.digest(PROFILE)


def test_profile_and_plan_are_there_as_soon_as_they_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = KeptFiles(profile=str(tmp_path / "p"), plan=str(tmp_path / "none" / "plan"))
    kept.profile_made(PROFILE)
    assert files.digest(files.load_profile(tmp_path / "p")) == files.digest(PROFILE)
    kept.plan_made(PLAN)
    kept.profile_made(PROFILE)
    kept.plan_made(PLAN)
    assert capsys.readouterr().err.count("there is no folder") == 1


def test_a_limit_ends_the_script_after_its_steps_or_with_its_plan() -> None:
    limit = StepLimit(2, dry=False)
    limit.plan_made(PLAN)
    limit.session_ended()
    limit.stepped()
    with pytest.raises(Enough) as leaving:
        limit.stepped()
    assert leaving.value.code == 0
    dry = StepLimit(None, dry=True)
    dry.session_ended()  # of a session that planned nothing
    dry.plan_made(PLAN)
    dry.stepped()
    with pytest.raises(Enough):
        dry.plan_applied(PLAN, MACHINE, None)
    dry.session_ended()  # once is enough
    assert dry.asked
    assert limit.asked
    assert not StepLimit(None, dry=False).asked


def test_a_limit_ends_a_thread_that_trains_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python says nothing of a thread that SystemExit ends, and shows the traceback of any other."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda found: raised.append(found.exc_type))
    thread = threading.Thread(target=StepLimit(1, dry=False).stepped)
    thread.start()
    thread.join()
    assert raised == [SystemExit]


TERMINATED = """
import os, signal, sys
from sentinel.cli.early_end import before_sigterm
kind = sys.argv[1]
if kind == "handled":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
def fail(*_):
    raise RuntimeError("a worker was ended")
def write():
    if kind == "workers":
        if not os.fork():
            os._exit(0)
        os.wait()
    print("written", flush=True)
    if kind == "fails":
        raise ValueError("no room")
    if kind == "interrupted":
        raise KeyboardInterrupt
if kind == "workers":
    signal.signal(signal.SIGCHLD, fail)
waits = before_sigterm(write)
if kind == "finishing":
    with waits():
        os.kill(os.getpid(), signal.SIGTERM)
        print("finished", flush=True)
    print("goes on", flush=True)
if kind == "keeping":
    with waits(lambda: print("all of it", flush=True)):
        os.kill(os.getpid(), signal.SIGTERM)
        print("kept", flush=True)
    print("goes on", flush=True)
if kind == "no signal":
    with waits(write):
        print("kept", flush=True)
    os._exit(0)
if kind == "called":
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *given: (ours(*given), os._exit(6)))
if kind == "child" and os.fork():
    os.wait()
    os._exit(5)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.needs("torch")
def test_sigterm_before_a_step_was_profiled_is_told_as_the_script_needs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RUNTIME, "last", None)
    run.write_what_is_known(KeptFiles())
    assert capsys.readouterr().err == ("sentinel: ended by SIGTERM before a step was profiled, so there is no report\n")


def test_a_stderr_without_room_keeps_no_script_from_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "spanning", lambda _: "its processors are of two nodes")
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        run.bind_cpus(None)
        with pytest.raises(OSError, match="No space left"):
            print("this one raises", file=sys.stderr)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


@pytest.mark.parametrize(
    ("kind", "code", "printed"),
    [
        ("plain", -signal.SIGTERM, "written\n"),
        ("finishing", -signal.SIGTERM, "finished\n"),
        ("keeping", -signal.SIGTERM, "kept\nall of it\n"),
        ("no signal", 0, "kept\n"),
        ("fails", -signal.SIGTERM, "written\n"),
        ("interrupted", -signal.SIGTERM, "written\n"),
        ("workers", -signal.SIGTERM, "written\n"),
        ("called", 6, ""),
        ("handled", 7, ""),
        ("child", 5, ""),
    ],
)
def test_sigterm_is_answered_and_ends_the_process_as_it_would(kind: str, code: int, printed: str) -> None:
    root = Path(early_end.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", TERMINATED, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (code, printed)
    assert ("no room" in done.stderr) == (kind == "fails")


def test_the_curve_marks_what_was_asked_for() -> None:
    text = fast_memory_curve.curve_text("job", PROFILE, MACHINE, "50%")
    assert "How much fast memory?" in text
    assert "\nYou are here: 50%, " in text
    alone = fast_memory_curve.curve_text("job", PROFILE, MACHINE, None)
    assert "You are here" not in alone
    assert "How much fast memory?" in alone
    assert "(the bound)" not in alone, "no policies are compared"


def told_of(fast: str | None, *, dry_run: bool = True, quiet: bool = False) -> argparse.Namespace:
    return argparse.Namespace(script="job", fast=fast, dry_run=dry_run, quiet=quiet)


@pytest.mark.needs("torch")
def test_the_curve_of_a_run_keeps_what_its_plan_keeps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentinel.session.planning import Dataflow

    monkeypatch.setattr(fast_memory_curve, "CURVE", ("10%", "100%"))
    plan = planner.plan(PROFILE, MACHINE, pins=Pins(fast=("layer*",)))
    flow = Dataflow(profile=PROFILE, machine=MACHINE, plan=plan)
    run.tell_curve(told_of("50%"), flow)
    told = capsys.readouterr().err
    assert re.search(r"10% .* -  keep_fast names 8.00 MiB, the budget of fast memory is ", told)
    assert "\nYou are here: 50%, " not in told, "half has no room for what is kept"


@pytest.mark.needs("torch")
def test_the_curve_of_a_run_takes_bytes_that_are_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `fast = 8388608` in sentinel.toml is."""
    from sentinel.session.planning import Dataflow

    monkeypatch.setattr(fast_memory_curve, "CURVE", ("100%",))
    monkeypatch.setattr(RUNTIME, "configured", {"fast": Setting(8 * MIB, "sentinel.toml")})
    run.tell_curve(told_of(None), Dataflow(profile=PROFILE, machine=MACHINE))
    assert f"\nYou are here: {8 * MIB}, 8.00 MiB, " in capsys.readouterr().err


@pytest.mark.needs("torch")
def test_a_curve_that_fails_is_told_as_that_and_a_quiet_run_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentinel.session.planning import Dataflow

    monkeypatch.setattr(fast_memory_curve, "CURVE", ("100%",))
    monkeypatch.setattr(progress, "ONLY_WRONG", True)
    bare = Dataflow(profile=make_profile([param("w", MIB, [0], managed=False)], 2), machine=MACHINE)
    run.tell_curve(told_of(None), bare)
    assert capsys.readouterr().err.startswith("sentinel: no curve of fast memory: profile job has no managed tensor")
    flow = Dataflow(profile=PROFILE, machine=MACHINE)
    run.tell_curve(told_of(None, dry_run=False, quiet=True), flow)
    assert capsys.readouterr().err == ""
    run.tell_curve(told_of(None, quiet=True), flow)
    assert "How much fast memory?" in capsys.readouterr().err, "it is what a dry run is for"


@pytest.mark.parametrize("saved", [False, True])
def test_the_wait_between_reports_keeps_their_share(monkeypatch: pytest.MonkeyPatch, saved: bool) -> None:
    """Nothing to report here; it is due later and later, and never while it is being written."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    now = [0.0]
    monkeypatch.setattr(kept_files.time, "monotonic", lambda: now[0])
    kept = KeptFiles(report="-")
    if saved:
        kept.plan_applied(PLAN, MACHINE, None)
    else:
        kept.plan_made(PLAN)
    written: list[float] = []
    monkeypatch.setattr(kept, "write_so_far", lambda: written.append(now[0]))
    for now[0] in (0.0, 4.9, 5.1):
        kept.stepped()
    assert written == [5.1]


def test_with_a_file_the_report_is_written_from_the_first_step_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There no plan is made, from which on there would be something to tell."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from sentinel import session
    from sentinel.session.passive import PassiveSession

    now, reports = [0.0], list[bool]()

    def report(*, bounded: bool) -> Report:
        reports.append(bounded)
        return full_report()

    monkeypatch.setattr(kept_files.time, "monotonic", lambda: now[0])
    for name in ("last", "sink"):
        monkeypatch.setattr(kept_files.RUNTIME, name, object.__new__(PassiveSession))
    monkeypatch.setattr(session, "report", report)
    kept = KeptFiles(report=str(tmp_path / "r.json"), plan=str(tmp_path / "plan.json"))
    for now[0] in (0.0, 4.9, 5.1, 5.2, 15.0, 15.4):
        kept.stepped()
    assert reports == [False, False]
    assert (tmp_path / "r.json").exists()
    monkeypatch.setattr(progress, "ONLY_WRONG", True)  # --quiet: it went wrong all the same
    kept.write_nouns(None)
    assert "nothing to write to" in (said := capsys.readouterr().err)
    assert "plan.json: no plan was made, since with a file no step is profiled and nothing is planned" in said


def test_with_a_file_other_ranks_see_from_the_first_step_on_that_this_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the row of one that is killed before its first report would be that of one that never began."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from sentinel.session.passive import PassiveSession

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    kept = KeptFiles.asked_for(asked(report="r.txt"))
    kept.stepped()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(kept_files.RUNTIME, "sink", object.__new__(PassiveSession))
    kept.stepped()
    told = json.loads((tmp_path / "r.rank1.json").read_text())["rank"]
    assert (told["rank"], told["state"]) == (1, "trains")
    (tmp_path / "r.rank1.json").unlink()
    kept._due = math.inf  # as while a report is being written
    kept.stepped()
    assert not list(tmp_path.iterdir())  # what a report has told by then is not told again, without its figures


def test_a_line_tells_how_steps_go() -> None:
    run = executed()
    line = live.live_line(run, MACHINE)
    times = sorted(run.steps["duration_ns"].tolist())
    assert f"{run.counters.steps} applied steps: {format_ns(times[len(times) // 2])} ({format_ns(times[0])} to" in line
    assert f" of {format_bytes(run.fast_capacity_bytes)} fast" in line
    assert f"; waits {format_ns(int(run.steps['stall_ns'][-1]))}" in line


def test_a_line_tells_what_each_tier_holds_each_link_moved_and_how_often_promotions_were_late() -> None:
    step = executed().steps["step"][-1]
    moves = np.zeros(3, MIGRATION_DTYPE)
    moves["step"], moves["target"], moves["moved_bytes"] = [step, step, step - 1], [1, 1, 1], [MIB, 2 * MIB, 9 * MIB]
    run = executed(migrations=moves, counters=Counters(steps=3, case1=7, case2=1, case3=2))
    slow = int(run.layers["slow_bytes"][run.layers["step"] == step].max())
    share = 3 * MIB / MACHINE.links[0].bandwidth_bytes_per_s / (int(run.steps["duration_ns"][-1]) / 1e9)
    assert live.live_line(run, MACHINE).split("; ")[1:] == [
        f"{format_bytes(int(run.steps['fast_peak_bytes'][-1]))} of 8.00 MiB fast, {format_bytes(slow)} in slow",
        f"moved 3.00 MiB fast to slow ({share:.0%} of the link)",
        f"waits {format_ns(int(run.steps['stall_ns'][-1]))}",
        "promotions in time 7 ×, late for room 1 ×, late for time 2 ×",
    ]
    nothing = live.live_line(executed(migrations=moves[:0], counters=Counters(steps=1)), MACHINE)
    assert nothing.startswith("live    1 applied step: ")
    assert "; moved nothing; waits " in nothing
    assert "promotions" not in nothing


HEAVY = {"numpy", "torch", "pandas", "highspy", "scipy"}


def test_help_imports_nothing_heavy() -> None:
    """So it answers at once; what a verb needs it imports when it runs."""
    text = (
        "import sys\nfrom sentinel.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=600)
    assert "a typical session:" in done.stdout
    assert not HEAVY & set(done.stderr.split())


def test_a_page_of_somebody_elses_stays_and_there_is_no_report_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    (tmp_path / "sentinel-report.html").write_text("mine")
    kept = KeptFiles.asked_for(asked())
    assert "sentinel-report.html exists" in capsys.readouterr().err
    assert kept.write_report(full_report())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentinel-report.html", "sentinel-report.rank1.html"]
    assert (tmp_path / "sentinel-report.html").read_text() == "mine"
    named = KeptFiles.asked_for(asked(report="r.html"))
    named.end_without_report(failed=True)
    assert json.loads((tmp_path / "r.rank1.json").read_text())["rank"]["state"] == "failed"
    assert named.write_report(full_report())
    assert named.written == "r.rank1.html"  # rank 0 has not ended
    assert (tmp_path / "r.html").exists()


def test_a_report_in_several_files_is_told_as_several(tmp_path: Path) -> None:
    kept = KeptFiles(report=str(tmp_path / "r.csv"))
    assert kept.write_report(full_report())
    assert kept.written == f"{tmp_path}/r.csv (the headline) and {tmp_path}/r-*.csv (a table each)"
    assert len(list(tmp_path.glob("r-*.csv"))) > 5
    assert KeptFiles(report=str(tmp_path / "r.html")).written == f"{tmp_path}/r.html"
