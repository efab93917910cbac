"""Scripts that look at what belongs to them: under `sentinel run` they print what they print without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import LONGEST_S

pytestmark = pytest.mark.needs("torch", "compiler")

ROOT = Path(__file__).parents[2]
HERE = {name: value for name, value in os.environ.items() if not name.startswith("SENTINEL_")}
HERE |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
EMULATED = ("-m", "sentinel", "run", "--fast", "50%", "--slow", "emulated:cxl-asic-x8", "--report", "-")

KEEPS_LOCALS = """
import json
import torch
from torch import nn

def train(lr=0.1, steps=12, width=64):
    config = locals()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = model(torch.randn(32, width)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(repr(loss.item()))
    print(json.dumps(config))

train()
"""


def same_as_without(folder: Path, text: str) -> str:
    """Asserts that the script prints the same under `sentinel run`, which applies a plan; returns what that reports."""
    script = folder / "train.py"
    script.write_text(text)
    plain, ours = (
        subprocess.run(
            [sys.executable, *words, str(script)],
            cwd=folder,
            env=HERE,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        for words in ((), EMULATED)
    )
    assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    assert "executed run made from this plan" in ours.stderr
    return ours.stderr


def test_a_script_may_keep_its_locals(tmp_path: Path) -> None:
    same_as_without(tmp_path, KEEPS_LOCALS)
