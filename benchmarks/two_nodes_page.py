"""docs/two-nodes.md from the results of benchmarks/two_nodes.py: what crosses the link, what fast memory serves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.two_nodes_figures import (
    OURS,
    REFERENCES,
    TIERING,
    Found,
    Results,
    are_counted,
    are_undisturbed,
    each_run,
    fewer_than_tiering,
    link_bytes,
    middle,
    more_than_all_slow,
    moved_bytes,
    moved_in_all_bytes,
    never_rounded_up,
    ours_of,
    rates,
    row_of,
    served_share,
    slow_bytes,
)
from benchmarks.two_nodes_runs import filled, mib, what_was_run

_HEAD = """# Two nodes: ours against the kernel's placements

**Emulated machine** (QEMU, in software): node 0 is fast, node 1 has no CPUs. Shares, pages, residency and
bits are real; times mean nothing there, so {times}. Every row of an example trains the same job in
the same machine. Every limited placement gets the same fast bytes: pinned ballast on node 0 grows and shrinks
as others free and take memory there while the job runs. The kernel's tiering also gets the memory that it
keeps free for promotions. The kernel's own reserve is the same for all, and small.

Made {dates} by `python -m benchmarks.two_nodes`: kernel {kernels}, torch
{torches}, {fast} of the footprint fast.

{planned}

## Bytes over the slow link

A byte that slow memory serves crosses the link between the nodes, and so does a byte that moves. MiB a later step over
the link, and the share of touched bytes that fast memory serves, of ours the smaller one of two shares and the larger
one of two counts of bytes (see below):
"""
_PHYSICAL = """The plans are made for [machine.json](two-nodes/machine.json), a described machine: its slow tier reads
{read:g} GB/s and its links carry {link:g} GB/s."""
_SEE_CHANGES = (
    """What is counted, how, and a plan were changed after first results: [which, and why](#changed-after-results)."""
)
_CHANGED = """## Changed after results

**What counts as moved was changed after a first result**: until 2026-11-28 all that moved in the run,
Sentinel's set-up and the return of all tensors at its end included, was divided by its 13 steps. So the
table said that 04_dlrm, whose plan moves nothing, moved 24.4 MiB a step, and that ours brought more over the link than
tiering in all four examples.

**02_resnet was run again after a first result**: on 2026-11-27 its plan was of this host's own
kernels, which need other memory than those of the emulated processor, so it did not fit the step
there, and the step was planned in the emulated machine by layer times of that machine. As nearly
every move is hidden in such slow layers, ours moved 301 MiB a step and brought 377 MiB over the
link, the kernel's tiering 140. Since then plans are made from a step with the kernels of the
emulated processor, with this host's layer times."""
_WATCHED_ANEW = """**How operators are watched was changed after results**: until 2026-11-28 by one of PyTorch's
dispatch modes, under which autograd adds gradients up in memory of their own. So a measured step allocated more than
others, in another order, and tensors of ours found no place in the plan and came from malloc: of the bytes that such a
step of GPT-2 allocates 66%, of LSTM 36%, of DLRM 62%, of ResNet none. Since then they are watched natively, which
changes nothing about them ([0215](decisions/0215-operators-are-watched-without-changing-them.md)), for all placements
alike."""
_ROOM_ANEW = """**What the others get beside the budget was changed after results**: until 2026-11-29 it was what
all-fast took of the node beyond the most that live tensors hold together: 16, 63, 15 and 7 MiB. A part of that is
memory that malloc keeps, and gives to the next tensor. Since then it is what all-fast took beyond the memory that
tensors have there, which is counted for all placements (Fast bytes, below).

**It was changed once more, after the first results by that rule**: a step of DLRM uses a part of its tables, and only
that was counted as tensors'. So the others got 195 MiB beside a budget of 40, and had nearly everything in fast memory
(0.0 to 2.9 MiB over the link). Tensors are no less than the footprint since then. DLRM and ResNet, where the others got
77 MiB, were run again; in GPT-2 and LSTM they get the same by either rule."""
_NOT_COUNTED = """**These results are older than a change of what the others get beside the budget**: here that room
is what all-fast took of the node beyond the most that live tensors hold together, and memory that malloc keeps for the
next tensor is a part of that. So tensors of the others may have had more than our budget: what they had was not counted
then, and is now ([0225](decisions/0225-tensors-have-the-memory-that-they-lay-on.md))."""
_PARTS = """
Served from slow memory in the measured steps, ours by the larger count, **+** moved between the nodes in either
direction in the mean of the second half of the run's steps, by the witness, MiB a step:
"""
_IN_ALL = """
Moved from the job's start to its end, MiB: what moves in each step, and what a job pays once, which is the first
filling of fast memory, what the kernel moved as it learned, and what Sentinel took to slow memory as it began:
"""
_WHY = """Plans are made for the least time, not for the fewest bytes: a move ahead of its use takes the link while the
step computes, a slow access makes the step wait."""
_AFTER_MORE = """
The kernel's tiering after more steps of warm-up, in runs of its own: MiB a step over the link, share served.
"""
_SIMULATED = """
## Step time, simulated

On the machine that the plans are made for, with layer times of the host that made them: how many times as long as with
everything fast a step takes. None of it was measured. The kernel's tiering has no model here. `best-static` is the best
placement found that moves nothing; it has to know the step, as ours does.
"""
_FAST = """
## Fast bytes

Ours has its budget for tensors. The others' room also holds what is no tensor, and the kernel may give any
of it to tensors. Where the mean is above the beginning, the ballast could not at once take memory that became
free. Both are to the others' advantage. To ours is that nothing limits what is no tensor of it: Sentinel's own memory,
tensors that found no place in the plan, and what the kernel keeps of files that were read, of which ours, that
runs first, reads most. {counted}Of first runs:
"""
_COUNTED = """What tensors had of it is memory that operands of the first two measured steps touched, as the layers of
the second one end, by the kernel's word; the room is over the whole job. Memory of dead tensors that malloc keeps
counts, as the next tensor gets it. """
_HARDLY_MOVED = 1 << 20
"""Bytes in a whole job."""
_TAIL = """
What a share is and how the ballast is measured: [0043](decisions/0043-placements-are-measured-alike.md).
Each run's JSON, with the pages that moved and who moved them, is in `docs/two-nodes/`.
"""


def page(results: Results, machine: str) -> str:
    """docs/two-nodes.md. `machine`: the text of the file of the machine that was planned for."""
    runs = [run for found in results.values() for run in found["runs"]]
    read, link = rates(machine)
    simulated = any("simulated" in run for run in runs)
    lines = [
        _HEAD.format(
            dates=", ".join(sorted({run["when"] for run in runs})),
            kernels=", ".join(sorted({run["where"]["kernel"] for run in runs})),
            torches=", ".join(sorted({run["where"]["torch"] for run in runs})),
            fast=", ".join(sorted({run["fast"] for run in runs})),
            planned="\n\n".join(
                [
                    _PHYSICAL.format(read=read, link=link),
                    *([] if are_counted(results) else [_NOT_COUNTED]),
                    _SEE_CHANGES,
                ]
            ),
            times="those below are simulated" if simulated else "none is shown",
        ),
        *_table(results, headline),
        "",
        *_beside_tiering(results),
        _more_than_all_slow(results),
        _PARTS,
        *_table(results, _parts),
        _IN_ALL,
        *_table(results, _in_all),
        *_after_more(results),
        *([_SIMULATED, *_simulated(results)] if simulated else []),
        "",
        *what_was_run(results),
        "## What was proved",
        "",
        *(line for example, found in results.items() for line in _proof(example, found["runs"])),
        _FAST.format(counted=_COUNTED if are_counted(results) else ""),
        *(line for example, found in results.items() for line in _fast(example, found["runs"][0])),
        _TAIL,
        _CHANGED,
        *(["", _WATCHED_ANEW] if are_undisturbed(results) else []),
        *(["", _ROOM_ANEW] if are_counted(results) else []),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def headline(runs: Sequence[Found], name: str) -> str:
    """A cell: bytes over the link, the fewest of the limited placements bold, and the share served."""
    if row_of(runs[0], name) is None:
        return "-"
    if not each_run(runs, name, served_share):
        return "skipped"
    limited = [row["name"] for row in runs[0]["rows"] if row["name"] not in REFERENCES]
    found = {other: value for other in limited if (value := middle(runs, other, link_bytes)) is not None}
    link, _, share = _link_and_share(runs, name).partition(", ")
    fewest = name in found and found[name] == min(found.values())
    return f"{f'**{link}**' if fewest else link}, {share}"


def _table(results: Results, cell: Callable[[Sequence[Found], str], str]) -> list[str]:
    names = list(dict.fromkeys(row["name"] for found in results.values() for row in found["runs"][0]["rows"]))
    return _lines(results, [(name, [cell(found["runs"], name) for found in results.values()]) for name in names])


def _lines(results: Results, rows: Sequence[tuple[str, Sequence[str]]], first: str = "placement") -> list[str]:
    table = [[first, *results], ["---", *("---:" for _ in results)], *([name, *cells] for name, cells in rows)]
    return ["| " + " | ".join(row) + " |" for row in table]


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The median, and of several runs the least and the most."""
    if not values:
        return "-"
    around = f" ({text(min(values))} to {text(max(values))})" if len(values) > 1 else ""
    return f"{text(statistics.median(values))}{around}"


def _parts(runs: Sequence[Found], name: str) -> str:
    served, moved = middle(runs, name, slow_bytes), middle(runs, name, moved_bytes)
    return "-" if served is None or moved is None else f"{_amount(served)} + {_amount(moved)}"


def _in_all(runs: Sequence[Found], name: str) -> str:
    return _spread(each_run(runs, name, moved_in_all_bytes), _amount)


def _amount(nbytes: float) -> str:
    return f"{nbytes / 2**20:.1f}"


def _beside_tiering(results: Results) -> list[str]:
    fewer = fewer_than_tiering(results)
    names = f" ({', '.join(fewer)})" if fewer else ""
    told = f"In {len(fewer)} of {len(results)} examples{names} ours brings fewer bytes over the link than the kernel's"
    others = [example for example in results if example not in fewer]
    lines = [filled(f"{told} tiering.{' The others:' if others else ''}"), ""]
    if others:
        points = (filled(_not_fewer(example, results[example]["runs"]), indent="  ") for example in others)
        lines += [*points, "", filled(_WHY), ""]
    moved = {name: middle(found["runs"], TIERING, moved_in_all_bytes) for name, found in results.items()}
    if idle := [name for name, nbytes in moved.items() if nbytes is not None and nbytes < _HARDLY_MOVED]:
        said = f"In {', '.join(idle)} the kernel's tiering moved hardly a page in the whole job, so it is first touch"
        lines += [filled(f"{said} with the room that tiering keeps free."), ""]
    return lines


def _not_fewer(example: str, runs: Sequence[Found]) -> str:
    figures = [middle(runs, name, figure) for figure in (slow_bytes, moved_bytes) for name in (OURS, TIERING)]
    slow, their_slow, moved, their_moved = figures
    if slow is None or their_slow is None or moved is None or their_moved is None:
        return f"- {example}: not measured."
    why = "it moves more" if moved - their_moved > slow - their_slow else "slow memory serves more"
    return (
        f"- {example}: {_amount(slow + moved)} MiB a step, {_amount(their_slow + their_moved)} under tiering, because"
        f" {why}: {_amount(slow)} served slow and {_amount(moved)} moved, {_amount(their_slow)} and"
        f" {_amount(their_moved)} under tiering."
    )


def _more_than_all_slow(results: Results) -> str:
    more = more_than_all_slow(results)
    if not more:
        return "In no example does ours bring more bytes over the link than if everything stayed in slow memory."
    return filled(
        f"In {len(more)} of {len(results)} examples ({', '.join(more)}) ours brings more bytes over the link than if "
        "everything stayed in slow memory. Its share is bought with that."
    )


def _after_more(results: Results) -> list[str]:
    if not any(found["after"] for found in results.values()):
        return []
    rows = []
    for steps in sorted({steps for found in results.values() for steps in found["after"]}):
        runs = [[found["after"][steps]] if steps in found["after"] else [] for found in results.values()]
        rows.append((str(steps), [_link_and_share(each, TIERING) for each in runs]))
    return [_AFTER_MORE, *_lines(results, rows, "steps of warm-up")]


def _link_and_share(runs: Sequence[Found], name: str) -> str:
    if not runs:
        return "not run"
    share = _spread(each_run(runs, name, served_share), lambda value: f"{value:.1%}")
    return f"{_spread(each_run(runs, name, link_bytes), _amount)}, {share}"


def _simulated(results: Results) -> list[str]:
    times = [found["runs"][0].get("simulated", {}) for found in results.values()]
    names = dict.fromkeys(name for each in times for name in each)
    return _lines(results, [(name, [f"{each[name]:.2f}" if name in each else "-" for each in times]) for name in names])


def _proof(example: str, runs: Sequence[Found]) -> list[str]:
    return [line for run in runs for line in _proof_of_run(example, run)]


def _proof_of_run(example: str, found: Found) -> list[str]:
    ours = ours_of(found)
    same = all(other["same_losses"] and other["same_parameters"] for other in found["rows"] if not other["skipped"])
    seen = ours["witness_pages"]
    agree = "no witness" if seen is None else f"{ours['claimed_pages']:,} by the engine, {seen:,} by the witness"
    if seen is not None and ours["claimed_pages"] > seen:
        agree += " (a page that is given back and born anew while it is to move may count as moved)"
    share = ours["residency_share"]
    residency = (
        "residency not audited" if share is None else f"after each layer {never_rounded_up(share)}% of managed bytes"
    )
    bits = "bit-identical in all rows" if same else "**differ**"
    return [
        f"- {example}: losses and parameters {bits};",
        f"  {residency}{' where the plan has them' if share is not None else ''}; pages moved: {agree}.",
    ]


def _fast(example: str, found: Found) -> list[str]:
    ours = ours_of(found)
    peak, row = ours["managed_fast_peak_bytes"], row_of(found, OURS) or {}
    held = "" if peak is None else f", ours had at most {mib(peak)} of tensors there by the kernel's word"
    text = (
        f"- {example}: footprint {mib(ours['footprint_bytes'])}, budget {mib(ours['budget_bytes'])}{held}, and the node"
        f" had at most {mib(row['fast_taken_bytes'])} less free than as the job began; the ballast leaves the others"
        f" the budget and {mib(found['beside_bytes'])} for what is no tensor. They had:"
    )
    return [
        filled(text, indent="  "),
        *(f"  - {row['name']}: {_had(row)}{_tensors(row)}" for row in found["rows"] if row["left_bytes"] is not None),
    ]


def _tensors(row: Found) -> str:
    mean = row.get("mean_tensor_bytes")
    return "" if mean is None else f", tensors {mib(mean)} in the mean and at most {mib(row['most_tensor_bytes'])}"


def _had(row: Found) -> str:
    if row["least_left_bytes"] is None:
        return f"{mib(row['left_bytes'])} at the beginning, then whatever others left it"
    text = f"{mib(row['left_bytes'])} at the beginning, {mib(row['mean_left_bytes'])} in the mean"
    return f"{text} ({mib(row['least_left_bytes'])} to {mib(row['most_left_bytes'])} at any look)"
