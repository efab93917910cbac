"""The README's table of claims beside what was committed: each row has its command, each figure its result."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sentinel.reports.sections.key_figures import headline_rows
from sentinel.system.host_load import HostLoad
from tests.unit.report_builders import SETUP, full_report

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXT = (ROOT / "README.md").read_text()
README = " ".join(TEXT.split())


def told(name: str) -> Any:
    return json.loads((DOCS / name).read_text())


def claims() -> list[str]:
    """The rows of the table of claims."""
    _, _, section = TEXT.partition("## What was measured\n")
    rows = [line for line in section.partition("\n\nOn ")[0].splitlines() if line.startswith("| ")]
    assert len(rows) > 2
    return rows[2:]  # after its head and its dashes


def overs(name: str, what: str) -> list[float]:
    return [model[what]["median"] for model in told(f"costs/{name}.json")["results"]["models"].values()]


def span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("row", claims())
def test_each_claim_names_the_command_that_makes_it_again(row: str) -> None:
    commands = re.findall(r"`python -m (benchmarks\.\w+)", row)
    assert commands, row
    page = re.findall(r"\]\((docs/[\w-]+\.md)\)", row)
    said = "".join((ROOT / name).read_text() for name in ("docs/reproduce.md", *page)).replace("/", ".")
    for module in commands:
        assert find_spec(module) is not None, module
        assert module in said, f"{module} is neither in docs/reproduce.md nor in {page}"


def test_the_readme_says_what_steps_cost_with_nothing_to_move() -> None:
    intel, amd = (overs(name, "sentinel_over_tuned") for name in ("overhead-always", "overhead-always-amd"))
    stock = [over for name in ("overhead-always", "overhead-always-amd") for over in overs(name, "sentinel_over_stock")]
    assert f"steps take {span(intel + amd)} times as long as with a tuned malloc" in README
    assert f"(in the mean {mean(intel):.2f} on an Intel machine, {mean(amd):.2f} on an AMD machine)" in README
    assert f"and {span(stock)} times as long as stock" in README
    asked = max(overs("overhead-madvise", "sentinel_over_tuned"))
    assert f"with huge pages on request up to {asked:.2f} times as long as with a tuned malloc" in README
    rounds = {told(f"costs/{name}.json")["settings"]["rounds"] for name in ("overhead-always", "overhead-always-amd")}
    assert rounds == {5}
    assert told("costs/overhead-madvise.json")["settings"]["rounds"] == 1
    assert "five models, five rounds each, on request one round:" in README


def test_the_readme_says_how_far_off_blind_predictions_were() -> None:
    results = told("validation/quick-results.json")["results"]
    found = results["summaries"]["same"]
    off = f"{100 * found['ratio_mean']:.1f} % of the step and {100 * found['added_mean']:.0f} % of the added time"
    assert off in README
    assert found["ratio_mean"] > 0.02
    assert found["added_mean"] > 0.08
    assert "(goals of 2 % and 8 %: missed)" in README
    ours = [one["error"] for one in results["cells"] if (one["physics"], one["policy"]) == ("same", "sentinel")]
    assert f"our plans, which move nothing there, were up to {100 * max(map(abs, ours)):.1f} % off" in README
    assert f"{found['pairs_kept']} of {found['pairs']} pairs of policies came in the predicted order" in README


def test_the_readme_says_how_plans_stand_beside_tiertrain() -> None:
    results = told("tiertrain.json")
    rows = results["results"]
    for row in rows:
        ours, theirs = row["ours_in_its_mean"], row["tiertrain"]
        assert all(ours[key] < theirs[key] for key in ("mean_bytes", "peak_bytes", "step_ns")), row["network"]
    assert (
        "ours holds less fast memory than our reading of its policy, at the peak and in the mean, and is fast" in README
    )
    published = results["settings"]["published"]
    keys = {"mean": "mean_saved", "peak": "peak_saved"}
    reached = [
        row
        for row in rows
        if row["tiertrain"]["slower"] <= published["slower"][1]
        and all(row["tiertrain"][key] >= published[what][0] for what, key in keys.items())
    ]
    assert len(reached) < len(rows) / 2
    assert "in most rows that reading does not reach the figures that TierTrain published" in README


def test_the_readme_says_how_far_off_an_estimate_is() -> None:
    found = [each["errors"] for each in told("estimate.json")["results"].values()]
    peak, layer = (max(abs(each[what]) for each in found) for what in ("peak", "layer_worst"))
    assert f"the peak at most {100 * peak:.1f} %, the bytes of any layer at most {100 * layer:.1f} %" in README


LEFT_OUT = (
    *("policy", "tracker", "live peak", "managed", "unmanaged", "falsely shared", "fast peak", "fast mean"),
    *("fast needed", "step, spread", "step, bound", "cases", "waits", "processor time"),
)
"""Rows of the headline that the README, which shows a part of it, has not."""


def shown_headline() -> list[list[str]]:
    """The cells of each row, without empty ones."""
    _, _, after = TEXT.partition("From the headline that `make demo` prints")
    block = after.partition("```\n")[2].partition("```")[0]
    return [re.split(r"  +", line) for line in block.splitlines()]


def without_figures(words: str) -> str:
    return re.sub(r"\d[\d.]*", "#", words)


def test_the_headline_has_the_rows_that_the_demo_prints_today() -> None:
    """In their order, and with today's remarks: who adds a row to the headline, or renames one, decides what the README
    shows of it."""
    load = HostLoad(10**9, 10**9, waited_share=0.01, stolen_share=0.0, others_share=0.02)
    report = full_report(replace(SETUP, profiled_load=load, applied_load=load))
    printed = headline_rows(report.headline)
    assert len({name for name, _, _ in printed}) == len(printed)
    assert set(LEFT_OUT) <= {name for name, _, _ in printed}
    shown = shown_headline()
    assert [cells[0] for cells in shown] == [name for name, _, _ in printed if name not in LEFT_OUT]
    remarks = {name: without_figures(remark) for name, _, remark in printed}
    for name, _, *remark in shown:
        assert without_figures(" ".join(remark)) == remarks[name], name
