"""Goals of training data stand beside what was measured; a run of benchmarks goes on after what it has kept."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from benchmarks import data, data_page, data_run, importance, importance_page
from benchmarks._data_goals import NOISES, Goal, Loaders, at_least, at_most, goals

DOCS = Path(__file__).parents[2] / "docs"


def told(name: str) -> Any:
    return json.loads((DOCS / f"{name}.json").read_text())


def epoch(reads: float, seconds: float = 1.0, chunks: float = 80.0, span: float = 0.3) -> dict[str, Any]:
    return {"reads": reads, "ns": seconds * 1e9, "samples": 6400, "chunks_per_batch": chunks, "span": span}


def rival(reads: float, **more: float) -> dict[str, Any]:
    return {"version": None, "first": epoch(2 * reads), "rounds": [epoch(reads, **more)]}


def loaders() -> dict[str, Any]:
    """Of 100 chunks: the goals are met by a little."""
    sweep = {f"{data.EXACT}, unit={unit}": rival(999, seconds=1.05) for unit in data.UNITS}
    blocks = dict.fromkeys(data.BLOCKS, rival(900, chunks=10, span=0.05))
    blocks[list(data.BLOCKS)[1]] = rival(184, chunks=28, span=0.09)
    of_mds = {data.MDS[0]: rival(250), data.MDS[1]: rival(100), data.MOSAIC: rival(5100), **blocks}
    exact = {"first": epoch(340), "rounds": [epoch(259)]}
    common = {data.PLAIN: rival(6400, seconds=10.1), data.EXACT: exact, data.AUTO: rival(259, seconds=1.1)}
    common |= {data.WINDOWED: rival(100), data.REDIRECT: rival(770, seconds=3.3)}
    sources = [common | of_mds, common | sweep, common | sweep, common | sweep]
    unlike = {data.HALF: rival(104) | {"share": 0.5}, data.SIXTEEN: rival(840) | {"chunk": 16}}
    results = [
        {"source": source._asdict(), "others_share": 0.02, "rivals": rivals}
        for source, rivals in zip(data.SOURCES, [*sources, unlike], strict=True)
    ]
    return {"settings": {"samples": 6400, "chunk": 64}, "results": results}


def closely(of: Any) -> dict[str, Any]:
    """As if these sources had been measured apart from other libraries, too."""
    return {**of, "results": [of["results"][data.SOURCES.index(source)] for source in data.COMPARED_CLOSELY]}


def reached(of: Any) -> list[Goal]:
    return goals(of, closely(of), told("data-encoded"), told("three-ranks"), told("data-limits"), None)


def of_loaders(found: list[Goal]) -> list[Goal]:
    """Those of loaders side by side, which are the first."""
    return found[: next(number for number, goal in enumerate(found) if "row groups" in goal.what)]


def test_goals_that_are_met_by_a_little_are_met_and_a_little_beyond_they_are_missed() -> None:
    of = loaders()
    first = reached(of)
    here = of_loaders(first)
    assert all(goal.met for goal in here), [goal for goal in here if not goal.met]
    for source, name, figure, value, words in (
        (0, data.EXACT, "reads", 261, "memory for 20 %: from the second"),
        (4, data.SIXTEEN, "reads", 861, "chunks of 16"),
        (4, data.HALF, "reads", 106, "memory for 50 %"),
        (0, data.REDIRECT, "reads", 799, "redirect"),
        (1, data.AUTO, "ns", 1.12e9, "one in flight: unit"),
        (0, data.MDS[0], "reads", 256, "full shuffle"),
        (0, data.MDS[1], "reads", 111, "fetches of the same MDS shards: windowed"),
        (0, data.MDS[1], "span", 0.26, "span: windowed over mosaicml-streaming, blocks of 1/2"),
    ):
        worse = copy.deepcopy(of)
        worse["results"][source]["rivals"][name]["rounds"][0][figure] = value
        missed = [goal.what for goal in reached(worse) if not goal.met and goal not in first]
        assert any(words in what for what in missed), (name, figure, missed)


def test_what_was_not_measured_or_beside_other_work_is_no_goal_that_was_met() -> None:
    of = loaders()
    of["results"][1]["others_share"] = 0.3
    del of["results"][3]["rivals"][f"{data.EXACT}, unit={data.UNITS[0]}"]
    del of["results"][4]
    unknown = {goal.what for goal in reached(of) if goal.figure is None}
    assert sum("one in flight" in what for what in unknown) == 4  # counts of that source still stand
    assert any("bare disk" in what and "best of units" in what for what in unknown)
    assert sum("chunks of 16" in what or "50 %" in what for what in unknown) == 2
    assert Loaders(of, 4).reads(data.HALF) is None
    page = data_page.with_goals(f"{data_page.GOALS_BEGIN}\nold\n{data_page.GOALS_END}", reached(of), of)
    assert page.count("| host was busy |") == 4
    assert page.count("| not measured |") == len(unknown) - 4
    assert "\nold\n" not in page


def test_times_on_a_host_whose_load_was_not_recorded_count_for_no_goal() -> None:
    of = loaders()
    for result in of["results"]:
        del result["others_share"]
    unknown = [goal for goal in of_loaders(reached(of)) if goal.figure is None]
    assert len(unknown) == 9
    assert all("samples/s" in goal.what for goal in unknown)  # counts still stand
    del of["results"][3]["rivals"][data.AUTO]
    page = data_page.with_goals(f"{data_page.GOALS_BEGIN}{data_page.GOALS_END}", reached(of), of)
    assert page.count("| - | load not recorded |") == 7
    measured = sum(goal.figure is not None for goal in reached(of))
    assert f"did little else. {measured} of {len(reached(of))} goals were measured so; missed: " in page
    limits = told("data-limits")
    del limits["results"]["resume"][0]["others_share"]
    found = goals(of, closely(of), told("data-encoded"), told("three-ranks"), limits, None)
    assert sum(goal.unknown == "load not recorded" for goal in found if goal.what.startswith("seconds")) == 3


def test_goals_of_selection_are_not_measured_without_its_results() -> None:
    of_selection = [goal for goal in reached(loaders()) if goal.what.startswith("importance")]
    assert [goal.figure for goal in of_selection] == [None] * (1 + len(NOISES))
    assert {goal.unknown for goal in of_selection} == {"not measured"}


def test_goals_say_what_has_changed_since_loaders_without_a_commit_were_measured() -> None:
    marks = f"{data_page.GOALS_BEGIN}{data_page.GOALS_END}"
    assert "decision 154" in data_page.with_goals(marks, [], {})
    assert "decision 154" not in data_page.with_goals(marks, [], {"commit": "abc1234"})


def test_a_missed_goal_is_named_above_the_table() -> None:
    found = [at_most("reads", 2.6, 2.604), at_least("speed", 10, 10.0)]
    page = data_page.with_goals(f"{data_page.GOALS_BEGIN}{data_page.GOALS_END}", found, loaders())
    assert "- reads: 2.60, not ≤ 2.6" in page
    assert "| reads | ≤ 2.6 | 2.60 | **missed** |" in page
    assert "| speed | ≥ 10 | 10.00 | met |" in page


def test_what_selection_loses_is_told_seed_by_seed() -> None:
    """Seeds differ by ten times what selection loses with each of them: paired, that is still seen."""
    full = [{"accuracy": accuracy, "hits": 0.2, "never_evict_hits": 0.2} for accuracy in (0.90, 0.95, 0.92)]
    less = [{**one, "accuracy": one["accuracy"] - loss} for one, loss in zip(full, (0.004, 0.005, 0.006), strict=True)]
    found = importance.row(0.1, "select", less, full)
    assert found["lost"] == pytest.approx(0.005)
    assert found["lost_error"] == pytest.approx(0.001 / 3**0.5)
    assert found["accuracy_error"] > 10 * found["lost_error"]
    assert importance.row(0.1, "full", full, full)["lost"] == 0
    assert importance.error([1.0]) == 0

    more = {"delivered": 0.85, "reads_per_chunk": 2.1, "substituted": 0.0}
    rows = [found | more | {"mode": mode, "hits": 0.23} for mode in importance.MODES]
    settings = {"samples": 1200, "epochs": 30, "seeds": 3}
    results = {"when": "2026-11-26T", "commit": "abc1234", "settings": settings, "results": {"rows": rows}}
    jobs = {
        "when": "2026-11-29T",
        "commit": "abc1234",
        "settings": {"samples": 1200, "epochs": 30, "memory": "25%"},
        "results": [{"alone": 0.8, "shared": 0.64}, {"alone": 0.8, "shared": 0.56}],
    }
    page = importance_page.rewritten(f"{importance_page.BEGIN}\nold\n{importance_page.END}", results, jobs)
    assert "80% are read where each has its memory for itself, 60% with one `share=`: 25% fewer (20% to 30% in" in page
    assert "| 10% | selected | 0.918 ± 0.014 | 0.5 ± 0.1 | 0.85 | 0.230 | 0.200 | 2.10 |" in page
    assert "loses 0.5 ± 0.1 points, more than one standard error with 10%" in page
    assert "It hits 1.15 times" in page
    of = loaders()
    made = goals(of, closely(of), told("data-encoded"), told("three-ranks"), told("data-limits"), results)
    assert [goal.met for goal in made[-2:]] == [True, False]


def test_results_of_the_same_settings_are_kept_and_others_measured_anew(tmp_path: Path) -> None:
    source, result = data.SOURCES[1], {"rivals": {}}
    kept = data.Kept(tmp_path / "parts", {"samples": 3, "commit": "a"})
    assert kept.of(source) is None
    kept.keep(source, result)
    assert kept.of(source) == result
    assert kept.of(data.SOURCES[0]) is None
    assert data.Kept(tmp_path / "parts", {"samples": 3, "commit": "b"}).of(source) is None
    (path,) = (tmp_path / "parts").iterdir()
    path.write_text("cut sho")
    assert kept.of(source) is None
    nowhere = data.Kept(None, {})
    nowhere.keep(source, result)
    assert nowhere.of(source) is None


def test_a_folder_in_memory_is_no_bare_disk_and_says_so() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("there is no /dev/shm")
    folder = shm / f"sentinel-test-{id(object())}"
    folder.mkdir()
    try:
        (folder / "file").write_bytes(b"some")
        assert "--folder on a disk" in data._forgotten(folder)
    finally:
        (folder / "file").unlink()
        folder.rmdir()


def test_a_step_that_fails_leaves_nothing_and_one_that_works_its_json(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    with pytest.raises(SystemExit, match="run this command again"):
        data_run.run(["benchmarks.data", "--nonsense"], path)
    assert not path.exists()
    data_run.run(["json.tool", "--compact", str(DOCS / "three-ranks.json")], path)
    assert json.loads(path.read_text()) == told("three-ranks")
    assert data_run._commit_of(path) == told("three-ranks")["commit"]
    assert {step.name for step in data_run.STEPS} <= {path.stem for path in DOCS.glob("*.json")}
