"""One workload under one placement, trained in this process, a child of the proof: one clock for all placements."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from sentinel import session
from sentinel.core.errors import UsageError
from sentinel.executed.trained_bits import digest_of_losses, digest_of_trained, losses, run_script
from sentinel.migration import rates
from sentinel.proving.orders import TrainingOrder
from sentinel.runtime import RUNTIME
from sentinel.session.auto import Follower
from sentinel.system import host_load
from sentinel.tiers.file_tier import is_file

TOLD = (
    "policy",
    "tracker",
    "fast_capacity_bytes",
    "fast_peak_bytes",
    "fast_mean_bytes",
    "fast_served_fraction",
    "migrated_bytes_per_step",
    "stall_ns_per_step",
    "moved_pages",
    "witness_pages",
)
"""Of the report's headline."""
_MISMATCH = "the saved plan does not match"


class StepClock:
    """Hears each step of every optimizer, and which modules run forward until the second step of training.

    `judged_from`: the step, from 0, from which on the host's load counts.
    """

    def __init__(self, judged_from: int) -> None:
        self._judged_from = judged_from
        self.times_ns: list[int] = []
        self.optimizers: list[Optimizer] = []
        self.loads: list[host_load.Reading] = []
        self._modules: dict[int, nn.Module] = {}
        self._thread = threading.get_native_id()
        self._forward = register_module_forward_pre_hook(self._before_forward)
        self._steps = register_optimizer_step_post_hook(self._after_step)

    def models(self) -> list[nn.Module]:
        """The outermost of the modules that ran."""
        inner = {id(child) for module in self._modules.values() for child in module.modules() if child is not module}
        return [module for module in self._modules.values() if id(module) not in inner]

    def steps_ns(self, steps: int) -> list[int]:
        """What each of the script's `steps` took but the first. Raises UsageError where they cannot be told apart."""
        each, rest = divmod(len(self.times_ns), steps)
        if rest or not each:
            raise UsageError(
                f"{len(self.times_ns)} steps of optimizers in {steps} steps of training",
                "let the script take --steps, and step each optimizer equally often in each",
            )
        ends = self.times_ns[each - 1 :: each]
        return [end - begin for begin, end in pairwise(ends)]

    def load(self) -> dict[str, Any]:
        """How busy the host was in the judged steps; see HostLoad."""
        found = host_load.between(self.loads[0], self.loads[-1]) if len(self.loads) > 1 else None
        return {name: getattr(found, name, None) for name in ("busy_share", "waited_share", "judged_by")}

    def _before_forward(self, module: nn.Module, _inputs: Any) -> None:
        self._modules.setdefault(id(module), module)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        steps = len(self.times_ns) + 1
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        elif steps > 2 * len(self.optimizers):
            self._forward.remove()
        if steps == self._judged_from * len(self.optimizers):
            self.loads = [host_load.read(self._thread)]  # takes milliseconds, which no judged step is to have
        self.times_ns.append(time.perf_counter_ns())

    def end(self) -> None:
        """The script has ended: nothing more is heard."""
        self.loads.append(host_load.read(self._thread))
        self._forward.remove()
        self._steps.remove()


def trained(order: TrainingOrder) -> dict[str, Any]:
    """Train, and tell what steps took, what was computed, and what Sentinel says of it."""
    clock = StepClock(order.steps - order.judged)
    found = train(order)
    clock.end()
    told = _told_by_session() if order.said is not None else {}
    steps_ns = clock.steps_ns(order.steps)
    return {
        "steps_ns": steps_ns[-order.judged :],
        "losses": digest_of_losses(found),
        "n_losses": len(found),
        "parameters": digest_of_trained(clock.models(), clock.optimizers),
        **clock.load(),
        **told,
    }


def train(order: TrainingOrder) -> Sequence[bytes]:
    """Run the script as it is, or under what is said of its session; its losses."""
    RUNTIME.configured = {}  # what is proved is what the order says, whatever is configured here
    for dtype in (torch.float32, torch.float64):  # as start_profile does, so that stock runs agree too: decision 120
        torch.ones(1, dtype=dtype).sqrt()
    follower = None
    if order.said is not None:
        session.set_overrides(order.said)
        follower = Follower()
        if is_file(order.said.get("slow")):
            session.start_profile()
            follower.give_way()
    with losses() as found:
        run_script(order.script, order.arguments)
    if follower is not None:
        follower.finish()
    return found


def _told_by_session() -> dict[str, Any]:
    """Of the session, which ends here: then memory is ordinary again. Raises UsageError where none began."""
    last = session.current()
    if RUNTIME.sink is not None:
        session.stop()
    report = session.report() if last is None else last.report(bounded=False)
    headline, machine, executed = report.headline, report.machine, report.executed
    notes = list(last.notes) if last is not None else []
    links = [] if machine is None or executed is None else rates.link_rates(machine, executed)
    return {
        "done": headline.get("kind"),
        **{name: headline.get(name) for name in TOLD},
        "as_planned": not any(note.startswith(_MISMATCH) for note in notes),
        "notes": [note for note in notes if not note.startswith(rates.SHORT)],  # `links` has what they say
        "links": [{**link._asdict(), "kept_up": link.kept_up} for link in links],
    }
