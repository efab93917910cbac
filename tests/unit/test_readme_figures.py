"""The README's table of claims beside what was committed: each row has its command, each figure its result. And what
docs/storage.md says of caps in words of its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import validation_page
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
    assert f"steps take {span(intel + amd)} times as long as stock with a malloc that keeps its memory" in README
    assert f"(in the mean {mean(intel):.2f} on an Intel machine, {mean(amd):.2f} on an AMD machine)" in README
    assert f"and {span(stock)} times as long as stock" in README
    asked = max(overs("overhead-madvise", "sentinel_over_tuned"))
    assert f"with `madvise` up to {asked:.2f} times as long as with that malloc" in README
    tuned, peak = mean(overs("overhead-madvise", "sentinel_over_tuned")), "peak_rss_over_stock"
    most = max(overs("overhead-always", peak) + overs("overhead-always-amd", peak))
    assert min(mean(amd), tuned, most) > 1
    assert f"missed: at most 1.00 of that malloc in the mean (AMD {mean(amd):.3f}, `madvise` {tuned:.3f})" in README
    assert f"at most the peak memory of stock ({most:.2f}) |" in README
    rounds = {told(f"costs/{name}.json")["settings"]["rounds"] for name in ("overhead-always", "overhead-always-amd")}
    assert rounds == {5}
    assert told("costs/overhead-madvise.json")["settings"]["rounds"] == 1
    assert "five models, five rounds each, `madvise` one round:" in README


def test_the_readme_says_how_far_off_blind_predictions_were() -> None:
    results = told("validation/results.json")["results"]
    found = results["summaries"]["same"]
    off = f"{100 * found['ratio_mean']:.1f} % of the step and {100 * found['added_mean']:.0f} % of the added time"
    assert off in README
    assert found["ratio_mean"] > 0.02
    assert found["added_mean"] > 0.08
    assert "(goals of 2 % and 8 %: missed)" in README
    assert f"at worst {100 * abs(found['ratio_worst']):.0f} % and {100 * abs(found['added_worst']):.0f} %:" in README
    worst = min((one for one in results["cells"] if one["physics"] == "same"), key=lambda one: float(one["error"]))
    assert (worst["policy"], worst["example"], worst["error"]) == (
        "sentinel-forced",
        "06_mobilenet",
        found["ratio_worst"],
    )
    assert f"on MobileNet, ours forced to move was predicted {-100 * worst['error']:.0f} % too fast" in README
    signs = [f"{100 * found[name]:+.1f} %".replace("-", "−") for name in ("ratio_bias", "added_bias")]
    assert f"means with their signs {' and '.join(signs)};" in README
    ours, plain = (
        [one for one in results["cells"] if (one["physics"], one["policy"]) == ("same", policy)]
        for policy in ("sentinel", "all-fast")
    )
    step, method = (100 * max(abs(one["error"]) for one in cells) for cells in (ours, plain))
    assert f"our plans were up to {step:.1f} % off" in README
    added = [f"{100 * one['added_error']:+.0f} %".replace("-", "−") for one in sorted(ours, key=added_error)]
    assert f"of the added time by {added[0]} to {added[-1]}, but three of the six move nothing" in README
    same = [one for one in results["cells"] if one["physics"] == "same"]
    forced = [100 * abs(one["error"]) for one in same if one["policy"] == "sentinel-forced"]
    assert len(forced) == 3
    assert f"forced to move, those three were {min(forced):.1f} to {max(forced):.1f} % off; with everything" in README
    assert f"where only the method can be wrong, up to {method:.1f} %;" in README
    policies, examples = ({one[name] for one in results["cells"]} for name in ("policy", "example"))
    assert (len(examples), len(policies - {"all-fast", "sentinel-forced"})) == (6, 8)
    assert "six examples, eight policies, predicted before the runs" in README
    tries = told("validation/tries.json")
    names = [each["predictions"] for each in tries]
    assert names == ["quick-predictions.json"] * 5 + ["predictions.json"] * 2
    before = f"the first were {100 * tries[-2]['ratio_mean']:.1f} % and {100 * tries[-2]['added_mean']:.0f} % off"
    assert f"by the second predictions of this set ({before}, where steps need not wait), after five" in README
    kept, other = (f"{each['pairs_kept']} of {each['pairs']}" for each in (found, results["summaries"]["other"]))
    assert f"{kept} pairs of policies came in the predicted order, and {other} where the emulator obeys other" in README


def added_error(cell: dict[str, Any]) -> float:
    return float(cell["added_error"])


def test_the_readme_says_when_the_simulator_was_judged_and_how_far_off_it_is_with_real_copies() -> None:
    results = told("validation-three-tiers.json")
    cells = results["results"]["cells"]
    errors = [validation_page.added_error(cell) or 0 for cell in cells]
    assert {cell["policy"] for cell in cells} == {"sentinel"}
    low, off = sum(error < 0 for error in errors), [100 * abs(error) for error in errors]
    said = f"for our plans {mean(off):.1f} % of that time in the mean, {max(off):.0f} % at worst"
    assert f"With copies, on three tiers: {said}, too low in {low} of {len(errors)} |" in README
    for name, where in (("validation.json", "executed on"), ("validation-three-tiers.json", "three tiers on")):
        assert f"{where} {told(name)['when'][:10]}" in README


def test_the_readme_says_how_near_other_policies_come_to_the_bound() -> None:
    found = told("policies.json")["mean_of_bound"]["cxl-m2-priced"]
    autotm, tiertrain = (found[policy]["10%"] for policy in ("autotm", "tiertrain"))
    assert (
        f"`autotm` {autotm:.3f} (in the families that it accepts), `tiertrain` {tiertrain:.3f}, our reading" in README
    )
    rivals = {policy: shares["10%"] for policy, shares in found.items() if policy not in ("sentinel", "sentinel-2021")}
    assert sorted(rivals, key=lambda policy: -rivals[policy])[:3] == ["autotm", "tiertrain", "best-static"]


def test_the_readme_says_how_plans_stand_where_slow_memory_cannot_be_used_in_place() -> None:
    results = told("fetched.json")
    rows = [row for row in results["results"]["rows"] if "needed_bytes" not in row]
    near, loose = ([row[name] / row["sentinel_ns"] for row in rows] for name in ("bound_ns", "window_bound_ns"))
    assert f"plans have {min(near):.2f} to {max(near):.2f} of the speed that no plan of their kind can pass" in README
    assert all(row["sentinel_ns"] <= row["window_ns"] for row in rows)
    behind = sum(share < results["settings"]["least"] for share in loose)
    said = f"they have {min(loose):.2f} to {max(loose):.2f}: the goal of 0.95 is missed in {behind} of {len(rows)} rows"
    assert said in README
    assert len({row["model"] for row in rows}) == 6


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


def test_the_page_of_files_says_what_a_cap_costs_the_largest_operators() -> None:
    page = " ".join((DOCS / "storage.md").read_text().split())
    vgg, lstm = (told(f"cap-{name}.json")["results"][0] for name in ("vgg16", "lstm"))
    met = [f"{found['memory']['file']['limit_met'] / 1e6:.1f}" for found in (vgg, lstm)]
    assert f"a VGG-16 and an LSTM met the limit of their cgroup {met[0]} and {met[1]} million times" in page
    shares = [f"{found['share']:.0%}".replace("%", " %") for found in (vgg, lstm)]
    assert f"a ResNet-50 and a VGG-16 in {shares[0]}, an LSTM in {shares[1]}." in page
    of_vgg, of_lstm = (
        [
            *(f"{found['over'][rival]['file']['median']:.2f}" for rival in ("stock", "tuned")),
            f"{found['bound']['file']['tuned']['step_over_bound']:.1f}",
        ]
        for found in (vgg, lstm)
    )
    assert f"A step of this VGG-16 takes {of_vgg[0]} times as long as in stock PyTorch, {of_vgg[1]} times as" in page
    assert (
        f"and {of_vgg[2]} times the bound; one of the LSTM {of_lstm[0]}, {of_lstm[1]} and {of_lstm[2]} times." in page
    )


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
    load = HostLoad(10**9, waited_share=0.01, stolen_share=0.0, others_share=0.02)
    report = full_report(replace(SETUP, profiled_load=load, applied_load=load))
    printed = headline_rows(report.headline)
    assert len({name for name, _, _ in printed}) == len(printed)
    assert set(LEFT_OUT) <= {name for name, _, _ in printed}
    shown = shown_headline()
    assert [cells[0] for cells in shown] == [name for name, _, _ in printed if name not in LEFT_OUT]
    remarks = {name: without_figures(remark) for name, _, remark in printed}
    for name, _, *remark in shown:
        assert without_figures(" ".join(remark)) == remarks[name], name
