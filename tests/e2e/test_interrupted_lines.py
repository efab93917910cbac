"""A sample of the lines of a session's life, each interrupted once; `python -m tools.interrupts` takes all of them."""

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
SAMPLE, SEED = 20, 9


def test_a_sample_of_lines_is_interrupted_and_nothing_is_left(tmp_path: Path) -> None:
    if (refused := obstacle("pagemap")) is not None:
        pytest.skip(f"needs tracker pagemap: {refused}")
    page = tmp_path / "table.md"
    asked = ("--sample", str(SAMPLE), "--seed", str(SEED), "--tracker", "pagemap", "--markdown", str(page))
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
    row = re.search(r"\*\*all\*\* \| (\d+) \| (\d+) \| \d+ \| \d+ \| (\d+) \|", page.read_text())
    assert row is not None, page.read_text()
    lines, reached, wrong = map(int, row.groups())
    assert lines == SAMPLE
    assert reached > SAMPLE // 2, "lines that a second life does not run again are few"
    assert wrong == 0
    assert f"--sample {SAMPLE} --seed {SEED}" in page.read_text()
