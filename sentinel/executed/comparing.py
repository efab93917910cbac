"""The parent: one child per placement, each with the same fast bytes, and what they saw side by side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sentinel.core.errors import CapabilityError, NativeError, SentinelError, UsageError
from sentinel.executed.cgroup import Cgroup, new_cgroup
from sentinel.executed.child import ComparedJob, Line, run_child
from sentinel.executed.memory_pressure import Ballast
from sentinel.executed.node_memory import exact_free_counts, node_promotion_reserve_bytes
from sentinel.executed.placements import ALL_FAST, OURS, PLACEMENTS, Placement, kernel_settings
from sentinel.executed.shared_imports import import_shared, pin_present_pages
from sentinel.executed.touches import NOWHERE
from sentinel.reports.placement_comparison import Ours, Row
from sentinel.session.auto import NO_LOOP
from sentinel.system.parent_end import end_with_parent

_LAST_LINES = 30
_LOOK_EVERY_S = 0.05
Told = dict[str, Any]
Telling = Callable[[str, Callable[[], str]], AbstractContextManager[None]]


class ChildFailed(SentinelError):
    """A placement's child ended without a result."""


def rows(job: ComparedJob, names: Sequence[str], telling: Telling) -> Iterator[tuple[Row, tuple[int, int]]]:
    """(row, room) of each placement of `names`. Ours and all-fast run first: the room of the others is from them.

    `room`: fast bytes that every limited placement gets, and bytes beside them for what is no tensor.
    `telling(what, state)`: says so while that lasts.
    Raises UsageError if the script cannot be measured, ChildFailed if ours or all-fast fails.
    """
    with telling(f"importing what {job.script} imports", str):
        import_shared(job.script)
        pin_present_pages()
    with exact_free_counts():
        known = {}
        for placement in PLACEMENTS[:2]:
            with new_cgroup(job.nodes[0]) as group:
                known[placement.name] = _child(job, placement, telling, group)
        room = _room(known[OURS], known[ALL_FAST])
        by_name = {placement.name: placement for placement in PLACEMENTS}
        for name in names:
            yield _row(job, by_name[name], known, room, telling), room


def _room(ours: Told, stock: Told) -> tuple[int, int]:
    """What all-fast stock took of the node beyond its tensors is what a limited placement gets beside the budget. Its
    tensors: those that were counted there, and no less than the footprint, of which a step may use a part."""
    taken, tensors = stock["free_before_bytes"] - stock["least_free_bytes"], max(stock["tensor_bytes"])
    return int(ours["ours"]["budget_bytes"]), max(taken - max(tensors, ours["ours"]["footprint_bytes"]), 0)


def _row(
    job: ComparedJob, placement: Placement, known: dict[str, Told], room: tuple[int, int], telling: Telling
) -> Row:
    told, ballast = known.get(placement.name), None
    try:
        if told is None:
            with contextlib.ExitStack() as held:
                held.enter_context(kernel_settings(placement, job.weights))
                group = held.enter_context(new_cgroup(job.nodes[0]))
                if placement.limited:
                    left, pressing = _left(job, placement, room), placement.tiering
                    ballast = Ballast(job.nodes[0], left, group, pressing=pressing)
                told = _child(job, placement, telling, group, ballast)
    except (CapabilityError, NativeError, ChildFailed) as error:  # NativeError: of the ballast
        return Row(placement.name, placement.how, skipped=str(error))
    return _row_of(job, placement, told, ballast, known[ALL_FAST])


def _left(job: ComparedJob, placement: Placement, room: tuple[int, int]) -> int:
    """Tiering gets besides what it keeps free: else the smallest budgets would be all reserve."""
    return sum(room) + (node_promotion_reserve_bytes(job.nodes[0]) if placement.tiering else 0)


def _row_of(job: ComparedJob, placement: Placement, told: Told, ballast: Ballast | None, reference: Told) -> Row:
    by_node = {int(node): nbytes for node, nbytes in told["by_node"].items()}
    absent, witness = by_node.pop(NOWHERE, 0), told["witness"]
    had = ballast.had_bytes if ballast else []
    touched = sum(by_node.values())  # what is on no node was an operand, but never written: of scratch space, say
    return Row(
        placement.name,
        placement.how,
        served_share=by_node.get(job.nodes[0], 0) / touched if touched else None,
        touched_bytes=touched // told["measured_steps"] if told["measured_steps"] else None,
        absent_bytes=absent // told["measured_steps"] if told["measured_steps"] else None,
        measured_steps=told["measured_steps"],
        migrated_pages=witness.get("by_reason"),
        migrated_pages_by_step=tuple(witness.get("by_step", ())),
        others_demoted_pages=witness.get("others_demoted"),
        no_witness=witness.get("why", "") or _lost(witness["lost"]),
        mean_tensor_bytes=round(statistics.fmean(told["tensor_bytes"])) if told["tensor_bytes"] else None,
        most_tensor_bytes=max(told["tensor_bytes"], default=None),
        fast_taken_bytes=told["free_before_bytes"] - told["least_free_bytes"],
        left_bytes=ballast.began_bytes if ballast else None,
        least_left_bytes=min(had) if had else None,
        mean_left_bytes=sum(had) // len(had) if had else None,
        most_left_bytes=max(had) if had else None,
        ballast_bytes=ballast.took_bytes if ballast else None,
        same_losses=told["losses"] == reference["losses"],
        same_parameters=told["parameters"] == reference["parameters"],
        ours=_ours(told) if told["ours"] else None,
        unwatched_steps_ns=tuple(told["unwatched_steps_ns"]),
        busy_share=told["busy_share"],
        waited_share=told["waited_share"],
        judged_by=told["judged_by"],
    )


def _lost(records: int) -> str:
    return f"{records:,} records found no room" if records else ""


def _ours(told: Told) -> Ours:
    said, audit = told["ours"], told["audit"] or {}
    present = sum(audit.get(part, 0) for part in ("as_planned_bytes", "elsewhere_bytes", "moving_bytes"))
    return Ours(
        budget_bytes=said["budget_bytes"],
        planned_bytes=said["planned_bytes"],
        footprint_bytes=said["footprint_bytes"],
        residency_share=audit.get("share"),
        moving_share=audit["moving_bytes"] / present if present else None,
        managed_fast_peak_bytes=audit.get("fast_peak_bytes"),
        claimed_pages=said["claimed_pages"],
        witness_pages=said["witness_pages"],
        tracker=said["tracker"],
        counters=said["counters"],
        elsewhere=tuple((layer, block, nbytes) for layer, block, nbytes in audit.get("worst", ())),
    )


def _child(
    job: ComparedJob, placement: Placement, telling: Telling, group: Cgroup | None, ballast: Ballast | None = None
) -> Told:
    """What one forked child saw. `ballast` is taken once the child has its own copy of what it shares, and kept.

    Raises ChildFailed with its last lines, UsageError if too few steps ran, CapabilityError and NativeError for the
    ballast.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sentinel-compare-") as name,
        contextlib.closing(Line()) as line,
    ):
        folder, parent = Path(name), os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                end_with_parent(parent, signal.SIGKILL)  # who is killed cannot end it
                code = run_child(job, placement, folder, line, group)
            finally:
                os._exit(code)
        log = folder / "log"
        with telling(f"{job.script} as {placement.name}", lambda: _last_line(log)), _ending_with_us(pid) as ended:
            ready = line.await_ready()
            with contextlib.nullcontext() if ballast is None or not ready else ballast:
                line.start_job()
                while ballast is not None and not line.ended_within(_LOOK_EVERY_S):
                    ballast.keep()
                status = ended()
        lines = log.read_text(errors="replace").splitlines()
        if status or not (folder / "result.json").exists():
            raise ChildFailed(
                f"{placement.name}: {job.script} failed ({_ending(status)}):\n" + "\n".join(lines[-_LAST_LINES:])
            )
        told: Told = json.loads((folder / "result.json").read_text())
    if told["failed"]:
        raise ChildFailed(f"{placement.name}: {told['failed']}")
    if told["no_loop"] or (placement.name == OURS and not told["ours"]):
        raise UsageError(
            f"{placement.name}: {NO_LOOP if told['no_loop'] else 'no session began'}",
            f"call sentinel.start_profile() and end_profile() in {job.script}",
        )
    if not told["measured_steps"]:
        why = "".join(f"; {note}" for note in (told["ours"] or {}).get("notes", ()))
        raise UsageError(
            f"{placement.name}: {told['steps']} whole steps ran after the profiled one, too few to measure any{why}",
            f"train at least {job.window.warm_up + job.window.measured + 1} more, or lower --warm-up",
        )
    return told


@contextlib.contextmanager
def _ending_with_us(pid: int) -> Iterator[Callable[[], int]]:
    """A call that waits for the child and gives its status. However we leave, the child does not stay."""
    over = False

    def ended() -> int:
        nonlocal over
        status = os.waitpid(pid, 0)[1]
        over = True
        return status

    try:
        yield ended
    finally:
        if not over:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        return lines[-1][:60] if lines else ""
    return ""


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
