"""One report over all ranks: sums, the slowest, who died, in every form, and from files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli import main
from sentinel.core.errors import FormatError
from sentinel.reports import rank_files
from sentinel.reports.all_ranks import AllRanks
from sentinel.reports.html.page import page
from sentinel.reports.rank_files import RankFiles
from sentinel.reports.rank_rows import ENDED, FAILED, TRAINS, RankRow, placement_digest, read
from sentinel.system.launched import Launched
from tests.unit.report_builders import MIB, PLAN, full_report, report_on_a_file


def who(rank: int, size: int = 3, job: str = "a") -> Launched:
    return Launched(rank, size, rank, size, job)


def row(rank: int, size: int = 3, state: str = "ended", **headline: Any) -> RankRow:
    told = {"size": size, "placement": "x", "script": "train.py", "node": "n0", "job": "a"}
    return RankRow(rank, state, {"kind": "emulated", **headline}, told)


def test_bytes_are_summed_and_the_slowest_is_named() -> None:
    rows = [
        row(0, fast_capacity_bytes=4 << 20, fast_peak_bytes=3 << 20, peak_bytes=9 << 20, step_ns_applied=1_000_000),
        row(1, fast_capacity_bytes=2 << 20, fast_peak_bytes=2 << 20, peak_bytes=5 << 20, step_ns_applied=4_000_000),
        row(2, fast_capacity_bytes=1 << 20, fast_peak_bytes=None, step_ns_applied=2_000_000),
    ]
    found = AllRanks(rows)
    headline = found.headline
    assert (headline["fast_capacity_bytes"], headline["fast_peak_bytes"], headline["peak_bytes"]) == (
        7 << 20,
        5 << 20,
        14 << 20,
    )
    assert (headline["slowest_rank"], headline["slowest_step_ns_applied"]) == (1, 4_000_000)
    assert (headline["kind"], headline["ranks"], headline["ranks_ended"], headline["plans"]) == ("emulated", 3, 3, 1)
    assert "[EMULATED]" in found.text()
    assert "rank 1 is the slowest: 4.00 ms a step, 2.00 times the median" in found.text().replace("\n          ", " ")
    assert "6.00 MiB of fast memory over all ranks instead of 14.00 MiB" in page(found)


def test_a_rank_that_needs_less_than_its_budget_leaves_nothing_to_the_others() -> None:
    rows = [
        row(0, 2, fast_capacity_bytes=10 << 20, peak_bytes=4 << 20, job_fast_bytes=4 << 20, job_bytes=4 << 20),
        row(1, 2, fast_capacity_bytes=10 << 20, peak_bytes=20 << 20, job_fast_bytes=10 << 20, job_bytes=20 << 20),
    ]
    told = dict(AllRanks(rows).heading.summary)["memory"]
    assert told == "14.00 MiB of fast memory over all ranks instead of 24.00 MiB"


def test_what_no_plan_covers_is_fast_memory_of_all_ranks_too() -> None:
    sizes = {"fast_capacity_bytes": 4 << 20, "peak_bytes": 10 << 20, "fast_peak_bytes": 3 << 20}
    rows = [
        row(0, **sizes, outside_bytes=2 << 20, job_fast_bytes=6 << 20, job_bytes=12 << 20),
        row(1, **sizes, outside_bytes=1 << 20, job_fast_bytes=5 << 20, job_bytes=11 << 20),
    ]
    told = AllRanks(rows)
    assert dict(told.heading.summary)["memory"] == (
        "11.00 MiB of fast memory over all ranks instead of 23.00 MiB; at most 6.00 MiB were held within the plans;"
        " both include 3.00 MiB outside of the plans, which no budget covers"
    )
    assert told.headline["outside_bytes"] == 3 << 20
    assert "3.00 MiB" in told.text().split("Over all ranks")[1]


def test_ranks_on_a_file_are_compared_too(tmp_path: Path) -> None:
    for rank in range(2):
        figures = {"most_pool_bytes": 8 * MIB, "tensor_peak_bytes": 32 * MIB, "step_ns": (rank + 1) * 1_000_000}
        told = report_on_a_file(**figures, recorded=1, wait_after_ns=400_000)
        RankFiles(str(tmp_path / "r.html"), who(rank, 2)).write(told, ENDED)
    found = AllRanks([read(tmp_path / f"r.rank{rank}.json") for rank in range(2)])
    assert dict(found.heading.summary) == {
        "memory": "16.00 MiB of fast memory over all ranks instead of 64.00 MiB",
        "speed": "rank 1 is the slowest: 2.00 ms a step, 1.33 times the median over ranks; where ranks reduce gradients"
        " together, all take as long, and the others wait",
    }
    frame = found.tables["ranks"]
    assert frame["step_ns_applied"].tolist() == [1_000_000, 2_000_000]
    assert frame["stall_ns_per_step"].tolist() == [400_000] * 2


def test_on_a_busy_host_no_ratio_of_times_is_told() -> None:
    def speed(share: float) -> str:
        rows = [row(0, 2, step_ns_applied=2_000_000, busy_applied_share=share), row(1, 2, step_ns_applied=4_000_000)]
        return dict(AllRanks(rows).heading.summary)["speed"]

    assert "a step, 1.33 times the median" in speed(0.01)
    assert speed(0.9).startswith("rank 1 is the slowest: 4.00 ms a step; where ranks")


def test_a_rank_that_left_nothing_has_a_row_that_says_so() -> None:
    found = AllRanks([row(0, steps=5), row(2, state="died: this is its last report")])
    assert [each.state.split(":")[0] for each in found.facts] == ["ended", "left no report", "died"]
    assert found.caveats[:2] == [
        f"Rank 1: {found.facts[1].state}.",
        "Rank 2: died: this is its last report.",
    ]
    assert found.tables["ranks"]["steps"].tolist()[0] == 5
    assert found.tables["ranks"]["steps"].isna().tolist() == [False, True, True]
    assert found.headline["kind"] == "emulated"
    for told in (found.text(), page(found)):
        assert "steps in its tables" in told, "of a long run, fewer than it has made"


def test_what_several_ranks_warn_of_is_said_once() -> None:
    told = [row(n)._replace(caveats=["The host was busy."] if n else []) for n in range(3)]
    assert AllRanks(told).caveats == ["Ranks 1, 2: The host was busy."]
    many = [row(n, 40)._replace(caveats=["The host was busy."]) for n in range(40)]
    assert AllRanks(many).caveats == ["40 ranks from 0 on: The host was busy."]


def test_reports_of_several_jobs_are_not_taken_for_one() -> None:
    other = row(1)
    found = AllRanks([row(0), other._replace(told={**other.told, "job": "b"})])
    assert any("different jobs" in caveat for caveat in found.caveats)
    assert AllRanks([row(0), row(1)._replace(headline={"kind": "executed"})]).headline["kind"] is None


@pytest.mark.parametrize("form", ["html", "json", "txt", "csv"])
def test_whoever_ends_last_writes_one_report_over_all(form: str, tmp_path: Path) -> None:
    files = [RankFiles(str(tmp_path / f"r.{form}"), who(rank)) for rank in range(3)]
    for each in files:
        each.begin()
    over_all = [each.write(full_report(), ENDED) for each in (files[2], files[0], files[1])]
    assert over_all == [False, False, True]
    text = (tmp_path / f"r.{form}").read_text()
    if form == "json":
        found = json.loads(text)
        assert found["headline"]["ranks_ended"] == 3
        assert found["frames"]["ranks"]["rank"] == [0, 1, 2]
        own = json.loads((tmp_path / "r.rank1.json").read_text())
        assert own["rank"]["rank"] == 1
        assert own["frames"]["tensors"]
    else:
        assert (tmp_path / f"r.rank1.{form}").exists()
        assert set(json.loads((tmp_path / "r.rank1.json").read_text())) >= {"headline", "caveats", "rank"}


def test_files_of_an_earlier_job_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    path = str(tmp_path / "r.json")
    for rank in range(3):
        RankFiles(path, who(rank, job="before")).write(full_report(), ENDED)
    now = [RankFiles(path, who(rank)) for rank in range(3)]
    now[0].write(full_report(), ENDED)
    states = json.loads(Path(path).read_text())["frames"]["ranks"]["state"]
    assert [state.split(":")[0] for state in states] == ["ended", "left no report", "left no report"]
    now[0]._began_s += 60  # the same job's name again, a minute later
    now[1].write(full_report(), ENDED)
    now[0].write(full_report(), ENDED)
    states = json.loads(Path(path).read_text())["frames"]["ranks"]["state"]
    assert [state.split(":")[0] for state in states] == ["left no report"] * 3


def test_of_very_many_ranks_the_first_alone_reads_what_all_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_files, "MOST_WRITERS", 2)
    files = [RankFiles(str(tmp_path / "r.json"), who(rank)) for rank in range(3)]
    assert not files[2].write(full_report(), ENDED)
    assert not (tmp_path / "r.json").exists()
    files[0].write(full_report(), ENDED)
    assert (tmp_path / "r.json").exists()


def test_two_that_end_at_once_leave_a_report_that_has_seen_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [RankFiles(str(tmp_path / "r.json"), who(rank, 2)) for rank in range(2)]
    reading = RankFiles._rows

    def interrupted(self: RankFiles) -> list[RankRow]:
        found = reading(self)
        if self is files[0] and not (tmp_path / "r.rank1.json").exists():
            files[1].write(full_report(), ENDED)  # between what the first has read and what it writes
        return found

    monkeypatch.setattr(RankFiles, "_rows", interrupted)
    assert files[0].write(full_report(), ENDED)
    assert json.loads((tmp_path / "r.json").read_text())["headline"]["ranks_ended"] == 2


def test_a_rank_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    text = (
        "import sys\nfrom sentinel.reports.rank_files import RankFiles\nfrom sentinel.system.launched import Launched\n"
        "RankFiles(sys.argv[1], Launched(1, 2, 1, 2, 'a')).begin()"
    )
    mine = RankFiles(str(path), who(0, 2))
    subprocess.run([sys.executable, "-c", text, str(path)], check=True, timeout=600)
    assert not mine.write(full_report(), FAILED)
    rows = [read(tmp_path / f"r.rank{rank}.json") for rank in (0, 1)]
    assert [each.state.split(":")[0] for each in rows] == ["failed", "died"]
    assert "died" in path.read_text()
    RankFiles(str(path), who(1, 2)).begin(TRAINS)
    assert read(tmp_path / "r.rank1.json").state == "had not ended when this was written"


def test_a_file_of_somebody_elses_is_named(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path / "r.html"), who(1))
    assert files.foreign() == ""
    files.begin()
    assert files.foreign() == ""
    (tmp_path / "r.rank1.json").write_text('{"mine": 1}')
    assert files.foreign() == str(tmp_path / "r.rank1.json")
    assert RankFiles(str(tmp_path / "r.json"), who(1)).foreign() == ""  # which the user has named


def test_plans_are_told_apart_by_what_they_place_and_not_by_times() -> None:
    assert placement_digest(PLAN) == placement_digest(replace(PLAN, predicted_step_ns=7, details={}))
    assert placement_digest(PLAN) != placement_digest(replace(PLAN, migrations=PLAN.migrations[1:]))


def test_the_command_line_draws_it_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        RankFiles(str(tmp_path / "r.html"), who(rank, 2)).write(full_report(), ENDED)
    assert main(["report", "r.rank0.json", "r.rank1.json", "-o", "again.html"]) == 0
    assert (tmp_path / "again.html").read_text() == (tmp_path / "r.html").read_text()
    assert main(["report", "r.rank1.json"]) == 0
    assert "left no report" in capsys.readouterr().out
    assert main(["report", "r.rank1.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 2
    os.rename("r.rank1.json", "copy.json")
    assert main(["report", "r.rank0.json", "copy.json", "r.rank0.json"]) == 2
    assert "two reports are of rank 0; give the report of each rank of one job once" in capsys.readouterr().err
    RankFiles(str(tmp_path / "other.html"), who(0, 2, job="b")).write(full_report(), ENDED)
    assert main(["report", "r.rank0.json", "other.rank0.json"]) == 2
    assert "two reports are of rank 0, and of different jobs" in capsys.readouterr().err
    os.rename("copy.json", "r.rank1.json")
    assert main(["report"]) == 2
    assert main(["report", "r.rank1.json", "--plan", "plan.json"]) == 2
    assert "give either" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        '{"format": "sentinel-report", "rank": {"rank": -1, "size": 2}}',
        '{"format": "sentinel-report", "rank": {"rank": 2, "size": 2}}',
        '{"format": "sentinel-report", "rank": {"rank": 0, "size": 1000000000000}}',
    ],
    ids=["empty", "cut", "list", "nothing", "nested", "negative", "beyond", "too_many"],
)
def test_what_is_no_report_of_a_rank_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.rank0.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=os.fspath(path)):
        read(path)


def test_figures_that_no_table_holds_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.rank0.json"
    headline = {"kind": ["x"], "steps": 10**30, "peak_bytes": 5, "fast_served_fraction": "all", "policy": {}}
    told = {"rank": 0, "size": 2, "state": "ended", "placement": [1], "node": {}, "job": [], "script": 3}
    path.write_text(json.dumps({"format": "sentinel-report", "headline": headline, "rank": told}))
    over_all = AllRanks([read(path)])
    assert over_all.headline["peak_bytes"] == 5
    assert over_all.headline["plans"] is None
    assert "left no report" in over_all.text()
