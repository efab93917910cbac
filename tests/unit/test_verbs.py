"""The verbs of the command line by themselves: what each refuses before it works, and how it says what it found."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import py_compile
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel import cli, files, simulator, tiers
from sentinel.cli import calibrate, compare, compare_executed, plan, prove, report, run, script, simulate
from sentinel.cli.common import OK, as_a_file, machine_named
from sentinel.core.errors import SentinelError, UsageError
from sentinel.core.units import format_ns
from sentinel.executed.placements import weights
from sentinel.system import calibration
from sentinel.system import topology as host_topology
from sentinel.system.topology import Topology
from tests.unit.report_builders import MACHINE, PLAN, PROFILE, SIMULATED


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("saved")
    for name, noun in (("profile", PROFILE), ("plan", PLAN), ("run", SIMULATED), ("machine", MACHINE)):
        files.save(noun, folder / name)
    return {name: str(folder / name) for name in ("profile", "plan", "run", "machine")}


def asked(verb: object, *words: str) -> argparse.Namespace:
    """The arguments of one verb, as the command line has them."""
    parser = argparse.ArgumentParser()
    verb.add_to(parser.add_subparsers(dest="verb"))  # type: ignore[attr-defined]
    return parser.parse_args(words)


def test_plan_prints_what_it_decides(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", saved["profile"], "--machine", saved["machine"], "--policy", "sentinel-2021", "--json")
    assert plan.execute(asked(plan, *words)) == OK
    found = json.loads(capsys.readouterr().out)
    all_fast = found.pop("step_ns_all_fast")
    assert "counted as 0" in found.pop("price_of_moves")
    assert 0 < found.pop("fast_mean_bytes") <= PLAN.fast_peak_bytes
    assert found == plan.decisions(PLAN)
    assert 0 < all_fast <= (PLAN.predicted_step_ns or 0)
    rows = {what: (amount, remark) for what, amount, remark in plan.rows_of(PLAN, all_fast)}
    assert rows["step"] == (format_ns(PLAN.predicted_step_ns or 0), plan.against(PLAN.predicted_step_ns, all_fast))
    assert rows["  all fast"][0] == format_ns(all_fast)
    assert "step" not in {what for what, _, _ in plan.rows_of(replace(PLAN, predicted_step_ns=None), None)}


def test_only_the_policy_that_has_candidates_can_forgive(saved: dict[str, str]) -> None:
    words = ("plan", saved["profile"], "--machine", saved["machine"], "--fast", "20%", "--forgiving")
    assert plan.execute(asked(plan, *words)) == OK
    with pytest.raises(UsageError, match="policy lru has no forgiving plans; use policy sentinel"):
        plan.execute(asked(plan, *words, "--policy", "lru"))


def test_plan_says_what_to_compare_with_and_where_it_is(
    saved: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "plan.json")
    assert plan.execute(asked(plan, "plan", saved["profile"], "--machine", "cxl-m5", "--fast", "100TiB")) == OK
    told = capsys.readouterr().out
    assert told.startswith("simulated on cxl-m5: predictions")
    assert "nothing moves" in told
    assert "cxl-m5 computes 1.5 TFLOP/s" in told
    assert "nothing was written" in told
    words = ("plan", saved["profile"], "--machine", saved["machine"], "--fast", "20%", "-o", out)
    assert plan.execute(asked(plan, *words)) == OK
    told = capsys.readouterr().out
    assert told.endswith(f"plan written to {out}\n")
    assert "times the step with everything fast" in told
    assert "on built is counted as 0" in told
    assert "TFLOP/s" not in told
    assert simulate.execute(asked(simulate, "simulate", saved["profile"], saved["plan"], *words[2:4])) == OK
    assert "on built is counted as 0" in capsys.readouterr().out


def test_a_host_without_a_calibration_must_name_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_named("cxl-m5").name == "cxl-m5"
    monkeypatch.setattr(calibration, "kept", lambda *_: None)
    with pytest.raises(UsageError, match="no machine is named"):
        machine_named(None)


def test_a_calibrated_host_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "kept", lambda *_: MACHINE)
    monkeypatch.setattr(host_topology, "topology", lambda: Topology(slower=(1,)))
    monkeypatch.setattr(tiers, "machine_for", lambda slow: replace(MACHINE, name=f"as {slow} says"))
    assert machine_named(None).name == "as auto says"


def test_simulate_prints_the_run_in_numbers(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", saved["profile"], saved["plan"], "--machine", saved["machine"], "--steps", "3", "--json")
    assert simulate.execute(asked(simulate, *words)) == OK
    found = json.loads(capsys.readouterr().out)
    all_fast = found.pop("step_ns_all_fast")
    assert "counted as 0" in found.pop("price_of_moves")
    assert found == simulate.numbers(SIMULATED)
    rows = {what: (amount, remark) for what, amount, remark in simulate.rows_of(found, all_fast)}
    assert rows["step"][0] == format_ns(SIMULATED.step_ns or 0)
    assert rows["  all fast"][0] == format_ns(all_fast)
    assert found["case1"] + found["case2"] + found["case3"] == sum(SIMULATED.counters.cases.values())
    assert found["steps"] == 3
    once = simulate.numbers(simulator.simulate(PLAN, PROFILE, MACHINE, steps=1))
    assert rows["layers"][0] == "/".join(str(once[f"case{case}"]) for case in (1, 2, 3))


def test_simulate_keeps_rows_of_no_more_steps_than_fit(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("simulate", saved["profile"], saved["plan"], "--machine", saved["machine"], "--steps")
    with pytest.raises(SystemExit) as ended:
        asked(simulate, *words, "10001")
    assert ended.value.code == 2
    assert "10001 steps are too many; give at most 10,000" in capsys.readouterr().err
    assert asked(simulate, *words, "10000").steps == 10_000


def test_report_draws_what_was_saved(saved: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("report", "--profile", saved["profile"], "--plan", saved["plan"], "--run", saved["run"])
    assert report.execute(asked(report, *words)) == OK
    assert "simulated" in capsys.readouterr().out
    assert report.execute(asked(report, *words, "-o", str(tmp_path / "r.html"))) == OK
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(UsageError):
        report.execute(asked(report, *words, "-o", str(tmp_path / "r.docx")))


def test_calibrate_understands_nodes_threads_and_amounts() -> None:
    found = asked(calibrate, "calibrate", "--nodes", "0-1,3", "--threads", "1,N", "--size", "8MiB")
    assert (found.nodes, found.threads, found.size) == ([0, 1, 3], [1, 0], 8 << 20)
    more = [("--nodes", nodes) for nodes in ("0,l", "0,", "0-99999999999", "9" * 5000, "1²")]
    for wrong in (("--nodes", "x"), ("--threads", "0"), ("--size", "8 apples"), *more):
        with pytest.raises(SystemExit, match="2"):
            asked(calibrate, "calibrate", *wrong)


OF_A_SCRIPT = (("slow", "numa:1"), ("tracker", "ops"), ("plan", "p.json"), ("warm-up", "4"), ("measure", "2"))
OF_PROFILES = (("curve", "10%"), ("bound-limit", "60"), ("search-limit", "60"))
OF_BOTH = (("machine", "cxl-m5"), ("fast", "20%"), ("policies", "static"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "nothing to compare"),
        (("p", "--executed", "train.py"), "profiles and --executed are given"),
        (("p", "--machine", "cxl-m5", "--policies", "best"), "best"),
        (("p", "p", "--machine", "cxl-m5"), "a profile is given twice"),
        *(
            ((*before, f"--{option}", value, *after), f"--{option} {where}: it does nothing there; leave it out")
            for before, after, where, options in (
                ((), ("--executed", __file__), "with --executed", OF_PROFILES),
                (("p",), (), "without --executed", OF_A_SCRIPT),
                (("a.json", "b.json"), (), "without --executed", OF_A_SCRIPT),
                (("a.json", "b.json"), (), "beside reports", OF_BOTH + OF_PROFILES),
            )
            for option, value in options
        ),
    ],
)
def test_compare_refuses_before_it_simulates(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        compare.execute(asked(compare, "compare", *words))


@pytest.mark.parametrize(
    ("verb", "words", "why"),
    [
        (calibrate, ("calibrate", "--slow", "cxl-fpga", "--nodes", "0,1"), "--nodes with --slow"),
        (prove, ("prove", "--dry-run", "--json"), "--dry-run with --json"),
        (prove, ("prove", "--dry-run", "--resume"), "--dry-run with --resume"),
        (run, ("run", "--live", "--quiet", "train.py"), "--live with --quiet"),
    ],
)
def test_two_options_of_which_one_would_do_nothing_are_refused(verb: Any, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}: .*; leave one out"):
        verb.execute(asked(verb, *words))


def test_compare_names_profiles_by_stem_where_stems_differ() -> None:
    assert compare._labels(["a/x.st", "b/y.st"]) == {"x": "a/x.st", "y": "b/y.st"}
    assert compare._labels(["a/x.st", "b/x.st"]) == {"a/x.st": "a/x.st", "b/x.st": "b/x.st"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "no script is given"),
        (("none.py",), "there is no script none.py"),
        ((__file__,), "measures one amount of fast memory"),
    ],
)
def test_an_executed_comparison_is_refused_before_torch_is_imported(words: tuple[str, ...], why: str) -> None:
    found = asked(compare, "compare", "--fast", "10%,20%", "--executed", *words)
    with pytest.raises(UsageError, match=why):
        compare_executed.execute(found)


def test_weights_are_small_whole_numbers_in_the_ratio_of_the_bandwidths() -> None:
    assert weights(100, 24) == (4, 1)
    assert weights(10**6, 1) == (255, 1)
    assert weights(1, 10) == (1, 1)


def test_a_launcher_of_processes_is_refused() -> None:
    fine = asked(run, "run", "-m", "package.train", "--epochs", "1")
    run.require_no_launcher(fine)
    assert (fine.script, fine.arguments) == ("package.train", ["--epochs", "1"])
    with pytest.raises(UsageError, match="starts other processes"):
        run.require_no_launcher(asked(run, "run", "--auto", "-m", "torch.distributed.run", "train.py"))


def test_a_script_runs_as_python_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "beside_the_script.py").write_text("WORD = 'imported from beside it'")
    (tmp_path / "train.py").write_text(
        "import sys, beside_the_script as other\nprint(__name__, sys.argv[1:], other.WORD)\nsys.exit(int(sys.argv[1]))"
    )
    assert script.run_as_main(script.script_at(str(tmp_path / "train.py")), ["7"]) == 7
    assert capsys.readouterr().out == "__main__ ['7'] imported from beside it\n"
    (tmp_path / "train.py").write_text("1 / 0")
    assert script.run_as_main(script.script_at(str(tmp_path / "train.py")), []) == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "sentinel" not in told  # the traceback begins in the script
    with pytest.raises(UsageError, match="there is no module"):
        script.module_named("no_such_module_1009")


def test_a_folder_that_was_removed_is_named(
    saved: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["plan", saved["profile"], "--machine", saved["machine"], "--fast", "20%", "-o", "p.json"]) == 1
    assert capsys.readouterr().err == "sentinel: the current folder was removed; go to one that is there\n"
    monkeypatch.chdir(tmp_path)

    def no_folder(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(cli, "parsed", no_folder)
    monkeypatch.setattr(cli, "_leave_stdout", lambda: None)
    assert cli.main([]) == 1
    assert "sentinel: No usable temporary directory found in ['/tmp']; " in capsys.readouterr().err


@pytest.mark.parametrize("safe", [False, True])
def test_a_safe_path_keeps_its_first_folder(safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONSAFEPATH, -P or -I Python puts no folder of a script there, so the first one is of PYTHONPATH."""
    first, rest = str(tmp_path / "of PYTHONPATH"), list(sys.path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    flags = {name: getattr(sys.flags, name) for name in sys.flags.__match_args__} | {"safe_path": safe}
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**flags))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys\nsys.exit(len(sys.argv))")
    (tmp_path / "train_job.py").write_text("def make(): ...")
    for run_it in (
        lambda: script.run_as_main(script.script_at("train.py"), ["x"]),
        lambda: script.module_named("train"),
        lambda: script.function_named("os:getcwd"),
        lambda: script.function_named("train_job.py:make"),
    ):
        monkeypatch.setattr(sys, "path", [first, *rest, str(tmp_path)])
        run_it()
        assert sys.path == [first if safe else str(tmp_path), *rest, str(tmp_path)]


def test_a_script_finds_itself_wherever_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("argv", "path", "excepthook"):
        value = getattr(sys, name)
        monkeypatch.setattr(sys, name, value if callable(value) else list(value))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import builtins, os, sys\nos.chdir('/')\n"
        "print(sys.argv[0], __file__, sys._getframe().f_code.co_filename, __builtins__ is builtins)\n"
        "sys.excepthook = lambda kind, error, trace: print(kind.__name__, trace.tb_lineno)\n1 / 0"
    )
    assert script.run_as_main(script.script_at("train.py"), []) == 1
    path = tmp_path / "train.py"
    assert capsys.readouterr() == (f"train.py {path} {path} True\nZeroDivisionError 5\n", "")
    (tmp_path / "train.py").write_text("import sys\nsys.excepthook = lambda *_: 1 + ''\n1 / 0")
    assert script.run_as_main(script.script_at(str(path)), []) == 1
    assert "TypeError" in (told := capsys.readouterr().err)
    assert "ZeroDivisionError" in told


@pytest.mark.parametrize("closed", [True, False])
def test_a_script_may_close_what_it_prints_to(monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    done = argparse.Namespace(debug=False, execute=lambda _: 7)
    monkeypatch.setattr(cli, "parsed", lambda _: done)
    out = io.StringIO()
    out.close()
    monkeypatch.setattr(sys, "stdout", out if closed else None)
    assert cli.main(["run", "train.py"]) == 7


@pytest.mark.parametrize("words", [("--plan", "plan.json"), ("--slow", "file:/tmp"), ("--cap", "8GiB")])
def test_a_dry_run_that_would_watch_no_step_is_refused(words: tuple[str, ...]) -> None:
    run.require_a_watched_step(asked(run, "run", *words, "train.py"))
    with pytest.raises(UsageError, match=f"--dry-run with {words[0]}"):
        run.require_a_watched_step(asked(run, "run", "--dry-run", *words, "train.py"))


@pytest.mark.parametrize("words", [("--slow", "file:/tmp"), ("--cap", "8GiB")])
@pytest.mark.parametrize(
    "option", [("--save-profile", "p.safetensors"), ("--save-plan", "p.json"), ("--save-run", "r.st"), ("--live",)]
)
def test_what_a_plan_is_needed_for_is_refused_where_there_is_none(
    words: tuple[str, ...], option: tuple[str, ...]
) -> None:
    run.require_a_watched_step(asked(run, "run", *option, "train.py"))
    with pytest.raises(UsageError, match=f"{option[0]} with {words[0]} .*: with a file, no step is profiled"):
        run.require_a_watched_step(asked(run, "run", *option, *words, "train.py"))


def test_options_after_the_script_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    run.tell_of_misplaced_options(asked(run, "run", "train.py", "--lr", "0.1", "--slower"))
    assert capsys.readouterr().err == ""
    run.tell_of_misplaced_options(asked(run, "run", "train.py", "--lr", "0.1", "--fast", "20%", "--cap=8GiB"))
    assert "--fast, --cap=8GiB: passed to train.py; put Sentinel's own options before it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["python", "/usr/bin/python3", "python3.12"])
def test_a_program_that_runs_scripts_is_no_script(name: str) -> None:
    with pytest.raises(UsageError, match="is no training script, it runs scripts; leave it out"):
        script.script_at(name)


def test_a_script_from_stdin_is_told_how_it_is_read() -> None:
    with pytest.raises(UsageError, match="-: a script is read from a file; `sentinel run /dev/stdin"):
        script.script_at("-")


def test_what_is_compiled_or_packed_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    compiled, archive = tmp_path / "train.pyc", tmp_path / "train.pyz"
    py_compile.compile(str(tmp_path / "train.py"), str(compiled))
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("__main__.py", "print(1)")
    for path in (compiled, archive):
        with pytest.raises(UsageError, match="is no script"):
            script.script_at(str(path))


def test_what_is_read_is_not_replaced_by_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = [tmp_path / name for name in ("p.safetensors", "plan.json", "m.json", "r.json")]
    for path in read:
        path.write_text(path.name)
    profile, plan, machine, run_file = map(str, read)
    for command in (
        ["plan", profile, "--machine", "cxl-m5", "-o", "p.safetensors"],
        ["plan", profile, "--machine", machine, "-o", machine],
        ["simulate", profile, plan, "--machine", "cxl-m5", "-o", plan],
        ["report", "--profile", profile, "--run", run_file, "-o", run_file],
        ["report", run_file, "-o", run_file],
        ["compare", "--plan", plan, "--html", plan, "--executed", __file__],
    ):
        assert cli.main(command) == 2
        assert "is read, and would be replaced by what is written; give another file" in capsys.readouterr().err
    assert [path.read_text() for path in read] == [path.name for path in read]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("named", ["jobs.py:make", "jobs:make"])
def test_the_file_of_a_factory_is_not_replaced_by_its_estimate(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    text = "def make(): raise ValueError"
    Path("jobs.py").write_text(text)
    assert cli.main(["estimate", named, "--machine", "cxl-m5", "-o", "jobs.py"]) == 2
    assert "jobs.py is read, and would be replaced" in capsys.readouterr().err
    assert Path("jobs.py").read_text() == text
    sys.modules.pop("jobs", None)


_ONE_AMOUNT = ("--fast", "20%", "--curve", "100%")
"""Of `compare`, which otherwise plans for 11."""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_result_that_cannot_be_saved_is_printed(
    form: list[str],
    saved: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And then the error decides the exit code."""
    monkeypatch.chdir(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    commands = {
        "all fast": ["plan", saved["profile"], "--policy", "sentinel-2021", "-o", "o"],
        "layers": ["simulate", saved["profile"], saved["plan"], "-o", "o"],
        "static": ["compare", saved["profile"], *_ONE_AMOUNT, "--policies", "static", "--html", "o"],
    }
    for word, command in commands.items():
        assert cli.main([*command, "--machine", "cxl-m5", *form]) == 1
        told = capsys.readouterr()
        assert ("step_ns" if form else word) in told.out
        assert "written to" not in told.out
        assert "No space left on device" in told.err
    assert not os.listdir()


def test_pins_of_a_foreign_plan_are_told_as_far_as_they_make_sense(
    saved: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"name": "w", "nbytes": 4096, "tier": "fast", "slow_use_ns": 7}
    path = str(tmp_path / "plan.json")
    rows: list[object] = [{}, 1, row | {"nbytes": None}, row | {"slow_use_ns": -5}, row | {"tier": []}, row]
    for pins in ([1], 7, {"tensors": 5}, {"tensors": {}}, {"tensors": rows}):
        files.save(replace(PLAN, details={**PLAN.details, "pins": pins}), path)
        assert cli.main(["report", "--profile", saved["profile"], "--plan", path]) == 0
        told = capsys.readouterr().out
    assert "Kept where you said" in told


def test_json_for_nobody_is_no_error(saved: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `sentinel plan --json >&-`, where Python has no stdout."""
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["plan", saved["profile"], "--machine", "cxl-m5", "--json"]) == OK


def test_names_that_drive_the_terminal_are_refused(
    saved: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a machine that a program makes."""
    path = str(tmp_path / "m.json")
    files.save(replace(MACHINE, name="NAME", decided_by="WHY"), path)
    sound = "".join(line for line in Path(path).read_text().splitlines(True) if '"checksum"' not in line)
    fast, slow = MACHINE.tiers
    for text in ('"NAME"', '"WHY"', f'"{slow.name}"'):
        Path(path).write_text(sound.replace(text, '"a\\u001b[2J"'))
        for command in (["plan", saved["profile"]], ["compare", saved["profile"], "--policies", "static"]):
            assert cli.main([*command, "--machine", path]) == 1
            told = capsys.readouterr()
            assert "has characters that are not printable; write it without them" in told.err
            assert "\x1b" not in told.out + told.err
    for spec, field in ((MACHINE, "decided_by"), (fast, "name"), (fast, "source"), (MACHINE.links[0], "declared_by")):
        with pytest.raises(UsageError, match=rf"{field} 'a\\x1b\[2J' has characters that are not printable"):
            replace(spec, **{field: "a\x1b[2J"})


def test_a_profile_given_as_a_rank_says_how_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.safetensors").write_bytes(bytes(range(256)))
    assert cli.main(["report", str(tmp_path / "p.safetensors")]) == 1
    assert "is no report of a rank; give a profile with --profile, a run with --run" in capsys.readouterr().err


@pytest.mark.parametrize(("path", "words"), [("machine", "./machine"), ("m.json", "m.json"), ("a/b", "a/b")])
def test_a_machine_in_a_file_is_named_as_one(path: str, words: str) -> None:
    assert as_a_file(path) == words
    with pytest.raises(SentinelError, match=re.escape(words)):
        machine_named(words)  # as a file, which is not there


@pytest.mark.parametrize(("code", "status"), [(None, 0), (3, 3), (256 + 5, 5), ("words", 1)])
def test_exit_codes_are_those_of_python(code: object, status: int) -> None:
    assert script.status_of(SystemExit(code)) == status
