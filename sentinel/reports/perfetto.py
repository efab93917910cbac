"""A timeline in the Trace Event Format: layers, migrations by direction, bytes held. Opens in ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentinel.core.plan import Plan
from sentinel.core.run import OUTCOMES, REASONS, Run
from sentinel.core.trace import LayerId
from sentinel.reports.facts import Facts
from sentinel.reports.headline import began
from sentinel.reports.trace_format import Event, counter, process_named, span, track_named

_LAYERS = 1
_FIRST_MOVER = 2


def timeline(facts: Facts) -> dict[str, Any]:
    """One process a run (and one for the profile if there is no run); times in µs, as the format wants them.

    They count from the first migration where one was under way before the first step, as in a simulated steady state:
    Perfetto drops what has a time below 0.
    """
    ids = facts.layers
    events: list[Event] = []
    first = "emulated" if facts.executed is not None and facts.executed.emulated else "executed"
    both = ((facts.executed, first), (facts.simulated, "simulated"))
    runs = [(run, word) for run, word in both if run is not None and len(run.steps)]
    origin_ns = min([0, *(int(run.migrations["start_ns"].min()) for run, _ in runs if len(run.migrations))])
    for process, (run, word) in enumerate(runs, 1):
        events += _process(process, word) + _run(run, ids, facts.plan, process, origin_ns)
    if not runs and facts.profile is not None:
        events += _process(1, "profiled, less the trackers' cost") + _profiled(facts.profile.layer_ns.tolist(), ids)
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"caveats": facts.caveats}}


def _process(process: int, name: str) -> list[Event]:
    return [process_named(process, name), track_named(process, _LAYERS, "layers")]


def _of_layer(ids: Sequence[LayerId], layer: int) -> tuple[str, str]:
    """(name, category) of a layer's span."""
    if layer >= len(ids):
        return f"layer {layer}", "layer"
    return str(ids[layer]), f"layer,{ids[layer].phase}" if ids[layer].phase else "layer"


def _run(run: Run, ids: Sequence[LayerId], plan: Plan | None, process: int, origin_ns: int) -> list[Event]:
    events: list[Event] = []
    held_in = {name: run.held_bytes(tier) for tier, name in enumerate(run.tier_names)}
    for index, row in enumerate(run.layers):
        layer, start = int(row["layer"]), int(row["start_ns"]) - origin_ns
        args: Event = {name: int(row[name]) for name in ("step", "layer", "stall_ns", "slow_ns", "touched_bytes")}
        times = start, int(row["duration_ns"])
        events.append(span((process, _LAYERS), *_of_layer(ids, layer), times, args))
        held = {name: int(nbytes[index]) for name, nbytes in held_in.items() if nbytes is not None}
        events.append(counter(process, "bytes held", start, held))
    lanes: dict[tuple[int, int], int] = {}
    for row, known in zip(run.migrations, began(run, run.migrations).tolist(), strict=True):
        pair = (int(row["source"]), int(row["target"]))
        if pair not in lanes:
            lanes[pair] = _FIRST_MOVER + len(lanes)
            name = f"{run.tier_names[pair[0]]} → {run.tier_names[pair[1]]}"
            events.append(track_named(process, lanes[pair], name))
        block, started = int(row["block"]), int(row["start_ns"])
        label = plan.blocks[block].name if plan is not None and plan.blocks[block].name else f"block {block}"
        args = {name: int(row[name]) for name in ("step", "layer", "block", "nbytes", "moved_bytes")}
        words = {"outcome": OUTCOMES[row["outcome"]], "reason": REASONS[row["reason"]]}
        category, stopped = f"migration,{words['outcome']}", int(row["stop_ns"])
        if not known:  # it was refused, was there already, or was given up then
            started = stopped
        times = started - origin_ns, stopped - started
        events.append(span((process, lanes[pair]), label, category, times, args | words))
    return events


def _profiled(layer_ns: list[int], ids: Sequence[LayerId]) -> list[Event]:
    events, start = [], 0
    for layer, took in enumerate(layer_ns):
        events.append(span((1, _LAYERS), *_of_layer(ids, layer), (start, took), {"layer": layer}))
        start += took
    return events
