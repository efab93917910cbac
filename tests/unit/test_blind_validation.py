"""What was predicted is judged as it was written down, by turns beside plain steps, and can be found wrong."""

from __future__ import annotations

import hashlib
import json
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import _bench, blind_validation_page
from benchmarks._blind_commitment import checked, committed, tries_in, written
from benchmarks.blind_validation import cell, predict, ranking, steps_of_a_turn, summary
from sentinel.core.plan import USE_DTYPE
from tests.builders import make_machine
from tests.processes import until

DOCS = Path(__file__).parents[2] / "docs"
LINKS = [[1, 0, 2 * 10**9], [0, 1, 10**9]]
END = {"emulated": True, "as_saved": True, "notes": [], "copied_bytes": 1, "links": LINKS}


def judged(policy: str, predicted: float, executed: float, example: str = "a", physics: str = "same") -> dict[str, Any]:
    found = cell(predicted, [executed - 0.1, executed, executed + 0.2], END, LINKS)
    where = {"physics": physics, "example": example, "policy": policy, "when": "2026-01-02", "others_share": 0.01}
    return {**where, **found}


def test_errors_are_of_the_ratio_and_of_what_is_above_one() -> None:
    found = judged("lru", 1.2, 1.25)
    assert (found["executed"], found["error"]) == (1.25, pytest.approx(-0.04))
    assert found["added_error"] == pytest.approx(-0.2)
    assert judged("lru", 1.2, 1.009)["added_error"] is None  # the clock's error, not the model's
    assert judged("lru", 1.2, 0.9)["added_error"] is None


def given(folder: Path, **more: Any) -> Namespace:
    told = {"into": folder, "stem": "", "examples": ["a"], "fast": "20%", "slow": "s", "plans": folder, "policies": []}
    return Namespace(**{**told, "threads": 2, "others": 0.05, "again": None, **more})


def test_nothing_is_predicted_while_others_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench, "child", lambda *_: {"policies": {}})
    for share, refused in ((0.3, True), (0.01, False)):
        monkeypatch.setattr(_bench, "others_share", lambda share=share: lambda: share)
        with pytest.raises(SystemExit, match="others had 30%") if refused else nullcontext():
            path = predict(given(tmp_path), {})
        assert (tmp_path / "predictions.json").exists() == (not refused)
    assert checked(path, {})["results"]["a"]["others_share"] == 0.01


def test_who_predicts_again_says_why_and_what_became_of_the_predictions_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_bench, "child", lambda *_: {"policies": {}})
    monkeypatch.setattr(_bench, "others_share", lambda: lambda: 0.0)
    first = checked(predict(given(tmp_path), {}), {})
    with pytest.raises(SystemExit, match="say with --again WHY"):
        predict(given(tmp_path), {})
    summaries = {"same": {"ratio_mean": 0.18, "added_mean": 0.51}}
    results = {"predictions": {"sha256": first["sha256"]}, "results": {"summaries": summaries}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    predict(given(tmp_path, again="the price is another one", examples=["b"]), {})
    tries = tries_in(tmp_path)
    assert [each["why"] for each in tries] == ["the first", "the price is another one"]
    assert (tries[0]["ratio_mean"], tries[0]["added_mean"]) == (0.18, 0.51)
    assert not (tmp_path / "results.json").exists()  # they judge other predictions


def test_what_was_asked_for_is_told_on_a_calibrated_host_too() -> None:
    """There a session's links are no faster than copies, and have their prices."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from benchmarks._blind_prediction import as_asked
    from sentinel.tiers.choice import links_between

    machine = make_machine(slow_kind="emulated", lost_ns_per_kib=200.0, lost_ns_per_move=50_000.0)
    fast, slow = machine.tiers
    asked = as_asked(machine)
    assert asked.links == links_between(fast, slow, 1)
    assert asked.links != machine.links
    assert not any(link.takes_from_compute or link.measured for link in asked.links)


@pytest.mark.parametrize("amiss", ["emulated", "as_saved"])
def test_what_was_not_carried_out_as_predicted_is_not_judged(amiss: str) -> None:
    with pytest.raises(SystemExit, match=r"not carried out.*why"):
        cell(1.2, [1.2], {**END, amiss: False, "notes": ["why"]}, LINKS)


def test_what_ran_on_other_links_than_were_predicted_is_not_judged() -> None:
    with pytest.raises(SystemExit, match=r"ran with links of .*17800000000.* and was predicted with .*2000000000"):
        cell(1.2, [1.2], {**END, "links": [[1, 0, 17_800_000_000], LINKS[1]]}, LINKS)


def test_only_policies_that_move_are_summed_up_and_signs_show() -> None:
    moves = {("a", "lru"): 3, ("a", "sentinel"): 1, ("a", "static"): 0}
    cells = [judged("lru", 1.3, 1.2), judged("sentinel", 1.18, 1.2), judged("static", 3.0, 1.2)]
    found = summary(cells, moves)
    assert found["cells"] == found["added_cells"] == 2
    assert found["ratio_worst"] == pytest.approx(1.3 / 1.2 - 1)
    assert found["added_mean"] == pytest.approx((0.5 + 0.1) / 2)
    assert found["added_worst"] == pytest.approx(0.5)
    assert found["added_bias"] == pytest.approx((0.5 - 0.1) / 2)
    assert found["ratio_bias"] == pytest.approx((1.3 / 1.2 + 1.18 / 1.2) / 2 - 1)
    assert summary([], {})["ratio_mean"] is None


def test_pairs_count_where_they_were_predicted_apart_in_the_same_example() -> None:
    cells = [judged("lru", 1.3, 1.25), judged("static", 1.5, 1.2), judged("sentinel", 1.28, 1.4)]
    assert ranking(cells) == (0, 2)  # lru before sentinel was too close to tell; both were to be before static
    assert ranking([*cells, judged("sentinel", 1.0, 1.1), judged("static", 9.0, 2.0, example="b")]) == (3, 5)


TOLD: dict[str, Any] = {"slow": "x", "results": {}, "when": "2026-01-01T00:00:00Z"}


def kept(folder: Path, **more: Any) -> Path:
    """Predictions as they are written, of this host."""
    path = folder / "predictions.json"
    written(path, {**TOLD, "machine": _bench.machine(), **more}, None)
    return path


def test_predictions_that_were_changed_later_or_made_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not there: predict first"):
        checked(tmp_path / "predictions.json", {})
    path = kept(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert checked(path, {"slow": "x"})["sha256"] == digest
    with pytest.raises(SystemExit, match="was made with slow x"):
        checked(path, {"slow": "y"})
    path.write_text(path.read_text() + " ")
    with pytest.raises(SystemExit, match="not the file whose digest"):
        checked(path, {"slow": "x"})
    path.with_suffix(".sha256").unlink()
    with pytest.raises(SystemExit, match="not the file whose digest"):
        checked(path, {"slow": "x"})
    elsewhere = kept(tmp_path, machine={**_bench.machine(), "cores": 4711})
    with pytest.raises(SystemExit, match=r"another host \(4711\)"):
        checked(elsewhere, {})


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, timeout=300)


def test_a_turn_of_short_steps_has_more_of_them() -> None:
    assert steps_of_a_turn(plain_ns=300_000_000, least=5, seconds=1.0) == 5
    assert steps_of_a_turn(plain_ns=40_000_000, least=5, seconds=1.0) == 26  # the first one is left out


def test_what_is_not_committed_alone_is_not_judged(tmp_path: Path) -> None:
    path = kept(tmp_path)
    with pytest.raises(SystemExit, match="is in no git checkout"):
        committed(path)
    git(tmp_path, "init", "--quiet")
    with pytest.raises(SystemExit, match=r"predictions\.json is not committed as it is"):
        committed(path)
    git(tmp_path, "add", path.name)
    with pytest.raises(SystemExit, match=r"predictions\.json is not committed as it is"):
        committed(path)
    git(tmp_path, "commit", "--quiet", "-m", "one of two")
    with pytest.raises(SystemExit, match=r"predictions\.sha256 is not committed as it is"):
        committed(path)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "both")
    told = committed(path)
    assert len(told["commit"]) == 40
    assert told["committed"][:2] == "20"
    path.write_text(path.read_text() + " ")
    with pytest.raises(SystemExit, match=r"predictions\.json is not committed as it is"):
        committed(path)
    kept(tmp_path, again=1)
    (tmp_path / "results.json").write_text("{}")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "with results")
    with pytest.raises(SystemExit, match=r"has results\.json beside predictions"):
        committed(path)


def test_what_is_published_was_predicted_before_it_was_judged() -> None:
    for results in (DOCS / "validation").glob("*results.json"):
        told = json.loads(results.read_text())
        path = results.with_name(results.name.replace("results", "predictions"))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert told["predictions"]["sha256"] == digest == path.with_suffix(".sha256").read_text().split()[0]
        predicted = json.loads(path.read_text())
        assert all(predicted["when"] < each["when"] for each in told["results"]["cells"])
        for each in told["results"]["cells"]:
            assert each["predicted"] == predicted["results"][each["example"]]["policies"][each["policy"]]["ratio"]


def test_the_page_shows_each_cell_each_goal_and_which_was_missed(tmp_path: Path) -> None:
    assert "Not run yet" in blind_validation_page.sections(tmp_path)
    moves = {("a", "lru"): 3, ("a", "static"): 0}
    same = [judged("lru", 1.3, 1.2), judged("static", 1.5, 1.6)]
    other = [judged("lru", 1.3, 1.7, physics="other"), judged("static", 1.5, 1.6, physics="other")]
    results = {"summaries": {"same": summary(same, moves), "other": summary(other, moves)}, "cells": [*same, *other]}
    where: dict[str, Any] = {"machine": {"cores": 2, "cpu": "Some Processor 9"}, "versions": {"torch": "2.0"}}
    where["threads"] = 2
    where |= {"fast": "20%", "slow": "emulated:x", "rounds": 3, "group": 5, "seconds": 1.0}
    where |= {"predictions": {"sha256": "abc123", "when": "2026-01-01"}}
    links = {"links": LINKS, "asked_links": [[1, 0, 9 * 10**9], [0, 1, 8 * 10**9]]}
    (tmp_path / "quick-predictions.json").write_text(json.dumps({"results": {"a": links}}))
    (tmp_path / "quick-results.json").write_text(json.dumps({**where, "results": results}))
    text = blind_validation_page.sections(tmp_path)
    assert "What moves takes from compute had no price then." in text
    lost = {"lost": [[1, 0, 100.0, 40_000.0], [0, 1, 250.0, 60_000.0]]}
    (tmp_path / "quick-predictions.json").write_text(json.dumps({"results": {"a": {**links, **lost}}}))
    priced = blind_validation_page.sections(tmp_path)
    assert "measured so too: 102 to 256 µs for each MiB and 40 to 60 µs for each migration." in priced
    assert "## The same, quick" in text
    assert "abc123" in text
    assert "2.0 to 2.0 GB/s to fast memory where 9.0 were asked for, 1.0 to 1.0 GB/s out of it" in text
    assert "| a | lru | – | 1.300 | 1.200 | 1.150 … 1.300 | 1.100 … 1.400 | +8.3% | +50% |" in text
    assert "| a | static | – | 1.500 | 1.600 |" in text
    assert "| error of the ratio, mean of 1 cells | 8.3% | 2% | **not held** |" in text
    assert "| the same, mean with its sign | +8.3% | – |" in text
    assert "**not on the links that were predicted**" in text
    assert "These are the first predictions" in text
    assert "sentinel-forced" not in text
    assert "| the same, worst | +50.0% | 20% | **not held** |" in text
    assert "| order of pairs predicted more than 3 % apart, all policies | 1 of 1 | 95% | held |" in text
    assert "0 of\n1 pairs of policies" in text
    assert "copies are real, delays of slow accesses are injected" in text.lower()


def test_the_page_tells_tries_the_commit_the_links_and_what_was_forced(tmp_path: Path) -> None:
    cells = [judged("lru", 1.3, 1.2), judged("sentinel-forced", 1.2, 1.2)]
    results = {"summaries": {"same": summary(cells, {("a", "lru"): 3, ("a", "sentinel-forced"): 1})}, "cells": cells}
    where: dict[str, Any] = {"machine": {"cores": 2, "cpu": "Some Processor 9"}, "versions": {"torch": "2.0"}}
    where["threads"] = 2
    where |= {"fast": "20%", "slow": "emulated:x", "rounds": 3, "group": 5, "seconds": 1.0}
    of = {"sha256": "abc123", "when": "2026-01-03", "commit": "0123456789abcdef", "committed": "2026-01-04"}
    row: dict[str, Any] = {
        "links": LINKS,
        "asked_links": LINKS,
        "machine_sha256": "def",
        "policies": {"lru": {"migrated_bytes": 1 << 20}},
    }
    (tmp_path / "predictions.json").write_text(json.dumps({"results": {"a": row}}))
    (tmp_path / "results.json").write_text(json.dumps({**where, "predictions": of, "results": results}))
    tries: list[dict[str, Any]] = [
        {"when": "2026-01-01", "ratio_mean": 0.18, "added_mean": 0.51},
        {"when": "2026-01-02"},
    ]
    tries += [{"when": "2026-01-03", "why": "links are others"}, {"when": "2026-01-05", "why": "later"}]
    (tmp_path / "tries.json").write_text(json.dumps([{"predictions": "p", "sha256": "x", **each} for each in tries]))
    text = " ".join(blind_validation_page.sections(tmp_path).split())
    assert "and committed alone (`0123456789ab`, 2026-01-04)" in text
    assert "**These are predictions number 3**, made again since links are others." in text
    assert "2026-01-01 (off by 18.0% of the step and 51.0% of the added time); 2026-01-02 (not judged)." in text
    assert "as they were saved, on those links." in text
    assert "`sentinel-forced` is ours **forced to move**" in text
    assert "| a | lru | 1.00 MiB | 1.300 |" in text


def test_ours_is_forced_to_move_only_where_the_price_of_moves_keeps_it_from_that() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from benchmarks._blind_prediction import forced
    from sentinel.core.budget import Budget
    from sentinel.core.errors import UsageError
    from sentinel.planner import plan
    from tests.builders import MIB, make_profile, param

    by_turns = [param(f"{i}", 8 * MIB, [i, 7 - i]) for i in range(4)]
    profile = make_profile(by_turns, 8, layer_ns=[20_000_000] * 8)
    machine, budget = make_machine(16 * MIB, slow_bw=10**9, lost_ns_per_kib=10**6), Budget(16 * MIB)
    ours = plan(profile, machine, budget=budget)
    assert not ours.migrations
    assert forced(profile, machine, {"migrations": 0}, budget).migrations
    with pytest.raises(UsageError, match="ours moves by itself"):
        forced(profile, machine, {"migrations": 1}, budget)
    with pytest.raises(UsageError, match="moves nothing even where moves take nothing"):
        forced(profile, machine, {}, Budget(64 * MIB))


@pytest.mark.needs("native")
def test_other_physics_are_dearer_in_latency_and_cheaper_in_bytes_than_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
    from dataclasses import replace

    from benchmarks._other_physics import OtherPhysics, SharedLink, duration_ns
    from sentinel.migration.mover import NativeMover
    from sentinel.migration.mover_order import Order, order_of
    from sentinel.tiers import EmulatedTier, HeldBlock

    machine = make_machine()
    fast, slow = machine.tiers
    machine = replace(machine, tiers=(replace(fast, latency_ns=100), replace(slow, latency_ns=300, kind="emulated")))
    uses = np.zeros(2, USE_DTYPE)
    uses["reads"], uses["read_bytes"] = (1, 0), (0, 10**6)
    model, other = EmulatedTier(machine, 1), OtherPhysics(machine, 1)
    assert model.delay_ns(uses).tolist() == [200, 90_000]
    assert other.delay_ns(uses).tolist() == [350, 45_000]
    block = HeldBlock(10**6, (10**6, 0), list)
    job = other.job(block, 0, 1)
    assert job == model.job(block, 0, 1)
    submitted: list[Order] = []
    submit = NativeMover.submit_all

    def note(mover: NativeMover, orders: Sequence[Order]) -> int:
        submitted.extend(orders)
        return submit(mover, orders)

    monkeypatch.setattr(NativeMover, "submit_all", note)
    mover = SharedLink(1 << 40)
    mover.force(2 * 10**6)
    mover.submit(job._replace(duration_ns=3_600_000_000_000))
    until(lambda: mover.held().in_flight_bytes)
    mover.submit(job)
    assert [duration_ns(order) for order in submitted] == [3_600_000_000_000, 2 * job.duration_ns]
    mover.close()
    submitted.clear()
    idle = SharedLink(1 << 40)
    idle.force(2 * 10**6)
    idle.submit_all([order_of(job), order_of(job)])  # the one as the other begins
    assert [duration_ns(order) for order in submitted] == [job.duration_ns, 2 * job.duration_ns]
    idle.close()
