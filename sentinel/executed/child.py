"""One placement of the job: run in a forked child, which writes what it saw to a file."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import runpy
import select
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.errors import CapabilityError
from sentinel.executed.cgroup import Cgroup
from sentinel.executed.node_memory import node_free_bytes
from sentinel.executed.observer import StepObserver, Window
from sentinel.executed.placements import OURS, Placement, set_policy
from sentinel.executed.shared_imports import own_present_pages
from sentinel.executed.stock import StockSession
from sentinel.migration.sightings import REASONS
from sentinel.migration.witness import MigrationWitness
from sentinel.profiler import names
from sentinel.reports.headline import claimed_pages, witness_pages
from sentinel.runtime import RUNTIME, Observer, observe
from sentinel.session import Overrides, current, set_overrides
from sentinel.session.session import Session
from sentinel.session.witnessing import READ_SHARE

_EVERYWHERE = (0, 1 << 47)
_LOG_ENTRIES = 1 << 18


@dataclass(frozen=True)
class ComparedJob:
    """A script with its arguments, and what ours is asked for.

    `nodes`: the fast one and the slow one. `weights`: of weighted interleave, node -> pages in a row.
    """

    script: str
    arguments: tuple[str, ...]
    nodes: tuple[int, int]
    overrides: Overrides
    window: Window
    weights: dict[int, int]


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
    observer = StepObserver(job.window, job.nodes[0], witness.make_room_in_log)
    watches = observe(trained), observe(observer)
    ours = placement.name == OURS
    set_overrides(job.overrides, Session if ours else StockSession)
    RUNTIME.configured = {}  # what is compared is what was asked for, whatever plan or policy is configured
    if placement.mode is not None:
        set_policy(placement.mode, [job.nodes[name == "slow"] for name in placement.nodes])
    line.ready()  # what watches is there, its log too: what the ballast leaves is the job's alone
    free_before = node_free_bytes(job.nodes[0])
    with _losses() as losses:
        _run(job)
    line.job_ended()
    for watch in watches:
        if watch.raised is not None:  # what it did not see must not pass for what there was
            raise watch.raised
    return {
        **dataclasses.asdict(observer.finish()),
        "free_before_bytes": free_before,
        "losses": hashlib.sha256(b"".join(losses)).hexdigest(),
        "n_losses": len(losses),
        "parameters": trained.digest(),
        "ours": _ours() if ours else None,
        "witness": witness.told(),
    }


def _run(job: ComparedJob) -> None:
    sys.argv = [job.script, *job.arguments]
    sys.path.insert(0, str(Path(job.script).resolve().parent))
    try:
        runpy.run_path(job.script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code:
            raise


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
        total = hashlib.sha256()
        for name, tensor, role in sorted(names.persistent_tensors(self._models, self._optimizers), key=lambda n: n[0]):
            if role != "grad":
                total.update(name.encode())
                total.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return total.hexdigest()


def _ours() -> dict[str, Any] | None:
    """What the plan was and what the engine says it did; None without a session."""
    last = current()
    if last is None:
        return None
    plan, profile, run = last.plan, last.profile, last.stop()
    return {
        "budget_bytes": plan.capacity_bytes[0] if plan else None,
        "footprint_bytes": plan.footprint_bytes if plan else None,
        "planned_per_step_bytes": plan.migrated_bytes_per_step if plan else None,
        "live_peak_bytes": profile.live_peak_bytes if profile else None,
        "tracker": profile.quality.tracker if profile else None,
        "counters": run.counters.counted(),
        "claimed_pages": claimed_pages(run),
        "witness_pages": witness_pages(run),
        "events": [text for _, text in run.events],
        "notes": last.notes,
        "fast_peak_bytes": int(run.steps["fast_peak_bytes"].max(initial=0)),
    }


class _Witness:
    """The same witness of page migrations for every placement; without the right to it, why not."""

    def __init__(self) -> None:
        self._witness, self._why = MigrationWitness(_LOG_ENTRIES), ""
        self._pages: Counter[str] = Counter()
        self._lost = self._wide_demoted = 0
        try:
            self._witness.start([_EVERYWHERE])
        except CapabilityError as error:
            self._why = str(error)

    def make_room_in_log(self) -> None:
        """Makes room in the log, if it fills."""
        if not self._why and self._witness.waiting() > _LOG_ENTRIES * READ_SHARE:
            self._read()

    def told(self) -> dict[str, Any]:
        """Pages that moved: by reason, those asked for by the process itself, and what was lost."""
        if self._why:
            return {"why": self._why}
        self._read(last=True)
        self._witness.stop()
        others = self._wide_demoted - self._pages["demotion"]
        return {"by_reason": dict(+self._pages), "others_demoted": others, "lost": self._lost}

    def _read(self, *, last: bool = False) -> None:
        seen = self._witness.read(last=last)
        self._pages.update({reason: seen.pages(reason=reason) for reason in REASONS})
        self._lost = seen.lost
        self._wide_demoted = seen.machine_wide.get("demotion", (0, 0))[0]


@contextmanager
def _losses() -> Iterator[list[bytes]]:
    """The bytes that backward is called on, in order.

    Read in place: a tensor made here would count among the allocations of the step, by whose order a plan knows them.
    """
    found: list[bytes] = []
    plain = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found.extend(root.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for root in roots)
        plain(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield found
    finally:
        torch.autograd.backward = plain
