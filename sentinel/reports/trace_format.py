"""Events of the Trace Event Format, for ui.perfetto.dev and chrome://tracing: spans, instants, counters, names."""

from __future__ import annotations

import math
from typing import Any

Event = dict[str, Any]


def process_named(process: int, name: str) -> Event:
    """The process has that name."""
    return _named(process, 0, "process_name", name)


def track_named(process: int, track: int, name: str) -> Event:
    """A track, of the process, has that name."""
    return _named(process, track, "thread_name", name)


def _named(process: int, thread: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def span(track: tuple[int, int], name: str, category: str, times: tuple[int, int], args: Event) -> Event:
    """`track`: process and track. `times`: when it begins and how long it takes, in ns."""
    start_ns, duration_ns = times
    given = {"ts": us(start_ns), "dur": us(max(duration_ns, 0))}
    return {"ph": "X", "pid": track[0], "tid": track[1], "name": name, "cat": category, **given, "args": args}


def instant(track: tuple[int, int], name: str, category: str, at_ns: int, args: Event) -> Event:
    """Something that takes no time, on its track."""
    given = {"ts": us(at_ns), "s": "t"}
    return {"ph": "i", "pid": track[0], "tid": track[1], "name": name, "cat": category, **given, "args": args}


def counter(process: int, name: str, at_ns: int, values: dict[str, int]) -> Event:
    """The values of a counter from then on."""
    return {"ph": "C", "pid": process, "name": name, "ts": us(at_ns), "args": values}


def us(ns: int) -> float:
    """The least number of µs that is `ns` again where it is multiplied by 1,000 and cut off, as Perfetto before 52.0
    does: 1.001 would be 1,000 ns. A layer that began 1 ns early would lie partly within the one before, and be dropped.
    """
    found = ns / 1000
    return found if int(found * 1000) == ns else math.nextafter(found, math.inf)
