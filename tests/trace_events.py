"""A reader of the Trace Event Format by its rules, and by what earlier versions of Perfetto do with numbers, for tests.

It knows nothing of whoever wrote the file, and refuses what either of them would drop, mend or guess. The rules are
those of "Trace Event Format" (Chromium's document). Perfetto's are in its CoerceToTs, TraceSorter and SliceTracker:
times are multiplied by 1,000 as floating-point numbers, and cut off to whole ns, which version 52.0 no longer does;
what has a time below 0 is dropped, and so is a slice that begins within another one of its track and ends after it.
tests/trace_processor.py asks version 52.0 itself.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_COMMON = {"ph", "pid", "tid", "name", "args", "cat"}
_MORE = {"X": {"ts", "dur"}, "B": {"ts"}, "E": {"ts"}, "C": {"ts"}, "M": set[str](), "i": {"ts", "s"}}
_UNITS = ("ms", "ns")
_METADATA = ("process_name", "thread_name")


@dataclass(frozen=True)
class Slice:
    """A span of a track, in whole ns. `depth`: how many slices of its track it lies in."""

    process: str
    thread: str
    name: str
    category: str
    start_ns: int
    duration_ns: int
    depth: int
    args: dict[str, Any]


@dataclass(frozen=True)
class Count:
    """A value of a counter, from `at_ns` on."""

    process: str
    counter: str
    at_ns: int
    value: float


@dataclass(frozen=True)
class Instant:
    """Something on a track that takes no time."""

    process: str
    thread: str
    name: str
    category: str
    at_ns: int
    args: dict[str, Any]


@dataclass
class Traced:
    """All of a file."""

    slices: list[Slice] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)


@dataclass
class _Open:
    event: dict[str, Any]
    start_ns: int
    stop_ns: int | None  # unknown until its E


def read(path: Path) -> Traced:
    """What is in the file at `path`. Raises AssertionError for what is no trace by the rules."""
    whole = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    assert isinstance(whole, dict)
    assert whole.keys() <= {"traceEvents", "displayTimeUnit", "otherData"}, "keys that a viewer does not know"
    assert whole.get("displayTimeUnit", "ms") in _UNITS
    events: list[dict[str, Any]] = whole["traceEvents"]
    for event in events:
        _require_form(event)
    named = _names(events)
    found = Traced()
    for track in dict.fromkeys((event["pid"], event["tid"]) for event in events if event["ph"] in "XBE"):
        mine = [event for event in events if event["ph"] in "XBE" and (event["pid"], event["tid"]) == track]
        assert (track[0], "process_name") in named, f"process {track[0]} has no name"
        assert (*track, "thread_name") in named, f"thread {track} has no name"
        found.slices += _of_track(mine, named[track[0], "process_name"], named[*track, "thread_name"])
    for event in events:
        if event["ph"] == "i":
            names = named[event["pid"], "process_name"], named[event["pid"], event["tid"], "thread_name"]
            told = event["name"], event.get("cat", ""), _ns(event["ts"]), event.get("args", {})
            found.instants.append(Instant(*names, *told))
        if event["ph"] == "C":
            process = named[event["pid"], "process_name"]
            for series, value in event["args"].items():
                assert isinstance(value, int | float), f"counter {event['name']}: {value!r}"
                found.counts.append(Count(process, f"{event['name']} {series}", _ns(event["ts"]), value))
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), f"a key is there twice: {pairs}"
    return found


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _require_form(event: dict[str, Any]) -> None:
    phase = event["ph"]
    assert phase in _MORE, f"phase {phase!r}"
    assert event.keys() <= _COMMON | _MORE[phase], event
    assert event.keys() >= _MORE[phase], event
    for number in ("pid", "tid"):
        given = event.get(number, 0)  # a counter is of the process
        assert type(given) is int, event
        assert 0 <= given < 1 << 32, event
    assert "tid" in event or phase == "C", event
    assert isinstance(event.get("name", "" if phase == "E" else None), str), event
    assert isinstance(event.get("args", {}), dict), event
    assert isinstance(event.get("cat", ""), str), event
    assert event.get("s", "t") == "t", f"an instant that is not of its thread: {event}"
    for time in _MORE[phase] - {"s"}:
        assert type(event[time]) in (int, float), event
        assert math.isfinite(event[time]), event
        assert event[time] >= 0, event


def _ns(microseconds: float) -> int:
    if isinstance(microseconds, int):
        return microseconds * 1000
    found = int(microseconds * 1000.0)
    assert found == round(microseconds * 1000.0), f"{microseconds} µs are {found} ns to one reader, one more to another"
    return found


def _names(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    found: dict[tuple[Any, ...], str] = {}
    for event in events:
        if event["ph"] == "M":
            assert event["name"] in _METADATA, event
            of_process = event["name"] == "process_name"
            key = (event["pid"], event["name"]) if of_process else (event["pid"], event["tid"], event["name"])
            assert key not in found, f"named twice: {event}"
            found[key] = event["args"]["name"]
            assert found[key], event
    return found


def _of_track(events: list[dict[str, Any]], process: str, thread: str) -> list[Slice]:
    """Slices of one track: each lies in another one or beside it."""
    found: list[Slice] = []
    stack: list[_Open] = []

    def slice_of(event: dict[str, Any], start_ns: int, duration_ns: int, depth: int) -> Slice:
        told = event.get("cat", ""), start_ns, duration_ns, depth, event.get("args", {})
        return Slice(process, thread, event["name"], *told)

    for event in sorted(events, key=lambda each: _ns(each["ts"])):  # stable, as Perfetto sorts
        now = _ns(event["ts"])
        while stack and (stop := stack[-1].stop_ns) is not None and stop <= now:
            stack.pop()
        if event["ph"] == "E":
            assert stack, f"an end without a beginning: {event}"
            begun = stack.pop()
            assert begun.stop_ns is None, f"an end within {begun.event}: {event}"
            assert event.get("name", begun.event["name"]) == begun.event["name"], f"{event} ends {begun.event}"
            found.append(slice_of(begun.event, begun.start_ns, now - begun.start_ns, len(stack)))
            continue
        stop_ns = now + _ns(event["dur"]) if event["ph"] == "X" else None
        for around in stack:
            if stop_ns is not None and around.stop_ns is not None:
                assert stop_ns <= around.stop_ns, f"{event} begins in {around.event} and ends after it: it is dropped"
        if stop_ns is not None:
            found.append(slice_of(event, now, stop_ns - now, len(stack)))
        stack.append(_Open(event, now, stop_ns))
    assert all(each.stop_ns is not None for each in stack), f"without an end: {[each.event for each in stack]}"
    return found
