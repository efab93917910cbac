"""Training on two real nodes: nothing changes but where bytes are, and the witness saw what the engine claims."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_plan"),
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
from tests.numa import vm_training  # noqa: E402


def test_training_is_bit_identical_and_every_page_that_moved_is_accounted_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told = vm_training.told()
    said = capfd.readouterr().err
    assert "training goes on" not in said  # what within a step was warned of, and raises nothing there
    assert "the report" not in said
    assert told["same_losses"]
    assert told["same_parameters"]
    assert told["learned"]
    assert told["claimed_steps"] >= 4
    assert told["seen_pages"] == told["claimed_pages"] > 100
    assert told["seen_to_node_1"] > 50
    assert told["unaccounted"] == [0, 0]
    assert told["report"] == {"moved_pages": told["claimed_pages"], "witness_pages": told["seen_pages"]}
    assert told["verdict"].startswith("engine and witness agree")
