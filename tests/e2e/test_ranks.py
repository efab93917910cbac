"""Several ranks over gloo: to the bit as without Sentinel, with one budget, a report each and one over all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.units import format_bytes
from sentinel.files import load_profile
from tests.shown_code import shown

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
SENTINEL = (
    "--no-python",
    sys.executable,
    "-m",
    "sentinel",
    "run",
    "--slow",
    "emulated:cxl-asic-x8",
    "--tracker",
    "ops",
)
OF_TWO = ("ddp", "16", "view", "16", "ddp", "256+", "sharded", "16")
"""What is trained by two ranks below, and compared with stock training."""
MIB = 1 << 20


def launched(ranks: int, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [*TORCHRUN, str(ranks), *words]
    return subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=600, check=False)


def stock(ranks: int, kind: str, rows: str) -> list[str]:
    """What each rank prints without Sentinel."""
    return _stock(ranks, OF_TWO if ranks == 2 else (kind, rows))[kind, rows]


@cache
def _stock(ranks: int, words: tuple[str, ...]) -> dict[tuple[str, str], list[str]]:
    """Of several trainings, which share what their ranks import."""
    done = launched(ranks, str(PROGRAM), *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    of_rank = [[line for line in done.stdout.splitlines() if line.startswith(f"{rank} ")] for rank in range(ranks)]
    return dict(zip(zip(words[::2], words[1::2], strict=True), map(list, zip(*of_rank, strict=True)), strict=True))


def reports(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"r.rank{rank}.json").read_text()) for rank in range(ranks)]


def managed_share(report: dict[str, Any], *roles: str) -> float:
    """Of the bytes of tensors of these roles, those in managed memory."""
    table = report["frames"]["tensors"]
    rows = [
        (nbytes, managed)
        for role, nbytes, managed in zip(table["role"], table["nbytes"], table["managed"], strict=True)
        if role in roles
    ]
    assert rows
    return sum(nbytes for nbytes, managed in rows if managed) / sum(nbytes for nbytes, _ in rows)


@pytest.mark.long  # a script that places, below, trains as "view"; "ddp" differs in whose memory gradients have
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("ddp", 2),
        ("view", 2),
        ("ddp", 4),
    ],
)
def test_parameters_and_gradients_of_ddp_are_placed_and_bits_are_stock(kind: str, ranks: int, tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", "20%", "--report", "r.json", str(PROGRAM), kind, "16")
    done = launched(ranks, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(ranks, kind, "16")
    require_parameters_and_gradients(tmp_path, ranks)
    over_all = json.loads((tmp_path / "r.json").read_text())
    assert over_all["headline"]["ranks_ended"] == over_all["headline"]["ranks"] == ranks
    assert over_all["headline"]["kind"] == "emulated"


def require_parameters_and_gradients(folder: Path, ranks: int) -> None:
    """They are in managed memory, buckets of DDP among them."""
    for report in reports(folder, ranks):
        assert managed_share(report, "param", "grad") >= 0.95
        assert report["headline"]["migrated_bytes_per_step"] > 0
        names = report["frames"]["tensors"]["tensor"]
        assert any(name.startswith("bucket.") for name in names), names


def test_ranks_of_unlike_need_share_the_budget_of_their_node(tmp_path: Path) -> None:
    """Rank 0 has eight times the rows of rank 1: at first each may have half, then rank 0 has what rank 1 leaves."""
    budget = 12 * MIB
    words = (*SENTINEL, "--fast", f"{budget}/node", "--report", "r.json", str(PROGRAM), "ddp", "256+")
    done = launched(2, *words, cwd=tmp_path, AWAIT_PLANS="1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(2, "ddp", "256+")
    first, second = (report["headline"] for report in reports(tmp_path, 2))
    assert first["fast_capacity_bytes"] > budget / 2 > second["fast_capacity_bytes"] > 0
    assert first["fast_capacity_bytes"] + second["fast_capacity_bytes"] <= budget
    assert first["fast_peak_bytes"] + second["fast_peak_bytes"] <= budget
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["fast_capacity_bytes"] <= budget


@pytest.mark.long  # as two of unlike need, above
def test_four_ranks_hold_no_more_than_the_budget_of_their_node(tmp_path: Path) -> None:
    """Rank 0 has eight times the rows of each other. Their peaks add up to more than they ever held at once."""
    budget = 20 * MIB
    words = (*SENTINEL, "--fast", f"{budget}/node", "--report", "r.json", str(PROGRAM), "ddp", "256+")
    done = launched(4, *words, cwd=tmp_path, AWAIT_PLANS="1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(4, "ddp", "256+")
    headlines = [report["headline"] for report in reports(tmp_path, 4)]
    assert all(headline["migrated_bytes_per_step"] > 0 for headline in headlines[:1])
    assert all(headline["fast_peak_bytes"] > 0 for headline in headlines)
    assert headlines[0]["fast_capacity_bytes"] > budget / 4
    assert sum(headline["fast_capacity_bytes"] for headline in headlines) <= budget
    assert sum(headline["fast_peak_bytes"] for headline in headlines) <= budget


@pytest.mark.long  # a plan that others do not wait for: tests/torch/test_pending_plans.py; here it is the first one
def test_a_rank_that_plans_for_long_costs_time_and_nothing_else(tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", f"{4 * MIB}/node", "--report", "r.html", str(PROGRAM), "ddp", "16")
    done = launched(2, *words, cwd=tmp_path, LATE_RANK="1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(2, "ddp", "16")
    page = (tmp_path / "r.html").read_text()
    assert "Report of all ranks" in page
    assert "emulated" in page
    assert {path.name for path in tmp_path.iterdir()} == {
        "r.html",
        *(f"r.rank{rank}.{form}" for rank in (0, 1) for form in ("html", "json")),
    }
    again = [sys.executable, "-m", "sentinel", "report", "r.rank0.json", "r.rank1.json", "-o", "again.html"]
    subprocess.run(again, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=600)
    assert (tmp_path / "again.html").read_text() == page


WAITS = """
import os, sys, time
if any("planning_process" in word for word in sys.orig_argv) and os.environ.get("RANK") == "1":
    until = time.monotonic() + 300
    while not os.path.exists(os.environ["WAIT_FOR"]) and time.monotonic() < until:
        time.sleep(0.05)
"""
"""Each Python that starts runs it as its `sitecustomize`."""


@pytest.mark.long  # one rank and its planner: tests/torch/test_pending_plans.py
def test_ranks_go_on_with_their_plans_while_one_plans_again(tmp_path: Path) -> None:
    """Rank 1 has its new plan only after rank 0 has trained 10 steps: if any rank waited for that, none would end."""
    program, budget = PROGRAM.with_name("ranks_go_on.py"), 6 * MIB
    (tmp_path / "sitecustomize.py").write_text(WAITS)
    own = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "WAIT_FOR": str(tmp_path / "gate")}
    words = (*SENTINEL, "--fast", f"{budget}/node", "--report", "r.json", str(program))
    done = launched(2, *words, cwd=tmp_path, **own)
    assert done.returncode == 0, done.stderr
    said = [line.split() for line in done.stdout.splitlines()]
    of_first = [int(plans) for rank, _, _, plans in said if rank == "0"]
    assert of_first.count(1) > 10
    assert of_first[-1] == 2
    expected = launched(2, str(program), cwd=ROOT)
    assert expected.returncode == 0, expected.stderr
    stock_losses = {tuple(line.split()[:3]) for line in expected.stdout.splitlines()}
    assert {tuple(row[:3]) for row in said} <= stock_losses
    first, second = (report["headline"] for report in reports(tmp_path, 2))
    assert first["fast_capacity_bytes"] > budget / 2
    assert first["fast_peak_bytes"] + second["fast_peak_bytes"] <= budget


def test_a_rank_that_is_killed_leaves_the_report_of_the_other_and_a_row_that_says_so(tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", "20%", "--report", "r.json", str(PROGRAM), "ddp", "16")
    done = launched(2, *words, cwd=tmp_path, KILL_RANK="1")
    assert done.returncode != 0
    left = json.loads((tmp_path / "r.rank0.json").read_text())
    assert left["headline"]["kind"] == "emulated"
    states = json.loads((tmp_path / "r.json").read_text())["frames"]["ranks"]["state"]
    assert states[0] == "failed"
    assert states[1].startswith("died")


LIGHTNING = pytest.param("lightning", marks=[pytest.mark.needs("pytorch-lightning"), pytest.mark.long])


@pytest.mark.parametrize("kind", ["spawn", LIGHTNING])
def test_ranks_that_no_launcher_tells_of_write_their_own_reports_and_share_the_budget(
    kind: str, tmp_path: Path
) -> None:
    budget = MIB
    words = [sys.executable, str(PROGRAM.with_name("own_ranks.py")), kind, f"{budget}/node"]
    settings = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    settings |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    headlines = [report["headline"] for report in reports(tmp_path, 2)]
    assert [headline["kind"] for headline in headlines] == ["emulated"] * 2
    assert 0 < sum(headline["fast_capacity_bytes"] for headline in headlines) <= budget
    over_all = json.loads((tmp_path / "r.json").read_text())["headline"]
    assert (over_all["ranks"], over_all["ranks_ended"]) == (2, 2)


def outside_of_the_plan(profile: Path) -> int:
    """Bytes alive in the fullest layer of a recorded step that no plan has, counted tensor by tensor."""
    found = load_profile(profile)
    by_layer = [[0, 0] for _ in range(found.n_layers)]
    for row in found.tensors:
        for layer in range(row["start"], row["stop"]):
            by_layer[layer % found.n_layers][int(row["managed"])] += int(row["nbytes"])
    return max(by_layer, key=sum)[0]


@pytest.mark.parametrize(
    ("kind", "ranks", "least"),
    [  # of all bytes, those outside of the plan
        ("sharded", 2, 0.3),
        pytest.param("hook", 2, 0.15, marks=pytest.mark.long),
        pytest.param("plain", 1, 0.001, marks=pytest.mark.long),  # one process: test_outside_plan.py
    ],
)
def test_fast_memory_of_all_counts_what_no_plan_has(kind: str, ranks: int, least: float, tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", "50%", "--report", "r.json", "--save-profile", "p.st", str(PROGRAM), kind, "16")
    done = launched(ranks, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if kind == "sharded":
        assert sorted(done.stdout.splitlines()) == stock(2, "sharded", "16")
        assert all(managed_share(report, "param", "grad") >= 0.95 for report in reports(tmp_path, 2))
    names = [f".rank{rank}" for rank in range(ranks)] if ranks > 1 else [""]
    sums = [0, 0]
    for name in names:
        told = json.loads((tmp_path / f"r{name}.json").read_text())["headline"]
        outside = outside_of_the_plan(tmp_path / f"p{name}.st")
        fast, whole = told["fast_capacity_bytes"] + outside, told["peak_bytes"] + outside
        assert (told["outside_bytes"], told["job_fast_bytes"], told["job_bytes"]) == (outside, fast, whole)
        assert least * whole <= outside < least * 2 * whole + 64 * 1024
        assert f"{format_bytes(fast)} of fast memory instead of {format_bytes(whole)}: " in done.stderr
        sums = [sums[0] + fast, sums[1] + whole]
    if ranks > 1:
        over_all = json.loads((tmp_path / "r.json").read_text())
        assert [over_all["headline"][name] for name in ("job_fast_bytes", "job_bytes")] == sums


def in_a_shell(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """As a user types it in `folder`, with the programs of this environment, and no settings of accelerate's."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    modules = {"sentinel": "sentinel", "torchrun": "torch.distributed.run"}
    modules["accelerate"] = "accelerate.commands.accelerate_cli"
    for name, words in {"python": "", **{name: f"-m {module}" for name, module in modules.items()}}.items():
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (bin_folder / name).chmod(0o755)
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "hf")}
    settings = {**os.environ, **own, "PATH": f"{bin_folder}:{os.environ['PATH']}", **more}
    return subprocess.run(
        command, cwd=folder, env=settings, shell=True, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.long  # a refusal that names a command is below, and of the page such a command is run
@pytest.mark.parametrize(
    "launcher",
    [
        "-m torch.distributed.run --standalone --nproc-per-node=2",
        pytest.param(
            "accelerate launch --multi_gpu --num_processes 2 --main_process_port 0",
            marks=pytest.mark.needs("accelerate"),
        ),
    ],
)
def test_the_command_that_a_refused_launcher_names_works(launcher: str, tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "train.py")
    own = "--auto --fast 20% --slow emulated:cxl-asic-x8 --report r.json"
    refused = in_a_shell(f"sentinel run {own} {launcher} train.py ddp 16", tmp_path)
    assert refused.returncode == 2
    assert not list(tmp_path.glob("r.*"))
    command = refused.stderr.rpartition("here: `")[2].partition("`")[0]
    done = in_a_shell(command, tmp_path)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert sorted(done.stdout.splitlines()) == stock(2, "ddp", "16")
    require_a_report_of_all(tmp_path, "r")


def require_a_report_of_all(folder: Path, name: str) -> None:
    """Two ranks placed tensors, and one report is over both."""
    for rank in (0, 1):
        headline = json.loads((folder / f"{name}.rank{rank}.json").read_text())["headline"]
        assert headline["kind"] == "emulated"
        assert headline["migrated_bytes_per_step"] > 0
    (over_all,) = [
        path for path in folder.glob(f"{name}.*") if path.suffix in (".html", ".json") and "rank" not in path.stem
    ]
    assert over_all.stat().st_size > 0


PAGE = "several-processes.md"
LAUNCHED = ("torchrun", pytest.param("accelerate", marks=[pytest.mark.needs("accelerate"), pytest.mark.long]))


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_the_commands_of_the_page_do_what_it_says(launcher: str, tmp_path: Path) -> None:
    """All but srun, which needs a cluster. A smaller budget, a free port, and in the environment the slow tier, which a
    host with two nodes would have."""
    (block,) = shown(PAGE, "", [("8GiB/node", f"{4 * MIB}/node")])
    (line,) = [line for line in block.splitlines() if line.startswith(launcher)]
    free = {"torchrun": "--standalone", "accelerate": "launch --main_process_port 0"}[launcher]
    command = line.replace(f"{launcher} launch" if launcher == "accelerate" else launcher, f"{launcher} {free}")
    shutil.copy(PROGRAM, tmp_path / "train.py")
    done = in_a_shell(f"{command} ddp 16", tmp_path, SENTINEL_SLOW="emulated:cxl-asic-x8", SENTINEL_TRACKER="ops")
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert sorted(done.stdout.splitlines()) == stock(2, "ddp", "16")
    require_a_report_of_all(tmp_path, "sentinel-report")
    (again,) = re.findall(r"`(sentinel report\s[^`]+)`", (ROOT / "docs" / PAGE).read_text())
    drawn = in_a_shell(" ".join(again.split()), tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "all.html").read_text() == (tmp_path / "sentinel-report.html").read_text()


def test_a_script_that_places_is_launched_as_ever_and_around_the_launcher_sentinel_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "docs" / PAGE).read_text()
    (around,) = re.findall(r"`(sentinel run -m [^`]+)`", text)
    refused = in_a_shell(around, tmp_path)
    assert refused.returncode == 2
    assert "--no-python sentinel run" in refused.stderr
    (command,) = re.findall(r"launched as usual: `(torchrun [^`]+)`", text)
    shutil.copy(PROGRAM, tmp_path / "ranks.py")
    (tmp_path / "train.py").write_text(PLACES)
    done = in_a_shell(f"{command.replace('torchrun', 'torchrun --standalone')} view 16", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(2, "view", "16")
    require_a_report_of_all(tmp_path, "r")
    require_parameters_and_gradients(tmp_path, 2)
    over_all = json.loads((tmp_path / "r.json").read_text())["headline"]
    assert (over_all["ranks"], over_all["ranks_ended"], over_all["kind"]) == (2, 2, "emulated")


PLACES = f"""
import runpy
import sentinel
with sentinel.placing(fast="{4 * MIB}/node", slow="emulated:cxl-asic-x8", tracker="ops", report="r.json"):
    runpy.run_path("ranks.py", run_name="__main__")
"""
