"""What the pages on the first steps, on a file as slow memory and on training data show is run as it stands there.

Sizes and folders are those of a test; what measures a host, needs two nodes or a server has tests of its own.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SMALLER = (("1024", "256"), ("8GiB", "256MiB"), ("12GiB", "2GiB"), ("{000..146}", "{000..002}"))
TRAINS = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    loss = model(torch.randn(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item().hex())
"""


def shown(page: str, language: str, scratch: Path) -> list[str]:
    """The blocks of that language, smaller."""
    text = (ROOT / "docs" / page).read_text().replace("/data/scratch", str(scratch))
    for large, small in SMALLER:
        text = text.replace(large, small)
    return [block for each, block in BLOCK.findall(text) if each == language]


def commands(page: str, scratch: Path, *, but: Sequence[str]) -> list[list[str]]:
    """The words of each command; not those with a word in `but`."""
    lines = [line for block in shown(page, "", scratch) for line in block.splitlines() if line.startswith("sentinel ")]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if not set(words) & set(but)]


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # `file:auto` takes that folder also where the only disk is that of the root file system
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SENTINEL_SCRATCH": str(folder / "scratch")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stderr}"
    return done


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_the_tutorial_from_a_laptop_on(tmp_path: Path, scratch: Path) -> None:
    train, models = shown("tutorial.md", "python", scratch)
    (tmp_path / "train.py").write_text(train)
    (tmp_path / "models.py").write_text(models)
    stock = python(tmp_path, "train.py").stdout
    trained = []
    for words in commands("tutorial.md", scratch, but=("doctor", "calibrate", "--executed")):
        printed = python(tmp_path, "-m", *words).stdout
        if words[1] == "run" and "--dry-run" not in words:
            assert printed == stock, words
            trained.append(words)
    assert len(trained) == 4
    written = {path.name for path in tmp_path.iterdir()}
    assert {"p.safetensors", "e.safetensors", "plan.json", "sentinel-report.html"} <= written


def test_tensors_in_a_file(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    stock = python(tmp_path, "train.py").stdout
    programs = shown("storage.md", "python", scratch)
    for number, program in enumerate(programs):
        path = tmp_path / f"program{number}.py"
        path.write_text(f"import sentinel\n{program}{TRAINS}")
        assert python(tmp_path, path.name).stdout == stock, program
    runs = [words for words in commands("storage.md", scratch, but=()) if {"--fast", "--cap"} & set(words)]
    for words in runs:
        assert python(tmp_path, "-m", *words).stdout == stock, words
    assert (len(programs), len(runs)) == (3, 2)


def test_training_data(tmp_path: Path, scratch: Path) -> None:
    for number in range(3):
        with tarfile.open(tmp_path / f"train-{number:03}.tar", "w") as shard:
            for sample in range(200):
                information = tarfile.TarInfo(f"{number}-{sample}.jpg")
                information.size = 64 + sample
                shard.addfile(information, io.BytesIO(bytes(64 + sample)))
    first, _, shared, _ = shown("data.md", "python", scratch)
    said = python(tmp_path, "-c", first).stdout
    assert "600" in said
    python(tmp_path, "-c", f"{first}\n{shared}\nassert sum(len(keys) for keys, _ in loader) == 600")
    (plan,) = [words for words in commands("data.md", scratch, but=("serve",)) if words[2] == "plan"]
    assert "20%" in python(tmp_path, "-m", *plan).stdout
