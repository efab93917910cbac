"""One step after another: some warm up, some are looked at by the audit, some by the operators' own touches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.executed.audit import Audit, Ranges
from sentinel.executed.node_memory import node_free_bytes
from sentinel.executed.touches import Touches
from sentinel.runtime import Observer
from sentinel.system import host_load

# In the first one those tensors are not known yet that no operator has touched since it began. Asking takes as long as
# a step where a processor is emulated.
_COUNTED_STEPS = 2
"""Measured steps in which the kernel is asked for the pages of tensors."""


@dataclass(frozen=True)
class Window:
    """Which steps are measured, counted from the first whole one after the profiled step: the first `warm_up` are
    not, the last of them is audited if a plan is applied, then `measured` steps are."""

    warm_up: int = 4
    measured: int = 2


@dataclass
class Observation:
    """What one child saw. `by_node`: bytes touched in the measured steps, node -> bytes. `tensor_bytes`: of
    tensors on the fast node at the end of each layer of the second measured step, or of the only one.

    `least_free_bytes`: of the fast node, at any operator of a measured step or any tick of any step.
    `unwatched_steps_ns`: what each step took that was neither audited nor measured, but the first. `busy_share`,
    `waited_share`, `judged_by`: how busy the host was in these steps; see HostLoad.
    """

    steps: int = 0
    unwatched_steps_ns: list[int] = field(default_factory=list)
    busy_share: float | None = None
    waited_share: float | None = None
    judged_by: host_load.JudgedBy | None = None
    measured_steps: int = 0
    by_node: dict[int, int] = field(default_factory=dict)
    tensor_bytes: list[int] = field(default_factory=list)
    least_free_bytes: int | None = None
    audit: dict[str, Any] | None = None


class StepObserver(Observer):
    """Looks at one training run on `fast_node`. `at_layers` is called at the end of each layer, `at_steps` as the
    first step begins and at the end of each."""

    def __init__(
        self, window: Window, fast_node: int, at_layers: Callable[[], None], at_steps: Callable[[], None]
    ) -> None:
        self.seen = Observation()
        self._window, self._node = window, fast_node
        self._at_layers, self._at_steps = at_layers, at_steps
        self._any_began = False
        self._touches = Touches(on_operator=self._sample)
        self._entered = contextlib.ExitStack()
        self._measuring = self._counts_tensors = False
        self._tensor_bytes: list[int] = []  # of the step that is under way
        self._layer: int | None = None  # under way, since its beginning
        self._plan: tuple[Plan, Machine, Ranges] | None = None
        self._audit: Audit | None = None
        self._ended_ns: int | None = None  # when the step before ended
        self._first_load: host_load.Reading | None = None  # when the first step ended

    def plan_applied(self, plan: Plan, machine: Machine, ranges: Callable[[int], list[tuple[int, int]]]) -> None:
        """See Observer."""
        self._plan = plan, machine, ranges
        self._audit_if_due()

    def step_began(self) -> None:
        """See Observer."""
        self._layer = None  # one that was cut short did not end
        self._tensor_bytes.clear()
        if not self._any_began:
            self._any_began = True
            self._at_steps()

    def layer_began(self, layer: int) -> None:
        """See Observer."""
        self._end_layer()
        self._layer = layer

    def step_ended(self) -> None:
        """See Observer."""
        self._end_layer()
        self._note_time()
        self.seen.steps += 1
        self.seen.measured_steps += self._measuring
        if self._counts_tensors:
            self.seen.tensor_bytes = self._tensor_bytes.copy()
            if self.seen.measured_steps == _COUNTED_STEPS:
                self._counts_tensors = False
                self._touches.room.finish()
        if self._audit is None:
            self._audit_if_due()
        if self.seen.steps == self._window.warm_up:
            self._entered.enter_context(self._touches)
            self._measuring = self._counts_tensors = True
        elif self.seen.steps == self._window.warm_up + self._window.measured:
            self._entered.close()
            self._measuring = self._counts_tensors = False

    def finish(self) -> Observation:
        """The script has ended. What was measured of a step that did not end is dropped with it."""
        self._entered.close()
        self.seen.by_node = dict(self._touches.by_node)
        if self._audit is not None:
            self.seen.audit = {**asdict(self._audit.found), "share": self._audit.found.share, "worst": self._worst()}
        return self.seen

    def _note_time(self) -> None:
        now, before = time.perf_counter_ns(), self._ended_ns
        if self._first_load is None or before is None:
            self._first_load = host_load.read(threading.get_native_id())
        elif self.seen.steps < self._window.warm_up - 1:
            self.seen.unwatched_steps_ns.append(now - before)
            load = host_load.between(self._first_load, host_load.read(threading.get_native_id()))
            self.seen.busy_share, self.seen.waited_share = load.busy_share, load.waited_share
            self.seen.judged_by = load.judged_by
        self._at_steps()
        self._ended_ns = time.perf_counter_ns()  # to read the load takes milliseconds where there are many processes

    def _end_layer(self) -> None:
        if self._layer is None:
            return
        self._sample()
        self._at_layers()
        self._touches.end_layer()
        if self._counts_tensors:
            self._tensor_bytes.append(self._touches.room.nbytes(self._node))
        if self._audit is not None:
            self._audit.after(self._layer)
        self._layer = None

    def _audit_if_due(self) -> None:
        """A plan that takes over within the audited steps is audited from then on, in place of the one before."""
        if self._plan is not None and self.seen.steps >= self._window.warm_up - 1:
            self._audit = Audit(*self._plan)

    def _sample(self) -> None:
        free, least = node_free_bytes(self._node), self.seen.least_free_bytes
        self.seen.least_free_bytes = free if least is None else min(free, least)

    def _worst(self) -> list[tuple[str, str, int]]:
        assert self._plan is not None
        assert self._audit is not None
        plan = self._plan[0]
        most = sorted(self._audit.worst.items(), key=lambda item: -item[1])[:5]
        return [(str(plan.layers[layer]), plan.blocks[block].name or f"block {block}", n) for (layer, block), n in most]
