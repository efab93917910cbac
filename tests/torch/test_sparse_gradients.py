"""Tensors of sparse gradients are never twice as long, and some are managed in some steps only: still one shape."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.session import current

pytestmark = pytest.mark.needs("torch", "compiler")

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 16


def test_the_steps_of_a_recommendation_model_are_of_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    common = runpy.run_path(str(EXAMPLES / "common.py"))
    train = runpy.run_path(str(EXAMPLES / "04_dlrm.py"))["train"]
    train(common["Options"](steps=STEPS, slow="emulated:cxl-asic-x8", scale="small"))
    session = current()
    assert session is not None
    (bucket,) = session.context.applying.buckets
    assert bucket.served.steps >= STEPS - 5
    assert session.context.applying.strangers.steps == 0
    assert bucket.served.fitted_bytes > 0  # lengths do differ
    assert bucket.served.missed_bytes < 0.05 * bucket.served.asked_bytes
