"""`sentinel prove` in miniature: interrupted, gone on with, and what it sends back."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sentinel.proving.proof_folder import OBJECT, PAGE
from tests.processes import until

ROOT = Path(__file__).parents[2]
SLOW = "emulated:cxl-asic-x8"


def command(out: Path, *more: str) -> list[str]:
    words = ["prove", "--quick", "--slow", SLOW, "--minutes", "600", "-o", str(out), *more]
    return [sys.executable, "-m", "sentinel", *words]


def begun(words: Sequence[str], **more: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **more
    )


@pytest.mark.needs("torch", "native", "compiler")
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_proof_is_interrupted_gone_on_with_and_sent_back(tmp_path: Path) -> None:
    out = tmp_path / "proof"
    process = begun(command(out))
    until(lambda: list((out / "work" / "cells").glob("*.json")) or process.poll() is not None, 0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    partial = json.loads((out / OBJECT).read_text())
    assert partial["partial"] == "it was interrupted"
    assert partial["not_run"]
    assert "partial" in (out / PAGE).read_text()
    digests = {name: told["digest"] for name, told in partial["predictions"].items()}

    again = begun(command(out, "--resume", "--json"))
    printed, said = again.communicate(timeout=1800)
    assert again.returncode == 0, said
    found = json.loads((out / OBJECT).read_text())
    assert found == json.loads(printed)
    assert found["partial"] == ""
    assert found["not_run"] == {}
    assert digests
    for name, digest in digests.items():
        assert found["predictions"][name]["digest"] == digest  # not made again
    ran = {(cell["workload"], cell["placement"]): cell for cell in found["cells"]}
    for workload in ("small_perceptron", "small_convolution"):
        stock = ran[workload, "stock"]
        for placement in ("all-fast", "sentinel", "best-static"):
            cell = ran[workload, placement]
            assert cell["as_planned"], cell["notes"]
            assert all(cell[part] == stock[part] for part in ("losses", "n_losses", "parameters"))
            assert cell["prediction"] == found["predictions"][workload]["digest"]
            assert cell["began"] >= found["predictions"][workload]["written"]
    told = (out / OBJECT).read_text() + (out / PAGE).read_text()
    assert str(tmp_path) not in told
    assert str(ROOT) not in told
    for name in (socket.gethostname(), getpass.getuser()):
        assert name in ("root", "localhost") or name not in told
    assert found["host"]["kernel"] in told
    assert not (out / "work" / "before.json").exists()


@pytest.mark.needs("torch", "native", "compiler")
@pytest.mark.slow
def test_what_does_not_fit_into_the_minutes_is_listed_as_not_run(tmp_path: Path) -> None:
    words = command(tmp_path)
    words[words.index("600")] = "0.05"
    process = begun(words)
    _, said = process.communicate(timeout=600)
    found = json.loads((tmp_path / OBJECT).read_text())
    assert process.returncode in (0, 1), said  # 1 where the time is up within the examination
    assert found["partial"]
    assert len(found["not_run"]) + len(found["cells"]) == 8
