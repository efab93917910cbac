"""Several ranks over gloo: to the bit as without Sentinel, with one budget, a report each and one over all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

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
MIB = 1 << 20


def launched(ranks: int, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [*TORCHRUN, str(ranks), *words]
    return subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=600, check=False)


@cache
def stock(ranks: int, *words: str) -> list[str]:
    """What each rank prints without Sentinel."""
    done = launched(ranks, str(PROGRAM), *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


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


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("view", 2), ("ddp", 4)])
def test_parameters_and_gradients_of_ddp_are_placed_and_bits_are_stock(kind: str, ranks: int, tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", "20%", "--report", "r.json", str(PROGRAM), kind, "16")
    done = launched(ranks, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(ranks, kind, "16")
    for report in reports(tmp_path, ranks):
        assert managed_share(report, "param", "grad") >= 0.95
        assert report["headline"]["migrated_bytes_per_step"] > 0
        names = report["frames"]["tensors"]["tensor"]
        assert any(name.startswith("bucket.") for name in names), names
    over_all = json.loads((tmp_path / "r.json").read_text())
    assert over_all["headline"]["ranks_ended"] == over_all["headline"]["ranks"] == ranks
    assert over_all["headline"]["kind"] == "emulated"


def test_ranks_of_unlike_need_share_the_budget_of_their_node(tmp_path: Path) -> None:
    """Rank 0 has eight times the rows of rank 1: at first each may have half, then rank 0 has what rank 1 leaves."""
    budget = 12 * MIB
    words = (*SENTINEL, "--fast", f"{budget}/node", "--report", "r.json", str(PROGRAM), "ddp", "256+")
    done = launched(2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(2, "ddp", "256+")
    first, second = (report["headline"] for report in reports(tmp_path, 2))
    assert first["fast_capacity_bytes"] > budget / 2 > second["fast_capacity_bytes"] > 0
    assert first["fast_capacity_bytes"] + second["fast_capacity_bytes"] <= budget
    assert first["fast_peak_bytes"] + second["fast_peak_bytes"] <= budget
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["fast_capacity_bytes"] <= budget


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


def test_a_rank_that_is_killed_leaves_the_report_of_the_other_and_a_row_that_says_so(tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", "20%", "--report", "r.json", str(PROGRAM), "ddp", "16")
    done = launched(2, *words, cwd=tmp_path, KILL_RANK="1")
    assert done.returncode != 0
    left = json.loads((tmp_path / "r.rank0.json").read_text())
    assert left["headline"]["kind"] == "emulated"
    states = json.loads((tmp_path / "r.json").read_text())["frames"]["ranks"]["state"]
    assert states[0] == "failed"
    assert states[1].startswith("died")


def test_sharded_parameters_train_to_the_bit_and_are_counted(tmp_path: Path) -> None:
    words = (*SENTINEL, "--fast", "50%", "--report", "r.json", str(PROGRAM), "sharded", "16")
    done = launched(2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == stock(2, "sharded", "16")
    for report in reports(tmp_path, 2):
        assert managed_share(report, "param", "grad") >= 0.95


def test_the_command_that_a_refused_launcher_names_works(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "train.py")
    own = ("--fast", "20%", "--slow", "emulated:cxl-asic-x8", "--report", "r.json")
    theirs = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", "ddp", "16")
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, command in (("sentinel", f'"{sys.executable}" -m sentinel'), ("python", f'"{sys.executable}"')):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (bin_folder / name).chmod(0o755)
    settings["PATH"] = f"{bin_folder}:{settings['PATH']}"
    refused = subprocess.run(
        ["sentinel", "run", "--auto", *own, *theirs],
        cwd=tmp_path,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert refused.returncode == 2
    assert not list(tmp_path.glob("r.*"))
    command = refused.stderr.rpartition("here: `")[2].partition("`")[0]
    done = subprocess.run(
        command, cwd=tmp_path, env=settings, shell=True, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert sorted(done.stdout.splitlines()) == stock(2, "ddp", "16")
    assert (tmp_path / "r.json").exists()
