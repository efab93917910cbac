"""docs/costs.md from the results in docs/costs/: what a run with Sentinel costs from its first step on.

python -m benchmarks.costs_page    # after a benchmark has printed into docs/costs/NAME.json
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._page_parts import Told, goal, headings, ratio, where
from benchmarks._use_sections import first_use, report_page
from benchmarks.ticks import JUDGED

DOCS = Path(__file__).resolve().parents[1] / "docs"

_HEAD = """# What a run with Sentinel costs

Measured from outside, in fresh processes, with nothing warmed up or left out unless a section says so. Each goal was
set before its figures were made. Nothing here ran on slower memory: the figures say what watching, moving into managed
memory and planning cost, not what placement gains."""


def page(results: Mapping[str, Told]) -> str:
    """The page as Markdown. `results`: what the benchmarks printed, by the name of the file in docs/costs/."""
    parts = [_HEAD]
    for name, (title, section) in SECTIONS.items():
        if name in results:
            parts.append("\n".join([f"## {title}", "", *section(results[name])]))
    return "\n\n".join(parts) + "\n"


def results() -> dict[str, Told]:
    """What is in docs/costs/, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((DOCS / "costs").glob("*.json"))}


def _first_steps(told: Told) -> Iterator[str]:
    settings, found = told["settings"], told["results"]
    layers, width, rows, columns = settings["shape"]
    yield (
        f"`python -m benchmarks.first_steps`, {where(told)} A GPT-2 of {layers}×{width}, batch {rows}×{columns},"
        f" AdamW, page tracker `{settings['tracker']}`, {settings['threads']} threads. Two fresh processes take turns"
        " step by step, one stock, one with Sentinel: five plain steps, `start_profile()`, the watched step,"
        " `end_profile()`, and applied steps with everything in fast memory. All but planning is in stock steps."
        " A small pair of processes went first and is not counted: it compiles what a machine compiles once."
    )
    yield ""
    yield from headings(
        "round",
        "stock step s",
        "start_profile()",
        "watched step",
        "end_profile()",
        "in all",
        "planning s",
        "applied steps",
        "the first",
        "those after it",
    )
    for number, each in enumerate(found["rounds"], 1):
        cells = [each[f"{name}_over_stock"] for name in ("start", "watched", "end", "setup")]
        yield (
            f"| {number} | {each['stock_step_ns'] / 1e9:.2f} | {' | '.join(f'{cell:.2f}' for cell in cells)}"
            f" | {each['planning_ns'] / 1e9:.2f} | {each['applied_over_stock']['median']:.2f}"
            f" | {first_applied([each]):.2f} | {later_applied([each]):.2f} |"
        )
    medians = found["medians"]
    yield ""
    goals = [
        goal(
            f"watched step at most 1.3 of a stock one ({medians['watched_over_stock']:.2f})",
            medians["watched_over_stock"] <= 1.3,
        ),
        goal(f"in all at most 2.5 ({medians['setup_over_stock']:.2f})", medians["setup_over_stock"] <= 2.5),
        goal(f"applied at most 0.95 ({medians['applied_over_stock']:.2f})", medians["applied_over_stock"] <= 0.95),
    ]
    yield f"Goals, by the medians: {'; '.join(goals)}."
    alike = all(each["same_losses"] for each in found["rounds"])
    yield f"Losses of all steps are the same as stock's: {'yes' if alike else '**no**'}."
    firsts, later = (
        [each["applied"]["faults"] for turn in found["raw"] for each in turn["applied"][part]]
        for part in (slice(1), slice(1, None))
    )
    yield (
        "The first applied step is the first to touch the plan's memory:"
        f" {min(firsts):,} to {max(firsts):,} page faults, in those after it {max(later):,} at most"
        " ([0165](decisions/0165-the-plans-memory-is-touched-first-in-an-applied-step.md))."
    )


def first_applied(rounds: Sequence[Told]) -> float:
    """The first applied step over the stock step beside it: the median of the rounds."""
    return statistics.median(each["applied_over_stock"]["steps"][0] for each in rounds)


def later_applied(rounds: Sequence[Told]) -> float:
    """The applied steps after the first, likewise: the median of the rounds' medians."""
    return statistics.median(statistics.median(each["applied_over_stock"]["steps"][1:]) for each in rounds)


def _forked_workers(told: Told) -> Iterator[str]:
    yield (
        f"`python -m benchmarks.forked_workers`, {where(told)} A model of {told['mib']} MiB forks"
        f" {told['workers']} workers within the step; page tracker `{told['tracker']}`. Memory is Pss of the process"
        " and all its descendants at its peak. What a machine compiles once was compiled before."
    )
    yield ""
    yield from headings(
        "workers born by", "peak memory, stock", "with Sentinel", "over stock", "time of that step over stock"
    )
    memory, time = [], []
    for way, found in told["results"].items():
        held = found["median_peak_pss_bytes"]
        memory.append(found["peak_pss_over_stock"]["median"])
        time.append(found["forked_step_over_stock"]["median"])
        yield (
            f"| {_WAYS[way]} | {held['stock'] / 2**20:,.0f} MiB | {held['sentinel'] / 2**20:,.0f} MiB"
            f" | {ratio(found['peak_pss_over_stock'])} | {ratio(found['forked_step_over_stock'])} |"
        )
    yield ""
    goals = goal("memory at most 1.2 of stock's", max(memory) <= 1.2), goal("time at most 3", max(time) <= 3)
    yield f"Goals: {'; '.join(goals)}. The same losses, and each worker read the parameters as they were at its birth."


_WAYS = {"fork": "`os.fork()`", "loader": "a DataLoader"}


def _scale(told: Told) -> Iterator[str]:
    yield (
        f"`python benchmarks/scale.py`, {where(told)} The data path of `end_profile()`, planning apart, on made-up"
        " runs of touched pages, without training: pages of 4 KiB of which each is touched in five layers of 130, a"
        " tenth of the (page, layer) pairs being runs of their own, the rest as long as those of a recorded GPT-2."
    )
    yield ""
    yield from headings("footprint", "runs of pages", "time s", "memory, the runs included", "goal")
    for size, rounds in told["results"]["data_path"].items():
        limit = {"128GiB": "2 GiB, 30 s", "1TiB": "6 GiB, 240 s"}[size]
        for each in rounds:
            runs, memory = f"{each['runs'] / 1e6:,.1f} million", f"{each['extra_bytes'] / 2**30:.2f} GiB"
            met = goal(limit, each["within_limits"])
            yield f"| {size[:-3]} {size[-3:]} | {runs} | {each['seconds']:.0f} | {memory} | {met} |"
    yield ""
    yield _parts([each for rounds in told["results"]["data_path"].values() for each in rounds])
    among = told["results"]["migration"]
    costs = ", ".join(f"{each['tensors']:,}: {statistics.median(each['ns_a_migration']):.0f} ns" for each in among)
    yield ""
    yield f"To tell where a block is, once a migration, among so many persistent tensors (medians of five): {costs}."


def _parts(rounds: list[Told]) -> str:
    """What of the time went where, in the mean."""
    if not all("parts_s" in each for each in rounds):
        return "Merging the logs, building tensors and telling chunks that keep small pages were not timed yet."
    names = {
        "small_chunks": "telling chunks that keep small pages",
        "rest_of_stop": "the rest of the tracker's end",
        "merge": "merging the logs into tensors and events",
        "profile": "the profile and its digest",
    }
    parts = (f"{what} {statistics.mean(each['parts_s'][name] for each in rounds):.1f}" for name, what in names.items())
    return f"Of these seconds, in the mean: {', '.join(parts)}."


def _gpt2_large(told: Told) -> Iterator[str]:
    found, settings = told["results"], told["settings"]
    seconds = {name: found[f"{name}_ns"] / 1e9 for name in ("setup", "planning", "copy_of_footprint")}
    yield (
        f"`python -m benchmarks.gpt2_large`, {where(told)} {found['parameters'] / 1e6:,.0f} million parameters,"
        f" AdamW, batch 1×{settings['shape'][3]}, {settings['steps']} steps, {settings['fast']} of a footprint of"
        f" {found['footprint_bytes'] / 2**30:.1f} GiB in fast memory, the slow tier emulated. Losses of all steps and a"
        f" digest of all parameters are {'the same as' if found['same_bits'] else '**unlike**'} stock's. Set-up took"
        f" {seconds['setup']:.1f} s, {found['setup_over_copy']:.1f} times one plain copy of the footprint"
        f" ({seconds['copy_of_footprint']:.1f} s); planning took {seconds['planning']:.1f} s."
    )


def _overhead(told: Told) -> Iterator[str]:
    settings, found = told["settings"], told["results"]["models"]
    yield (
        f"`python -m benchmarks.overhead --huge-pages {settings['huge_pages']} --rounds {settings['rounds']}`,"
        f" {where(told)} {settings['threads']} threads. Everything in fast memory; {settings['steps']}"
        f" steps after {settings['warmup']}, in fresh processes that take turns step by step. A ratio is the median of"
        " those of steps beside one another; of several rounds the median, least and most in brackets."
        f" The kernel's choice for huge pages is `{settings['huge_pages']}` for all. *Tuned* is stock with malloc told"
        " to keep its memory."
    )
    yield ""
    yield from headings(
        "model",
        "stock ms",
        "tuned ms",
        "Sentinel ms",
        "over stock",
        "over tuned",
        "peak memory over stock",
        "the same, after set-up",
    )
    for model, each in found.items():
        times = [f"{each['step_ns'][name] / 1e6:,.0f}" for name in ("stock", "tuned", "sentinel")]
        keys = ("sentinel_over_stock", "sentinel_over_tuned", "peak_rss_over_stock", "steady_peak_rss_over_stock")
        yield f"| {' | '.join([model, *times, *(ratio(each[key]) for key in keys)])} |"
    over = {key: [each[f"sentinel_over_{key}"]["median"] for each in found.values()] for key in ("stock", "tuned")}
    mean = sum(over["tuned"]) / len(over["tuned"])
    peaks = [each["peak_rss_over_stock"]["median"] for each in found.values()]
    yield ""
    goals = [
        goal(f"over stock at most 1.00 for each ({max(over['stock']):.2f})", max(over["stock"]) <= 1),
        goal(f"over tuned at most 1.00 in the mean ({mean:.3f})", mean <= 1),
        goal(f"peak memory at most that of stock for each ({max(peaks):.2f})", max(peaks) <= 1),
    ]
    same = all(each["same_loss"] for each in found.values())
    yield f"Goals: {'; '.join(goals)}. The same losses: {'yes' if same else '**no**'}."
    if all("tuned_again_over_tuned" in each for each in found.values()):
        chance = "; ".join(f"{model} {ratio(each['tuned_again_over_tuned'])}" for model, each in found.items())
        yield f"A second tuned process over the first, so what chance makes of it: {chance}."
    idle_ns = told["results"]["inactive_add_layer_ns"]["median"]
    yield f"An `add_layer()` without a session takes {idle_ns:.0f} ns, the loop around it included."


def _ticks(told: Told) -> Iterator[str]:
    settings, found = told["settings"], told["results"]
    commits = found["commits"]
    against = (
        f" Compared with commit {commits['before']}: fresh processes of both take turns." if "before" in commits else ""
    )
    yield (
        f"`python -m benchmarks.ticks`, {where(told)} A small job of {settings['layers']} layers, every second one"
        f" empty, the others with {settings['allocations']} tensors of {settings['numel'] * 4:,} bytes;"
        f" {settings['steps']} applied steps, everything in fast memory, one thread, medians of {settings['rounds']}"
        f" processes.{against}"
    )
    yield ""
    yield from headings("what", "time", *(["before", "over before"] if "before" in commits else []))
    names = {
        "empty_tick_ns": "`add_layer()` where nothing is due",
        "full_tick_ns": "`add_layer()` after a layer of tensors that were born and died",
        "allocation_ns": "an allocation from the plan's slots, the list around it included",
        "stock_allocation_ns": "the same by malloc, before the session",
        "tick_with_moves_ns": "`add_layer()` of a job whose weights move, by its processor time",
        "move_ns": "the same, for each move",
    }
    for kind, what in names.items():
        cells = [f"{found['median'][name][kind] / 1e3:.2f} µs" for name in found["median"]]
        if "before" in commits:
            cells.append(ratio(found["now_over_before"][kind]) if kind in found["now_over_before"] else "")
        yield f"| {' | '.join([what, *cells])} |"
    yield ""
    goals = [goal("`add_layer()` where nothing is due at most 5 µs", found["median"]["now"]["empty_tick_ns"] <= 5000)]
    if "before" in commits:
        most = max(found["now_over_before"][kind]["median"] for kind in JUDGED)
        goals.append(goal(f"no dearer than before ({most:.3f})", most <= 1))
    yield f"Goals: {'; '.join(goals)}."


def _lost_writes(told: Told) -> Iterator[str]:
    trackers = told["results"]["trackers"]
    rounds = {seen["rounds"] for seen in trackers.values()}
    yield (
        f"`python -m benchmarks.lost_writes`, {where(told)} {min(rounds)} rounds of profile, apply and stop for each"
        " tracker, while three other threads write to managed buffers: operators on"
        f" {told['large_bytes'] / 2**30:.0f} GiB, which let go of the GIL; small ones, which keep it; and a loop in C."
        " Each update adds to what is there, so that one that is lost shows at the end. `--control` loses some on"
        " purpose, and is told so. Other work ran beside it: nothing here is a time."
    )
    yield ""
    large = f"{told['large_bytes'] / 2**30:.0f} GiB operators"
    yield from headings("tracker", large, "small operators", "updates of a page in C", "lost")
    for name, seen in trackers.items():
        made = [f"{seen['made'][kind]:,}" for kind in ("large", "small", "plain")]
        watched = name if seen["watched_by"] == [name] else f"{name}, **watched by {seen['watched_by']}**"
        yield f"| {' | '.join([f'`{watched}`', *made, str(sum(seen['lost'].values()))])} |"


def _plan_time(told: Told) -> Iterator[str]:
    settings, cases = told["settings"], told["results"]
    commits = settings["commits"]
    against = f" Compared with commit {commits['other']}." if "other" in commits else ""
    yield (
        f"`python benchmarks/plan_time.py`, {where(told)}{against} One thread. Fresh processes take turns,"
        f" {settings['rounds']} of each; medians. A step is planned, and planned again with other layer times, as a"
        " session does after some applied steps; the first time includes the footprint, which a session asks for"
        " before, for its budget. The made-up step is that of `benchmarks.traces.synthetic`; the GPT-2 (36×1280, 8,192"
        " words, batch 1×256, AdamW) is traced with fake tensors, its layer times are nominal."
    )
    yield ""
    yield from headings(
        "step", "tensors", "layers", "checkout", "plan, s of a core", "plan, s", "both, s of a core", "both, s"
    )
    for case, found in cases.items():
        for name, commit in commits.items():
            seen = found[name]
            times = [f"{seen[key]:.2f}" for key in ("plan_cpu_s", "plan_wall_s", "both_cpu_s", "both_wall_s")]
            size = [f"{found[key]:,}" for key in ("tensors", "layers")]
            yield f"| {' | '.join([case, *size, commit, *times])} |"
    if "other" not in commits:
        return
    yield ""
    for case, found in cases.items():
        ratios = [ratio(found[f"{what}_this_over_other"]) for what in ("plan", "both")]
        same = "the same plans" if found["same_plans"] else "other plans"
        yield f"- {case}: {ratios[0]} times as long for a plan, {ratios[1]} for both; {same}."
    half = cases["synthetic"]["plan_this_over_other"]["median"]
    both = cases["gpt2-719m"]["this"]["both_wall_s"]
    goals = [
        goal(f"10,000 × 1,000 in at most half of the time ({half:.2f})", half <= 0.5),
        goal(f"the GPT-2 planned and planned again in at most 2 s ({both:.1f} s)", both <= 2.0),
    ]
    yield ""
    yield f"Goals: {'; '.join(goals)}."


SECTIONS: dict[str, tuple[str, Callable[[Told], Iterator[str]]]] = {
    "first-use": ("From `pip install` to the first watched step", first_use),
    "first-steps": ("From start_profile() to the first applied step", _first_steps),
    "overhead-always": ("Nothing to move, and huge pages for all", _overhead),
    "overhead-always-amd": ("The same on an AMD machine", _overhead),
    "overhead-madvise": ("Nothing to move, and huge pages where they are asked for", _overhead),
    "forked-workers": ("Workers forked within the profiled step", _forked_workers),
    "lost-writes": ("What other threads write meanwhile", _lost_writes),
    "ticks": ("A tick and an allocation", _ticks),
    "gpt2-large": ("A GPT-2 large", _gpt2_large),
    "plan-time": ("Planning", _plan_time),
    "report-page": ("The page of a large report", report_page),
    "scale": ("128 GiB", _scale),
    "scale-1tib": ("1 TiB", _scale),
}


if __name__ == "__main__":
    (DOCS / "costs.md").write_text(page(results()))
