"""The report's tables as pandas frames. Nullable types throughout: what is unknown is <NA>, never 0 or -1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, REASONS, Run
from sentinel.core.trace import ROLES
from sentinel.reports.headline import live_by_layer, migrated_by_step, steady_steps

Frame = pd.DataFrame
Frames = dict[str, pd.DataFrame]


def whole(values: Any, known: Any = True) -> Any:
    """A nullable column of whole numbers; <NA> where `known` (one truth value, or one a row) is false."""
    data = np.array(values, np.int64)
    mask = ~np.broadcast_to(np.asarray(known, np.bool_), data.shape)
    return pd.arrays.IntegerArray(data, mask.copy())


def words(values: Iterable[str | None]) -> Any:
    """A nullable column of text; an empty text is unknown."""
    return pd.array([value or None for value in values], dtype="string")


def truths(values: Any) -> Any:
    """A nullable column of truth values."""
    return pd.array(np.array(values, np.bool_), dtype="boolean")


def of_names(names: Sequence[str], index: NDArray[Any]) -> Any:
    """`names[i]` for each i of `index`; <NA> where i is negative."""
    table = np.array([*names, None], object)
    return pd.array(table[np.where(index < 0, len(names), index)], dtype="string")


# --- from the profile ---


def tensors(profile: Profile, plan: Plan | None, in_place: Sequence[tuple[str, int, str]]) -> Frame:
    """One row a tensor. Layers first_layer..last_layer, both within; last < first: alive across the step's end."""
    rows, n = profile.tensors, len(profile.names)
    a = profile.accesses
    count = np.bincount(a["tensor"], minlength=n)[:n]
    reads, writes = (_sum_known(a[name], a["tensor"], n) for name in ("reads", "writes"))
    touched = np.zeros(n, np.int64)
    np.add.at(touched, a["tensor"], a["touched_bytes"])
    tier, moves, moved = _places(profile, plan)
    reasons = {name: reason for name, _, reason in in_place}
    return Frame(
        {
            "tensor": pd.array(list(profile.names), dtype="string"),
            "name": pd.array(list(profile.names), dtype="string"),
            "role": of_names(ROLES, rows["role"].astype(np.int64)),
            "nbytes": whole(rows["nbytes"]),
            "first_layer": whole(rows["start"]),
            "last_layer": whole((rows["stop"] - 1) % profile.n_layers),
            "lifetime_layers": whole(rows["stop"] - rows["start"]),
            "persistent": truths(rows["persistent"]),
            "touched_layers": whole(count),
            "touched_bytes": whole(touched),
            "reads": reads,
            "writes": writes,
            "tier": of_names(plan.tier_names if plan else (), tier),
            "migrations": whole(moves, plan is not None),
            "migrated_bytes": whole(moved, plan is not None),
            "managed": truths(rows["managed"]),
            "reason": words(reasons.get(name) for name in profile.names),
        }
    )


def _sum_known(values: NDArray[Any], of: NDArray[Any], n: int) -> Any:
    """Sum per tensor; unknown as soon as one part is."""
    out, unknown = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    np.add.at(out, of, np.maximum(values, 0))
    unknown[of[values < 0]] = True
    return whole(out, ~unknown)


def _places(profile: Profile, plan: Plan | None) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Per tensor: tier of birth (persistent: as layer 0 begins) of most of its bytes, -1 unknown; migrations
    of its blocks a step; its own bytes that these move."""
    n = len(profile.names)
    tier = np.full(n, -1, np.int64)
    moves, moved = np.zeros(n, np.int64), np.zeros(n, np.int64)
    if plan is None:
        return tier, moves, moved
    begins = np.zeros((len(plan.tier_names), n), np.int64)
    nbytes = profile.tensors["nbytes"]
    for index, block in enumerate(plan.blocks):
        times = len(plan.moves_by_block.get(index, ()))
        for tensor in block.tensors:
            if tensor >= n:
                continue
            held = min(int(nbytes[tensor]), block.nbytes)
            begins[block.tier, tensor] += held
            moves[tensor] += times
            moved[tensor] += times * held
    placed = begins.any(axis=0) & profile.tensors["managed"]
    tier[placed] = begins.argmax(axis=0)[placed]
    return tier, moves, moved


def accesses(profile: Profile) -> Frame:
    """One row a tensor and layer in which it is touched."""
    a = profile.accesses
    known = {name: whole(a[name], a[name] >= 0) for name in ("pages_touched", "pages_written", "reads", "writes")}
    return Frame(
        {
            "tensor": of_names(profile.names, a["tensor"]),
            "layer": whole(a["layer"]),
            **known,
            "read_bytes": whole(a["read_bytes"]),
            "written_bytes": whole(a["written_bytes"]),
            "touched_bytes": whole(a["touched_bytes"]),
        }
    )


def footprint(profile: Profile) -> Frame:
    """Bytes alive in each layer by role, managed or not; one row a layer and role that occurs."""
    live = profile.live_bytes_by_role()
    present = np.flatnonzero(live.any(axis=1))
    layer = np.tile(np.arange(profile.n_layers), len(present))
    return Frame(
        {
            "layer": whole(layer),
            "role": of_names(ROLES, np.repeat(present, profile.n_layers)),
            "nbytes": whole(live[present].reshape(-1)),
        }
    )


# --- by layer ---


def layers(profile: Profile | None, plan: Plan | None, run: Run | None, simulated: Run | None) -> Frame:
    """One row a layer. Of a run: the median over the steps that ran as planned; without one, the profile's time."""
    ids = profile.layers if profile else plan.layers if plan else ()
    length = len(ids)
    unknown = whole(np.zeros(length, np.int64), False)
    plain = whole(profile.layer_ns) if profile else unknown
    of_run = _medians(run, length)
    predicted = _medians(simulated, length)
    out: dict[str, Any] = {
        "layer": whole(np.arange(length)),
        "name": words(layer.name for layer in ids),
        "phase": words(layer.phase for layer in ids),
        "duration_ns": of_run.get("duration_ns", plain),
        "flops": whole(profile.flops, profile.flops >= 0) if profile else unknown,
        "nbytes_touched": _touched(profile) if profile else unknown,
    }
    for name in ("stall_ns", "slow_ns", "fast_bytes", "slow_bytes", "served_fast_bytes"):
        out[name] = of_run.get(name, unknown)
    out["plain_ns"] = plain
    taken = profile.quality.layer_overhead_ns if profile else ()
    out["tracker_ns"] = whole(taken) if len(taken) == length else unknown
    out["predicted_ns"] = predicted.get("duration_ns", unknown)
    out["predicted_stall_ns"] = predicted.get("stall_ns", unknown)
    managed, live = live_by_layer(profile) if profile else (np.zeros(length), np.zeros(length))
    out["live_bytes"] = whole(live, profile is not None)
    out["managed_bytes"] = whole(managed, profile is not None)
    return Frame(out)


def _touched(profile: Profile) -> Any:
    out = np.zeros(profile.n_layers, np.int64)
    np.add.at(out, profile.accesses["layer"], profile.accesses["touched_bytes"])
    return whole(out)


def _medians(run: Run | None, length: int) -> dict[str, Any]:
    """Column -> its median per layer over the steps that ran as planned; empty without such a step."""
    if run is None:
        return {}
    rows = run.layers[np.isin(run.layers["step"], steady_steps(run)) & (run.layers["layer"] < length)]
    if not len(rows):
        return {}
    order = np.argsort(rows["layer"], kind="stable")
    present, first = np.unique(rows["layer"][order], return_index=True)
    out: dict[str, Any] = {}
    for name in ("duration_ns", "stall_ns", "slow_ns", "fast_bytes", "slow_bytes", "served_fast_bytes"):
        values, known = np.zeros(length, np.int64), np.zeros(length, np.bool_)
        for layer, part in zip(present, np.split(rows[name][order], first[1:]), strict=True):
            values[layer], known[layer] = int(np.median(part)), True
        out[name] = whole(values, known)
    return out


def occupancy(plan: Plan) -> Frame:
    """Bytes that the plan holds in each tier in each layer, migrations in flight counted on both sides."""
    tiers, length = plan.held_bytes.shape
    return Frame(
        {
            "layer": whole(np.tile(np.arange(length), tiers)),
            "tier": of_names(plan.tier_names, np.repeat(np.arange(tiers), length)),
            "held_bytes": whole(plan.held_bytes.reshape(-1)),
            "capacity_bytes": whole(np.repeat(np.array(plan.capacity_bytes, np.int64), length)),
        }
    )


# --- from plan and run ---


def blocks(plan: Plan, names: Sequence[str]) -> Frame:
    """One row a block; `tensor` where it holds one only."""
    rows = plan.blocks
    one = np.array([b.tensors[0] if len(b.tensors) == 1 and b.tensors[0] < len(names) else -1 for b in rows], np.int64)
    return Frame(
        {
            "block": whole(np.arange(len(rows))),
            "name": words(b.name for b in rows),
            "tensor": of_names(names, one),
            "tensors": whole([len(b.tensors) for b in rows]),
            "nbytes": whole([b.nbytes for b in rows]),
            "first_layer": whole([b.start for b in rows]),
            "last_layer": whole([(b.stop - 1) % plan.n_layers for b in rows]),
            "tier": of_names(plan.tier_names, np.array([b.tier for b in rows], np.int64)),
            "persistent": truths([b.persistent for b in rows]),
            "fixed": truths([b.fixed for b in rows]),
            "migrations": whole([len(plan.moves_by_block.get(i, ())) for i in range(len(rows))]),
        }
    )


def migrations(run: Run | None, plan: Plan | None, names: Sequence[str]) -> Frame:
    """One row a migration of the run; without a run, the planned ones, times and outcome unknown."""
    if run is None:
        return _planned(plan, names)
    rows = run.migrations
    return Frame(
        {
            "step": whole(rows["step"]),
            "layer": whole(rows["layer"]),
            "block": whole(rows["block"]),
            "tensor": _tensor_of(rows["block"], plan, names),
            "source": of_names(run.tier_names, rows["source"]),
            "target": of_names(run.tier_names, rows["target"]),
            "nbytes": whole(rows["nbytes"]),
            "moved_bytes": whole(rows["moved_bytes"]),
            "reason": of_names(REASONS, rows["reason"].astype(np.int64)),
            "start_ns": whole(rows["start_ns"]),
            "stop_ns": whole(rows["stop_ns"]),
            "outcome": of_names(OUTCOMES, rows["outcome"].astype(np.int64)),
            "errno": whole(rows["errno"], rows["errno"] != 0),
        }
    )


def _planned(plan: Plan | None, names: Sequence[str]) -> Frame:
    moves = plan.migrations if plan else ()
    tiers = plan.tier_names if plan else ()
    block = np.array([m.block for m in moves], np.int64)
    unknown = whole(np.zeros(len(moves), np.int64), False)
    return Frame(
        {
            "step": unknown,
            "layer": whole([m.start for m in moves]),
            "block": whole(block),
            "tensor": _tensor_of(block, plan, names),
            "source": of_names(tiers, np.array([m.source for m in moves], np.int64)),
            "target": of_names(tiers, np.array([m.target for m in moves], np.int64)),
            "nbytes": whole([m.nbytes for m in moves]),
            "moved_bytes": unknown,
            "reason": words(m.reason for m in moves),
            "start_ns": unknown,
            "stop_ns": unknown,
            "outcome": words(None for _ in moves),
            "errno": unknown,
        }
    )


def _tensor_of(block: NDArray[Any], plan: Plan | None, names: Sequence[str]) -> Any:
    """The one tensor of each block; <NA> for a block of several."""
    held = [b.tensors for b in plan.blocks] if plan else []
    one = np.array([t[0] if len(t) == 1 and t[0] < len(names) else -1 for t in held] or [-1], np.int64)
    return of_names(names, one[block] if held else np.full(len(block), -1, np.int64))


def steps(run: Run | None) -> Frame:
    """One row a step of the run."""
    from sentinel.core.run import STEP_DTYPE

    rows = run.steps if run is not None else np.zeros(0, STEP_DTYPE)
    moved = migrated_by_step(run) if run is not None else {}
    numbers = ("step", "start_ns", "duration_ns", "stall_ns", "fast_peak_bytes", "unmanaged_bytes")
    return Frame(
        {
            **{name: whole(rows[name]) for name in numbers},
            "migrated_bytes": whole([moved[step] for step in rows["step"].tolist()]),
            "in_step": truths(rows["in_step"]),
        }
    )


def in_place(rows: Sequence[tuple[str, int, str]]) -> Frame:
    """What stayed where the framework had put it."""
    return Frame(
        {
            "tensor": pd.array([name for name, _, _ in rows], dtype="string"),
            "nbytes": whole([nbytes for _, nbytes, _ in rows]),
            "reason": words(reason for _, _, reason in rows),
        }
    )


def unmanaged(by_reason: Iterable[tuple[str, int]]) -> Frame:
    """What fell back to malloc, by reason."""
    rows = sorted(by_reason, key=lambda row: (-row[1], row[0]))
    return Frame({"reason": words(reason for reason, _ in rows), "nbytes": whole([nbytes for _, nbytes in rows])})
