"""A session that leaves everything to stock PyTorch and only follows the layers: how baselines are observed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.plan import Plan
from sentinel.core.run import Run
from sentinel.core.step_follower import StepFollower
from sentinel.core.trace import Phase
from sentinel.profiler import backward
from sentinel.reports import Report, build_report
from sentinel.runtime import RUNTIME, tell, tell_of_layer
from sentinel.session.applying import nothing_ran
from sentinel.session.request import Request
from sentinel.session.training_job import TrainingJob


class StockSession:
    """Takes the same calls as a Session, and changes neither memory nor its placement."""

    def __init__(self, _request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._job = TrainingJob(models, optimizers)
        self._follower = StepFollower()

    def open(self) -> None:
        """Begin to follow the ticks."""
        self._job.add_annotated()
        RUNTIME.sink = self
        tell(lambda each: each.session_started(self._job.models, self._job.optimizers))

    @property
    def profiling(self) -> bool:
        """See BegunSession."""
        return not self._follower.layers

    def end_profile(self) -> Plan:
        """The layers of a step are known now. Returns a provisional plan that places nothing."""
        layers = self._follower.learn()
        tell_of_layer(0, ended=False)
        return Plan("stock", layers, ("fast", "slow"), (0, 0), (), (), (), (), 0, 0, provisional=True)

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""
        follower = self._follower
        if source == "add_layer" and not follower.accepts(torch.is_grad_enabled() or backward.graph_task() != -1):
            return
        at = follower.tick((name, phase))
        if follower.layers and at.layer is not None and RUNTIME.watches:
            tell_of_layer(at.layer, ended=at.ended != "cut short")

    def step_boundary(self) -> None:
        """See TickSink."""
        self._follower.boundary()

    def stop(self) -> Run:
        """Nothing was applied."""
        self._job.close()
        if RUNTIME.sink is self:
            tell(lambda each: each.session_ended())
            RUNTIME.sink = None
        return nothing_ran(None)

    def report(self, *, bounded: bool = True) -> Report:  # noqa: ARG002 - a BegunSession is asked so
        """A report of nothing, for scripts that ask for one."""
        return build_report()
