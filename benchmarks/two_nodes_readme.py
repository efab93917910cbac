"""What the README says of two nodes, from the results of benchmarks/two_nodes.py."""

from __future__ import annotations

import re
import textwrap

from benchmarks.data_page import between
from benchmarks.two_nodes_figures import (
    ALL_SLOW,
    OURS,
    TIERING,
    Results,
    are_counted,
    are_undisturbed,
    fewer_than_tiering,
    link_bytes,
    middle,
    more_than_all_slow,
    never_rounded_up,
    ours_of,
    rates,
    served_share,
    tensor_rooms,
)

BEGIN = "<!-- two nodes: made by `python -m benchmarks.two_nodes --table` -->"
END = "<!-- end of two nodes -->"
CLAIM = "| Are tensors where the plan has them, and is training the same? |"
NAMES = {"01_gpt2": "GPT-2", "02_resnet": "ResNet", "03_lstm": "LSTM", "04_dlrm": "DLRM"}
PLACEMENTS = {
    "ours": OURS,
    "the kernel's tiering": TIERING,
    "weighted interleave": "weighted-interleave",
    "first touch": "first-touch",
    "everything slow": ALL_SLOW,
}
_MACHINE = "docs/two-nodes/machine.json"


def rewritten(readme: str, results: Results, machine: str) -> str:
    """The README with its claim, table and paragraphs. ValueError where one of their places is missing."""
    readme = between(readme, BEGIN, END, _section(results, machine))
    claim = re.compile(rf"^{re.escape(CLAIM)} .*? \| executed, ", re.M)
    if not claim.search(readme):
        raise ValueError(f"the README has no row {CLAIM}")
    return claim.sub(lambda _: f"{CLAIM} {_claim(results)} | executed, ", readme)


def _claim(results: Results) -> str:
    runs = {NAMES[example]: found["runs"] for example, found in results.items()}
    ours = [ours_of(run) for each in runs.values() for run in each]
    least = {name: min(ours_of(run)["residency_share"] or 0 for run in each) for name, each in runs.items()}
    told = {name: f"{never_rounded_up(share)} %" for name, share in least.items()}
    most = max(told.values(), key=lambda text: float(text.split()[0]))
    others = "".join(f", {text} for {name}" for name, text in told.items() if text != most)
    claimed, seen = sum(one["claimed_pages"] for one in ours), sum(one["witness_pages"] or 0 for one in ours)
    agree = all(one["claimed_pages"] == one["witness_pages"] for one in ours)
    moves = f"all {seen:,} page moves that" if agree else f"{seen:,} page moves where"
    counted = "the engine counted" if agree else f"the engine counted {claimed:,}"
    rows = [row for found in results.values() for run in found["runs"] for row in run["rows"] if not row["skipped"]]
    same = all(row["same_losses"] and row["same_parameters"] for row in rows)
    bits = "losses and parameters are bit-identical" if same else "losses or parameters **differ**"
    return f"after each layer {most} of managed bytes{others}; a witness in the kernel saw {moves} {counted}; {bits}"


def _section(results: Results, machine: str) -> list[str]:
    since = "" if are_undisturbed(results) else ", since watching disturbs it"
    head = (
        "On the emulated two nodes, with a fifth of the footprint fast. The first figure is what crosses the link to"
        " slow memory in a step, once memory is filled: what is read or written there, and what moves in either"
        " direction. The second is the share of touched bytes that lie in fast memory. Of ours there are two counts,"
        f" the watcher's and Sentinel's own{since}; the table has the worse one."
    )
    rows = [["placement", *(NAMES[example] for example in results)], ["---"] * (len(results) + 1)]
    for words, name in PLACEMENTS.items():
        rows.append([words, *(_cell(found["runs"], name) for found in results.values())])
    table = ["| " + " | ".join(row) + " |" for row in rows]
    return [_filled(head), "", *table, "", _filled(f"{_beside(results)} {_of_what(results, machine)}")]


def _cell(runs: list[dict[str, object]], name: str) -> str:
    nbytes, share = middle(runs, name, link_bytes), middle(runs, name, served_share)
    return "-" if nbytes is None or share is None else f"{nbytes / 2**20:.0f} MiB, {100 * share:.1f} %"


def _beside(results: Results) -> str:
    fewer, more = fewer_than_tiering(results), more_than_all_slow(results)
    named = f" ({', '.join(NAMES[example] for example in fewer)})" if 0 < len(fewer) < len(results) else ""
    text = f"In {len(fewer)} of the {len(results)} examples{named} ours brings fewer bytes over the link than the"
    if not fewer:
        text = f"In each of the {len(results)} examples ours brings at least as many bytes over the link as the"
    most = f"in {', '.join(NAMES[example] for example in more)} more than if everything stayed slow"
    beside = [found["runs"][0]["beside_bytes"] / 2**20 for found in results.values()]
    said = (
        f"{text} kernel's tiering{f', {most}' if more else ''}. The other placements"
        f" get {min(beside):.0f} to {max(beside):.0f} MiB of fast memory on top of our budget. It is meant for the rest"
        " of the process, but the kernel may put tensors there"
    )
    if not are_counted(results):
        return f"{said}; how much of it they had was not counted in these runs."
    rooms = [room for found in results.values() for run in found["runs"] for room in tensor_rooms(run)]
    did = ", and did" if max(rooms) > 1 else ""
    had = f"{min(rooms):.1f} to {max(rooms):.1f} times our budget there"
    return f"{said}{did}: tensors that two steps used had {had}."


def _of_what(results: Results, machine: str) -> str:
    read, link = rates(machine)
    text = (
        f"Plans are for [a described machine]({_MACHINE}) whose slow memory reads {read:g} GB/s and whose links carry"
        f" {link:g} GB/s."
    )
    times = [found["runs"][0].get("simulated", {}) for found in results.values()]
    if not all({OURS, "best-static"} <= each.keys() for each in times):
        return text
    ours, static = (", ".join(f"{each[name]:.2f}" for each in times) for name in (OURS, "best-static"))
    return (
        f"{text} By simulation a step takes there {ours} times as long as with everything fast, under the best"
        f" placement found that moves nothing {static} times."
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)
