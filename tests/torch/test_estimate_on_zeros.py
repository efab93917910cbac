"""An estimate names the operators that it could not tell from shapes, and so ran."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.cli import main

pytestmark = pytest.mark.needs("torch", "compiler")

JOBS = """
import torch


def job():
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        {also}
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return {{"model": model, "optimizer": optimizer, "step": step}}
"""
SAID = "These operators ran, in memory and on zeros"


def told(folder: Path, capsys: pytest.CaptureFixture[str], also: str, *words: str) -> str:
    """What the verb prints of a job that also does that."""
    (folder / "jobs.py").write_text(JOBS.format(also=also))
    assert main(["estimate", f"{folder}/jobs.py:job", "--machine", "cxl-m2", *words]) == 0
    return capsys.readouterr().out


def test_operators_that_pytorch_can_only_run_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--json"]):  # the second time, too, though PyTorch remembers what it has run
        said = told(tmp_path, capsys, "torch.geqrf(torch.ones(64, 64))", *words)
        assert SAID in said
        assert "aten.geqrf.default." in said
    assert SAID not in told(tmp_path, capsys, "torch.ones(64, 64).sum()")
