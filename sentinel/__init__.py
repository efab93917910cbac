"""Sentinel: place the tensors of a training job across fast and slow memory.

    import sentinel

    sentinel.annotate(model, optimizer)
    sentinel.start_profile(fast="20%")
    ...one training step...
    sentinel.end_profile()
    ...keep training...
    sentinel.report().write("report.html")

Without a session, from saved files, on any machine:

    profile, machine = sentinel.load("p.safetensors"), sentinel.load("machine.json")
    plan = sentinel.plan(profile, machine)              # where each tensor lives, and what moves when
    run = sentinel.simulate(plan, profile, machine)     # what that would do
    sentinel.save(plan, "plan.json")

`import sentinel` needs neither torch nor a compiler; the calls that profile a training step do. All errors are
SentinelErrors, and say what was tried, what came back and what to do.
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
    """Begin the profiled step, at any step boundary. From this call on Sentinel manages memory.

    - `model`, `optimizer`: one or several, for names and roles. Optional; not needed after `annotate`.
    - `fast`: the budget of fast memory: a share of the step's footprint (`"20%"`), a size (`"8GiB"`), or bytes.
      Default: all that the fast tier has free.
    - `slow`: where the rest goes. `"auto"`: the nearest slower node; if there is none, nothing is applied, and the
      report says so. `"numa:1"`: that node. `"emulated:PRESET"`: ordinary memory with injected delays. A PRESET alone:
      plan only. `"file:DIR"`, `"file:DIR=64GiB"`: a file, read ahead by a recorded step; tensors of 1 MiB and more take
      `fast` bytes of memory; call it before the model is built. `"file:auto"`: a file on the local disk that looks
      fastest, never on the root file system.
    - `cap`: the size limit of the whole process and its children; tensors get what the rest leaves, at most `fast`.
      Beyond it they are in a file: `slow="auto"` means `"file:auto"` with a cap. Default with a file: the container's
      limit, if there is one and `fast` is not given.
    - `overlap_optimizer`: with a file, update each parameter within backward, as soon as its gradient is complete, and
      free the gradient. Begins after one step was checked; refused if the step touches gradients or parameters
      before its update.
    - `tracker`: `"ebpf"`, `"uffd"`, `"perf"`, `"pagemap"`, `"ops"`, or `"auto"`, the most exact that this host allows.
    - `policy`: a name of `sentinel.planner.POLICIES`.
    - `machine`: a path, the name of a described machine such as `"cxl-m5"`, or a Machine.
    - `plan`: a saved plan to apply at once, without profiling.
    - `rate_limit`: limit for migrations in each direction: `"500MB/s"`, `"1GiB/s"`.
    - `keep_fast`, `keep_slow`: patterns of names, such as `"embed.*"`, of parameters, buffers and optimizer state that
      stay in that memory. `sentinel.keep_fast(tensor)` does the same for an object.
    - `smallest`: parameters, buffers and optimizer state smaller than this stay in fast memory.

    Raises UsageError if a session is running or an argument is wrong, CapabilityError if this host lacks something,
    FormatError if a file is damaged or of another kind. After an error nothing has changed, except that a session which
    `placing` or `sentinel run` began may have ended; it goes on where one of the words above is wrong.
    """
    session = _session()
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
    session.leave_to_script(request)
    session.start_profile(model, optimizer, request)


def end_profile() -> Plan:
    """End the profiled step and plan; the plan is applied from the next step on. Returns the plan.

    If this step created optimizer state, the plan is provisional, and Sentinel profiles the next whole step too.
    """
    made: Plan = _session().end_profile()
    return made


def annotate(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    blocks: Sequence[torch.nn.Module | str] | None = None,
) -> Annotation:
    """Mark the layers of a step by hooks: each block forward and backward, and slices of the optimizer's step.

    `blocks`: modules or their names, instead of those that Sentinel finds. Several calls add up. Without a session the
    hooks do nothing. Undo with `.remove()`.
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
    """A context manager for a training loop: `with placing(fast="20%"):`. It finds steps and layers itself.

    It profiles one of the first steps, and applies the plan until the `with` ends, also by an exception. Then PyTorch's
    own allocator is back, its annotations are removed, and the report is written to `report`, in the form that the
    suffix names; with several processes, the name gets the rank. `sentinel.report()` returns the same report. The other
    arguments are those of `start_profile`. Models that are annotated already keep their layers.

    When the `with` begins, it raises what `start_profile` raises. If something goes wrong later, a sentence on stderr
    says so, and the loop trains without placement.
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
    """From the next plan on, keep these in fast memory: tensors that live across steps, modules (their parameters and
    buffers), or patterns of names such as `"embed.*"`. The last call for a tensor counts.

    If they exceed the budget, the call that begins the session raises an error. If the budget is not known then, or
    under `sentinel run`, a sentence says so instead, and nothing is kept fast. Raises UsageError for other arguments.
    """
    _session().keep("fast", kept)


def keep_slow(*kept: torch.Tensor | torch.nn.Module | str) -> None:
    """As `keep_fast`: from the next plan on, keep these in slow memory, if there is any."""
    _session().keep("slow", kept)


def stop() -> Run:
    """End the session: tensors stay valid, and PyTorch's own allocator is back. Returns the executed Run."""
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


def need_torch(what: str = "profiling a training step") -> None:
    """Raises CapabilityError where torch, which `what` needs, cannot be imported."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise CapabilityError(
            what, f"torch cannot be imported ({error})", "in a checkout: pip install '.[torch]'"
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
_PACKAGES = ("data", "integrations")


def __getattr__(name: str) -> Any:
    """The verbs `plan`, `simulate`, `attribute`, `load`, `save`, and the packages `data` and `integrations`, imported
    when first used."""
    from importlib import import_module

    if name == "data":
        need_torch("reading training data")
    if name in _PACKAGES:
        return import_module(f"sentinel.{name}")
    if name not in _VERBS:
        raise AttributeError(f"module 'sentinel' has no attribute {name!r}")
    module, attribute = _VERBS[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """What is meant for use, with what is imported when first used; and not what this file imports for itself."""
    ours = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *_VERBS, *_PACKAGES, *ours})


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
