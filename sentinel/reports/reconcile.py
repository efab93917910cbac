"""Sums that must agree before anything is shown. Each check compares two ways to the same number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core import laws
from sentinel.core.errors import PlanError, SentinelError
from sentinel.core.plan import Plan, ring_sum
from sentinel.core.profile import Profile
from sentinel.core.run import OUTCOMES, Run
from sentinel.reports.section import Frames


class ReportError(SentinelError):
    """Two sums that must agree do not: the report refuses rather than show either."""

    def __init__(self, what: str, left: str, right: str) -> None:
        self.what, self.left, self.right = what, left, right
        super().__init__(
            f"report refused: {what}: {left}, but {right}; the inputs do not belong together, or one is damaged:"
            " draw the report from the files of one session"
        )


def reconcile(profile: Profile | None, plan: Plan | None, runs: tuple[Run, ...]) -> None:
    """Raise ReportError at the first pair of sums that differs."""
    if profile is not None:
        _footprint(profile)
    if profile is not None and plan is not None:
        _agree("layers of a step", "the profile has {}", profile.n_layers, "the plan is for {}", plan.n_layers)
    if plan is not None:
        _held(plan)
    for run in runs:
        _run_alone(run)
        if plan is not None:
            _run_of_plan(run, plan)
    if profile is not None and plan is not None:
        _of_profile(plan, profile)


def tables_agree(frames: Frames, run: Run | None) -> None:
    """Raise ReportError unless the tables of a session's report say the same as each other."""
    moves, steps = frames["migrations"], frames["steps"]
    if run is not None:
        in_steps = ~moves["reason"].isin(["initial", "restore"]) & moves["step"].isin(steps["step"])
        moved, by_step = int(moves["moved_bytes"][in_steps].sum()), int(steps["migrated_bytes"].sum())
        _agree("migrated bytes", "the migrations add up to {}", moved, "the steps to {}", by_step)
    if "footprint" in frames:
        roles, rows = int(frames["footprint"]["nbytes"].sum()), frames["tensors"]
        tensors = int((rows["nbytes"] * rows["lifetime_layers"]).sum())
        _agree("byte-layers", "the roles add up to {}", roles, "the tensors to {}", tensors)


def _agree(what: str, left: str, a: Any, right: str, b: Any) -> None:
    """Raise ReportError, with `a` and `b` in its sentences, unless they are equal."""
    if a != b:
        raise ReportError(what, left.format(a), right.format(b))


def _none(wrong: NDArray[np.bool_], rows: NDArray[Any], what: str, left: str, right: str) -> None:
    """Raise ReportError, its sentences naming columns of the row in braces, for the first of `rows` that is `wrong`."""
    if wrong.any():
        row = rows[wrong.argmax()]
        columns = {name: row[name] for name in rows.dtype.names or ()}
        raise ReportError(*(sentence.format(**columns) for sentence in (what, left, right)))


def _of_profile(plan: Plan, profile: Profile) -> None:
    """The laws that tie a plan to its profile: it names these tensors, in their sizes, and each has a home."""
    try:
        laws.check(plan, profile)
    except PlanError as error:
        raise ReportError(
            "plan and profile",
            f"the profile has {len(profile.tensors)} tensors",
            f"the plan does not fit them: {error}",
        ) from error


def _footprint(profile: Profile) -> None:
    """Bytes alive by role against bytes alive by tensor."""
    rows = profile.tensors
    zero = np.zeros(len(rows), np.int64)
    by_tensor = ring_sum(zero, rows["start"], rows["stop"], rows["nbytes"], 1, profile.n_layers)[0]
    total = profile.live_bytes_by_role().sum(axis=0)
    layer = int((total != by_tensor).argmax())  # the first that differs, if one does
    _agree(
        f"footprint in layer {layer}",
        "the roles add up to {} bytes",
        total[layer],
        "the tensors to {}",
        by_tensor[layer],
    )
    if profile.live_peak_bytes > int(total.max()):
        raise ReportError(
            "live peak",
            f"the profile says {profile.live_peak_bytes} bytes",
            f"no layer has more than {total.max()} alive",
        )


def _held(plan: Plan) -> None:
    """What the plan's blocks hold against its budgets, and its migrations against their blocks."""
    held = plan.held_bytes.max(axis=1, initial=0)
    for tier, capacity in enumerate(plan.capacity_bytes):
        if held[tier] > capacity:
            raise ReportError(
                f"tier {plan.tier_names[tier]}",
                f"the plan's blocks hold {held[tier]} bytes",
                f"its budget is {capacity}",
            )
    for move in plan.migrations:
        nbytes = plan.blocks[move.block].nbytes
        _agree(f"block {move.block}", "a migration moves {} bytes", move.nbytes, "the block has {}", nbytes)


def _run_alone(run: Run) -> None:
    moves, layers, steps = run.migrations, run.layers, run.steps
    of_move = "migration of block {block} in step {step}"
    _none(
        (moves["moved_bytes"] > moves["nbytes"]) | (moves["moved_bytes"] < 0),
        moves,
        of_move,
        "{moved_bytes} bytes were moved",
        "{nbytes} were to be",
    )
    # On real nodes pages that were there already, or never touched, are part of what is done.
    all_move = run.kind == "simulated" or run.emulated
    _none(
        (moves["outcome"] == OUTCOMES.index("done")) & (moves["moved_bytes"] != moves["nbytes"]) & all_move,
        moves,
        of_move,
        "it is called done with {moved_bytes} bytes",
        "{nbytes} were to be moved",
    )
    _none(
        layers["served_fast_bytes"] > layers["touched_bytes"],
        layers,
        "layer {layer} of step {step}",
        "{served_fast_bytes} bytes were served from the fast tier",
        "{touched_bytes} were touched",
    )
    # No layer holds more than the budget, unless the run itself tells of it (then it is a caveat).
    told = run.counters.overflows or run.counters.overflow_bytes or run.counters.kernel_placed_pages
    _none(
        (layers["fast_bytes"] > run.fast_capacity_bytes) & (not told),
        layers,
        "fast tier in layer {layer} of step {step}",
        f"the {run.kind} run held {{fast_bytes}} bytes",
        f"the budget is {run.fast_capacity_bytes} and the run counted no overflow",
    )
    _steps_of_run(run)
    _agree("steps of a run", "it has {} rows", len(steps), "{} numbers", len(set(steps["step"].tolist())))


def _steps_of_run(run: Run) -> None:
    """Stalls, peaks and times of a step against those of its layers."""
    layers = run.layers
    for step in run.steps[run.steps["in_step"]]:
        rows = layers[layers["step"] == step["step"]]
        if not len(rows):
            continue
        number, stalls = int(step["step"]), int(rows["stall_ns"].sum())
        if stalls > step["stall_ns"] + len(rows):
            raise ReportError(
                f"stalls of step {number}", f"its layers waited {stalls} ns", f"the step {step['stall_ns']} ns"
            )
        peak = int(rows["fast_bytes"].max())
        if peak > step["fast_peak_bytes"]:
            raise ReportError(
                f"fast peak of step {number}", f"a layer held {peak} bytes", f"the step says {step['fast_peak_bytes']}"
            )
        took, whole = int(rows["duration_ns"].sum()), int(step["duration_ns"])
        slack = len(rows) if run.kind == "simulated" else whole // 100 + 1_000_000  # clocks are read one after another
        if took > whole + slack or (run.kind == "simulated" and took < whole - slack):
            raise ReportError(f"time of step {number}", f"its layers took {took} ns", f"the step {whole} ns")


def _run_of_plan(run: Run, plan: Plan) -> None:
    if run.tier_names != plan.tier_names:
        raise ReportError("tiers", f"the run has {', '.join(run.tier_names)}", f"the plan {', '.join(plan.tier_names)}")
    if len(run.layers) and int(run.layers["layer"].max()) >= plan.n_layers:
        raise ReportError(
            "layers of a step",
            f"the run has layer {run.layers['layer'].max()}",
            f"the plan is for {plan.n_layers} layers",
        )
    moves, sizes = run.migrations, plan.block_columns.nbytes
    if len(moves) and int(moves["block"].max()) >= len(sizes):
        raise ReportError("blocks", f"the run moved block {moves['block'].max()}", f"the plan has {len(sizes)}")
    bad = np.flatnonzero(moves["nbytes"] > sizes[moves["block"]])
    if len(bad):
        row = moves[bad[0]]
        raise ReportError(
            f"block {row['block']}",
            f"a migration of the run has {row['nbytes']} bytes",
            f"the block {sizes[row['block']]}",
        )
