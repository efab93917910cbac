"""A session that leaves everything to stock PyTorch and only follows the layers: how baselines are observed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.core.trace import Phase
from sentinel.profiler import backward, ticks
from sentinel.reports import Report, build_report
from sentinel.session import observing
from sentinel.session.applying import nothing_ran
from sentinel.session.position import StepPosition
from sentinel.session.request import Request
from sentinel.session.session import Session


class StockSession(Session):
    """Takes the same calls as a Session, and changes neither memory nor its placement."""

    def __init__(self, request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        super().__init__(request, models, optimizers)
        self._position = StepPosition()

    @property
    def profiling(self) -> bool:
        """Whether `end_profile()` is still to come."""
        return ticks.sink is self and not self._position.layers

    @property
    def cut_short(self) -> bool:
        """Never: there is nothing to undo."""
        return False

    @property
    def ended_by_itself(self) -> bool:
        """Whether it is over: then a call of `stop()` does no harm."""
        return ticks.sink is not self

    def open(self) -> None:
        """Begin to follow the ticks."""
        self._job.add_annotated()
        ticks.sink = self

    def end_profile(self) -> Plan:
        """The layers of a step are known now. Returns a provisional plan that places nothing."""
        layers = self._position.learn()
        return Plan("stock", layers, ("fast", "slow"), (0, 0), (), (), (), (), 0, 0, provisional=True)

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""
        position = self._position
        if source == "add_layer" and not position.accepts(torch.is_grad_enabled() or backward.graph_task() != -1):
            return
        layer, length = position.advance((name, phase)), len(position.layers)
        if length and layer is not None and observing.observer is not None:
            observing.observer.layer_ended((layer - 1) % length, length)

    def step_boundary(self) -> None:
        """See TickSink."""
        self._position.boundary()

    def stop(self) -> Run:
        """Nothing was applied."""
        if ticks.sink is self:
            ticks.sink = None
        self._job.close()
        return nothing_ran(None)

    def report(self) -> Report:
        """A report of nothing, for scripts that ask for one."""
        return build_report()
