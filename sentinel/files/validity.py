"""What must hold in a file beyond a noun's own invariants, so that no reader of the noun can be led astray."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import PlanError
from sentinel.core.laws import check
from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, REASONS, Run
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


def problem_of(noun: Noun) -> str:
    """What is wrong with a noun that was read, or an empty text."""
    if isinstance(noun, Plan):
        return _plan(noun)
    if isinstance(noun, Profile):
        return _profile(noun)
    if isinstance(noun, Run):
        return _run(noun)
    if isinstance(noun, Trace):
        return _trace(noun)
    if isinstance(noun, Layout):
        return _layout(noun)
    return _machine(noun)


def _machine(machine: Machine) -> str:
    return f"more than {MAX_TIERS} tiers" if len(machine.tiers) > MAX_TIERS else ""


def _layout(layout: Layout) -> str:
    """A name must stay below the folder of the data; sums of sizes stay far from 64 bits."""
    sizes = (layout.file_nbytes, layout.chunk_offset, layout.chunk_nbytes, layout.sample_offset, layout.sample_nbytes)
    if any(int(column.max(initial=0)) > MAX_ADDRESS for column in sizes) or layout.nbytes > MAX_TRAFFIC:
        return "a size is larger than any file"
    for name in layout.files:
        if not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
            return f"the file name {name[:80]!r} leads out of the folder of the data"
    return ""


def _plan(plan: Plan) -> str:
    if len(plan.tier_names) > MAX_TIERS:
        return f"more than {MAX_TIERS} tiers"
    places: list[Block | Slot | Segment] = [*plan.blocks, *plan.slots, *plan.segments]
    for place in places:
        if place.offset < 0 or place.nbytes < 0 or place.offset + place.nbytes > MAX_ADDRESS:
            return f"{type(place).__name__.lower()} at {place.offset} lies outside any address space"
    for index, segment in enumerate(plan.segments):
        if not 0 <= segment.tier < len(plan.tier_names):
            return f"segment {index} is born in a tier that is not there"
    if any(tensor < 0 for block in plan.blocks for tensor in block.tensors) or any(s.tensor < 0 for s in plan.slots):
        return "a negative number stands for a tensor"
    uses = plan.uses
    if len(uses):
        if min(uses[name].min() for name in uses.dtype.names or ()) < 0:
            return "a use has a negative number"
        if uses["block"].max() >= len(plan.blocks) or uses["layer"].max() >= plan.n_layers:
            return "a use names a block or layer that is not there"
    try:
        check(plan)
    except PlanError as error:
        return str(error)
    return ""


def _profile(profile: Profile) -> str:
    tensors = profile.tensors
    if profile.n_events < 0 or profile.unmanaged_peak_bytes < 0 or profile.live_peak_bytes < 0:
        return "a count or an amount of memory is negative"
    if profile.n_events > MAX_EVENTS:
        return f"a step of {profile.n_events} allocations, of which at most {MAX_EVENTS} are planned"
    if len(tensors) and tensors["nbytes"].max() > MAX_ADDRESS:
        return "a tensor is larger than any address space"
    lasting = tensors[tensors["persistent"]]
    if lasting["start"].any() or (lasting["stop"] != profile.n_layers).any():
        return "a tensor that lives across steps does not live through the whole step"
    passing = tensors[tensors["managed"] & ~tensors["persistent"]]
    if len(passing) and (
        min(passing["key_layer"].min(), passing["key_ordinal"].min()) < 0
        or passing["key_layer"].max() >= profile.n_layers
    ):
        return "a managed tensor that does not live across steps has no place among the step's allocations"
    return _accesses(profile) or _times(profile.layer_ns, profile.quality)


def _accesses(profile: Profile) -> str:
    accesses = profile.accesses
    if (
        len(accesses)
        and min(accesses[name].min() for name in ("reads", "writes", "pages_touched", "pages_written")) < -1
    ):
        return "an access has a negative count"
    amounts = ("read_bytes", "written_bytes", "touched_bytes")
    if len(accesses) and (
        min(accesses[name].min() for name in amounts) < 0 or max(accesses[name].max() for name in amounts) > MAX_TRAFFIC
    ):
        return f"an access has a negative number of bytes, or more than {MAX_TRAFFIC}"
    if len(profile.flops) and (profile.flops.min() < -1 or profile.flops.max() > MAX_TRAFFIC):
        return f"a layer's floating-point operations are fewer than -1 (unknown), or more than {MAX_TRAFFIC}"
    return ""


def _times(layer_ns: NDArray[np.int64], quality: Quality) -> str:
    costs = (quality.overhead_ns, *quality.layer_overhead_ns)
    if len(layer_ns) and (layer_ns.min() < 0 or layer_ns.max() > MAX_NS):
        return f"a layer's time is negative, or longer than {MAX_NS} ns"
    if min(costs) < 0 or max(costs) > MAX_NS:
        return f"the tracker's time is negative, or longer than {MAX_NS} ns"
    if quality.layer_overhead_ns and len(quality.layer_overhead_ns) != len(layer_ns):
        return "the tracker's time is given for another number of layers"
    return ""


def _run(run: Run) -> str:
    moves, tiers = run.migrations, len(run.tier_names)
    if not 2 <= tiers <= MAX_TIERS:
        return f"{tiers} tiers, not 2 to {MAX_TIERS}"
    if len(moves):
        for name, stop in (("source", tiers), ("target", tiers), ("outcome", len(OUTCOMES)), ("reason", len(REASONS))):
            if moves[name].min() < 0 or moves[name].max() >= stop:
                return f"a migration's {name} is not there"
        if min(moves[name].min() for name in ("layer", "block", "nbytes", "moved_bytes")) < 0:
            return "a migration has a negative layer, block or amount of memory"
    if len(run.layers) and min(run.layers[name].min() for name in ("layer", "fast_bytes", "touched_bytes")) < 0:
        return "a layer has a negative number or amount of memory"
    held = run.held
    if len(held) and (held["nbytes"].min() < 0 or held["tier"].min() < 1 or held["tier"].max() >= tiers):
        return "a row of `held` names a tier that is not a slower one, or a negative amount of memory"
    if len(run.layers) and run.layers["layer"].max() > 1 << 24:
        return "a layer's number is too high"
    seen = run.witnessed
    if (
        seen is not None
        and min([seen.lost, seen.unmatched, seen.huge_pages, *(row.pages for row in seen.moved_by)]) < 0
    ):
        return "a count of the witness is negative"
    return ""


def _trace(trace: Trace) -> str:
    events = trace.events
    if len({tensor.name for tensor in trace.tensors}) != len(trace.tensors):
        return "two tensors share a name"
    if any(not 0 <= tensor.nbytes <= MAX_ADDRESS for tensor in trace.tensors):
        return "a tensor is larger than any address space"
    if any(not 0 <= tensor.address <= MAX_ADDRESS for tensor in trace.tensors):
        return "a tensor lies outside any address space"
    if any(not 0 <= part < MAX_KEY for tensor in trace.tensors for part in tensor.key or ()):
        return "the place of a tensor among the step's allocations has no such number"
    if len(events):
        if events["tensor"].min() < -1 or events["op"].min() < -1:
            return "an event names a tensor or operator that is not there"
        of_tensor = (events["kind"] <= FREED) | (events["kind"] == READ) | (events["kind"] == WRITE)
        if (events["tensor"][of_tensor] < 0).any():
            return "an event of a tensor names none"
        spans = events[of_tensor]
        if len(spans) and (
            min(spans["offset"].min(), spans["nbytes"].min()) < 0
            or max(spans["offset"].max(), spans["nbytes"].max()) > MAX_ADDRESS
        ):
            return "an event of a tensor lies outside any address space"
        if (np.diff(events["time_ns"][events["kind"] == TICK]) < 0).any():
            return "the ticks are not in order"
    pages = trace.pages
    if len(pages) and (pages["layer"].min() < 0 or pages["layer"].max() >= len(trace.layers)):
        return "a touched page names a layer that is not there"
    if len(pages) and (
        pages["npages"].min() < 1
        or pages["page"].min() < 0
        or max(pages["page"].max(), pages["npages"].max()) > MAX_ADDRESS // PAGE_BYTES
    ):
        return "a run of touched pages is empty, or beyond any address space"
    if len(pages) and (pages["seen"].min() < 0 or pages["seen"].max() > SEEN_READ + SEEN_WRITE + SEEN_UNKNOWN):
        return "what was seen of a touched page is not known"
    return _times(trace.layer_ns, trace.quality)
