"""The blind validation as it is run, in miniature: predicted first, then judged under both physics."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.needs("native")]


def validate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.blind_validation", "--examples", "04_dlrm", "--policies", "lru"]
    command += ["--others", "1"]  # tests run beside one another
    command += ["--rounds", "1", "--group", "2", "--into", str(folder), "--plans", str(folder / "plans"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)


def told(path: Path) -> Any:
    return json.loads(path.read_text())


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, timeout=300)


@pytest.mark.long  # each part of it is in tests/unit/test_blind_validation.py
def test_a_policy_is_predicted_committed_and_then_judged_by_copies_under_both_physics(tmp_path: Path) -> None:
    first = validate(tmp_path, "--predict")
    assert first.returncode == 0, first.stderr
    assert not (tmp_path / "results.json").exists()
    of_example = told(tmp_path / "predictions.json")["results"]["04_dlrm"]
    predicted = of_example["policies"]
    assert predicted["all-fast"]["ratio"] == pytest.approx(1, abs=0.001)
    assert predicted["lru"]["ratio"] > 1
    assert all(rate <= 2 * 10**9 for _, _, rate in of_example["links"])
    early = validate(tmp_path, "--judge")
    assert early.returncode
    assert "is in no git checkout" in early.stderr
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "predictions.json", "predictions.sha256", "tries.json")
    git(tmp_path, "commit", "--quiet", "-m", "what is predicted")
    done = validate(tmp_path, "--judge")
    assert done.returncode == 0, done.stderr
    judged = told(tmp_path / "results.json")
    assert len(judged["predictions"]["commit"]) == 40
    assert list(judged["results"]["summaries"]) == ["same", "other"]
    cells = judged["results"]["cells"]
    assert len(cells) == 4
    for cell in cells:
        moves = cell["policy"] == "lru"
        assert cell["predicted"] == predicted[cell["policy"]]["ratio"]
        assert cell["run"]["links"] == of_example["links"]  # what movers were throttled to
        assert (cell["run"]["copied_bytes"] > 0, cell["run"]["uncopied_bytes"]) == (moves, 0)
    assert "### Other physics" in (tmp_path / "page.md").read_text()
    for what in ("04_dlrm-lru.json", "04_dlrm-machine.json"):
        kept = (tmp_path / "plans" / what).read_text()
        (tmp_path / "plans" / what).write_text("{}")
        (tmp_path / "results.json").unlink(missing_ok=True)
        forged = validate(tmp_path, "--judge")
        assert forged.returncode
        assert "that was predicted: predict again" in forged.stderr
        (tmp_path / "plans" / what).write_text(kept)
