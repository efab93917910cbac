"""`--auto` finds the step of a training loop that says nothing about itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

from sentinel.session.auto import period_of  # noqa: E402

ROOT = Path(__file__).parents[2]

PLAIN = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU(inplace=True)) for _ in range(6)), nn.Linear(256, 8))
other = nn.Linear(8, 8)
optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD(other.parameters(), lr=0.1)][:OPTIMIZERS]
for step in range(STEPS):
    with torch.no_grad():
        model(torch.randn(4, 256))
    for optimizer in optimizers:
        optimizer.zero_grad()
        loss = other(model(torch.randn(64, 256))).square().mean()
        loss.backward()
        optimizer.step()
    print(f"{step} {loss.item().hex()}", flush=True)
"""


def run(folder: Path, arguments: list[str], steps: int, optimizers: int) -> subprocess.CompletedProcess[str]:
    script = folder / "plain.py"
    script.write_text(PLAIN.replace("STEPS", str(steps)).replace("OPTIMIZERS", str(optimizers)))
    return subprocess.run(
        [sys.executable, *arguments, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize(
    ("steps", "period"),
    [([], 0), ([1], 0), ([1, 1], 1), ([1, 2], 0), ([1, 2, 1], 0), ([1, 2, 1, 2], 2), ([3, 1, 2, 1, 2], 2)],
)
def test_the_period_is_the_shortest_that_ends_the_sequence_twice(steps: list[int], period: int) -> None:
    assert period_of(steps) == period


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("optimizers", [1, 2])
def test_an_unmodified_script_is_placed_and_trains_to_the_same_bits(tmp_path: Path, optimizers: int) -> None:
    stock = run(tmp_path, [], 9, optimizers)
    report = tmp_path / "r.json"
    auto = [
        "-m",
        "sentinel",
        "run",
        "--auto",
        "--fast",
        "30%",
        "--slow",
        "emulated:cxl-asic-x8",
        "--report",
        str(report),
    ]
    placed = run(tmp_path, auto, 9, optimizers)
    assert stock.returncode == 0, stock.stderr
    assert placed.returncode == 0, placed.stderr
    assert len(stock.stdout.splitlines()) == 9
    assert placed.stdout == stock.stdout
    assert "emulated" in report.read_text()


@pytest.mark.needs("compiler")
def test_a_loop_too_short_to_profile_is_told(tmp_path: Path) -> None:
    placed = run(tmp_path, ["-m", "sentinel", "run", "--auto", "--slow", "emulated:cxl-asic-x8"], 2, 1)
    assert placed.returncode == 1
    assert "trained no step under Sentinel" in placed.stderr
