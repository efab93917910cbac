"""The headline: a dict of the figures that a reader compares. Unknown is None, never a string or 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import REASONS, Run
from sentinel.core.units import PAGE_BYTES
from sentinel.reports.outside_plan import coverage, job_memory
from sentinel.reports.setup import Done, Setup, StorageFigures

_ONCE = [REASONS.index("initial"), REASONS.index("restore")]
"""Moved when a plan begins or ends, not in every step."""


def headline_of(
    profile: Profile | None,
    plan: Plan | None,
    machine: Machine | None,
    executed: Run | None,
    simulated: Run | None,
    setup: Setup,
) -> dict[str, Any]:
    """See docs/measurement.md for what each figure means, in what unit, with what error."""
    run = shown(executed, simulated)
    predicted = simulated.step_ns if simulated is not None else None
    if predicted is None and plan is not None:
        predicted = plan.predicted_step_ns
    # a step of where it was recorded says nothing beside one of a machine that computes otherwise
    elsewhere = executed is None and machine is not None and machine.flops_per_s is not None
    plain = profile.step_ns_plain if profile and not elsewhere else None
    managed, live = coverage(profile)
    unmanaged = _unmanaged(profile, executed)
    found: dict[str, Any] = {
        "kind": kind_of(executed, simulated, setup),
        "slow": setup.slow or (machine.slow if machine is not None else _slow_of_run(run)),
        "tracker": setup.tracker or (profile.quality.tracker if profile else None),
        "quality": quality_of(profile),
        "policy": plan.policy if plan else None,
        "fast": setup.fast,
        "peak_bytes": plan.footprint_bytes if plan else None,
        "live_peak_bytes": (profile.live_peak_bytes or None) if profile else None,
        "managed_bytes": managed,
        "live_bytes": live,
        "unmanaged_bytes": unmanaged,
        **job_memory(profile, plan, executed, unmanaged, setup),
        "false_sharing_bytes": profile.sharing.nbytes if profile and profile.sharing else None,
        "fast_capacity_bytes": plan.capacity_bytes[0] if plan else run.fast_capacity_bytes if run else None,
        "fast_peak_bytes": _fast_peak(plan, run),
        "fast_mean_bytes": run.fast_mean_bytes if run else None,
        "fast_needed_bytes": plan.fast_needed_bytes if plan else None,
        "fast_served_fraction": served_fraction(run),
        "moved_pages": claimed_pages(executed),
        "witness_pages": witness_pages(executed),
        **range_shares(plan),
        "migrated_bytes_per_step": _migrated(plan, run),
        "stall_ns_per_step": _stall(run),
        "step_ns_plain": plain,
        "step_ns_plain_is_measured": profile.step_ns_is_measured if profile and plain else None,
        "step_ns_profiled": profile.step_ns_profiled if profile else None,
        "step_ns_applied": executed.step_ns if executed else None,
        **step_spread(executed),
        "step_ns_predicted": predicted,
        "step_ns_bound": plan.bound_step_ns if plan else None,
        "optimality_gap": _gap(plan, predicted),
        "setup_ns": setup.setup_ns,
        "plan_ns": setup.plan_ns,
        **_loads(setup),
        "cpu_ns_profiled": setup.profiled_load.cpu_ns if setup.profiled_load else None,
        "cpu_ns_per_applied_step": _cpu_a_step(setup, executed),
        "mil": _whole(plan.details.get("mil")) if plan else None,
        "cases": _cases(plan, run),
        "steps": len(run.steps) if run else None,
        "layers": profile.n_layers if profile else plan.n_layers if plan else None,
        "tensors": len(profile.names) if profile else None,
    }
    return found if setup.storage is None else found | _on_a_file(setup.storage)


def _on_a_file(told: StorageFigures) -> dict[str, int | None]:
    """Of a session without a plan, what can be compared with other sessions and over ranks."""
    return {
        "fast_capacity_bytes": told.for_tensors_bytes,
        "peak_bytes": told.tensor_peak_bytes or None,
        "stall_ns_per_step": told.wait_after_ns if told.recorded else None,
        "step_ns_applied": told.step_ns or None,
    }


def _loads(setup: Setup) -> dict[str, float | None]:
    """How busy the host was, what others had, and what the training thread waited, in each phase."""
    loads = {"profiled": setup.profiled_load, "applied": setup.applied_load}
    return {
        f"{what}_{phase}_share": getattr(load, f"{what}_share", None)
        for what in ("busy", "others", "waited")
        for phase, load in loads.items()
    }


def _cpu_a_step(setup: Setup, executed: Run | None) -> int | None:
    """Processor time of all threads for each step since the first applied one, whatever plan or shape it was of."""
    load = setup.applied_load
    if load is None or executed is None:
        return None
    steps = sum(row.steps for row in setup.buckets) or executed.counters.steps + executed.counters.steps_before
    return load.cpu_ns // steps if steps else None


def step_spread(run: Run | None) -> dict[str, int | None]:
    """Of ten steps that ran as planned, one takes at most p10 and one at least p90; None without two such steps."""
    rows = run.steps["duration_ns"][run.steps["in_step"]] if run is not None else np.zeros(0, np.int64)
    low, high = (int(each) for each in np.percentile(rows, (10, 90))) if len(rows) > 1 else (None, None)
    return {"step_ns_applied_p10": low, "step_ns_applied_p90": high}


def range_shares(plan: Plan | None) -> dict[str, float | None]:
    """What page ranges serve from fast memory and what whole tensors would, both as planned.

    None where the profile has no ranges, or all fits.
    """
    told = plan.details.get("page_ranges") if plan is not None else None
    return {f"fast_served_fraction_{name}": _share(told, name) for name in ("ranged", "whole")}


def _share(told: Any, name: str) -> float | None:
    one = told.get(name) if isinstance(told, dict) else None
    return number(one.get("fast_served_fraction")) if isinstance(one, dict) else None


def number(value: Any) -> float | None:
    """What a file has where a number is expected; None where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def claimed_pages(run: Run | None) -> int | None:
    """Pages that the engine says it moved, in all steps and at the beginning and end, by whatever plan of the session;
    None without an executed run."""
    if run is None or run.kind != "executed":
        return None
    return (run.counters.migrated_bytes + run.counters.migrated_bytes_by_other_plans) // PAGE_BYTES


def witness_pages(run: Run | None) -> int | None:
    """Pages that the witness saw this process move; None where there was no witness."""
    return run.witnessed.own_pages if run is not None and run.witnessed is not None else None


def quality_of(profile: Profile | None) -> dict[str, Any] | None:
    """What the tracker counted, what it saw, and its own time in the profiled step; the rest is Profile.quality."""
    if profile is None:
        return None
    quality = profile.quality
    return {
        "counts": quality.counts,
        "sees": " and ".join(quality.sees),
        "granularity_bytes": quality.granularity_bytes,
        "lost": quality.lost,
        "late": quality.late,
        "tracker_ns": quality.overhead_ns,
    }


def shown(executed: Run | None, simulated: Run | None) -> Run | None:
    """The run that the report is about: the executed one if it has a step, else the simulated one."""
    if executed is not None and len(executed.steps):
        return executed
    return simulated


def kind_of(executed: Run | None, simulated: Run | None, setup: Setup) -> Done | None:
    """What was done, by what is there; None if there is no run at all."""
    if executed is not None and len(executed.steps):
        return "emulated" if executed.emulated else "executed"
    if setup.kind is not None:
        return setup.kind
    return "simulated" if simulated is not None else None


def _slow_of_run(run: Run | None) -> str | None:
    """By the name that the run has for it, where neither session nor machine tells."""
    if run is None or len(run.tier_names) < 2:
        return None
    slower = "+".join(run.tier_names[1:])
    return f"emulated:{slower}" if run.emulated else slower


def steady_steps(run: Run) -> list[int]:
    """Numbers of the steps that ran as planned."""
    found: list[int] = run.steps["step"][run.steps["in_step"]].tolist()
    return found


def nearest_median(steps: NDArray[Any]) -> int | None:
    """The number of the step of `steps` whose time is nearest the median; the last of equals, None without any."""
    if not len(steps):
        return None
    off = np.abs(steps["duration_ns"] - np.median(steps["duration_ns"]))
    return int(steps["step"][len(steps) - 1 - int(off[::-1].argmin())])


def median_by_layer(run: Run, values: NDArray[Any], length: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(n_layers,) median of `values`, one a row of `run.layers`, over the steps that ran as planned; and whether there
    was one."""
    chosen = np.isin(run.layers["step"], steady_steps(run)) & (run.layers["layer"] < length)
    layers, values = run.layers["layer"][chosen], values[chosen]
    medians, known = np.zeros(length, np.int64), np.zeros(length, np.bool_)
    order = np.argsort(layers, kind="stable")
    present, first = np.unique(layers[order], return_index=True)
    for layer, part in zip(present, np.split(values[order], first[1:]), strict=False):  # no layer: one empty part
        medians[layer], known[layer] = int(np.median(part)), True
    return medians, known


def moves_of_steps(run: Run) -> NDArray[Any]:
    """The migrations of the run but those that are done once only."""
    rows: NDArray[Any] = run.migrations[~np.isin(run.migrations["reason"], _ONCE)]
    return rows


def began(run: Run, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """(rows,) whether it is known when these migrations of `run` began: not of those that were refused or given up."""
    known: NDArray[np.bool_] = (rows["start_ns"] != 0) | (run.kind == "simulated")
    return known


def migrated_by_step(run: Run) -> dict[int, int]:
    """Bytes moved in each step of the run, without what is moved once only."""
    rows = moves_of_steps(run)
    found = dict.fromkeys(run.steps["step"].tolist(), 0)
    for step, moved in zip(rows["step"].tolist(), rows["moved_bytes"].tolist(), strict=True):
        if step in found:  # not of a step that is still under way
            found[step] += moved
    return found


def served_fraction(run: Run | None) -> float | None:
    """Bytes touched in the fast tier over bytes touched, over the steps that ran as planned."""
    if run is None:
        return None
    rows = run.layers[np.isin(run.layers["step"], steady_steps(run))]
    touched = int(rows["touched_bytes"].sum())
    return int(rows["served_fast_bytes"].sum()) / touched if touched else None


def _unmanaged(profile: Profile | None, executed: Run | None) -> int | None:
    if executed is not None and len(executed.steps):
        return int(executed.steps["unmanaged_bytes"].max())
    return profile.unmanaged_peak_bytes if profile else None


def _fast_peak(plan: Plan | None, run: Run | None) -> int | None:
    if run is not None and len(run.steps):
        return max(int(run.steps["fast_peak_bytes"].max()), run.counters.fast_peak_bytes)
    return plan.fast_peak_bytes if plan else None


def _migrated(plan: Plan | None, run: Run | None) -> int | None:
    if run is not None:
        by_step, steady = migrated_by_step(run), steady_steps(run)
        return int(np.median([by_step[step] for step in steady])) if steady else None
    return plan.migrated_bytes_per_step if plan else None


def _stall(run: Run | None) -> int | None:
    if run is None:
        return None
    rows = run.steps["stall_ns"][run.steps["in_step"]]
    return int(np.median(rows)) if len(rows) else None


def _gap(plan: Plan | None, predicted: int | None) -> float | None:
    """How far the predicted step lies above the bound, as a share of the bound."""
    if plan is None or not plan.bound_step_ns or predicted is None:
        return None
    return predicted / plan.bound_step_ns - 1


def _cases(plan: Plan | None, run: Run | None) -> dict[str, int] | None:
    if run is not None and (run.kind == "simulated" or any(run.counters.cases.values())):
        return run.counters.cases
    told = plan.details.get("cases") if plan else None
    if not isinstance(told, dict):
        return None
    counts = {str(case): _whole(told.get(str(case), 0)) for case in (1, 2, 3)}
    known = {case: n for case, n in counts.items() if n is not None}
    return known if len(known) == 3 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
