"""The last epoch of a loader as a timeline in the Trace Event Format: reads, batches, waits and direct reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.data.feed_facts import FeedFacts
from sentinel.data.served_samples import COUNTS
from sentinel.reports import ReportError
from sentinel.reports.trace_format import Event, instant, process_named, span, track_named

_PROCESS = 1
_OF_BATCH = ("samples", "sample_bytes", "hits", "hit_bytes", "remote_hits", "remote_bytes", "brought", "brought_bytes")
_OF_DIRECT = (
    "direct_reads",
    "direct_bytes",
    "alone_bytes",
    "late",
    "lost",
    "ended",
    "again",
    "apart",
    "gone",
    "damaged",
)


def timeline(facts: FeedFacts) -> dict[str, Any]:
    """Of chunks that are read at once, each is on a track of its own; each worker has one, with its batches, and what
    it waited for within them. Times count from the first event.

    Raises ReportError where the sums of what is shown are not those of the report. Of an epoch of more reads or batches
    than are kept, the last ones are shown, and "otherData" says how many are left out.
    """
    reads, batches = facts.log.reads, facts.log.batches
    left_out = _left_out(facts)
    origin = min(int(rows[name].min(initial=1 << 62)) for rows, name in ((reads, "start_ns"), (batches, "began_ns")))
    events = [process_named(_PROCESS, f"training data, epoch {facts.number}")]
    tracks = _tracks_of(reads)
    n_tracks = int(tracks.max(initial=-1)) + 1
    events += [track_named(_PROCESS, 1 + track, f"reads {track}") for track in range(n_tracks)]
    for row, track in zip(reads, tracks.tolist(), strict=True):
        events.append(_read(row, 1 + track, origin))
    for number, worker in enumerate(np.unique(batches["worker"]).tolist()):
        track = 1 + n_tracks + number
        events.append(track_named(_PROCESS, track, f"worker {worker}" if worker >= 0 else "main process"))
        for row in batches[batches["worker"] == worker]:
            events += _batch(row, track, origin)
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"caveats": facts.caveats, **left_out}}


def _tracks_of(reads: NDArray[np.void]) -> NDArray[np.int64]:
    """(rows,) the lowest number of a track that is free when each of `reads` begins."""
    free_at: list[int] = []
    tracks = np.zeros(len(reads), np.int64)
    for row in np.argsort(reads["start_ns"], kind="stable").tolist():
        start, stop = int(reads["start_ns"][row]), int(reads["stop_ns"][row])
        track = next((number for number, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[track : track + 1] = [stop]
        tracks[row] = track
    return tracks


def _read(row: Any, track: int, origin: int) -> Event:
    failed, start = int(row["nbytes"]) < 0, int(row["start_ns"])
    name, category = f"chunk {row['chunk']}", "read,failed" if failed else "read"
    args = {"chunk": int(row["chunk"]), "nbytes": 0 if failed else int(row["nbytes"])}
    return span((_PROCESS, track), name, category, (start - origin, int(row["stop_ns"]) - start), args)


def _batch(row: Any, track: int, origin: int) -> list[Event]:
    place, began = (_PROCESS, track), int(row["began_ns"])
    counts = {name: int(row[name]) for name in _OF_BATCH}
    found = [span(place, "batch", "batch", (began - origin, int(row["ended_ns"]) - began), counts)]
    if row["wait_ns"]:
        times = int(row["wait_began_ns"]) - origin, int(row["wait_ns"])
        found.append(span(place, "wait", "wait", times, {"waits": int(row["waits"])}))
    if row["direct_reads"]:
        told = {name: int(row[name]) for name in _OF_DIRECT}
        found.append(instant(place, "direct reads", "direct", int(row["alone_ns"]) - origin, told))
    return found


def _left_out(facts: FeedFacts) -> dict[str, int]:
    """How many reads and batches of the epoch are not among those that are kept; nothing where all are.

    Raises ReportError where all are, and their sums are not the report's."""
    log, fed = facts.log, facts.last
    whole = log.reads["nbytes"] >= 0
    if log.has_all_reads:
        _agree("reads of the source", fed.feed.source_reads, int(whole.sum()))
        in_reads = fed.feed.source_bytes - fed.feed.direct_bytes
        _agree("bytes of reads of the source", in_reads, int(log.reads["nbytes"][whole].sum()))
    if log.has_all_batches:
        for name in COUNTS:
            _agree(name, getattr(fed.served, name), int(log.batches[name].sum()))
    found = {}
    if not log.has_all_reads:
        found["reads_left_out"] = fed.feed.source_reads - int(whole.sum())
    if not log.has_all_batches:
        found["samples_of_batches_left_out"] = fed.served.samples - int(log.batches["samples"].sum())
    return found


def _agree(what: str, of_report: int, of_timeline: int) -> None:
    if of_report != of_timeline:
        raise ReportError(f"{what} of an epoch", f"the report has {of_report}", f"the timeline {of_timeline}")
