"""The command line on files whose content is known: exit codes, one-line errors, JSON beside tables."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sentinel
from sentinel import files, machines, planner, tiers
from sentinel.cli import doctor, main, parser
from sentinel.cli.common import MACHINES, POLICIES, PRESETS
from sentinel.core.profile import Profile
from sentinel.reports import build_report
from tests.builders import MIB, act, make_machine, make_profile, param
from tests.processes import without_progress

VERBS = ("run", "plan", "simulate", "compare", "report", "doctor", "calibrate")


def built_profile() -> Profile:
    """Four layers; 40 MiB of weights, one of them used in one layer only, and a 16 MiB activation over the ring."""
    specs = [
        param("w0", 16 * MIB, [0, 3]),
        param("w1", 16 * MIB, [1]),
        param("w2", 8 * MIB, [2]),
        act("a", 16 * MIB, 0, 4, [3]),
        act("t", MIB, 1, 2, [1]),
    ]
    return make_profile(specs, 4, layer_ns=50_000_000)


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """Paths of a profile and a machine on disk, and of what is to be written."""
    files.save(built_profile(), tmp_path / "p.safetensors")
    files.save(make_machine(512 * MIB), tmp_path / "machine.json")
    names = {"profile": "p.safetensors", "machine": "machine.json", "plan": "plan.json", "run": "run.safetensors"}
    return {name: str(tmp_path / file) for name, file in names.items()}


def planned(saved: dict[str, str], *more: str) -> list[str]:
    return ["plan", saved["profile"], "--machine", saved["machine"], "-o", saved["plan"], *more]


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


@pytest.mark.parametrize("verb", VERBS)
def test_help_ends_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([verb, "--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert f"\n  sentinel {verb}" in out


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb."""
    subparsers = parser()._subparsers  # argparse has no public way
    assert subparsers is not None
    found = next(action.choices for action in subparsers._group_actions)
    assert isinstance(found, dict)
    return found


def test_the_examples_in_help_are_understood() -> None:
    """Every command that the help shows parses, so the help cannot grow stale."""
    top = parser()
    shown = top.format_help() + "".join(verb.format_help() for verb in verbs().values())
    lines = [line.strip() for line in shown.splitlines() if line.startswith("  sentinel ")]
    commands = {tuple(re.split(r" {2,}| \| ", line)[0].split()[1:]) for line in lines}
    assert len(commands) >= 12
    for command in commands:
        assert top.parse_args(list(command)).execute


def test_the_help_names_all_policies() -> None:
    assert set(re.findall(r"[a-z][a-z0-9-]+", POLICIES)) - {"default"} == set(planner.POLICIES)


def test_the_help_names_all_machines_and_presets() -> None:
    slow, kinds, rates, priced = re.findall(r"\{([^}]*)\}", MACHINES)
    names = {f"{s}{k}-m{r}" for s in slow.split(",") for k in kinds.split(",") for r in rates.split(",")}
    names |= {f"cxl-m{rate}-priced" for rate in priced.split(",")}
    assert names == set(machines.names())
    assert set(re.findall(r"[a-z]+(?:-[a-z0-9]+)+", PRESETS)) == set(tiers.PRESETS)
    for verb in ("run", "plan", "simulate", "compare"):
        assert MACHINES in verbs()[verb].format_help()


def test_slow_memory_that_cannot_be_used_in_place_gives_a_bound(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    files.save(make_machine(512 * MIB, addressable=False), saved["machine"])
    assert main([*planned(saved), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["step_ns_bound"] <= told["step_ns_predicted"]
    assert files.load_plan(saved["plan"]).bound_step_ns == told["step_ns_bound"]
    assert main(planned(saved)) == 0
    assert "no plan of this kind is faster" in capsys.readouterr().out


def test_no_verb_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([])
    assert leaving.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "a typical session:" in said.err


@pytest.mark.parametrize(("redirected", "code", "lines"), [(">/dev/full", 1, 1), (">&-", 0, 0)])
def test_an_output_that_takes_nothing_is_no_traceback(
    saved: dict[str, str], redirected: str, code: int, lines: int
) -> None:
    words = f"{sys.executable} -m sentinel plan {saved['profile']} --machine {saved['machine']} {redirected}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words}"], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, len(without_progress(done.stderr))) == (code, lines), done.stderr
    assert lines == 0 or "No space left on device" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_locale_that_cannot_print_a_bar_gets_a_report_all_the_same(
    saved: dict[str, str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("report", "--profile", saved["profile"]), ("report", "--profile", saved["profile"], "--json")):
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
        assert main(list(words)) == 0
        sys.stdout.flush()
        printed = output.getvalue().decode(encoding)
        assert ("█" in printed) == (encoding == "utf-8" and "--json" not in words)
        if "--json" in words:
            assert json.loads(printed)["peak_bytes"] is None


def test_a_decimal_unit_is_answered_with_the_binary_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["plan", "p", "--machine", "cxl-m5", "--fast", "8GB"])
    assert leaving.value.code == 2
    assert "GiB?" in capsys.readouterr().err


def test_plan_writes_the_plan_that_it_prints(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(planned(saved, "--fast", "40MiB", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    plan = files.load_plan(saved["plan"])
    assert printed["fast_capacity_bytes"] == plan.capacity_bytes[0] == 40 * MIB
    assert 0 < printed["fast_mean_bytes"] <= printed["fast_peak_bytes"] == plan.fast_peak_bytes <= 40 * MIB
    assert printed["footprint_bytes"] == plan.footprint_bytes
    assert printed["migrated_bytes_per_step"] == plan.migrated_bytes_per_step
    assert plan.origin["profile"] == files.digest(files.load_profile(saved["profile"]))


def test_a_plan_within_a_budget_names_the_machine_of_the_file(saved: dict[str, str]) -> None:
    """So a report proves that the plan was made for it, and a second plan for another budget names the same one."""
    machine = files.load_machine(saved["machine"])
    for fast in ("40MiB", "50%"):
        assert main(planned(saved, "--fast", fast)) == 0
        plan = files.load_plan(saved["plan"])
        assert plan.capacity_bytes[0] < machine.fast.capacity_bytes
        assert plan.origin["machine"] == files.digest(machine)
        report = build_report(profile=files.load_profile(saved["profile"]), plan=plan, machine=machine)
        assert ("plan", "machine", True) in report.provenance


def test_a_share_is_of_the_footprint(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(planned(saved, "--fast", "50%", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["fast_capacity_bytes"] == printed["footprint_bytes"] // 2 // 4096 * 4096


def test_everything_fast_migrates_nothing(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(planned(saved, "--fast", "100%", "--policy", "all-fast", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["migrations_per_step"] == 0
    assert printed["fast_peak_bytes"] == printed["footprint_bytes"]


def test_the_table_says_what_the_json_says(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(planned(saved, "--fast", "40MiB")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["policy", "sentinel"] in lines
    assert next(line for line in lines if line[:2] == ["fast", "memory"])[2:4] == ["40.00", "MiB"]
    assert "in the mean over the step" in " ".join(next(line for line in lines if line[:3] == ["most", "in", "use"]))


def test_the_whole_chain_runs_on_files(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    html = saved["plan"] + ".html"
    assert main(planned(saved, "--fast", "40MiB")) == 0
    simulate = ["simulate", saved["profile"], saved["plan"], "--machine", saved["machine"], "--steps", "3"]
    capsys.readouterr()
    assert main([*simulate, "-o", saved["run"], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    run = files.load_run(saved["run"])
    assert printed["kind"] == run.kind == "simulated"
    assert printed["step_ns"] == run.step_ns
    assert len(run.steps) == 3
    nouns = [
        "--profile",
        saved["profile"],
        "--plan",
        saved["plan"],
        "--run",
        saved["run"],
        "--machine",
        saved["machine"],
    ]
    assert main(["report", *nouns, "-o", html]) == 0
    assert one_line(capsys.readouterr().out) == html
    page = Path(html).read_text()
    assert "simulated" in page
    assert "http://" not in page.replace("http://www.w3.org/", "")  # a name space, not an address


def test_simulating_in_fast_memory_only_takes_the_recorded_time(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Known truth: four layers of 50 ms and nothing slow."""
    assert main(planned(saved, "--fast", "100%", "--policy", "all-fast")) == 0
    capsys.readouterr()
    assert main(["simulate", saved["profile"], saved["plan"], "--machine", saved["machine"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ns"] == 200_000_000


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", str(tmp_path / "none"), "--machine", "cxl-m5"]) == 1
    assert one_line(capsys.readouterr().err).startswith("sentinel: ")


def test_the_wrong_file_is_one_line_that_names_it(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", saved["machine"], "--machine", "cxl-m5"]) == 1
    line = one_line(capsys.readouterr().err)
    assert saved["machine"] in line
    assert "not a profile" in line


def test_an_output_that_cannot_be_written_is_one_line(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*planned(saved), "-o", saved["plan"] + "/no/such/folder"]) == 1
    assert "no/such/folder" in one_line(capsys.readouterr().err)


def test_a_reader_that_leaves_is_no_traceback(saved: dict[str, str]) -> None:
    """As `sentinel plan … | head -1` does; before, Python told of a broken pipe."""
    command = [sys.executable, "-m", "sentinel", "plan", saved["profile"], "--machine", saved["machine"]]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
    finally:
        os.close(writer)
    assert (done.returncode, without_progress(done.stderr)) == (1, [])


@pytest.mark.parametrize(("option", "value"), [("--machine", "no-such-machine"), ("--policy", "no-such-policy")])
def test_an_unknown_name_is_a_usage_error_that_lists_the_known_ones(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert main(planned(saved, option, value)) == 2
    line = one_line(capsys.readouterr().err)
    assert value in line
    assert "choose one of" in line


def test_what_cannot_fit_has_its_own_code(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    files.save(make_machine(512 * MIB, addressable=False), saved["machine"])
    assert main(planned(saved, "--fast", "1MiB")) == 3
    line = one_line(capsys.readouterr().err)
    assert re.search(r"needs [0-9.]+ MiB of fast memory, [0-9.]+ MiB more than the 1\.00 MiB that there are: ", line)


@pytest.mark.needs("torch", "compiler")
def test_doctor_builds_ahead_what_a_training_step_would_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    from sentinel.profiler import torch_shim
    from sentinel.system import native

    assert main(["doctor", "--build", "--json"]) == 0
    built = json.loads(capsys.readouterr().out)["built"]
    assert built == {"native library": str(native.path()), "torch shim": str(torch_shim.path())}
    assert all(Path(path).is_file() for path in built.values())
    assert main(["doctor", "--build"]) == 0
    assert str(torch_shim.path()) in capsys.readouterr().out


def test_doctor_names_what_it_tried(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (1 if told["missing"] else 0)
    names = {capability["name"] for capability in told["capabilities"]}
    assert {"move_pages", "userfaultfd", "eBPF", "C++ compiler", "torch"} <= names
    assert all(c["available"] or c["remedy"] for c in told["capabilities"])
    main(["doctor"])
    table = capsys.readouterr().out
    assert all(name in table for name in names)
    first = table.splitlines()[0]
    assert first == doctor.verdict(told["missing"])
    assert ("its remedy is below" in first) == bool(told["missing"])
    assert table.count(first) == 1


def test_run_names_its_defaults() -> None:
    told = " ".join(verbs()["run"].format_help().split())
    assert "(default: all that the fast tier has" in told.split("--fast AMOUNT")[-1].split("--slow")[0]
    assert "(default: auto, the nearest slower NUMA node" in told.split("--slow TIER")[-1].split("--cap")[0]


def test_what_is_shown_of_the_package_is_what_one_wants() -> None:
    shown = {name for name in dir(sentinel) if not name.startswith("_")}
    assert shown == {*sentinel.__all__, "attribute", "data", "integrations", "load", "plan", "save", "simulate"}
    assert all(getattr(sentinel, name) is not None for name in shown - {"data"})


@pytest.mark.needs("torch")
def test_training_data_is_there_once_the_package_is_imported() -> None:
    code = "import sentinel, sys\nassert 'torch' not in sys.modules\nprint(sentinel.data.loader.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, "sentinel.data\n"), done.stderr
