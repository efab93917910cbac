"""The example on Parquet: the losses don't depend on the memory, and far fewer row groups are read than by a cache."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.needs("torch", "pyarrow")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_losses_are_the_same_with_any_memory(tmp_path: Path) -> None:
    done = warm.run(
        [sys.executable, str(ROOT / "examples" / "08_parquet_tokens.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "the same bit for bit" in done.stdout
    rows = re.findall(r"^ *(\d+)% +([\d.]+) +([\d.]+) +([\d.]+)$", done.stdout, re.M)
    reads = {int(memory): (float(later), float(beside)) for memory, _, later, beside in rows}
    assert sorted(reads) == [5, 20, 50]
    assert reads[50][0] < reads[20][0] < reads[5][0]
    assert reads[20][1] > 10 * reads[20][0]
