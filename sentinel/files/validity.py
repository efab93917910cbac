"""What must hold in a file beyond a noun's own invariants, so that no reader of the noun can be led astray."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.layer_cycle import LayerCycle
from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.rules import first_broken
from sentinel.core.run import OUTCOMES, REASONS, Run, Witnessed
from sentinel.core.trace import FREED, READ, SEEN_READ, SEEN_UNKNOWN, SEEN_WRITE, TICK, WRITE, Quality, Trace
from sentinel.core.units import PAGE_BYTES
from sentinel.files.digests import Noun
from sentinel.samples import Layout

MAX_TIERS = 64
MAX_ADDRESS = 1 << 47
"""Addresses and sizes stay below what a process can map; sums over a file's rows then stay far from 64 bits."""
MAX_EVENTS = 1 << 24
"""Allocations in a step: planning takes some bytes of memory for each."""
MAX_KEY = 1 << 31
MAX_NS = 1 << 60
"""Of one layer, which is 36 years: what is added up and taken off stays within 64 bits."""
MAX_TRAFFIC = 1 << 56
"""Bytes of one tensor that a layer reads or writes, and its floating-point operations: sums stay within 64 bits."""
_TOO_MANY_TIERS = f"more than {MAX_TIERS} tiers"


def problem_of(noun: Noun) -> str:
    """What is wrong with a noun that was read, or an empty text."""
    return _PROBLEM_OF[type(noun)](noun) or ""


def _machine(machine: Machine) -> str | None:
    return first_broken((len(machine.tiers) > MAX_TIERS, _TOO_MANY_TIERS))


def _layout(layout: Layout) -> str:
    """A name must stay below the folder of the data; sums of sizes stay far from 64 bits."""
    sizes = (layout.file_nbytes, layout.chunk_offset, layout.chunk_nbytes, layout.sample_offset, layout.sample_nbytes)
    if any(int(column.max(initial=0)) > MAX_ADDRESS for column in sizes) or layout.nbytes > MAX_TRAFFIC:
        return "a size is larger than any file"
    for name in layout.files:
        if not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
            return f"the file name {name[:80]!r} leads out of the folder of the data"
    return ""


def _plan(plan: Plan) -> str | None:
    if len(plan.tier_names) > MAX_TIERS:
        return _TOO_MANY_TIERS
    places: list[Block | Slot | Segment] = [*plan.blocks, *plan.slots, *plan.segments]
    for place in places:
        if place.offset < 0 or place.nbytes < 0 or place.offset + place.nbytes > MAX_ADDRESS:
            return f"{type(place).__name__.lower()} at {place.offset} lies outside any address space"
    for layer, due in zip(plan.layers, LayerCycle.of(plan.layers).layers(), strict=True):
        if layer != due:
            return f"layer {str(layer)[:80]} stands where {str(due)[:80]} is expected: layers are numbered in order"
    uses, named = plan.uses, [tensor for block in plan.blocks for tensor in block.tensors]
    named += [slot.tensor for slot in plan.slots]
    problem = first_broken(
        (min(named, default=0) < 0, "a negative number stands for a tensor"),
        (_below(uses, uses.dtype.names or (), 0), "a use has a negative number"),
        (
            (uses["block"] >= len(plan.blocks)).any() or (uses["layer"] >= plan.n_layers).any(),
            "a use names a block or layer that is not there",
        ),
    )
    if problem is None:
        try:
            check(plan)
        except PlanError as error:
            return str(error)
    return problem


def _profile(profile: Profile) -> str | None:
    tensors, accesses, flops = profile.tensors, profile.accesses, profile.flops
    lasting = tensors[tensors["persistent"]]
    passing = tensors[tensors["managed"] & ~tensors["persistent"]]
    amounts = ("read_bytes", "written_bytes", "touched_bytes")
    return first_broken(
        (
            min(profile.n_events, profile.unmanaged_peak_bytes, profile.live_peak_bytes) < 0,
            "a count or an amount of memory is negative",
        ),
        (
            profile.n_events > MAX_EVENTS,
            f"a step of {profile.n_events} allocations, of which at most {MAX_EVENTS} are planned",
        ),
        (_above(tensors, ("nbytes",), MAX_ADDRESS), "a tensor is larger than any address space"),
        (
            lasting["start"].any() or (lasting["stop"] != profile.n_layers).any(),
            "a tensor that lives across steps does not live through the whole step",
        ),
        (
            _below(passing, ("key_layer", "key_ordinal"), 0) or _above(passing, ("key_layer",), profile.n_layers - 1),
            "a managed tensor that does not live across steps has no place among the step's allocations",
        ),
        (_below(accesses, ("reads", "writes", "pages_touched", "pages_written"), -1), "an access has a negative count"),
        (
            _below(accesses, amounts, 0) or _above(accesses, amounts, MAX_TRAFFIC),
            f"an access has a negative number of bytes, or more than {MAX_TRAFFIC}",
        ),
        (
            ((flops < -1) | (flops > MAX_TRAFFIC)).any(),
            f"a layer's floating-point operations are fewer than -1 (unknown), or more than {MAX_TRAFFIC}",
        ),
        *_times(profile.layer_ns, profile.quality),
    )


def _run(run: Run) -> str | None:
    moves, layers, held, tiers = run.migrations, run.layers, run.held, len(run.tier_names)
    seen = run.witnessed or Witnessed()
    stops = {"source": tiers, "target": tiers, "outcome": len(OUTCOMES), "reason": len(REASONS)}
    return first_broken(
        (not 2 <= tiers <= MAX_TIERS, f"{tiers} tiers, not 2 to {MAX_TIERS}"),
        *(
            (_below(moves, (name,), 0) or _above(moves, (name,), stop - 1), f"a migration's {name} is not there")
            for name, stop in stops.items()
        ),
        (
            _below(moves, ("layer", "block", "nbytes", "moved_bytes"), 0),
            "a migration has a negative layer, block or amount of memory",
        ),
        (
            _below(layers, ("layer", "fast_bytes", "touched_bytes"), 0),
            "a layer has a negative number or amount of memory",
        ),
        (
            _below(held, ("nbytes",), 0) or _below(held, ("tier",), 1) or _above(held, ("tier",), tiers - 1),
            "a row of `held` names a tier that is not a slower one, or a negative amount of memory",
        ),
        (_above(layers, ("layer",), 1 << 24), "a layer's number is too high"),
        (
            min([seen.lost, seen.unmatched, seen.huge_pages, *(row.pages for row in seen.moved_by)]) < 0,
            "a count of the witness is negative",
        ),
    )


def _trace(trace: Trace) -> str | None:
    events, pages, tensors = trace.events, trace.pages, trace.tensors
    of_tensor = events[(events["kind"] <= FREED) | (events["kind"] == READ) | (events["kind"] == WRITE)]
    return first_broken(
        (len({tensor.name for tensor in tensors}) != len(tensors), "two tensors share a name"),
        (any(not 0 <= t.nbytes <= MAX_ADDRESS for t in tensors), "a tensor is larger than any address space"),
        (any(not 0 <= t.address <= MAX_ADDRESS for t in tensors), "a tensor lies outside any address space"),
        (
            any(not 0 <= part < MAX_KEY for tensor in tensors for part in tensor.key or ()),
            "the place of a tensor among the step's allocations has no such number",
        ),
        (_below(events, ("tensor", "op"), -1), "an event names a tensor or operator that is not there"),
        (_below(of_tensor, ("tensor",), 0), "an event of a tensor names none"),
        (
            _below(of_tensor, ("offset", "nbytes"), 0) or _above(of_tensor, ("offset", "nbytes"), MAX_ADDRESS),
            "an event of a tensor lies outside any address space",
        ),
        ((np.diff(events["time_ns"][events["kind"] == TICK]) < 0).any(), "the ticks are not in order"),
        (
            _below(pages, ("layer",), 0) or _above(pages, ("layer",), len(trace.layers) - 1),
            "a touched page names a layer that is not there",
        ),
        (
            _below(pages, ("npages",), 1)
            or _below(pages, ("page",), 0)
            or _above(pages, ("page", "npages"), MAX_ADDRESS // PAGE_BYTES),
            "a run of touched pages is empty, or beyond any address space",
        ),
        (
            _below(pages, ("seen",), 0) or _above(pages, ("seen",), SEEN_READ + SEEN_WRITE + SEEN_UNKNOWN),
            "what was seen of a touched page is not known",
        ),
        *_times(trace.layer_ns, trace.quality),
    )


def _times(layer_ns: NDArray[np.int64], quality: Quality) -> list[tuple[Any, str]]:
    """The rules of a recording's times."""
    costs = (quality.overhead_ns, *quality.layer_overhead_ns)
    return [
        (((layer_ns < 0) | (layer_ns > MAX_NS)).any(), f"a layer's time is negative, or longer than {MAX_NS} ns"),
        (min(costs) < 0 or max(costs) > MAX_NS, f"the tracker's time is negative, or longer than {MAX_NS} ns"),
        (
            quality.layer_overhead_ns and len(quality.layer_overhead_ns) != len(layer_ns),
            "the tracker's time is given for another number of layers",
        ),
    ]


def _below(rows: NDArray[Any], names: Iterable[str], least: int) -> bool:
    """Whether a row has less in one of the columns `names`."""
    return len(rows) > 0 and any(rows[name].min() < least for name in names)


def _above(rows: NDArray[Any], names: Iterable[str], most: int) -> bool:
    """Whether a row has more in one of the columns `names`."""
    return len(rows) > 0 and any(rows[name].max() > most for name in names)


_PROBLEM_OF: dict[type, Callable[[Any], str | None]] = {
    Layout: _layout,
    Machine: _machine,
    Plan: _plan,
    Profile: _profile,
    Run: _run,
    Trace: _trace,
}
