"""The verbs of the command line by themselves: what each refuses before it works, and how it says what it found."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from sentinel import files
from sentinel.cli import calibrate, compare, compare_executed, plan, report, run, script, simulate
from sentinel.cli.common import OK
from sentinel.core.errors import FormatError, UsageError
from sentinel.core.units import format_ns
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
    assert found == plan.decisions(PLAN)
    assert dict(plan.rows_of(found))["step_ns_predicted"] == format_ns(PLAN.predicted_step_ns or 0)
    assert plan.rows_of({"mil": None}) == [("mil", "-")]


def test_simulate_prints_the_run_in_numbers(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", saved["profile"], saved["plan"], "--machine", saved["machine"], "--steps", "3", "--json")
    assert simulate.execute(asked(simulate, *words)) == OK
    found = json.loads(capsys.readouterr().out)
    assert found == simulate.numbers(SIMULATED)
    assert found["case1"] + found["case2"] + found["case3"] == sum(SIMULATED.counters.cases.values())


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
    for wrong in (("--nodes", "x"), ("--threads", "0"), ("--size", "8 apples")):
        with pytest.raises(SystemExit, match="2"):
            asked(calibrate, "calibrate", *wrong)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "nothing to compare"),
        (("p",), "no machine to simulate"),
        (("p", "--executed", "train.py"), "profiles and --executed are given"),
        (("p", "--machine", "cxl-m5", "--policies", "best"), "best"),
        (("p", "p", "--machine", "cxl-m5"), "a profile is given twice"),
    ],
)
def test_compare_refuses_before_it_simulates(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        compare.execute(asked(compare, "compare", *words))


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
    assert compare_executed._weights([100, 24]) == (4, 1)
    assert compare_executed._weights([10**6, 1]) == (255, 1)
    assert compare_executed._weights([1, 10]) == (1, 1)


def test_run_refuses_files_that_could_not_be_written(tmp_path: Path) -> None:
    fine = asked(run, "run", "--report", str(tmp_path / "r.html"), "train.py", "--epochs", "1")
    run.check_files(fine)
    assert (fine.script, fine.arguments) == ("train.py", ["--epochs", "1"])
    with pytest.raises(UsageError):
        run.check_files(asked(run, "run", "--report", str(tmp_path / "r.docx"), "train.py"))
    with pytest.raises(FormatError, match="there is no folder"):
        run.check_files(asked(run, "run", "--save-plan", str(tmp_path / "none" / "plan"), "train.py"))


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


@pytest.mark.parametrize(("code", "status"), [(None, 0), (3, 3), (256 + 5, 5), ("words", 1)])
def test_exit_codes_are_those_of_python(code: object, status: int) -> None:
    assert script.status_of(SystemExit(code)) == status
