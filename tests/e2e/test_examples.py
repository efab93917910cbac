"""Every example trains to the same bits with Sentinel as without, in processes of their own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.needs("torch", "transformers", "scikit-learn", "compiler"),
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("0[1-6]*.py"))
"""Those that place tensors; those on training data have tests of their own."""
PROGRAM = Path(__file__).parent / "programs" / "train_example.py"
STEPS = 8
SLOW = "emulated:cxl-asic-x8"
LONGEST = ("01_gpt2", "02_resnet", "05_dcgan", "06_mobilenet")
"""A GPT-2 and networks of convolutions: test_newcomer.py and test_bit_identity.py train smaller ones."""
QUICK = [path for path in EXAMPLES if path.stem not in LONGEST]


def train(folder: Path, *examples: Path, slow: str, fast: str = "20%") -> dict[str, tuple[dict[str, Any], ...]]:
    """Name -> (losses and parameters, headline) of STEPS steps, all in a fresh process with two threads."""
    import torch

    done = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), str(folder), str(STEPS), fast, slow, *map(str, examples)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {
        example.stem: (
            torch.load(folder / f"{example.stem}.pt", weights_only=True),
            json.loads((folder / f"{example.stem}.json").read_text()),
        )
        for example in examples
    }


@functools.cache
def stock(*examples: Path) -> dict[str, Any]:
    """What stock PyTorch makes of each."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: found for name, (found, _) in train(Path(folder), *examples, slow="stock").items()}


def side_by_side(example: Path) -> list[Path]:
    """What is trained in one process, which imports torch once: all but the longest."""
    return [example] if example.stem in LONGEST else QUICK


def stock_of(example: Path) -> Any:
    return stock(*side_by_side(example))[example.stem]


@functools.cache
def placed(*examples: Path) -> dict[str, tuple[dict[str, Any], ...]]:
    """What each comes to with Sentinel."""
    with tempfile.TemporaryDirectory() as folder:
        return train(Path(folder), *examples, slow=SLOW)


LSTM, DLRM = (ROOT / "examples" / f"{name}.py" for name in ("03_lstm", "04_dlrm"))


@functools.cache
def stock_again() -> tuple[Any, Any]:
    """Of a second process: one with another seed, and one as before."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (other := folder / "other.py").write_text(LSTM.read_text().replace("manual_seed(0)", "manual_seed(1)"))
        (folder / "common.py").write_text((ROOT / "examples" / "common.py").read_text())
        found = train(folder, other, DLRM, slow="stock")
    return found["other"][0], found[DLRM.stem][0]


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not equal bit by bit."""
    import torch

    def bits(tensor: Any) -> Any:
        return tensor.contiguous().view(-1).view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8)

    found = [f"loss {i}" for i, (a, b) in enumerate(zip(one["losses"], other["losses"], strict=True)) if a != b]
    assert one["state"].keys() == other["state"].keys()
    return found + [
        name for name, value in one["state"].items() if not torch.equal(bits(value), bits(other["state"][name]))
    ]


def test_there_are_six_examples_that_place_tensors() -> None:
    assert [path.name[:2] for path in EXAMPLES] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[pytest.mark.long] * (path.stem in LONGEST), id=path.stem) for path in EXAMPLES],
)
def test_training_is_bit_identical(example: Path) -> None:
    plain = stock_of(example)
    ours, headline = placed(*side_by_side(example))[example.stem]

    assert len(plain["losses"]) == STEPS
    assert len(set(plain["losses"])) == STEPS, "a loss that stands still proves nothing"
    assert differing(plain, ours) == []
    assert headline["kind"] == "emulated"
    assert headline["slow"] == SLOW
    assert headline["migrated_bytes_per_step"] > 0 or example.stem != "01_gpt2"
    assert 0 < headline["fast_peak_bytes"] <= headline["fast_capacity_bytes"] < headline["peak_bytes"]


def test_another_seed_is_seen_as_different() -> None:
    """Negative control: the comparison can fail."""
    seeded, _ = stock_again()
    assert "loss 0" in differing(stock_of(LSTM), seeded)
    assert "head.weight" in differing(stock_of(LSTM), seeded)


def test_two_stock_runs_are_identical() -> None:
    """Without this, bit-identity would be luck."""
    _, again = stock_again()
    assert differing(stock_of(DLRM), again) == []


@pytest.mark.long  # .ci/demo trains it too, and fails where a bit differs; smaller ones are in test_passive.py
def test_a_cap_changes_no_bit(folder: Path, tmp_path: Path) -> None:
    def told(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "11_memory_cap.py"), "--steps", "5", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout.splitlines()

    page = tmp_path / "report.json"
    plain = told("--stock")
    capped = told("--cap", "900MiB", "--slow", f"file:{folder}", "--report", str(page))
    assert len(plain) == 6
    assert capped[:6] == plain
    storage = json.loads(page.read_text())["frames"]["storage"]
    assert dict(zip(storage["figure"], storage["value"], strict=True))["written_bytes"] > 0
