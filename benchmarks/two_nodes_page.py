"""docs/two-nodes.md from the results of benchmarks/two_nodes.py: what fast memory serves, what crosses the link."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from sentinel.core.units import PAGE_BYTES

Found = Mapping[str, Any]
"""What `sentinel compare --executed --json` says of one example."""

OURS, REFERENCES = "sentinel", ("all-fast", "all-slow")
_WITHIN_A_NODE = "compaction"
"""The one reason for which the kernel moves pages without taking them to another node."""

_HEAD = """# Two nodes: ours against the kernel's placements

**Emulated machine** (QEMU, in software): node 0 is fast, node 1 has no CPUs. Shares, pages, residency and
bits are real; times mean nothing there, so none is shown. Every row of an example trains the same job in
the same machine. Every limited placement gets the same fast bytes: pinned ballast on node 0 grows and shrinks
as others free and take memory there while the job runs. The kernel's tiering also gets the memory that it
keeps free for promotions. The kernel's own reserve is the same for all, and small. The runs are short, since
steps are slow there. Tiering learns while a job runs and may do better in longer runs; we did not show that
it had settled. One run of each, one step measured, so the figures have no spread.

Made {dates} by `python -m benchmarks.two_nodes`: kernel {kernels}, torch
{torches}, {fast} of the footprint fast.

{planned}
"""
_IMPOSSIBLE = """**The plans were made for a machine that no hardware matches**, [machine.json](two-nodes/machine.json):
its slow tier reads {read:g} GB/s and its links carry {link:g} GB/s, so moving a page costs next to nothing beside one
access. Such a plan shows that the engine puts tensors where a plan has them; it moves other amounts than a plan for a
physical machine would. Sentinel refuses such a machine by now: the file is kept as a record, cannot be loaded, and the
next run of the benchmark plans for a physical one."""
_PHYSICAL = """The plans are made for [machine.json](two-nodes/machine.json): its slow tier reads {read:g} GB/s and its
links carry {link:g} GB/s."""
_MOVED = """
## Bytes over the slow link

A byte that slow memory serves crosses the link between the nodes, and so does a byte that moves. MiB a step: served
from slow memory in the measured step, counted as above, **+** moved between the nodes in either direction, by the
witness, in the mean of the run's steps (ours: of the applied ones, the first filling of fast memory among them)."""
_WIDER = """**01_gpt2 was made larger after a first result.** On 2026-11-20 it was run with a width of 96: a
footprint of 18.2 MiB, and the kernel's tiering had 18.7 MiB, room for all of it. After eight steps of warm-up tiering
served 99.8%, ours 97.0%. The same day its width became 192, its footprint {footprint}: ours {ours:.1%}, tiering
{tiering:.1%}. Who has room for the whole model is not short of memory, so the small one compared little; but the size
was changed after that result, and in that example alone."""
_ROOMY = """**02_resnet has the same defect and was left as it was**: {room} have {least} to {most} of room for a
footprint of {small}."""
_FAST = """
## Fast bytes

Ours has its budget for tensors. The others' room also holds what is no tensor, and the kernel may give any
of it to tensors. Where the mean is above the beginning, the ballast could not at once take memory that became
free. Both are to the others' advantage.
"""
_TAIL = """
What a share is and how the ballast is measured: [0043](decisions/0043-placements-are-measured-alike.md).
Each example's JSON, with the pages that moved and who moved them, is in `docs/two-nodes/`.
"""


def page(results: Mapping[str, Found], machine: str, fast: str = "20%") -> str:
    """docs/two-nodes.md of the results by example. `machine`: the file of the machine that was planned for."""
    planned = json.loads(machine)["machine"]
    read, link = planned["tiers"][1]["read_bytes_per_s"] / 1e9, planned["links"][0]["bandwidth_bytes_per_s"] / 1e9
    lines = [
        _HEAD.format(
            dates=", ".join(sorted({found["when"] for found in results.values()})),
            kernels=", ".join(sorted({found["where"]["kernel"] for found in results.values()})),
            torches=", ".join(sorted({found["where"]["torch"] for found in results.values()})),
            fast=fast,
            planned=(_IMPOSSIBLE if link > read else _PHYSICAL).format(read=read, link=link),
        ),
        "## Share of touched bytes served by fast memory",
        "",
        *_table(results, _cell),
        "",
        _mean(results),
        _MOVED,
        "",
        *_table(results, _link_cell),
        "",
        _more_than_all_slow(results),
        *_resized(results),
        "## What was proved",
        "",
        *(line for example, found in results.items() for line in _proof(example, found)),
        _FAST,
        *(line for example, found in results.items() for line in _fast(example, found)),
        _TAIL,
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def served_share(found: Found, name: str) -> float | None:
    """Of the touched bytes of the measured step, how many fast memory served. None: not measured."""
    row = _row(found, name)
    share: float | None = row["served_share"] if row else None
    return share


def slow_bytes(found: Found, name: str) -> float | None:
    """Bytes that slow memory served in a measured step. None: not measured."""
    share = served_share(found, name)
    row = _row(found, name)
    return None if share is None or row is None else (1 - share) * row["touched_bytes"]


def moved_bytes(found: Found, name: str) -> float | None:
    """Bytes a step that moved between the nodes, both directions together. None: nobody watched."""
    row = _row(found, name)
    if row is None or row["skipped"]:
        return None
    if row["ours"]:
        pages = row["ours"]["witness_pages"]
        return None if pages is None else pages * PAGE_BYTES / row["ours"]["counters"]["steps"]
    if row["migrated_pages"] is None:
        return None
    pages = sum(n for reason, n in row["migrated_pages"].items() if reason != _WITHIN_A_NODE)
    return pages * PAGE_BYTES / int(found["script"].split()[-1])


def link_bytes(found: Found, name: str) -> float | None:
    """Bytes a step over the slow link: served from slow memory, and moved. None where either is unknown."""
    served, moved = slow_bytes(found, name), moved_bytes(found, name)
    return None if served is None or moved is None else served + moved


def _row(found: Found, name: str) -> Found | None:
    return next((row for row in found["rows"] if row["name"] == name), None)


def _table(results: Mapping[str, Found], cell: Any) -> list[str]:
    names = list(dict.fromkeys(row["name"] for found in results.values() for row in found["rows"]))
    rows = [["placement", *results], ["---", *("---:" for _ in results)]]
    rows += [[name, *(cell(found, name) for found in results.values())] for name in names]
    return ["| " + " | ".join(row) + " |" for row in rows]


def _cell(found: Found, name: str) -> str:
    share = served_share(found, name)
    if share is None:
        return "skipped" if _row(found, name) else "-"
    limited = [row["name"] for row in found["rows"] if row["name"] not in REFERENCES and not row["skipped"]]
    best = max((served_share(found, other) or 0 for other in limited), default=0)
    return f"**{share:.1%}**" if share == best and name in limited else f"{share:.1%}"


def _link_cell(found: Found, name: str) -> str:
    served, moved = slow_bytes(found, name), moved_bytes(found, name)
    if served is None or moved is None:
        return "-"
    return f"{_amount(served)} + {_amount(moved)} = {_amount(served + moved)}"


def _amount(nbytes: float) -> str:
    return f"{nbytes / 2**20:.1f}"


def _mean(results: Mapping[str, Found]) -> str:
    ours = {example: share for example, found in results.items() if (share := served_share(found, OURS)) is not None}
    if not ours:
        return "Ours was not measured."
    ahead = sum(share > max(_rivals(results[example]), default=0) for example, share in ours.items())
    return f"Ours: {sum(ours.values()) / len(ours):.1%} in the mean of {len(ours)}; above every rival in {ahead}."


def _rivals(found: Found) -> list[float]:
    names = [row["name"] for row in found["rows"] if row["name"] not in (OURS, *REFERENCES)]
    return [share for name in names if (share := served_share(found, name)) is not None]


def more_than_all_slow(results: Mapping[str, Found]) -> list[str]:
    """The examples in which ours brings more bytes over the slow link than if everything stayed slow."""
    both = {example: (link_bytes(found, OURS), link_bytes(found, "all-slow")) for example, found in results.items()}
    return [example for example, (ours, slow) in both.items() if ours is not None and slow is not None and ours > slow]


def _more_than_all_slow(results: Mapping[str, Found]) -> str:
    more = more_than_all_slow(results)
    return _filled(
        f"In {len(more)} of {len(results)} examples ({', '.join(more)}) ours brings more bytes over the link than if "
        "everything stayed in slow memory. Its share above is bought with that. On hardware, where a move costs what "
        "the link costs, such a plan could be slower than leaving everything where it is."
    )


def _resized(results: Mapping[str, Found]) -> list[str]:
    gpt2, resnet = results.get("01_gpt2"), results.get("02_resnet")
    if gpt2 is None or resnet is None:
        return []
    small = _ours(resnet)["footprint_bytes"]
    roomy = {row["name"]: row["left_bytes"] for row in resnet["rows"] if (row["left_bytes"] or 0) >= small}
    told = [
        _WIDER.format(
            footprint=_mib(_ours(gpt2)["footprint_bytes"]),
            ours=served_share(gpt2, OURS),
            tiering=served_share(gpt2, "kernel-tiering"),
        )
    ]
    if roomy:
        least, most = _mib(min(roomy.values())), _mib(max(roomy.values()))
        told.append(_ROOMY.format(room=", ".join(roomy), least=least, most=most, small=_mib(small)))
    points = (_filled(f"- {text}", indent="  ") for text in told)
    return ["", "Not all of these compare what they seem to compare:", "", *points, ""]


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), 115, subsequent_indent=indent, break_on_hyphens=False)


def _ours(found: Found) -> Found:
    row = _row(found, OURS)
    assert row is not None, "no row of ours"
    ours: Found = row["ours"]
    return ours


def _proof(example: str, found: Found) -> list[str]:
    ours, row = _ours(found), _row(found, OURS) or {}
    same = all(other["same_losses"] and other["same_parameters"] for other in found["rows"] if not other["skipped"])
    seen = ours["witness_pages"]
    agree = "no witness" if seen is None else f"{ours['claimed_pages']:,} by the engine, {seen:,} by the witness"
    share = ours["residency_share"]
    residency = "residency not audited" if share is None else f"after each layer {share:.2%} of managed bytes"
    bits = "bit-identical in all rows" if same else "**differ**"
    steps = f"{row['measured_steps']} measured of {found['script'].split()[-1]} steps"
    return [
        f"- {example}, {steps}: losses and parameters {bits};",
        f"  {residency}{' where the plan has them' if share is not None else ''}; pages moved: {agree}.",
    ]


def _fast(example: str, found: Found) -> list[str]:
    ours = _ours(found)
    peak = ours["managed_fast_peak_bytes"]
    held = "" if peak is None else f", ours had at most {_mib(peak)} there by the kernel's word"
    return [
        f"- {example}: footprint {_mib(ours['footprint_bytes'])}, budget {_mib(ours['budget_bytes'])}{held};",
        f"  the ballast leaves the others that and {_mib(found['beside_bytes'])} for what is no tensor. They had:",
        *(f"  - {row['name']}: {_had(row)}" for row in found["rows"] if row["left_bytes"] is not None),
    ]


def _had(row: Found) -> str:
    if row["least_left_bytes"] is None:
        return f"{_mib(row['left_bytes'])} at the beginning, then whatever others left it"
    text = f"{_mib(row['left_bytes'])} at the beginning, {_mib(row['mean_left_bytes'])} in the mean"
    return f"{text} ({_mib(row['least_left_bytes'])} to {_mib(row['most_left_bytes'])} at any look)"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
