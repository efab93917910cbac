"""docs/tiertrain.md from docs/tiertrain.json: our plans beside TierTrain's figures and our reading of its policy.

python -m benchmarks.tiertrain > docs/tiertrain.json && python -m benchmarks.tiertrain_page

Runs of some networks or machines each are named as arguments, and make one file first: of a network on a machine that
ran more than once the last one is kept. An earlier `docs/tiertrain.json` may be among them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import traces
from benchmarks._page_parts import table
from sentinel.core.units import format_bytes

DOCS = Path(__file__).resolve().parents[1] / "docs"
Told = Mapping[str, Any]

_HEAD = """# Beside TierTrain

TierTrain (S. Swaminathan, S. Kumar, A. Prasad, S. Subramoney: Proactive Memory Tiering for CPU-Based DNN Training,
ISMM 2025) sends what forward saves for backward to slow memory and fetches it back in time. It was measured on a CXL
expander and on Optane. Published: fast memory held {published_mean} less in the mean over the step and {published_peak}
less at its peak, with steps {published_slower} longer. Those are ranges over networks and memories; which network has
which figure is not in the abstract, and its text was not read here.

**Nothing on this page ran on real memory.** Everything but the published ranges is simulated on described CXL machines
(`sentinel/machines`), from full steps traced under fake tensors. Networks named `cifar` are those of TierTrain's
published code, ResNets on CIFAR-10 with all 50,000 images in one batch; any others are families of
[policies.md](policies.md) at their batch sizes. `tiertrain` is our reading of the policy, from the abstract and that
code: `sentinel/planner/moving_rivals.py` says what was read. It has exact windows and our movers, and no process
beside the training one. It falls short of the published ranges in most rows: its code moves by ten threads, and a link
that carries more than those of these machines would bring it nearer.

Saved: of the bytes alive in stock training, whose mean weights each layer with its time. Held bytes count each layer
with the most that it holds, so a mean saved is told too low. *Slower*: against all in fast memory. On machines called
`-priced` that has the price of moves: whoever copies has one of the 24 cores for as long as that takes, and each
migration takes 42 µs of the training thread
([decision 181](decisions/0181-half-the-links-alone-and-priced-machines.md) has the sources). Plans and bounds are made
by it, and `tiertrain` pays it too.{free}
"""

_FIRST = "95c41c4"
"""The commit of a run that does not tell its own."""

_FREE = """ **On {machines} moves take link time only**, and steps come out too short:
those rows were not made again with a price, for time."""


def page(told: Told) -> str:
    """The page as Markdown."""
    settings, rows = told["settings"], told["results"]
    free = sorted({row["machine"] for row in rows if not row["machine"].endswith("-priced")})
    published = {key: f"{low:.0%} to {high:.0%}" for key, (low, high) in settings["published"].items()}
    head = _HEAD.format(
        published_mean=published["mean"],
        published_peak=published["peak"],
        published_slower=published["slower"],
        free=_FREE.format(machines=" and ".join(free)) if free else "",
    )
    parts = [head, *_made(told), *_in_its_mean(rows), *_within(rows, settings["goal"]), *_goal(rows, settings["goal"])]
    return "\n".join(parts) + "\n"


def _made(told: Told) -> Iterator[str]:
    versions, by_commit = told["versions"], {}
    for row in told["results"]:
        by_commit.setdefault(row.get("commit", told.get("commit", _FIRST)), []).append(
            f"{row['network']} on {row['machine']}"
        )
    yield (
        f"`python -m benchmarks.tiertrain`, {told['when'][:10]}, Python {versions['python']}, numpy"
        f" {versions['numpy']}, torch {versions['torch']}."
    )
    if len(by_commit) > 1:
        parts = (f"of commit {commit}: {', '.join(rows)}" for commit, rows in by_commit.items())
        yield f"Rows {'; '.join(parts)}."
    yield ""


def _in_its_mean(rows: Sequence[Told]) -> Iterator[str]:
    yield "## In the memory that TierTrain's policy holds in the mean\n"
    yield "Ours may hold at its peak what `tiertrain` holds in the mean.\n"
    figures = [f"{who}: {what}" for who in ("tiertrain", "ours") for what in ("mean", "peak", "slower")]
    yield from table(("network", "machine", "stock peak", "stock mean", *figures), [_beside(row) for row in rows])
    behind = [row for row in rows if not _ahead(row)]
    names = ", ".join(f"{row['network']} on {row['machine']}" for row in behind)
    if behind:
        yield f"\nOurs is not ahead in all three figures: {names}."
    else:
        yield "\nOurs holds less, at the peak and in the mean, and is faster in every row."


def _beside(row: Told) -> tuple[str, ...]:
    stock = row["stock"]
    sizes = (format_bytes(stock["peak_bytes"]), format_bytes(stock["mean_bytes"]))
    return (row["network"], row["machine"], *sizes, *_figures(row["tiertrain"]), *_figures(row["ours_in_its_mean"]))


def _ahead(row: Told) -> bool:
    """Whether ours holds no more than TierTrain's policy, and is no slower."""
    ours, theirs = row["ours_in_its_mean"], row["tiertrain"]
    return all(ours[key] <= theirs[key] for key in ("mean_bytes", "peak_bytes", "step_ns"))


def _within(rows: Sequence[Told], goal: Told) -> Iterator[str]:
    yield f"\n## The least memory for steps at most {goal['slower']:.0%} longer\n"
    yield "Of 11 amounts from 5 % to 50 % of the stock peak.\n"
    found = []
    for row in rows:
        ours = row["ours_within_goal_time"]
        figures = ("none", "", "") if ours is None else _figures(ours)
        found.append((row["network"], row["machine"], *figures))
    yield from table(("network", "machine", "mean", "peak", "slower"), found)


def _goal(rows: Sequence[Told], goal: Told) -> Iterator[str]:
    yield f"\n## The goal: {goal['mean']:.0%} less in the mean, {goal['peak']:.0%} less at the peak\n"
    yield f"At most {goal['slower']:.0%} slower. *The bound*: no plan of this kind with that much fast memory at its"
    yield "peak is less slower; *exchange bound*: none that would hold room on one side of a move only. A plan that"
    yield "holds more at its peak and less in the mean is not bounded by either.\n"
    found = []
    for row in rows:
        ours = row["ours_at_goal_memory"]
        looser = ours["exchange_bound_slower"]
        found.append(
            (
                row["network"],
                row["machine"],
                *_figures(ours),
                f"{ours['bound_slower']:.1%}",
                "" if looser is None else f"{looser:.1%}",
                _verdict(ours, goal),
            )
        )
    yield from table(("network", "machine", "mean", "peak", "slower", "bound", "exchange bound", "goal"), found)


def _verdict(ours: Told, goal: Told) -> str:
    if ours["slower"] <= goal["slower"]:
        return "reached"
    return "not with that peak, by the bound" if ours["bound_slower"] > goal["slower"] else "missed"


def _figures(plan: Told) -> tuple[str, str, str]:
    return f"−{plan['mean_saved']:.0%}", f"−{plan['peak_saved']:.0%}", f"{plan['slower']:.1%}"


def joined(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One run of several: the last one's settings, and the rows of all, each with the commit that made it."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        for row in run["results"]:
            rows[row["network"], row["machine"]] = {"commit": run.get("commit", _FIRST), **row}
    order = [*traces.TIERTRAIN, *(network for network, _ in rows)]
    places = sorted(rows, key=lambda place: (order.index(place[0]), place[1]))
    return {**runs[-1], "results": [rows[place] for place in places]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, and before it the JSON of the runs that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="what runs printed")
    into, given = DOCS / "tiertrain.json", parser.parse_args(arguments).runs
    if given:
        told = joined([json.loads(run.read_text()) for run in given])
        into.write_text(json.dumps(told, indent=2) + "\n")
    (DOCS / "tiertrain.md").write_text(page(json.loads(into.read_text())))


if __name__ == "__main__":
    main()
