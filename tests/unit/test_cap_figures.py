"""What benchmarks/cap.py makes of what it has seen: bounds that no fastest step clips, bytes in vain, goals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _cap_figures, _cap_goals, cap, cap_page
from benchmarks._cap_figures import FILE, OVERLAP, PASSIVE, STOCK, SWAP, TUNED
from sentinel.core.granule_uses import READS, WRITES, GranuleUses
from sentinel.core.units import HUGE_PAGE_BYTES
from tests.read_ahead import granule_uses

DISK = {"read_bytes_per_s": 100 * HUGE_PAGE_BYTES, "write_bytes_per_s": 100 * HUGE_PAGE_BYTES, "together": 1.0}
"""10 ms for a granule either way."""
FAST = {"read_bytes_per_s": 1.7e9, "write_bytes_per_s": 3.2e9, "together": 1.0}
MS = 1_000_000


def round_of_eight() -> GranuleUses:
    """Eight operators change a granule each, 1 ms each: with four frames four are read and written a step at least."""
    return granule_uses([MS] * 8, [{k: READS | WRITES} for k in range(8)])


def test_a_bound_is_for_compute_of_the_step_that_it_is_beside() -> None:
    disk_s = _cap_figures.bounds(round_of_eight(), 4, DISK, 8 * MS)
    assert (disk_s.read_bytes, disk_s.written_bytes) == (4 * HUGE_PAGE_BYTES, 4 * HUGE_PAGE_BYTES)
    assert disk_s.step_ns == pytest.approx(80 * MS, rel=0.03)  # no step was as slow, and it is not clipped
    slower = _cap_figures.bounds(round_of_eight(), 4, DISK, 800 * MS)
    assert slower.compute_ns == pytest.approx(800 * MS)
    assert slower.step_ns >= 800 * MS
    assert _cap_figures.bounds(round_of_eight(), 8, DISK, 8 * MS).step_ns == 8 * MS


@pytest.mark.parametrize(("together", "ms"), [(1.0, 80), (1.6, 50), (2.0, 40)])
def test_directions_share_a_disk_as_far_as_was_measured(together: float, ms: int) -> None:
    bound = _cap_figures.bounds(round_of_eight(), 4, DISK | {"together": together}, 8 * MS)
    assert bound.step_ns == pytest.approx(ms * MS, rel=0.03)


def test_no_direction_is_faster_than_alone() -> None:
    """Eight granules are read and none is written: 80 ms, however much both directions do at once."""
    reads = granule_uses([MS] * 12, [{k: READS} for k in range(12)])
    bound = _cap_figures.bounds(reads, 4, DISK | {"together": 2.0}, 12 * MS)
    assert (bound.read_bytes, bound.written_bytes) == (8 * HUGE_PAGE_BYTES, 0)
    assert bound.step_ns == pytest.approx(80 * MS, rel=0.03)


def row(step_s: float, **more: Any) -> dict[str, Any]:
    return {"ns": [int(step_s * 1e9)] * 3, "losses": [2.0, 1.0], "major_faults": [0, 0, 0], **more}


def counted(granules: int = 0, **more: int) -> dict[str, int]:
    names = ("unread_bytes", "dropped_granules", "waited_ns", "vain_bytes")
    both = dict.fromkeys(("read_bytes", "written_bytes"), granules * HUGE_PAGE_BYTES)
    return dict.fromkeys(names, 0) | both | more


def seen(**steps: float) -> dict[str, Any]:
    """Of a run in which each step of ours reads and writes four granules, six of which come back in three rounds."""
    pool = {"pool_bytes": [3 * HUGE_PAGE_BYTES, 4 * HUGE_PAGE_BYTES]}
    storage = pool | {"born": counted(), "storage": counted(24, read_bytes=18 * HUGE_PAGE_BYTES, vain_bytes=6 << 21)}
    told = {name: row(step, **storage if name in _cap_figures.OURS else {}) for name, step in steps.items()}
    records = {name: round_of_eight() for name in (FILE, OVERLAP) if name in told}
    found = _cap_figures.summed_up(told, records, FAST, 2)
    memory = {name: {"peak_bytes": 35 << 20, "mean_bytes": 30 << 20, "limit_met": 0} for name in told}
    more = {"share": 0.41, "cap_bytes": 1 << 30, "lost": {}, "disk": FAST, "disks": [FAST, FAST], "memory": memory}
    return found | more | {"others_share": 0.01, "took_s": 60.0, "processes": told}


def told_of(found: dict[str, Any], model: str | None = None) -> dict[str, Any]:
    stock = {"peak_bytes": 100 << 20, "peak_rss_bytes": 120 << 20}
    return {"model": model, "batch": 64, "stock": stock, "results": [found]}


def by_goal(told: dict[str, Any]) -> dict[str, bool | None]:
    return {each.goal: each.met for each in _cap_goals.goals(told)}


def test_what_left_and_never_came_back_was_written_in_vain() -> None:
    moved = seen(stock=1.0, tuned=0.8, file=1.2)["a_step"][FILE]
    assert moved["written_bytes"] == 4 * HUGE_PAGE_BYTES  # a step, of six
    assert moved["read_bytes"] == 3 * HUGE_PAGE_BYTES
    assert moved["written_in_vain_bytes"] == HUGE_PAGE_BYTES
    assert moved["read_in_vain_bytes"] == HUGE_PAGE_BYTES


def test_goals_are_met_and_missed_by_what_was_measured() -> None:
    fine = {STOCK: 1.0, TUNED: 0.8, FILE: 0.85, OVERLAP: 0.84, PASSIVE: 3.0, SWAP: 11.0}
    assert set(by_goal(told_of(seen(**fine))).values()) == {True}
    slow = by_goal(told_of(seen(**fine | {FILE: 1.6, PASSIVE: 4.0})))
    missed = [goal for goal, met in slow.items() if met is False]
    assert len(missed) == 4
    for words in (
        "file: a step takes at most 1.35",
        "1.12 times the bound",
        "at most 1/20 of what",
        "at most 1/4 of what",
    ):
        assert any(words in goal for goal in missed)
    found = seen(**fine)
    found["processes"] = {}
    found["same_losses"] = False
    found["memory"][FILE]["limit_met"] = 2
    found["a_step"][OVERLAP]["major_faults"] = 1
    found["lost"] = {PASSIVE: "killed"}
    assert len(_cap_goals.missed(_cap_goals.goals(told_of(found)))) == 4


def test_a_goal_for_a_faster_disk_is_not_judged_on_a_slower_one() -> None:
    found = seen(stock=1.0, tuned=0.8, file=1.6)
    found["disk"] = FAST | {"read_bytes_per_s": 1.2e9}
    goals = {each.goal: each for each in _cap_goals.goals(told_of(found))}
    (judged,) = [each for goal, each in goals.items() if "file: a step takes at most 1.35" in goal]
    assert judged.met is None
    assert "on a disk of 1.2 and 3.2 GB/s" in judged.found
    assert any(each.met is None and each.found == "not measured" for each in goals.values())


def test_a_step_below_its_bound_and_a_rival_that_ended_are_not_judged() -> None:
    found = seen(stock=1.0, tuned=0.8, file=0.7)
    found["lost"] = {SWAP: "a training process ended early, by SIGKILL"}
    goals = {each.goal: each for each in _cap_goals.goals(told_of(found))}
    below = goals["41%, file: a step takes at most 1.12 times the bound"]
    assert below.met is None
    assert below.found.endswith(": its operators computed faster than those of tuned")
    assert goals["41%: swap trains"].met is None


def test_goals_of_other_models_are_of_memory() -> None:
    found = seen(stock=1.0, tuned=0.8, file=0.9)
    goals = by_goal(told_of(found, "resnet50"))
    assert goals["stock takes at least 4 GB"] is False
    assert goals["41%: the process takes at most 35% of stock's peak"] is True
    found["memory"][FILE]["peak_bytes"] = 36 << 20
    assert by_goal(told_of(found, "vgg16"))["41%: the process takes at most 35% of stock's peak"] is False
    assert not any("stock's peak" in goal for goal in by_goal(told_of(found, "lstm")))


def page_of(found: dict[str, Any], model: str | None = None) -> dict[str, Any]:
    machine = {"cpu": "a CPU", "memory_bytes": 8 << 30, "kernel": "6.1", "cores": 2}
    where = {"when": "2026-11-26T12:00:00Z", "machine": machine, "versions": {"python": "3.11", "torch": "2.13"}}
    told = told_of(found, model) | where | {"shape": [12, 768, 2, 256], "vocabulary": 8192, "turn": 2, "rounds": 3}
    return told | {"born": 2, "goals": [each._asdict() for each in _cap_goals.goals(told)]}


def test_the_page_has_each_row_its_bounds_and_the_goals() -> None:
    found = seen(stock=1.0, tuned=0.8, file=1.2, passive=3.0)
    found["lost"] = {OVERLAP: "allow at least 600MiB"}
    told = page_of(found)
    text = cap_page.page(told, [page_of(seen(stock=1.0, tuned=0.8, file=0.9), "resnet50")])
    bound = "0.80 / 1.00 | 1.50 / 1.20"
    assert (
        f"| 41%, 1,024 MiB | file | 1.20 | 1.20 (1.20–1.20) | 1.50 (1.50–1.50) | {bound} | 6 | 2 | 8 | 2 | 0.00 |"
        in text
    )
    assert "| none | stock, malloc keeps its memory | 0.80 | 0.80 (0.80–0.80) | 1 |" in text
    assert "| 41%, 1,024 MiB | file, updates in backward | allow at least 600MiB |" in text
    assert "| ResNet-50 | 64 | 100 | 41% | 0.90 |" in text
    assert "| 35% | 100% | −81 % (ResNet) |" in text
    assert "a step takes at most 1.12 times the bound | 1.50 with compute as of tuned | **missed** |" in text
    assert "| ResNet-50, stock takes at least 4 GB | 0.10 GB | **missed** |" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith(("| cap ", "| none", "| 41%, 1,024"))}
    assert columns == {15}
    assert "takes 1.20 times as long as in stock PyTorch" in " ".join(cap_page.summary(told))


def test_the_readme_counts_the_goals_of_all_models() -> None:
    told, model = page_of(seen(stock=1.0, tuned=0.8, file=0.9)), page_of(seen(stock=1.0, tuned=0.8, file=0.9), "vgg16")
    told["goals"], model["goals"] = [{"met": True}, {"met": None}], [{"met": False}, {"met": True}]
    said = " ".join(cap_page.summary(told, [model]))
    assert "Of the goals for this and 1 other model 3 were judged and 1 were not; missed: 1." in said
    assert "Of the goals for this model 1 were judged and 1 were not; missed: 0." in " ".join(cap_page.summary(told))


def test_what_is_measured_is_kept_until_all_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cap._bench, "commit", lambda: "one")
    into = tmp_path / "cap.json"
    first = cap.Kept(into, {"caps": [0.5]})
    first.found["stock"] = {"peak_bytes": 1}
    first.keep()
    assert cap.Kept(into, {"caps": [0.5]}).found["stock"] == {"peak_bytes": 1}
    with pytest.raises(SystemExit, match="other settings or another commit"):
        cap.Kept(into, {"caps": [0.4]})
    monkeypatch.setattr(cap._bench, "commit", lambda: "another")
    with pytest.raises(SystemExit, match="other settings or another commit"):
        cap.Kept(into, {"caps": [0.5]})
    first.drop()
    assert not list(tmp_path.iterdir())
    assert json.loads(json.dumps(cap.Kept(None, {}).found)) == {"stock": None, "results": []}
