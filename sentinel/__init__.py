"""Sentinel: place the tensors of a training job across fast and slow memory.

    import sentinel

    sentinel.annotate(model, optimizer)
    sentinel.start_profile(fast="20%")
    ...one training step...
    sentinel.end_profile()
    ...keep training...
    sentinel.report().write("report.html")

Without a session, on files that one has saved, on any machine:

    profile, machine = sentinel.load("p.safetensors"), sentinel.load("machine.json")
    plan = sentinel.plan(profile, machine)              # where each tensor lives, and what moves when
    run = sentinel.simulate(plan, profile, machine)     # what that would do
    sentinel.save(plan, "plan.json")

`import sentinel` needs neither torch nor a compiler; the calls that watch a training step do. All errors are
SentinelError, and say what was attempted, what came back and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import (
    CapabilityError,
    FormatError,
    Infeasible,
    NativeError,
    PlanError,
    SentinelError,
    TierError,
    TierFull,
    UsageError,
)
from sentinel.profiler.ticks import add_layer
from sentinel.runtime import Observer, Watch, observe

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from sentinel.core.attribution import attribute as attribute
    from sentinel.core.machine import Machine
    from sentinel.core.plan import Plan
    from sentinel.core.run import Run
    from sentinel.files import load as load
    from sentinel.files import save as save
    from sentinel.planner import plan as plan
    from sentinel.profiler.annotate import Annotation
    from sentinel.reports import Report
    from sentinel.session.placing import Placing
    from sentinel.simulator import simulate as simulate

__version__ = "0.1.0"


def start_profile(
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    fast: str | int | None = None,
    slow: str = "auto",
    tracker: str = "auto",
    policy: str = "sentinel",
    machine: str | os.PathLike[str] | Machine | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
    rate_limit: str | None = None,
    cap: str | int | None = None,
    overlap_optimizer: bool = False,
    keep_fast: str | Sequence[str] | None = None,
    keep_slow: str | Sequence[str] | None = None,
    smallest: str | int | None = None,
) -> None:
    """Begin the profiled step, at any step boundary. Memory is managed from this call on.

    `model`, `optimizer`: one or several, for names and roles; not needed after `annotate`, and may be missing.
    `fast`: budget of fast memory: `"20%"` of the footprint of the all-fast plan, `"8GiB"` or bytes; default: what
    the fast tier has free. `slow`: `"numa:1"`, `"emulated:PRESET"` (a slower node with injected delays), a PRESET to
    plan for only, or `"auto"`: the nearest slower node; without one nothing is applied, and the report says so.
    `"file:DIR"`, or `"file:DIR=64GiB"`: tensors of 1 MiB and more take `fast` bytes of memory, what exceeds them is in
    a file there, read ahead by a recorded step; it is best called before the model is built. `"file:auto"`: on the
    local disk that looks fastest, never the root file system's.
    `cap`: with a file, a size that bounds the whole process with its children: tensors take what the rest leaves of it,
    at most `fast`; default: the container's limit, where there is one and `fast` is not given.
    `overlap_optimizer`: with a file, parameters take their updates within backward, once their gradients are complete,
    and these are freed; after one step was watched, and not where it touches gradients or parameters before its update.
    `tracker`: `"ebpf"`, `"uffd"`, `"perf"`, `"pagemap"`, `"ops"`, or `"auto"`: the most exact that this host allows.
    `policy`: a name of `sentinel.planner.POLICIES`. `machine`: a path, the name of a described machine such as
    `"cxl-m5"`, or a Machine. `plan`: a saved plan to apply at once, without profiling.
    `rate_limit`: migrations go no faster, each way: `"500MB/s"`, `"1GiB/s"`.
    `keep_fast`, `keep_slow`: patterns of names, such as `"embed.*"`: parameters, buffers and optimizer state that stay
    in that memory; `sentinel.keep_fast(tensor)` says it of an object. `smallest`: those that are smaller stay fast.

    Raises UsageError if a session is running or an argument has no meaning, CapabilityError if this host lacks
    something, FormatError if a file is not what it should be; nothing is changed then.
    """
    session = _session()
    session.leave_to_script()
    request = session.Request(
        fast=fast,
        slow=slow,
        tracker=tracker,
        policy=policy,
        machine=machine,
        plan=plan,
        rate_limit=rate_limit,
        cap=cap,
        overlap_optimizer=overlap_optimizer,
        keep_fast=keep_fast,
        keep_slow=keep_slow,
        smallest=smallest,
    )
    session.start_profile(model, optimizer, request)


def end_profile() -> Plan:
    """End the profiled step, plan, and begin to apply, from the next step on. Returns the plan.

    If optimizer state was born in this step the plan is provisional, and the next whole step is profiled by itself.
    """
    made: Plan = _session().end_profile()
    return made


def annotate(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    blocks: Sequence[torch.nn.Module | str] | None = None,
) -> Annotation:
    """Tick by itself: per block forward and backward, and within the optimizer's step. Undo with `.remove()`.

    `blocks`: modules or their names, instead of those that are found. Several models and optimizers add up. Does
    nothing without a session.
    """
    session = _session()
    session.leave_annotations_to_script()
    annotation: Annotation = session.annotate(model, optimizer, blocks=blocks)
    return annotation


def placing(
    *,
    fast: str | int | None = None,
    slow: str = "auto",
    tracker: str = "auto",
    policy: str = "sentinel",
    machine: str | os.PathLike[str] | Machine | None = None,
    plan: str | os.PathLike[str] | Plan | None = None,
    rate_limit: str | None = None,
    cap: str | int | None = None,
    overlap_optimizer: bool = False,
    keep_fast: str | Sequence[str] | None = None,
    keep_slow: str | Sequence[str] | None = None,
    smallest: str | int | None = None,
    report: str | os.PathLike[str] | None = None,
) -> Placing:
    """A context manager around a training loop, whose steps and layers it finds itself: `with placing(fast="20%"):`.

    One of the first steps is watched, and the plan is applied until the `with` ends, also by an exception. Then stock
    allocation is back, annotations that it made are gone, and the report is written to `report`, in the form that the
    suffix names, with the rank in its name where the job has several processes; `sentinel.report()` has it, too. The
    other arguments are those of `start_profile`. Models that are annotated already keep their layers.

    Raises, as the `with` begins, what `start_profile` raises for its arguments, and UsageError for a session that is
    running. From then on what goes wrong costs a sentence on stderr, and the loop trains as it would have.
    """
    session = _session()
    from sentinel.session.placing import Placing

    request = session.Request(
        fast=fast,
        slow=slow,
        tracker=tracker,
        policy=policy,
        machine=machine,
        plan=plan,
        rate_limit=rate_limit,
        cap=cap,
        overlap_optimizer=overlap_optimizer,
        keep_fast=keep_fast,
        keep_slow=keep_slow,
        smallest=smallest,
    )
    return Placing(request, report)


def keep_fast(*kept: torch.Tensor | torch.nn.Module | str) -> None:
    """From the next plan on these stay in fast memory: tensors that live across steps, the parameters and buffers of
    modules, or patterns of names such as `"embed.*"`. The last word on one counts.

    What exceeds the budget is an error of the call that begins a session, as far as that is known there; else, and
    under `sentinel run`, it is a sentence, and nothing is kept fast. Raises UsageError for anything else.
    """
    _session().keep("fast", kept)


def keep_slow(*kept: torch.Tensor | torch.nn.Module | str) -> None:
    """As `keep_fast`: from the next plan on these stay in slow memory, where there is any."""
    _session().keep("slow", kept)


def stop() -> Run:
    """End applying: memory stays valid, stock allocation is back. Returns what was executed."""
    done: Run = _session().stop()
    return done


def report() -> Report:
    """The report of the running session, or of the last one: `.text()`, `.write(path)`, `.frames()`, `.headline`.

    Raises UsageError before any session.
    """
    drawn: Report = _session().report()
    return drawn


def active() -> bool:
    """Whether a session is running."""
    from sentinel.runtime import RUNTIME

    return RUNTIME.sink is not None


def need_torch() -> None:
    """Raises CapabilityError where torch cannot be imported."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise CapabilityError(
            "watching a training step", f"torch cannot be imported ({error})", "pip install 'sentinel-hm[torch]'"
        ) from error


def _session() -> ModuleType:
    need_torch()
    from sentinel import session

    return session


_VERBS = {
    "plan": ("sentinel.planner", "plan"),
    "simulate": ("sentinel.simulator", "simulate"),
    "load": ("sentinel.files", "load"),
    "save": ("sentinel.files", "save"),
    "attribute": ("sentinel.core.attribution", "attribute"),
}


def __getattr__(name: str) -> Any:
    """The verbs `plan`, `simulate`, `attribute`, `load` and `save`, and `integrations`, imported when first used."""
    from importlib import import_module

    if name == "integrations":
        return import_module("sentinel.integrations")
    if name not in _VERBS:
        raise AttributeError(f"module 'sentinel' has no attribute {name!r}")
    module, attribute = _VERBS[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """What is meant for use, with what is imported when first used; and not what this file imports for itself."""
    ours = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *_VERBS, "integrations", *ours})


__all__ = [
    "CapabilityError",
    "FormatError",
    "Infeasible",
    "NativeError",
    "Observer",
    "PlanError",
    "SentinelError",
    "TierError",
    "TierFull",
    "UsageError",
    "Watch",
    "active",
    "add_layer",
    "annotate",
    "end_profile",
    "keep_fast",
    "keep_slow",
    "observe",
    "placing",
    "report",
    "start_profile",
    "stop",
]
