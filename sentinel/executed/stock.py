"""A session that leaves everything to stock PyTorch and only follows the layers: how baselines are observed."""

from __future__ import annotations

import torch

from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.core.trace import Phase
from sentinel.profiler import backward, ticks
from sentinel.reports import Report, build_report
from sentinel.session import observing
from sentinel.session.applying import nothing_ran
from sentinel.session.course import State
from sentinel.session.session import Session


class StockSession(Session):
    """Takes the same calls as a Session, and changes neither memory nor its placement."""

    def open(self) -> None:
        """Begin to follow the ticks."""
        self._job.gather()
        self.state = State.RECORDING
        ticks.sink = self

    def end_profile(self) -> Plan:
        """The ring is known now. Returns a provisional plan that places nothing."""
        ring = self._clock.learn()
        self.state = State.WAITING
        return Plan("stock", ring, ("fast", "slow"), (0, 0), (), (), (), (), 0, 0, provisional=True)

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""
        if source == "add_layer" and not self._clock.accepts(torch.is_grad_enabled() or backward.graph_task() != -1):
            return
        identity = self._clock.identify(name, phase)
        if self.state is State.RECORDING:
            return
        layer, length = self._clock.advance(identity), len(self._clock.ring)
        if layer is not None and observing.observer is not None:
            observing.observer.layer_ended((layer - 1) % length, length)

    def step_boundary(self) -> None:
        """See TickSink."""
        self._clock.boundary()

    def stop(self) -> Run:
        """Nothing was applied."""
        if ticks.sink is self:
            ticks.sink = None
        self._job.close()
        self.state = State.ENDED
        return nothing_ran(None)

    def report(self) -> Report:
        """A report of nothing, for scripts that ask for one."""
        return build_report()
