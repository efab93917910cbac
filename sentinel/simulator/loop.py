"""The event loop over layers: who waits for whom, by `core.schedule`."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.simulator.movers import Movers
from sentinel.simulator.timeline import Timeline

MAX_WARM_STEPS = 4
"""Steps played before the ones that count, so that what is in flight across the step's end settles."""


@dataclass
class Record:
    """What happened: one list entry a layer, in order, and one a migration."""

    layer_start_ns: list[int] = field(default_factory=list)
    layer_stall_ns: list[int] = field(default_factory=list)
    layer_spent_ns: list[int] = field(default_factory=list)  # after the stall, moves beside it included
    layer_held_bytes: list[list[int]] = field(default_factory=list)  # most in each tier
    layer_slow_bytes: list[int] = field(default_factory=list)  # in all slower ones at the end
    jobs: list[tuple[int, int, int, int, int, bool, bool]] = field(default_factory=list)
    """(step, layer submitted, job, start_ns, stop_ns, late, waited for room)"""


def play(line: Timeline, steps: int) -> tuple[list[int], Record]:
    """Durations in ns of `steps` steady steps, and their Record; times count from the first of them."""
    movers = Movers(line)
    movers.advance(0)
    for job in line.pending:
        movers.submit(job)
    before, state = -1, movers.state()
    for _ in range(MAX_WARM_STEPS):
        begin, record = movers.now, Record()
        _one_step(line, movers, record, 0)
        earlier, state = state, movers.state()
        if state == earlier:  # so it goes on for ever
            return _repeated(record, begin, movers.now - begin, steps)
        if movers.now - begin == before:
            break
        before = movers.now - begin
    zero, record, durations = movers.now, Record(), []
    for step in range(steps):
        begin = movers.now
        _one_step(line, movers, record, step)
        durations.append(movers.now - begin)
    record.layer_start_ns = [t - zero for t in record.layer_start_ns]
    record.jobs = [(s, k, j, a - zero, b - zero, late, room) for s, k, j, a, b, late, room in record.jobs]
    return durations, record


def _repeated(step: Record, begin: int, duration: int, steps: int) -> tuple[list[int], Record]:
    """`steps` steps that are all like this one, which began at `begin`."""
    begins = [(number, number * duration - begin) for number in range(steps)]
    record = Record(
        [at + t for _, at in begins for t in step.layer_start_ns],
        step.layer_stall_ns * steps,
        step.layer_spent_ns * steps,
        step.layer_held_bytes * steps,
        step.layer_slow_bytes * steps,
        [(n, k, j, at + a, at + b, late, room) for n, at in begins for _, k, j, a, b, late, room in step.jobs],
    )
    return [duration] * steps, record


def _one_step(line: Timeline, movers: Movers, record: Record, step: int) -> None:
    room = zip(zip(*line.dead_bytes, strict=True), zip(*line.born_bytes, strict=True), strict=True)
    by_layer = zip(line.duration_ns, line.due_before, line.starts_at, room, strict=True)
    for layer, (duration, due, starts, (died, born)) in enumerate(by_layer):
        tick = movers.now
        movers.least_free_bytes = list(movers.free_bytes)
        if due:
            _await_due(line, movers, record, step, layer, tick)
        for tier, nbytes in enumerate(died):
            if nbytes:
                movers.give(tier, nbytes)
        if movers.now == tick:  # what died held nothing of this layer's time
            movers.least_free_bytes = list(movers.free_bytes)
        for job in starts:
            movers.submit(job)
        for tier, nbytes in enumerate(born):
            while nbytes > movers.free_bytes[tier]:
                movers.step(f"a birth in layer {layer}")
            if nbytes:
                movers.take(tier, nbytes)
        stall = movers.now - tick
        spent = movers.compute(duration)
        record.layer_start_ns.append(tick)
        record.layer_stall_ns.append(stall)
        record.layer_spent_ns.append(spent)
        most = [capacity - free for capacity, free in zip(line.capacity_bytes, movers.least_free_bytes, strict=True)]
        record.layer_held_bytes.append(most)
        record.layer_slow_bytes.append(sum(line.capacity_bytes[1:]) - sum(movers.free_bytes[1:]))


def _await_due(line: Timeline, movers: Movers, record: Record, step: int, layer: int, tick: int) -> None:
    for job in line.due_before[layer]:
        if movers.submitted_ns[job] < 0:
            continue  # the first warm step: it would have been submitted in the step before
        while movers.waits_for(job):
            movers.step(f"layer {layer}")
        done, spec = movers.done_ns[job], line.jobs[job]
        submitted = line.submit_layer[job]
        record.jobs.append((step, submitted, job, done - spec.duration_ns, done, done > tick, movers.blocked[job]))
