"""Scripts that look at what belongs to them: under `sentinel run` they print what they print without it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import warm

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

PERCEPTRON = """
import collections
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def train():
    for _ in range(12):
        loss = model(torch.randn(32, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))
"""
NOISY_ADDITION = """
class Noise(TorchDispatchMode):  # as of analog hardware
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten.add_.Tensor:
            made.mul_(1 + 1e-3 * torch.randn(()))
        return made

with Noise():
    train()
"""
COUNTED = """
called = collections.Counter()

class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        called[str(operator)] += 1
        return operator(*args, **(kwargs or {}))

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__  # of an attribute its descriptor's
        name = function.__self__.__name__ if name == "__get__" else name
        if name not in ("_set_grad_enabled", "device") and "_foreach_" not in name:  # once a slice of a step
            called[name] += 1
        return function(*args, **(kwargs or {}))

with Operators(), Functions():
    train()
print(sorted(called.items()))
"""
PROFILED = """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
    train()
print(sorted((row.key, row.count) for row in seen.key_averages()))
"""
NESTED = """
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = nn.TransformerEncoder(layer, 2)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
mask = torch.zeros(8, 20, dtype=torch.bool)
mask[:, 12:] = True
for _ in range(12):
    loss = model(torch.randn(8, 20, 64), src_key_padding_mask=mask).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():  # on the fast path: the layers' tensors are nested
        seen = model(torch.ones(8, 20, 64), src_key_padding_mask=mask).pow(2).mean()
    model.train()
    print(repr(loss.item()), repr(seen.item()))
"""


def same_as_without(folder: Path, text: str) -> str:
    """Asserts that the script prints the same under `sentinel run`, which applies a plan; returns what that reports."""
    script = folder / "train.py"
    script.write_text(text)
    plain, ours = (warm.run([sys.executable, *words, str(script)], cwd=folder, env=HERE) for words in ((), EMULATED))
    assert plain.returncode == 0, plain.stderr
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout
    assert "executed run made from this plan" in ours.stderr
    return ours.stderr


def test_a_script_may_keep_its_locals(tmp_path: Path) -> None:
    same_as_without(tmp_path, KEEPS_LOCALS)


@pytest.mark.parametrize("watching", [NOISY_ADDITION, COUNTED, PROFILED], ids=["noise", "modes", "profiler"])
def test_what_watches_operators_sees_those_of_the_script(tmp_path: Path, watching: str) -> None:
    same_as_without(tmp_path, PERCEPTRON + watching)


def test_a_step_may_have_nested_tensors(tmp_path: Path) -> None:
    assert "recording operators" not in same_as_without(tmp_path, NESTED)
