"""The blind validation as it is run, in miniature: predicted first, then judged under both physics."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.needs("native")]


def validate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.blind_validation", "--examples", "04_dlrm", "--policies", "lru"]
    command += ["--others", "1"]  # tests run beside one another
    command += ["--rounds", "1", "--group", "2", "--into", str(folder), "--plans", str(folder / "plans"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def told(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_policy_is_predicted_and_then_judged_by_copies_under_both_physics(tmp_path: Path) -> None:
    first = validate(tmp_path, "--predict-only")
    assert first.returncode == 0, first.stderr
    assert not (tmp_path / "results.json").exists()
    predicted = told(tmp_path / "predictions.json")["results"]["04_dlrm"]
    assert predicted["policies"]["all-fast"]["ratio"] == pytest.approx(1, abs=0.001)
    assert predicted["policies"]["lru"]["ratio"] > 1
    done = validate(tmp_path)
    assert done.returncode == 0, done.stderr
    results = told(tmp_path / "results.json")["results"]
    assert list(results["summaries"]) == ["same", "other"]
    assert len(results["cells"]) == 4
    for cell in results["cells"]:
        moves = cell["policy"] == "lru"
        assert cell["predicted"] == predicted["policies"][cell["policy"]]["ratio"]
        assert (cell["run"]["copied_bytes"] > 0, cell["run"]["uncopied_bytes"]) == (moves, 0)
    assert "### Other physics" in (tmp_path / "page.md").read_text()
    (tmp_path / "plans" / "04_dlrm-lru.json").write_text("{}")
    (tmp_path / "results.json").unlink()
    forged = validate(tmp_path)
    assert forged.returncode
    assert "is not the plan that was predicted" in forged.stderr
