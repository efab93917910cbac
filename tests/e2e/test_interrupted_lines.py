"""A sample of the lines of sessions' lives, each interrupted once; `python -m tools.interrupts` takes all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.profiler.pages import obstacle

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "interrupts.md"
SEED = 9
SAMPLES = [5, pytest.param(12, marks=pytest.mark.long)]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_of_lines_is_interrupted_and_nothing_is_left(tmp_path: Path, sample: int) -> None:
    if (refused := obstacle("pagemap")) is not None:
        pytest.skip(f"needs tracker pagemap: {refused}")
    _, after = parts(PAGE.read_text())
    emulated, in_a_file = interrupted(tmp_path, sample, "--tracker", "pagemap")
    check(emulated, sample)
    assert in_a_file == after


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_of_lines_is_interrupted_where_slow_memory_is_a_file(
    tmp_path: Path, folder: Path, sample: int
) -> None:
    before, _ = parts(PAGE.read_text())
    emulated, in_a_file = interrupted(tmp_path, sample, "--slow", "file", "--directory", str(folder))
    check(in_a_file, sample)
    assert emulated == before


def interrupted(tmp_path: Path, sample: int, *kind: str) -> tuple[str, str]:
    """The parts of the page, one of them made by that many lives of a kind."""
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    asked = ("--sample", str(sample), "--seed", str(SEED), *kind, "--markdown", str(page))
    done = subprocess.run(
        [sys.executable, "-m", "tools.interrupts", *asked],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return parts(page.read_text())


def parts(page: str) -> tuple[str, str]:
    """That of lives on an emulated tier, and that of lives whose slow memory is a file."""
    emulated, found, in_a_file = page.partition("\n## In a file\n")
    assert found
    return emulated, in_a_file


def check(part: str, sample: int) -> None:
    row = re.search(r"\*\*all\*\* \| (\d+) \| (\d+) \| \d+ \| \d+ \| (\d+) \|", part)
    assert row is not None, part
    lines, reached, wrong = map(int, row.groups())
    assert lines == sample
    assert reached > sample // 2, "lines that a second life does not run again are few"
    assert wrong == 0
    assert f"--sample {sample} --seed {SEED}" in part
