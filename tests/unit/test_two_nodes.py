"""The page of two nodes, the README's part of it, and how results are kept, from made-up results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import two_nodes, two_nodes_figures, two_nodes_page, two_nodes_readme, two_nodes_results
from sentinel.executed.placements import NAMES
from tests.builders import make_profile, param

DOCS = Path(__file__).parents[2] / "docs"
MIB = 1 << 20
PLAN = "plan"


def row(name: str, share: float, later_mib: float, ours: dict[str, Any] | None = None) -> dict[str, Any]:
    """A placement of 100 touched MiB a step, that moves `later_mib` in a later one and 7 MiB before."""
    told = {"name": name, "served_share": share, "touched_bytes": 100 * MIB, "skipped": "", "ours": ours}
    pages = round((7 + later_mib * 5) * 256)
    told |= {"migrated_pages": {"numa_misplaced": pages, "compaction": 9}, "later_migrated_bytes": later_mib * MIB}
    told |= {"same_losses": True, "same_parameters": True, "fast_taken_bytes": 47 * MIB}
    told |= dict.fromkeys(("left_bytes", "least_left_bytes", "mean_left_bytes", "most_left_bytes"))
    return told | {"measured_steps": 2}


def run(
    *, ours_mib: float = 20, tiering_mib: float = 30, footprint_mib: int = 100, tracker: str = ""
) -> dict[str, Any]:
    """One run: ours serves 90 of 100 MiB and moves `ours_mib` a step, tiering serves 60 and moves `tiering_mib`."""
    pages = round(ours_mib * 256 * 5)
    ours: dict[str, Any] = {"witness_pages": pages, "claimed_pages": pages, "tracker": tracker or None}
    ours |= {"counters": {"steps": 5, "served_fast_bytes": 475 * MIB, "touched_bytes": 500 * MIB}}
    ours |= {"footprint_bytes": footprint_mib * MIB, "budget_bytes": footprint_mib * MIB // 5}
    ours |= {"residency_share": 1.0, "managed_fast_peak_bytes": 19 * MIB}
    rows = [row("sentinel", 0.9, ours_mib, ours), row("all-fast", 1.0, 0), row("all-slow", 0.05, 0)]
    rows += [row(name, 0.4, 0) for name in ("first-touch", "interleave", "weighted-interleave")]
    rows += [row("kernel-tiering", 0.6, tiering_mib)]
    return {
        "script": "examples/a.py --scale small --steps 10",
        "fast": "20%",
        "beside_bytes": 4 * MIB,
        "where": {"kernel": "6.12", "torch": "2.13"},
        "when": "2026-12-01",
        "rows": rows,
        "simulated": {"sentinel": 1.25, "best-static": 1.5, "all-slow": 6.0},
        "settings": {"warm_up": 8, "measured": 2, "placements": list(NAMES), "plan": PLAN, "fast": "20%"},
    }


def machine() -> str:
    tiers = [{"read_bytes_per_s": 113 * 10**9}, {"read_bytes_per_s": 17_800_000_000}]
    return json.dumps({"machine": {"name": "cxl-m2", "tiers": tiers, "links": [{"bandwidth_bytes_per_s": 2 * 10**9}]}})


def results(**runs: list[dict[str, Any]]) -> two_nodes_figures.Results:
    """Of all four examples; those that are not given are one plain run each."""
    return {name: {"runs": runs.get(name[3:], [run()]), "after": {}} for name in two_nodes_figures.EXAMPLES}


def test_bytes_over_the_link_are_those_served_slow_and_those_moved_in_either_direction() -> None:
    found = run(ours_mib=15, tiering_mib=3)
    assert two_nodes_figures.link_bytes(found, "sentinel") == pytest.approx((10 + 15) * MIB)
    assert two_nodes_figures.link_bytes(found, "kernel-tiering") == pytest.approx((40 + 3) * MIB)
    assert two_nodes_figures.link_bytes(found, "autotm") is None
    found["rows"][0]["later_migrated_bytes"] = None
    assert two_nodes_figures.link_bytes(found, "sentinel") is None


def test_what_moves_once_is_told_apart_and_is_no_part_of_a_step() -> None:
    found = run(ours_mib=0, tiering_mib=0)
    for name in ("sentinel", "kernel-tiering"):
        assert two_nodes_figures.link_bytes(found, name) == two_nodes_figures.slow_bytes(found, name)
        assert two_nodes_figures.moved_in_all_bytes(found, name) == 7 * MIB
    page = two_nodes_page.page(results(gpt2=[found]), machine())
    assert "| kernel-tiering | 7.0 | 157.0 | 157.0 | 157.0 |" in page
    assert "the node had at most 47.0 MiB less free than as the job began" in " ".join(page.split())


def test_the_page_leads_with_bytes_over_the_link_and_says_where_ours_moves_more() -> None:
    told = results(lstm=[run(ours_mib=80)], dlrm=[run(ours_mib=100, tracker="ebpf")])
    page = two_nodes_page.page(told, machine())
    text = " ".join(page.split())
    link, served = page.index("## Bytes over the slow link"), page.index("## Step time, simulated")
    assert link < served < page.index("## What was run, and what was not")
    cells = "| sentinel | **30.0**, 90.0% | **30.0**, 90.0% | 90.0, 90.0% | 110.0, 90.0% |"
    assert cells in page
    assert "| kernel-tiering | 70.0, 60.0% | 70.0, 60.0% | 70.0, 60.0% | 70.0, 60.0% |" in page
    assert "| first-touch | 60.0, 40.0% | 60.0, 40.0% | **60.0**, 40.0% | **60.0**, 40.0% |" in page
    assert "| sentinel | 10.0 + 20.0 | 10.0 + 20.0 | 10.0 + 80.0 | 10.0 + 100.0 |" in page
    assert "In 2 of 4 examples (01_gpt2, 02_resnet) ours brings fewer bytes over the link than the kernel's" in text
    assert "- 03_lstm: 90.0 MiB a step, 70.0 under tiering, because it moves more: 10.0 served slow and 80.0" in text
    assert "In 1 of 4 examples (04_dlrm) ours brings more bytes over the link than if everything stayed" in text
    assert "| best-static | 1.50 | 1.50 | 1.50 | 1.50 |" in page
    assert "None of it was measured" in text
    assert text.count("**Planned in the emulated machine**") == 1
    assert "Not run: 3 runs of each, so the figures have no spread; 5 measured steps a run" in text
    assert "after 20, 40, 80 steps of warm-up" in text
    assert "a described machine: its slow tier reads 17.8 GB/s and its links carry 2 GB/s" in text


def counted(mean_mib: int) -> two_nodes_figures.Results:
    """First touch gives tensors so much of a budget of 20 MiB."""
    found = run()
    ballast = {"left_bytes": 24 * MIB, "least_left_bytes": 23 * MIB, "mean_left_bytes": 24 * MIB}
    ballast |= {"most_left_bytes": 25 * MIB, "mean_tensor_bytes": mean_mib * MIB, "most_tensor_bytes": 22 * MIB}
    found["rows"][3] |= ballast
    return results(gpt2=[found], resnet=[found], lstm=[found], dlrm=[found])


def test_what_tensors_had_of_the_fast_node_is_told_where_it_was_counted() -> None:
    page = " ".join(two_nodes_page.page(counted(21), machine()).split())
    assert "- first-touch: 24.0 MiB at the beginning, 24.0 MiB in the mean (23.0 MiB to 25.0 MiB at any look)" in page
    assert "at any look), tensors 21.0 MiB in the mean and at most 22.0 MiB" in page
    anew = "**What the others get beside the budget was changed after results**"
    assert anew in page
    assert anew not in two_nodes_page.page(results(), machine())


@pytest.mark.parametrize(
    ("mean_mib", "said"),
    [
        (25, "there, and did: tensors that two steps used had 1.2 to"),
        (10, "there: tensors that two steps used had 0.5"),
    ],
)
def test_the_readme_says_that_tensors_had_more_only_where_they_had(mean_mib: int, said: str) -> None:
    assert said in " ".join(two_nodes_readme._beside(counted(mean_mib)).split())


def test_the_page_says_nothing_of_more_bytes_where_there_are_none() -> None:
    text = " ".join(two_nodes_page.page(results(), machine()).split())
    assert "In 4 of 4 examples (01_gpt2, 02_resnet, 03_lstm, 04_dlrm) ours brings fewer bytes over the link" in text
    assert "The others:" not in text
    assert "In no example does ours bring more bytes over the link than if everything stayed in slow memory." in text


def test_several_runs_have_a_middle_and_a_spread_and_tiering_its_later_steps() -> None:
    told = results(gpt2=[run(ours_mib=20), run(ours_mib=26), run(ours_mib=50)])
    told["01_gpt2"]["after"][40] = {**run(tiering_mib=12), "rows": run(tiering_mib=12)["rows"][-1:]}
    page = two_nodes_page.page(told, machine())
    assert "| sentinel | **36.0 (30.0 to 60.0)**, 90.0% (90.0% to 90.0%) | **30.0**, 90.0% |" in page
    assert "| 40 | 52.0, 60.0% | not run | not run | not run |" in page
    assert "01_gpt2: footprint 100.0 MiB; 3 runs of 10 steps, 8 of warm-up, 2 measured." in page


def test_of_ours_the_smaller_share_counts() -> None:
    found = run()
    found["rows"][0]["ours"]["counters"] |= {"served_fast_bytes": 140 * MIB, "touched_bytes": 200 * MIB}
    assert two_nodes_figures.served_share(found, "sentinel") == 0.7
    assert two_nodes_figures.link_bytes(found, "sentinel") == pytest.approx((12 + 20) * MIB)  # each by its own account
    found["rows"][0]["touched_bytes"] = 130 * MIB
    assert two_nodes_figures.link_bytes(found, "sentinel") == pytest.approx((13 + 20) * MIB)
    page = " ".join(two_nodes_page.page(results(dlrm=[found]), machine()).split())
    assert "Served to ours 90.0% in measured steps, 70.0% by its own account of the 5 applied steps." in page
    assert "of ours the smaller one of two shares" in page
    assert "stated before the runs: a footprint of 64.0 MiB to 200.0 MiB." in page
    assert "those below are simulated" in page


def test_who_has_room_for_all_of_it_is_said_and_no_times_where_there_are_none() -> None:
    found = run(footprint_mib=18)
    del found["simulated"]
    found["rows"][3]["left_bytes"], found["rows"][-1]["left_bytes"] = 18 * MIB, 40 * MIB
    found["rows"][4]["left_bytes"] = 17 * MIB
    page = " ".join(two_nodes_page.page(results(dlrm=[found]), machine()).split())
    assert "kernel-tiering have 18.0 MiB to 40.0 MiB of room for a footprint of 18.0 MiB" in page
    none = results(**{name[3:]: [found] for name in two_nodes_figures.EXAMPLES})
    assert "so none is shown" in " ".join(two_nodes_page.page(none, machine()).split())


def test_sizes_beyond_the_rule_are_said() -> None:
    page = two_nodes_page.page(results(lstm=[run(footprint_mib=18)]), machine())
    assert page.count("**not of that size**") == 1


def test_the_readme_says_bytes_first_and_which_examples() -> None:
    marks = f"{two_nodes_readme.BEGIN}\n{two_nodes_readme.END}"
    plain = f"a\n{two_nodes_readme.CLAIM} old | executed, four: `x` |\n\n{marks}\nb\n"
    told = results(dlrm=[run(ours_mib=100)])
    told["04_dlrm"]["runs"][0]["rows"][0]["ours"]["residency_share"] = 0.9981
    readme = two_nodes_readme.rewritten(plain, told, machine())
    text = " ".join(readme.split())
    moves = 3 * 20 * 256 * 5 + 100 * 256 * 5
    assert (
        f"{two_nodes_readme.CLAIM} after each layer 100.00 % of managed bytes, 99.81 % for DLRM; a witness in the"
        f" kernel saw all {moves:,} page moves that the engine counted; losses and parameters are bit-identical |"
        " executed, four:"
    ) in text
    assert "| ours | 30 MiB, 90.0 % | 30 MiB, 90.0 % | 30 MiB, 90.0 % | 110 MiB, 90.0 % |" in text
    assert "In 3 of the 4 examples (GPT-2, ResNet, LSTM) ours brings fewer bytes over the link than the" in text
    assert "kernel's tiering, in DLRM more than if everything stayed slow." in text
    assert "By simulation a step takes there 1.25, 1.25, 1.25, 1.25 times as long as with everything fast" in text
    assert max(len(line) for line in readme.splitlines() if not line.startswith("|")) <= 120
    assert two_nodes_readme.rewritten(readme, told, machine()) == readme
    told["01_gpt2"]["runs"][0]["rows"][0]["ours"]["claimed_pages"] += 1
    told["01_gpt2"]["runs"][0]["rows"][1]["same_losses"] = False
    other = two_nodes_readme.rewritten(readme, told, machine())
    assert f"saw {moves:,} page moves where the engine counted {moves + 1:,}; losses or parameters **differ**" in other
    with pytest.raises(ValueError, match="the README has no row"):
        two_nodes_readme.rewritten(plain.replace("tensors", "bytes"), told, machine())


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docs and README of this checkout, in a folder of their own."""
    folder = tmp_path / "docs"
    shutil.copytree(DOCS / "two-nodes", folder / "two-nodes")
    shutil.copyfile(DOCS / "two-nodes.md", folder / "two-nodes.md")
    shutil.copyfile(DOCS.parent / "README.md", folder / "README.md")
    monkeypatch.setattr(two_nodes_results, "FOLDER", folder / "two-nodes")
    monkeypatch.setattr(two_nodes_results, "PAGE", folder / "two-nodes.md")
    monkeypatch.setattr(two_nodes_results, "README", folder / "README.md")
    return folder


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def kept(folder: Path, *stems: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "machine.json").write_text(machine())
    for stem in stems:
        (folder / f"{stem}.json").write_text(json.dumps(run()))


def test_docs_and_readme_change_by_a_whole_set_only(docs: Path, tmp_path: Path) -> None:
    before, new = texts(docs), tmp_path / "new"
    kept(new, "01_gpt2", "02_resnet", "03_lstm")
    with pytest.raises(SystemExit, match="has no result of 04_dlrm: docs and README stay as they are"):
        two_nodes.main(["--table", "--into", str(new)])
    part = run()
    part["rows"].pop(3)
    (new / "04_dlrm.json").write_text(json.dumps(part))
    with pytest.raises(SystemExit, match="04_dlrm was not run as first-touch"):
        two_nodes.main(["--table", "--into", str(new)])
    assert texts(docs) == before
    kept(new, "04_dlrm", "04_dlrm-run2")
    with pytest.raises(SystemExit, match=r"has 04_dlrm-run2\.json and no 01_gpt2-run2\.json"):
        two_nodes.main(["--table", "--into", str(new)])
    kept(new, *(f"{example}-run2" for example in two_nodes_figures.EXAMPLES))
    other = run()
    other["settings"]["warm_up"] = 4
    (new / "03_lstm-run2.json").write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="a run of 03_lstm is of the settings"):
        two_nodes.main(["--table", "--into", str(new)])
    assert texts(docs) == before
    kept(new, "03_lstm-run2")
    two_nodes.main(["--table", "--into", str(new)])
    after = texts(docs)
    names = {"machine", *(f"{each}{run}" for each in two_nodes_figures.EXAMPLES for run in ("", "-run2"))}
    assert {Path(name).stem for name in after if name.startswith("two-nodes/")} == names
    assert after["two-nodes.md"] == two_nodes_page.page(two_nodes_results.results_in(new), machine())
    assert "Plans are for [a described machine]" in " ".join(after["README.md"].split())
    two_nodes.main(["--table", "--into", str(docs / "two-nodes")])
    assert texts(docs) == after


def test_plans_and_results_are_not_kept_in_one_folder(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="their files have the same names"):
        two_nodes.main(["--plans", str(tmp_path), "--into", str(tmp_path)])


def asked(tmp_path: Path, *words: str) -> list[two_nodes.Job]:
    plans = tmp_path / "plans"
    plans.mkdir(exist_ok=True)
    for example in two_nodes_figures.EXAMPLES:
        (plans / f"{example}.json").write_text("a plan")
    return two_nodes.jobs(two_nodes._parser().parse_args(["--into", str(tmp_path), "--plans", str(plans), *words]))


def test_only_what_has_no_result_is_run(tmp_path: Path) -> None:
    jobs = asked(tmp_path, "--examples", "01_gpt2", "03_lstm", "--runs", "2", "--tiering-after", "40")
    stems = ["01_gpt2", "03_lstm", "01_gpt2-run2", "03_lstm-run2", "01_gpt2-after40", "03_lstm-after40"]
    assert [job.path.stem for job in jobs] == stems
    assert [(job.placements, job.warm_up) for job in jobs[-2:]] == [(("kernel-tiering",), 40)] * 2
    for job in jobs[:2]:
        job.path.write_text(json.dumps({**run(), "settings": job.settings()}))
    assert [job.path.stem for job in two_nodes.left(jobs)] == stems[2:]
    for words in (["--warm-up", "4"], ["--measured", "2"], ["--placements", "sentinel"]):
        with pytest.raises(SystemExit, match="remove it, or give another --into"):
            two_nodes.left(asked(tmp_path, "--examples", "01_gpt2", *words))
    jobs[0].plan.write_text("another plan")
    with pytest.raises(SystemExit, match="remove it, or give another --into"):
        two_nodes.left(jobs)


@pytest.mark.parametrize("code", [0, 3])
def test_each_result_is_kept_as_it_ends_and_a_failure_stops_no_other(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = asked(tmp_path)[:3]
    (tmp_path / "plans" / "machine.json").write_text(machine())
    for job in jobs:
        job.plan.with_name(f"{job.plan.stem}-times.json").write_text('{"sentinel": 2.0}')

    def command(job: two_nodes.Job, memory: str, timeout_s: float) -> list[str]:
        ends = code if job is jobs[1] else 0
        return ["sh", "-c", f"echo '{{\"rows\": []}}'; echo {memory} >&2; exit {ends}"]

    monkeypatch.setattr(two_nodes.Job, "command", command)
    monkeypatch.setattr(two_nodes, "_LOOK_EVERY_S", 0.01)
    failed = two_nodes.carry_out(jobs, at_once=2, memory="1G,1G", timeout_s=60)
    assert failed == (["02_resnet"] if code else [])
    assert [job.path.stem for job in two_nodes.left(jobs)] == failed
    found = json.loads(jobs[0].path.read_text())
    assert (found["rows"], found["simulated"], found["settings"]) == ([], {"sentinel": 2.0}, jobs[0].settings())
    assert (tmp_path / "machine.json").read_text() == machine()
    assert jobs[1].path.with_suffix(".log").read_text() == "1G,1G\n"


def test_a_plan_has_the_tensors_of_one_step_and_the_times_of_another() -> None:
    there, here = (make_profile([param("w", MIB, [0])], 2, layer_ns=ns) for ns in (9_000, 2_000))
    made = two_nodes.with_times_of(there, here)
    assert list(made.layer_ns) == list(here.layer_ns) != list(there.layer_ns)
    assert made.step_ns_plain == here.step_ns_plain
    assert made.tensors is there.tensors
    with pytest.raises(SystemExit, match="other layers"):
        two_nodes.with_times_of(there, make_profile([param("w", MIB, [0])], 3))
