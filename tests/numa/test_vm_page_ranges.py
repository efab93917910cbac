"""Page ranges on two real nodes: the kernel has each page of a table where the plan has its range."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.needs("two nodes", "root", "torch", "native"), pytest.mark.slow]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
from tests.numa import vm_page_ranges  # noqa: E402


def test_hot_ranges_are_on_the_fast_node_and_cold_ones_on_the_slow_one() -> None:
    told = vm_page_ranges.told()
    if told["tracker"] == "ops":
        pytest.skip("needs a page tracker on this kernel: see `sentinel doctor`")
    assert told["same_losses"]
    assert told["same_parameters"]
    assert told["learned"]
    assert told["kind"] == "executed"
    assert {piece["tier"] for piece in told["ranges"]} == {0, 1}, "a table is in both tiers"
    assert sum(piece["pages"] for piece in told["ranges"]) > 500
    assert all(piece["there"] == piece["pages"] for piece in told["ranges"])
    both = told["page_ranges"]
    assert both["ranged"]["fast_served_fraction"] > both["whole"]["fast_served_fraction"] + 0.05
    assert told["fast_peak_bytes"] <= told["fast_capacity_bytes"]
