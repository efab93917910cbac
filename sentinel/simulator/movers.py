"""The two movers: one a direction, first come first served, waiting for room. Internal times in ns."""

from __future__ import annotations

import math
from collections import deque

from sentinel.core.errors import PlanError
from sentinel.simulator.timeline import Job, Timeline

PROMOTE, DEMOTE = 0, 1

_ROUNDING = 1e-6
"""ns that a sum of floating-point numbers may be off: less does not make a layer a whole ns longer."""


class Movers:
    """Links and room. `now` is the time up to which everything that could happen has happened.

    `submitted_ns`, `started_ns`, `done_ns`: of each job's latest turn, -1 before. `blocked`: whether that turn had
    to wait for room.
    """

    def __init__(self, line: Timeline) -> None:
        self.line = line
        self.now = 0
        self.free_bytes = [cap - held for cap, held in zip(line.capacity_bytes, line.held_bytes, strict=True)]
        n = len(line.jobs)
        self.submitted_ns, self.started_ns, self.done_ns = [-1] * n, [-1] * n, [-1] * n
        self.blocked = [False] * n
        self._queues: tuple[deque[int], deque[int]] = (deque(), deque())
        self._active = [-1, -1]
        self._ends = [0, 0]
        self.least_free_bytes = list(self.free_bytes)  # of each tier, since it was last set
        self._free_of_charge = not any(job.lost_ns for job in line.jobs)

    def submit(self, job: int) -> None:
        """Queue a job now."""
        self.submitted_ns[job], self.started_ns[job], self.done_ns[job] = self.now, -1, -1
        self.blocked[job] = False
        self._queues[self._way(self.line.jobs[job])].append(job)

    def waits_for(self, job: int) -> bool:
        """Whether a job was submitted and is not done."""
        return self.submitted_ns[job] >= 0 and self.done_ns[job] < 0

    def take(self, tier: int, nbytes: int) -> None:
        """Take room in a tier for births; the caller has made sure that there is enough."""
        self.free_bytes[tier] -= nbytes
        self.least_free_bytes[tier] = min(self.least_free_bytes[tier], self.free_bytes[tier])

    def give(self, tier: int, nbytes: int) -> None:
        """Give back the room of the dead."""
        self.free_bytes[tier] += nbytes

    def advance(self, until: int) -> None:
        """Let the movers work until then."""
        while self._active[0] >= 0 or self._active[1] >= 0 or self._queues[0] or self._queues[1]:
            self._start()
            end = self._next_end()
            if end is None or end > until:
                break
            self._finish(end)
        self.now = max(self.now, until)

    def compute(self, work_ns: int) -> int:
        """Let a layer compute that takes `work_ns` alone, while the movers work; returns what it takes beside them.

        A move that takes `lost_ns` from compute does so evenly all the time that it is under way, until nothing is
        left: then the layer stands still.
        """
        begin, left, pace, until = self.now, float(work_ns), 1.0, self.now + work_ns
        while not self._free_of_charge:
            self._start()
            end, pace = self._next_end(), self._pace()
            if end is None or left <= (end - self.now) * pace:
                until = self.now + (math.ceil(left / pace - _ROUNDING) if left else 0)
                break
            left -= (end - self.now) * pace
            self._finish(end)
        self.advance(until)
        return until - begin

    def _pace(self) -> float:
        """What share of its time compute gets beside the moves that are under way."""
        jobs = (self.line.jobs[job] for job in self._active if job >= 0)
        return max(1.0 - sum(job.lost_ns / max(job.duration_ns, 1) for job in jobs), 0.0)

    def step(self, reason: str) -> None:
        """Let the movers work until the next job ends. Raises PlanError if nothing is under way."""
        self._start()
        end = self._next_end()
        if end is None:
            raise PlanError(f"{reason} waits for room that never comes: the plan breaks the law of capacity")
        self._finish(end)

    @staticmethod
    def _way(job: Job) -> int:
        return PROMOTE if job.target < job.source else DEMOTE

    def _next_end(self) -> int | None:
        (one, other), (end, later) = self._active, self._ends
        if one < 0:
            return later if other >= 0 else None
        return end if other < 0 else min(end, later)

    def _finish(self, end: int) -> None:
        self.now = max(self.now, end)
        for way in (DEMOTE, PROMOTE):
            job = self._active[way]
            if job >= 0 and self._ends[way] <= end:
                self._active[way] = -1
                self.done_ns[job] = end
                spec = self.line.jobs[job]
                self.free_bytes[spec.source] += spec.nbytes

    def _start(self) -> None:
        """Start what can start now: a demotion first, since it makes room."""
        for way in (DEMOTE, PROMOTE):
            if self._active[way] >= 0 or not self._queues[way]:
                continue
            if not self.line.full_duplex and max(self._active) >= 0:
                return
            job = self._queues[way][0]
            spec = self.line.jobs[job]
            if self.free_bytes[spec.target] < spec.nbytes:
                self.blocked[job] = True
                continue
            self._queues[way].popleft()
            self.take(spec.target, spec.nbytes)
            self.started_ns[job] = self.now
            self._active[way], self._ends[way] = job, self.now + spec.duration_ns
