"""docs/tiertrain.md from docs/tiertrain.json: our plans beside TierTrain's figures and our reading of its policy.

python -m benchmarks.tiertrain > docs/tiertrain.json && python -m benchmarks.tiertrain_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
code: `sentinel/planner/rivals/tiertrain.py` says what was read. It has exact windows and our movers, and no process
beside the training one. It falls short of the published ranges in most rows: its code moves by ten threads, and a link
that carries more than those of these machines would bring it nearer.

Saved: of the bytes alive in stock training, whose mean weights each layer with its time. Held bytes count each layer
with the most that it holds, so a mean saved is told too low. *Slower*: against all in fast memory. Behind it in
brackets the same with the processors that the movers take: the time that the links are busy, with one core each,
of {cores} cores, as if every layer waited for its cores. Otherwise moves take time on the link only.
"""


def page(told: Told) -> str:
    """The page as Markdown."""
    settings, rows = told["settings"], told["results"]
    published = {key: f"{low:.0%} to {high:.0%}" for key, (low, high) in settings["published"].items()}
    head = _HEAD.format(
        published_mean=published["mean"],
        published_peak=published["peak"],
        published_slower=published["slower"],
        cores=settings["cores"],
    )
    parts = [head, *_made(told), *_in_its_mean(rows), *_within(rows, settings["goal"]), *_goal(rows, settings["goal"])]
    return "\n".join(parts) + "\n"


def _made(told: Told) -> Iterator[str]:
    versions = told["versions"]
    yield (
        f"`python -m benchmarks.tiertrain`, {told['when'][:10]}, Python {versions['python']}, numpy"
        f" {versions['numpy']}, torch {versions['torch']}.\n"
    )


def _in_its_mean(rows: Sequence[Told]) -> Iterator[str]:
    yield "## In the memory that TierTrain's policy holds in the mean\n"
    yield "Ours may hold at its peak what `tiertrain` holds in the mean.\n"
    figures = [f"{who}: {what}" for who in ("tiertrain", "ours") for what in ("mean", "peak", "slower")]
    yield from _table(("network", "machine", "stock peak", "stock mean", *figures), [_beside(row) for row in rows])
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
    yield "Of 11 amounts from 5 % to 50 % of the stock peak, movers' processors included.\n"
    found = []
    for row in rows:
        ours = row["ours_within_goal_time"]
        figures = ("none", "", "") if ours is None else _figures(ours)
        found.append((row["network"], row["machine"], *figures))
    yield from _table(("network", "machine", "mean", "peak", "slower"), found)


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
    yield from _table(("network", "machine", "mean", "peak", "slower", "bound", "exchange bound", "goal"), found)


def _verdict(ours: Told, goal: Told) -> str:
    if ours["priced_slower"] <= goal["slower"]:
        return "reached"
    if ours["slower"] <= goal["slower"]:
        return "reached but for the movers' processors"
    return "not with that peak, by the bound" if ours["bound_slower"] > goal["slower"] else "missed"


def _figures(plan: Told) -> tuple[str, str, str]:
    slower = f"{plan['slower']:.1%} ({plan['priced_slower']:.1%})"
    return f"−{plan['mean_saved']:.0%}", f"−{plan['peak_saved']:.0%}", slower


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| " + " | ".join("---" for _ in heads) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def main() -> None:
    """Write the page."""
    (DOCS / "tiertrain.md").write_text(page(json.loads((DOCS / "tiertrain.json").read_text())))


if __name__ == "__main__":
    main()
