"""SessionContext: what all states of one session work with."""

from __future__ import annotations

from sentinel.core.machine import Machine
from sentinel.core.step_follower import StepFollower
from sentinel.migration.memory import ManagedMemory
from sentinel.session.applying import Applying
from sentinel.session.planning import Dataflow, Planning
from sentinel.session.recording import Recording
from sentinel.session.training_job import TrainingJob
from sentinel.session.witnessing import Witnessing
from sentinel.system.host_load import HostWatch


class SessionContext:
    """The memory that the job's tensors live in, and what records, plans and applies steps of the job there.

    `recorded`: the step recorded last, as long as no plan for it is applied. `notes`: what the report must say, a
    sentence each. `setup_ns`: time that the session took from training so far, but for planning.
    `bytes_per_s`: migrations between nodes go no faster, 0: no limit.
    """

    def __init__(
        self, job: TrainingJob, machine: Machine, planning: Planning, notes: list[str], bytes_per_s: int = 0
    ) -> None:
        self.job, self.machine, self.planning, self.notes = job, machine, planning, notes
        self.memory = ManagedMemory.reserve()
        self.follower = StepFollower()
        self.recording = Recording(self.memory, job)
        self.applying = Applying(self.memory, machine, job, self.follower, bytes_per_s)
        self.witnessing = Witnessing()
        self.host = HostWatch()
        self.recorded = Dataflow()
        self.setup_ns = 0

    @property
    def flow(self) -> Dataflow:
        """That of most steps, where there are several; without a plan that is applied, of the step recorded last."""
        return self.applying.main.flow if self.applying.buckets else self.recorded

    @flow.setter
    def flow(self, flow: Dataflow) -> None:
        if self.applying.buckets:
            self.applying.main.flow = flow
        else:
            self.recorded = flow

    def begin_layer(self) -> None:
        """The allocator gives out the slots of the layer under way; none where that layer is not known."""
        self.memory.tick(self.follower.layer)

    def planned(self, flow: Dataflow) -> Dataflow:
        """`flow` with a plan. Where planning fails, the report still has the profile."""
        self.recorded = flow
        self.recorded = flow = self.planning.planned(flow, self.applying.flows)
        return flow
