"""Our plans beside TierTrain's policy: what stock training holds, and a page that hides no row in which ours lags."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import tiertrain, tiertrain_page
from tests.builders import GB, MIB, act, make_machine, make_profile, param

SIZE = 4 * MIB


def test_stock_training_holds_what_is_alive_at_one_time_of_each_layer() -> None:
    """`through` lives from layer 0 to 3 and nothing is born in 2; `early` dies before `late` is born."""
    specs = [
        param("weight", SIZE - 1, [0]),
        act("through", SIZE, 0, 4, [3]),
        act("early", SIZE, 1, 2, dies_early=True),
        act("late", 2 * SIZE, 1, 2),
    ]
    profile = make_profile(specs, 5)
    assert tiertrain.alive_bytes(profile).tolist() == [2 * SIZE, 4 * SIZE, 2 * SIZE, 2 * SIZE, SIZE]


def test_a_row_has_theirs_and_ours_in_no_more_memory_than_they_hold_in_the_mean() -> None:
    specs = [param("weight", SIZE, [0, 11])]
    specs += [act(f"saved{k}", SIZE, k, 12 - k, [k + 1, 11 - k]) for k in range(5)]
    profile, links = make_profile(specs, 12, layer_ns=10_000_000), {"promote": GB, "demote": GB}
    free = tiertrain.row(profile, make_machine(**links), 5.0)
    row = tiertrain.row(profile, make_machine(**links, lost_ns_per_kib=40.0, lost_ns_per_move=42_000.0), 5.0)
    theirs, ours = row["tiertrain"], row["ours_in_its_mean"]
    assert row["stock"]["peak_bytes"] == 6 * SIZE
    assert 0 < theirs["mean_saved"] < 1
    assert theirs["moved_bytes"] > 0
    assert ours["peak_bytes"] <= theirs["mean_bytes"]
    moved = theirs["moved_bytes"] / 1024 * 40 / 120e6
    assert theirs["slower"] >= free["tiertrain"]["slower"] + moved  # the price is in the step, of theirs as of ours
    goal = row["ours_at_goal_memory"]
    assert goal["mean_saved"] >= tiertrain.GOAL["mean"]
    assert goal["peak_saved"] >= tiertrain.GOAL["peak"]
    assert goal["bound_slower"] <= goal["slower"] + 1e-4


def plan(mean: float, peak: float, slower: float) -> dict[str, Any]:
    """What a page needs of one plan, of 100 bytes alive in stock training that takes 100 ns."""
    held = {"mean_bytes": round(100 * (1 - mean)), "peak_bytes": round(100 * (1 - peak)), "step_ns": 100 * (1 + slower)}
    return {"mean_saved": mean, "peak_saved": peak, "slower": slower, **held}


def row(network: str, ours: dict[str, Any], bound: float) -> dict[str, Any]:
    at_goal = {**ours, "bound_slower": bound, "exchange_bound_slower": None}
    return {
        "network": network,
        "machine": "m-priced",
        "stock": {"peak_bytes": 100, "mean_bytes": 100},
        "tiertrain": plan(0.6, 0.3, 0.05),
        "ours_in_its_mean": ours,
        "ours_within_goal_time": None,
        "ours_at_goal_memory": at_goal,
    }


@pytest.mark.parametrize(
    ("slower", "bound", "verdict"),
    [
        (0.04, 0.0, "reached"),
        (0.20, 0.1, "not with that peak, by the bound"),
        (0.20, 0.01, "missed"),
    ],
)
def test_the_page_tells_where_ours_is_behind_and_what_no_plan_can_do(slower: float, bound: float, verdict: str) -> None:
    told = {
        "settings": {"published": tiertrain.PUBLISHED, "goal": tiertrain.GOAL},
        "versions": {"python": "3", "numpy": "2", "torch": "2"},
        "when": "2026-01-02T",
        "commit": "abc1234",
        "results": [row("net", plan(0.9, 0.8, slower), bound)],
    }
    page = tiertrain_page.page(told)
    assert "59% to 83% less in the mean" in page
    assert f"| {bound:.1%} |  | {verdict} |" in page
    assert ("Ours is not ahead in all three figures: net on m-priced." in page) == (slower > 0.05)
    assert ("in every row" in page) == (slower <= 0.05)
    assert "link time only" not in page
    assert "of commit" not in page


def test_rows_without_a_price_and_of_an_earlier_commit_are_told_as_such() -> None:
    ours = row("net", plan(0.9, 0.8, 0.01), 0.0)
    told = {
        "settings": {"published": tiertrain.PUBLISHED, "goal": tiertrain.GOAL},
        "versions": {"python": "3", "numpy": "2", "torch": "2"},
        "when": "2026-01-02T",
    }
    before = {**told, "commit": "before1", "results": [{**ours, "machine": "m"}, ours]}
    joined = tiertrain_page.joined([before, {**told, "commit": "after22", "results": [ours]}])
    assert [(each["machine"], each["commit"]) for each in joined["results"]] == [
        ("m", "before1"),
        ("m-priced", "after22"),
    ]
    page = tiertrain_page.page(joined)
    assert "**On m moves take link time only**" in page
    assert "Rows of commit before1: net on m; of commit after22: net on m-priced." in page
