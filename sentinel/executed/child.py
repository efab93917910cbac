"""One placement of the job: run in a forked child, which writes what it saw to a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from sentinel.core.errors import CapabilityError, UsageError
from sentinel.core.machine import Machine
from sentinel.executed.cgroup import Cgroup
from sentinel.executed.node_memory import node_free_bytes
from sentinel.executed.observer import StepObserver, Window
from sentinel.executed.placements import OURS, Placement, set_policy, weights
from sentinel.executed.shared_imports import own_present_pages
from sentinel.executed.stock import StockSession
from sentinel.executed.trained_bits import digest_of_losses, digest_of_trained, losses, run_script
from sentinel.migration.sightings import REASONS
from sentinel.migration.witness import MigrationWitness
from sentinel.reports.headline import claimed_pages, witness_pages
from sentinel.runtime import RUNTIME, Observer, observe
from sentinel.session import current, set_overrides
from sentinel.session.auto import Follower
from sentinel.session.session import Session
from sentinel.session.witnessing import READ_SHARE

_EVERYWHERE = (0, 1 << 47)
_LOG_ENTRIES = 1 << 18


@dataclass(frozen=True)
class ComparedJob:
    """A script with its arguments, and what ours is asked for.

    `nodes`: the fast one and the slow one. `said`: arguments of its session, which win over the script's. `weights`: of
    weighted interleave, node -> pages in a row.
    """

    script: str
    arguments: tuple[str, ...]
    nodes: tuple[int, int]
    said: Mapping[str, Any]
    window: Window
    weights: dict[int, int]


def compared_job(
    script: str, arguments: Sequence[str], machine: Machine, said: Mapping[str, Any], window: Window
) -> ComparedJob:
    """The job on the two nodes of `machine`. Raises UsageError where its tiers are no nodes."""
    fast, slow = machine.tiers[:2]
    if any(tier.kind != "node" or tier.node is None for tier in machine.tiers):
        raise UsageError(f"--slow {said['slow']} is not a NUMA node", "use numa:1, on a host or machine with two nodes")
    nodes = int(fast.node or 0), int(slow.node or 0)
    pages = weights(fast.read_bytes_per_s, slow.read_bytes_per_s)
    return ComparedJob(script, tuple(arguments), nodes, said, window, dict(zip(nodes, pages, strict=True)))


class Line:
    """Two pipes between parent and child: the child says that it is ready, waits until it is told to go, and says
    when its job is over."""

    def __init__(self) -> None:
        self._said, self._heard = os.pipe(), os.pipe()

    def ready(self) -> None:
        """In the child. Raises EOFError if the parent has gone."""
        os.close(self._heard[1])
        os.write(self._said[1], b"1")
        if not os.read(self._heard[0], 1):
            raise EOFError("the parent has gone")

    def job_ended(self) -> None:
        """In the child: what the job holds goes from now on."""
        os.write(self._said[1], b"2")

    def await_ready(self) -> bool:
        """In the parent, once: whether the child became ready before it ended."""
        os.close(self._said[1])
        return bool(os.read(self._said[0], 1))

    def start_job(self) -> None:
        """In the parent."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._heard[1], b"1")

    def ended_within(self, seconds: float) -> bool:
        """In the parent: whether the child said `job_ended` or ended until then."""
        return bool(select.select([self._said[0]], [], [], seconds)[0])

    def close(self) -> None:
        """In the parent, at the end."""
        for descriptor in (self._said[0], *self._heard):
            os.close(descriptor)


def run_child(job: ComparedJob, placement: Placement, folder: Path, line: Line, group: Cgroup | None) -> int:
    """Run the job in this process, a forked child, in `group`, once it is told to go on `line`. Returns the exit code.

    Writes `log`, the job's output, and `result.json` in `folder`.
    """
    log, result = folder / "log", folder / "result.json"
    with open(log, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        if group is not None:
            group.join()
        own_present_pages()
        seen = _observed(job, placement, line)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    result.write_text(json.dumps(seen))
    return 0


def _observed(job: ComparedJob, placement: Placement, line: Line) -> dict[str, Any]:
    witness, trained = _Witness(), _Trained()
    observer = StepObserver(job.window, job.nodes[0], witness.make_room_in_log, witness.mark)
    watches = observe(trained), observe(observer)
    ours = placement.name == OURS
    set_overrides(job.said, Session if ours else StockSession)
    RUNTIME.configured = {}  # what is compared is what was asked for, whatever plan or policy is configured
    if placement.mode is not None:
        set_policy(placement.mode, [job.nodes[name == "slow"] for name in placement.nodes])
    line.ready()  # what watches is there, its log too: what the ballast leaves is the job's alone
    free_before = node_free_bytes(job.nodes[0])
    follower = Follower()  # of a script that begins no session itself, as `sentinel run` does
    with losses() as found:
        run_script(job.script, job.arguments)
    follower.finish()
    moved = witness.told()  # what is read from now on is not the job's work
    line.job_ended()
    for watch in watches:
        if watch.raised is not None:  # what it did not see must not pass for what there was
            raise watch.raised
    return {
        **dataclasses.asdict(observer.finish()),
        "free_before_bytes": free_before,
        "losses": digest_of_losses(found),
        "n_losses": len(found),
        "parameters": trained.digest(),
        "failed": follower.failed,
        "no_loop": not (follower.done or follower.failed),
        "ours": _ours() if ours else None,
        "witness": moved,
    }


class _Trained(Observer):
    """The modules and optimizers that the script trains, kept until their digest is taken."""

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._optimizers: list[Optimizer] = []

    def session_started(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """See Observer."""
        self._models += [m for m in models if not any(m is other for other in self._models)]
        self._optimizers += [o for o in optimizers if not any(o is other for other in self._optimizers)]

    def digest(self) -> str:
        """Of every parameter, buffer and optimizer state, by name."""
        return digest_of_trained(self._models, self._optimizers)


def _ours() -> dict[str, Any] | None:
    """What the plan was and what the engine says it did; None without a session."""
    last = current()
    if last is None:
        return None
    plan, profile, run = last.plan, last.profile, last.stop()
    return {
        "budget_bytes": plan.capacity_bytes[0] if plan else None,
        "footprint_bytes": plan.footprint_bytes if plan else None,
        "planned_bytes": plan.migrated_bytes_per_step if plan else None,
        "tracker": profile.quality.tracker if profile else None,
        "counters": run.counters.counted(),
        "claimed_pages": claimed_pages(run),
        "witness_pages": witness_pages(run),
        "notes": last.notes,
    }


class _Witness:
    """The same witness of page migrations for every placement; without the right to it, why not."""

    def __init__(self) -> None:
        self._witness, self._why = MigrationWitness(_LOG_ENTRIES), ""
        self._pages: Counter[str] = Counter()
        self._marks: list[Counter[str]] = []
        self._lost = self._wide_demoted = 0
        try:
            self._witness.start([_EVERYWHERE])
        except CapabilityError as error:
            self._why = str(error)

    def make_room_in_log(self) -> None:
        """Makes room in the log, if it fills."""
        if not self._why and self._witness.waiting() > _LOG_ENTRIES * READ_SHARE:
            self._read()

    def mark(self) -> None:
        """What moved until now: as the first step begins, and as each ends."""
        if not self._why:
            self._read()
            self._marks.append(self._pages.copy())

    def told(self) -> dict[str, Any]:
        """Ends watching. Pages that moved until now by reason, in all and in each whole step, of this process and, if
        the kernel demoted them, of others; and what was lost."""
        if self._why:
            return {"why": self._why}
        self._read(last=True)
        self._witness.stop()
        others = self._wide_demoted - self._pages["demotion"]
        by_step = [dict(after - before) for before, after in pairwise(self._marks)]
        return {"by_reason": dict(+self._pages), "by_step": by_step, "others_demoted": others, "lost": self._lost}

    def _read(self, *, last: bool = False) -> None:
        seen = self._witness.read(last=last)
        self._pages.update({reason: seen.pages(reason) for reason in REASONS})
        self._lost = seen.lost
        self._wide_demoted = seen.machine_wide.get("demotion", (0, 0))[0]
