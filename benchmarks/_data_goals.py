"""What loaders of training data were to reach, and what they reached: from what the benchmarks have written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from benchmarks._bench import paired
from benchmarks.data import AUTO, BLOCKS, EXACT, HALF, LAST_USED, MDS, MOSAIC, PLAIN, REDIRECT, SIXTEEN, UNITS, WINDOWED

Told = Mapping[str, Any]
IDLE = 0.1
"""Of the processors, the share that others may have had while times were taken that a page states."""
NOT_MEASURED, NOT_RECORDED, BUSY = "not measured", "load not recorded", "host was busy"
"""Why there is no figure. Times count only where it was recorded that the host did little else."""
NOISES = (0.0, 0.1, 0.3)
"""Shares of wrong labels that benchmarks.importance trains with."""
_CACHED, _ONE, _SIXTEEN, _DISK, _UNLIKE = range(5)
"""Sources of benchmarks.data."""
_CLOSE_CACHED, _CLOSE_SIXTEEN, _CLOSE_DISK = range(3)
"""Those of benchmarks.data --closely."""


class Goal(NamedTuple):
    """`what` was to be `wanted`. `figure`: what it is, None where that is not known, for the reason `unknown`; `met`:
    whether it will do."""

    what: str
    wanted: str
    figure: str | None = None
    met: bool = False
    unknown: str = NOT_MEASURED


def at_most(what: str, limit: float, found: float | None, form: str = ".2f", unknown: str = NOT_MEASURED) -> Goal:
    """A figure that is to be no more than `limit`. `unknown`: why there is none."""
    if found is None:
        return Goal(what, f"≤ {limit:g}", unknown=unknown)
    return Goal(what, f"≤ {limit:g}", format(found, form), found <= limit)


def at_least(what: str, limit: float, found: float | None, form: str = ".2f", unknown: str = NOT_MEASURED) -> Goal:
    """A figure that is to be no less than `limit`. `unknown`: why there is none."""
    if found is None:
        return Goal(what, f"≥ {limit:g}", unknown=unknown)
    return Goal(what, f"≥ {limit:g}", format(found, form), found >= limit)


def goals(
    loaders: Told, closely: Told, encoded: Told, ranks: Told, limits: Told, importance: Told | None
) -> list[Goal]:
    """All of them, in the order of the page; those of `importance` were not measured where it is None."""
    of_loading = [*_of_loaders(loaders, closely), *_of_chunks(encoded), _of_ranks(ranks), *_of_limits(limits)]
    return [*of_loading, *_of_importance(importance)]


class Loaders:
    """Loaders on one source. What was not measured is None."""

    def __init__(self, told: Told, source: int) -> None:
        results = told["results"]
        result: Told = results[source] if source < len(results) else {}
        self._samples, self._chunk = told["settings"]["samples"], told["settings"]["chunk"]
        self._others: float | None = result.get("others_share")
        self._rivals: dict[str, Told] = {
            name: rival
            for name, rival in result.get("rivals", {}).items()
            if rival.get("rounds") and "not_measured" not in rival
        }

    def __contains__(self, name: str) -> bool:
        return name in self._rivals

    def first(self, name: str) -> float | None:
        """Reads a chunk in the first epoch."""
        return self._reads(name, lambda rival: rival["first"]["reads"])

    def reads(self, name: str) -> float | None:
        """Reads a chunk in the next ones."""
        return self._reads(name, lambda rival: median(epoch["reads"] for epoch in rival["rounds"]))

    def of(self, name: str, figure: str) -> float | None:
        """A figure of the last epoch."""
        return self._rivals[name]["rounds"][-1][figure] if name in self._rivals else None

    def untold(self, *names: str) -> str:
        """Why times of these are not told; empty if they are."""
        if not all(name in self for name in names):
            return NOT_MEASURED
        return doubt_of_times(self._others)

    def faster(self, what: str, limit: float, names: tuple[str, str], form: str = ".2f") -> Goal:
        """The goal that samples a second of the first of `names` over those of the second are at least `limit`."""
        return at_least(what, limit, self.times(*names), form, self.untold(*names))

    def times(self, name: str, rival: str) -> float | None:
        """Samples a second of one over those of another; None where `untold` says why."""
        if self.untold(name, rival):
            return None
        found: float = paired(speeds(self._rivals, name, rival), name, rival)["median"]
        return found

    def _reads(self, name: str, count: Any) -> float | None:
        rival = self._rivals.get(name)
        return None if rival is None else count(rival) * rival.get("chunk", self._chunk) / self._samples


def speeds(rivals: Mapping[str, Told], *names: str) -> list[dict[str, float]]:
    """Samples a nanosecond of these, in each round."""
    rounds = zip(*(rivals[name]["rounds"] for name in names), strict=True)
    return [{name: one["samples"] / one["ns"] for name, one in zip(names, both, strict=True)} for both in rounds]


def doubt_of_times(others_share: float | None) -> str:
    """Why times do not count while others had such a share of the processors; empty if they do. None: not recorded."""
    if others_share is None:
        return NOT_RECORDED
    return "" if others_share <= IDLE else BUSY


def over(one: float | None, other: float | None) -> float | None:
    """Their ratio; None where one was not measured."""
    return None if one is None or other is None else one / other


def _of_loaders(told: Told, closely: Told) -> Iterator[Goal]:
    cached, slow, unlike = (Loaders(told, source) for source in (_CACHED, _ONE, _UNLIKE))
    exact = "reads a chunk, exact order, chunks of 64, memory for 20 %"
    yield at_most(f"{exact}: from the second epoch on", 2.6, cached.reads(EXACT))
    yield at_most(f"{exact}: in the first", 3.5, cached.first(EXACT))
    exact = "reads a chunk, exact order, from the second epoch on"
    yield at_most(f"{exact}: chunks of 64, memory for 50 %", 1.05, unlike.reads(HALF))
    yield at_most(f"{exact}: chunks of 16, memory for 20 %", 2.15, unlike.reads(SIXTEEN))
    redirect = cached.reads(REDIRECT)
    near = redirect is not None and abs(redirect - 7.6) <= 0.05 * 7.6
    yield Goal("reads a chunk, redirect", "7.6 ± 5 %", None if redirect is None else f"{redirect:.2f}", near)
    yield at_most("reads a chunk, windowed", 1.0, cached.reads(WINDOWED))
    yield slow.faster("samples/s, 2 ms a read, one in flight: exact over random access", 10, (EXACT, PLAIN))
    yield slow.faster("samples/s, 2 ms a read, one in flight: exact over redirect", 3.2, (EXACT, REDIRECT))
    beside = Loaders(closely, _CLOSE_CACHED)
    yield beside.faster('samples/s in the page cache: unit="auto" over random access', 0.95, (AUTO, PLAIN))
    sweep = (EXACT, *(f"{EXACT}, unit={unit}" for unit in UNITS))
    sixteen, disk = Loaders(closely, _CLOSE_SIXTEEN), Loaders(closely, _CLOSE_DISK)
    for there, words in ((slow, "2 ms, one in flight"), (sixteen, "2 ms, 16 in flight"), (disk, "bare disk")):
        ratios = [ratio for name in sweep if (ratio := there.times(AUTO, name)) is not None]
        least, best = min(ratios) if len(ratios) == len(sweep) else None, "the best of units 4 to 64"
        unknown = there.untold(AUTO, *sweep)
        yield at_least(f'samples/s, {words}: unit="auto" over {best}', 0.9, least, unknown=unknown)
        yield there.faster(f'samples/s, {words}: unit="auto" over random access', 0.97, (AUTO, PLAIN))
    yield from _beside_mosaic(cached)


def _beside_mosaic(cached: Loaders) -> Iterator[Goal]:
    exact, windowed = MDS
    fewer = over(cached.reads(MOSAIC), cached.reads(exact))
    yield at_least(f"fetches of the same MDS shards, full shuffle: {MOSAIC} over exact", 20, fewer, ".1f")
    blocks = {name: reads for name in BLOCKS if (reads := cached.reads(name)) is not None}
    best = min(blocks, key=lambda name: blocks[name], default="")
    beside = f"windowed over {best or f'{MOSAIC}, best size of blocks'}"
    yield at_most(f"fetches of the same MDS shards: {beside}", 0.6, over(cached.reads(windowed), blocks.get(best)))
    mixed = over(cached.of(windowed, "chunks_per_batch"), cached.of(best, "chunks_per_batch"))
    yield at_least(f"distinct chunks in a batch: {beside}", 2.5, mixed)
    yield at_least(f"span: {beside}", 3, over(cached.of(windowed, "span"), cached.of(best, "span")))


def _of_chunks(told: Told) -> Iterator[Goal]:
    for source, result in enumerate(told["results"]):
        there, name = Loaders(told, source), result["source"]["name"]
        fewer = over(there.reads(LAST_USED), there.reads(EXACT))
        yield at_least(f"reads of {name}: {LAST_USED} over exact", 19, fewer, ".1f")
        if "page cache" not in name:  # there reading a chunk again costs little: decision 170
            yield there.faster(f"samples/s of {name}: exact over {LAST_USED}", 10, (EXACT, LAST_USED), ".1f")


def _of_ranks(told: Told) -> Goal:
    reads = median(run["epochs"][-1]["reads_per_chunk"] for run in told["results"]["peers"])
    return at_most("reads a chunk of three ranks with peers, third epoch", 0.9, reads, ".3f")


def _of_limits(told: Told) -> Iterator[Goal]:
    results = told["results"]
    shares = [row.get("others_share") for part in ("index", "begin", "resume") for row in results[part]]
    doubt = doubt_of_times(None if None in shares else max(shares))

    def seconds(part: str, name: str, beyond: str = "") -> float | None:
        rows = results[part]
        return median(row[name] - (row[beyond] if beyond else 0) for row in rows) if not doubt else None

    planned, indexed = seconds("begin", "planning_cpu_s"), seconds("index", "seconds")
    resumed = seconds("resume", "seconds", "planning_seconds")
    yield at_most("seconds of a processor to plan an epoch of 1,281,152", 1, planned, unknown=doubt)
    yield at_most("seconds to resume in the last twentieth, beyond planning", 1, resumed, unknown=doubt)
    yield at_most("seconds to index 100,000 samples", 2, indexed, unknown=doubt)
    share = results["share"]
    alone, apart = share["alone"], share["apart, half the memory"]
    one, unlike = share["one seed"], share["unlike seeds"]
    yield at_most("reads of two jobs that share, over one job's", 1.05, over_reads(one, alone))
    of_two = over_reads(unlike, apart)
    yield at_most("reads of two jobs with unlike seeds, over two apart with half of the memory each", 1, of_two)
    yield at_most("memory of both over one arena (Pss)", 1.1, one["pss_bytes"] / alone["arena_bytes"])


def over_reads(one: Told, other: Told) -> float:
    """Reads a chunk of one case over those of another."""
    return float(one["reads_per_chunk"] / other["reads_per_chunk"])


def _of_importance(told: Told | None) -> Iterator[Goal]:
    rows = told["results"]["rows"] if told else []
    selected = {row["noise"]: row for row in rows if row["mode"] == "select"}
    hits = [row["hits"] / row["never_evict_hits"] for row in selected.values()]
    least = min(hits, default=None)
    yield at_least("importance: hits over never-evict, the least of all shares of wrong labels", 1.12, least)
    for noise in sorted(selected or NOISES):
        what = f"importance, {noise:.0%} wrong labels: accuracy lost by selection, in standard errors of the pairs"
        row = selected.get(noise)
        yield at_most(what, 1, row["lost"] / row["lost_error"] if row and row["lost_error"] else None)
