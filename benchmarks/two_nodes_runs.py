"""What was run of two nodes, and what was not: a part of docs/two-nodes.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from benchmarks.two_nodes_figures import (
    LEAST,
    MOST,
    OURS,
    Found,
    Results,
    are_undisturbed,
    ours_of,
    own_share,
    profiled_anew,
    roomy,
    row_of,
    steps_of,
    watched_share,
)

_RUNS, _STEPS, _AFTER = 3, 5, (20, 40, 80)
"""What would be enough: runs of each example, measured steps a run, steps of warm-up of the kernel's tiering."""
_DISTURBED = """Watching disturbs ours: in a measured step PyTorch allocates a little more and in another order, so some
tensors find no place in the plan and come from malloc, on the fast node and beyond the budget. So its share in those
steps may be too high. Its own account is the engine's, of the applied steps: of pages, and of the bytes of managed
tensors, where the watcher counts those of all operands; the audit below holds it against the kernel. The smaller share
and the larger count of bytes from slow memory are above. Stock placements have no plan to lose."""
_UNDISTURBED = """Ours has two accounts. The watcher counts lines of 64 bytes of all operands in the measured steps, and
asks the kernel where each is as its operator ends; scratch memory within an operator it does not see. Its own account
is the engine's, of all applied steps: of pages of managed tensors, scratch memory among them; the audit below holds it
against the kernel. The smaller share and the larger count of bytes from slow memory are above. Watching slows a step
several times, which gives migrations time; the audit begins in a step that nothing slows."""


def what_was_run(results: Results) -> list[str]:
    """And what was not."""
    rule = f"One rule of size for all examples, stated before the runs: a footprint of {mib(LEAST)} to {mib(MOST)}."
    lines = ["## What was run, and what was not", "", filled(rule), ""]
    lines += [filled(_of_example(example, found["runs"]), indent="  ") for example, found in results.items()]
    watched = _UNDISTURBED if are_undisturbed(results) else _DISTURBED
    return [*lines, "", filled(watched), "", filled(_not_run(results)), ""]


def _of_example(example: str, runs: Sequence[Found]) -> str:
    first, row = runs[0], row_of(runs[0], OURS) or {}
    ours = ours_of(first)
    nbytes, applied = ours["footprint_bytes"], ours["counters"]["steps"]
    text = f"- {example}: footprint {mib(nbytes)}"
    text += "" if LEAST <= nbytes <= MOST else " (**not of that size**)"
    text += f"; {len(runs)} run{'s' if len(runs) > 1 else ''} of {steps_of(first)} steps"
    text += f", {first['settings']['warm_up']} of warm-up, {row['measured_steps']} measured."
    if any(profiled_anew(run) for run in runs):
        text += " **Planned in the emulated machine**: the saved plan was not that of its step there."
    if room := roomy(first):
        text += (
            f" **Who has room for the whole footprint is not short of memory, so this compares little**:"
            f" {', '.join(room)} have {mib(min(room.values()))} to {mib(max(room.values()))} of room for a footprint of"
            f" {mib(nbytes)}."
        )
    measured = f"{watched_share(first, OURS) or 0:.1%} in measured steps"
    return (
        f"{text} Served to ours {measured}, {own_share(first):.1%} by its own account of the {applied} applied steps."
    )


def _not_run(results: Results) -> str:
    runs = min(len(found["runs"]) for found in results.values())
    measured = min((row_of(run, OURS) or {})["measured_steps"] for found in results.values() for run in found["runs"])
    after = [steps for steps in _AFTER if any(steps not in found["after"] for found in results.values())]
    missing = []
    if runs < _RUNS:
        missing.append(f"{_RUNS} runs of each" + (", so the figures have no spread" if runs == 1 else ""))
    if measured < _STEPS:
        why = " (after two in a row the next is profiled as one of another shape, and ours rests in it)"
        missing.append(f"{_STEPS} measured steps a run{'' if are_undisturbed(results) else why}")
    if after:
        missing.append(
            f"the kernel's tiering after {', '.join(map(str, after))} steps of warm-up (it learns while a job runs, and"
            " may do better then; on the other hand it has more time a step here than on hardware, since steps take"
            " some hundred times as long)"
        )
    missing.append("weights of interleave that fill the budget, models beyond that size, and real hardware")
    return f"Not run: {'; '.join(missing)}."


def filled(text: str, indent: str = "") -> str:
    """In lines of at most 115 characters, those after the first with `indent`."""
    return textwrap.fill(" ".join(text.split()), 115, subsequent_indent=indent, break_on_hyphens=False)


def mib(nbytes: int) -> str:
    """Bytes as the page says them."""
    return f"{nbytes / 2**20:.1f} MiB"
