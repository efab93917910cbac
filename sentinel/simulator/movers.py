"""The two movers: one a direction, first come first served, waiting for room. Internal times in ns."""

from __future__ import annotations

import math
from collections import deque

from sentinel.core.errors import PlanError
from sentinel.simulator.timeline import Timeline

PROMOTE, DEMOTE = 0, 1

_NEVER = 1 << 100
"""ns: when a mover that has nothing to do ends. No time of a Timeline comes near it (see MOST_NS)."""

MOST_NS = 1 << 62
"""Of all steps that are simulated together: tables of times have 64 bits."""

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
        self._ways = [PROMOTE if job.target < job.source else DEMOTE for job in line.jobs]
        self._queues: tuple[deque[int], deque[int]] = (deque(), deque())
        self._active = [-1, -1]
        self._ends = [_NEVER, _NEVER]
        self.least_free_bytes = list(self.free_bytes)  # of each tier, since it was last set
        self._free_of_charge = not any(job.lost_ns for job in line.jobs)

    def submit(self, job: int) -> None:
        """Queue a job now."""
        self.submitted_ns[job], self.started_ns[job], self.done_ns[job] = self.now, -1, -1
        self.blocked[job] = False
        self._queues[self._ways[job]].append(job)

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
        while True:
            end = self._next_end()
            if end > until:
                break
            self._finish(end)
        self.now = max(self.now, until)

    def compute(self, work_ns: int) -> int:
        """Let a layer compute that takes `work_ns` alone, while the movers work; returns what it takes beside them.

        A move that takes `lost_ns` from compute does so evenly all the time that it is under way, until nothing is
        left: then the layer stands still.
        """
        begin, left, until = self.now, float(work_ns), self.now + work_ns
        while not self._free_of_charge:
            end, pace = self._next_end(), self._pace()
            if end == _NEVER or left <= (end - self.now) * pace:
                until = self.now + (math.ceil(left / pace - _ROUNDING) if left else 0)
                break
            left -= (end - self.now) * pace
            self._finish(end)
        self.advance(until)
        return until - begin

    def state(self) -> tuple[object, ...]:
        """What decides all that happens from now on, times counted from now: the same again means the same again."""
        since = [done - self.now if done >= 0 else None for done in self.done_ns]
        waits = [submitted >= 0 for submitted in self.submitted_ns]
        ends = [end - self.now for end, job in zip(self._ends, self._active, strict=True) if job >= 0]
        queues = [list(queue) for queue in self._queues]
        return list(self.free_bytes), list(self._active), ends, queues, since, waits, list(self.blocked)

    def _pace(self) -> float:
        """What share of its time compute gets beside the moves that are under way."""
        jobs = (self.line.jobs[job] for job in self._active if job >= 0)
        return max(1.0 - sum(job.lost_ns / max(job.duration_ns, 1) for job in jobs), 0.0)

    def step(self, reason: str) -> None:
        """Let the movers work until the next job ends. Raises PlanError if nothing is under way."""
        end = self._next_end()
        if end == _NEVER:
            raise PlanError(f"{reason} waits for room that never comes: the plan breaks the law of capacity")
        self._finish(end)

    def _next_end(self) -> int:
        """Start what can start now; returns when the next job ends."""
        if self._queues[0] or self._queues[1]:
            self._start()
        one, other = self._ends
        return one if one < other else other

    def _finish(self, end: int) -> None:
        self.now = max(self.now, end)
        for way in (DEMOTE, PROMOTE):
            if self._ends[way] <= end:
                job = self._active[way]
                self._active[way], self._ends[way] = -1, _NEVER
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
