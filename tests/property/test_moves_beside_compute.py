"""The event loop against an oracle that goes from one ns to the next: what moves takes its share of each of them."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.simulator.loop import MAX_WARM_STEPS, play
from sentinel.simulator.timeline import Job, Timeline

ROOM = 1 << 40


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Steps of a few short layers, with moves that take nothing, some or all of compute. There is room for all."""
    length = draw(st.integers(1, 4))
    layers = st.integers(0, length - 1)
    jobs, starts, due = [], [[] for _ in range(length)], [[] for _ in range(length)]
    submit = []
    for number in range(draw(st.integers(0, 6))):
        source, took = draw(st.integers(0, 1)), draw(st.integers(1, 150))
        lost = took * draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5]))
        jobs.append(Job(source, 1 - source, 1, took, lost))
        submit.append(draw(layers))
        starts[submit[-1]].append(number)
        due[draw(layers)].append(number)
    none = [[0] * length for _ in range(2)]
    times = draw(st.lists(st.integers(0, 120), min_size=length, max_size=length))
    return Timeline(times, jobs, starts, due, none, none, [], [0, 0], [ROOM, ROOM], draw(st.booleans()), submit)


def oracle(line: Timeline, steps: int) -> list[tuple[int, int]]:
    """(stall, time after it) of each layer of so many steps. Every ns by itself."""
    queues: dict[str, deque[int]] = {"down": deque(), "up": deque()}
    left: dict[str, list[float]] = {}  # direction -> [job, ns that it is still under way]
    open_: set[int] = set()
    found = []

    def begin() -> None:
        for way in ("down", "up"):
            if way not in left and queues[way] and (line.full_duplex or not left):
                job = queues[way].popleft()
                left[way] = [job, line.jobs[job].duration_ns]

    def one_ns() -> None:
        for way in list(left):
            left[way][1] -= 1
            if not left[way][1]:
                open_.discard(int(left.pop(way)[0]))

    for _ in range(steps):
        for layer, work in enumerate(line.duration_ns):
            stall, spent = 0, 0
            for job in line.due_before[layer]:
                while job in open_:
                    begin()
                    one_ns()
                    stall += 1
            for job in line.starts_at[layer]:
                queues["up" if line.jobs[job].target == 0 else "down"].append(job)
                open_.add(job)
            todo = float(work)
            while todo > 1e-6:
                begin()
                taken = sum(line.jobs[int(job)].lost_ns / line.jobs[int(job)].duration_ns for job, _ in left.values())
                todo -= max(1.0 - taken, 0.0)
                one_ns()
                spent += 1
            begin()
            found.append((stall, spent))
    return found


@settings(max_examples=100, deadline=None)
@given(line=timelines())
def test_the_event_loop_does_what_the_oracle_does_ns_by_ns(line: Timeline) -> None:
    steps = MAX_WARM_STEPS + 3
    durations, record = play(line, steps)
    told = list(zip(record.layer_stall_ns, record.layer_spent_ns, strict=True))
    walked, length = oracle(line, MAX_WARM_STEPS + steps), len(line.duration_ns)
    # the loop may have warmed up in fewer steps: what it plays is some stretch of what the oracle walks
    assert any(told == walked[at : at + len(told)] for at in range(0, len(walked) - len(told) + 1, length))
    assert durations == [sum(map(sum, told[i : i + length])) for i in range(0, len(told), length)]
