"""What reads of a data set cost here, and whether the kernel has its files in memory: asked once, if at all."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sentinel.core.errors import UsageError
from sentinel.data.chunk_reader import IN_FLIGHT, MOST_IN_FLIGHT
from sentinel.data.data_index import DataFiles
from sentinel.data.page_cache import all_cached, in_page_cache
from sentinel.data.source_files import SourceFiles
from sentinel.data.sources.stored_file import LocalFile, cannot_be_read, expect_what_is_asked, opened
from sentinel.samples import SourceCosts

_SMALL, _LARGE, _ROUNDS, _LARGE_ROUNDS = 4096, 4 << 20, 64, 8
_MOST_TURNS, _ENOUGH_S = 4, 0.25
_LEAST_ROUNDS = 3
_INTERPRETER_NS, _SLOW_NS = 1e6, 50e6
"""Latencies: of a source above the first it is not the interpreter that limits threads; above the second each thread
tries it once."""


class SourceReads:
    """What reads of `data` cost: measured where somebody asks, once. `declared`: what they cost on another machine; the
    page cache of this one then counts for nothing."""

    def __init__(self, data: DataFiles, declared: SourceCosts | None = None) -> None:
        self.data, self._declared = data, declared

    @cached_property
    def cached(self) -> bool:
        """Whether all files are in the page cache, as `all_cached` has it."""
        return self._declared is None and all_cached(self.data)

    @cached_property
    def costs(self) -> SourceCosts:
        """What reads cost. Measured after the page cache was asked, for measuring brings samples into it."""
        if self._declared is not None:
            return self._declared
        _ = self.cached
        return measured_costs(self.data)

    @property
    def known(self) -> SourceCosts | None:
        """What reads cost, if somebody has asked for it."""
        return self.__dict__.get("costs", self._declared)


def measured_costs(data: DataFiles) -> SourceCosts:
    """What reads of these files cost now: latency and bandwidth of small and of large reads at random places, and how
    many small ones the source serves side by side, up to MOST_IN_FLIGHT. What the kernel has in its page cache counts
    as such, for so a job meets it. Where chunks are decoded as a whole, that counts as reading.

    Threads that read side by side share the interpreter. From a fast disk a small read may take longer so than alone.
    """
    layout = data.layout
    if int(layout.file_nbytes.sum()) < 1:
        raise UsageError("the files are empty", "give files with samples")
    chance = np.random.Generator(np.random.PCG64(0))

    def some(count: int) -> list[int]:
        return [int(sample) for sample in chance.integers(layout.n_samples, size=count)]

    small = _one_by_one(data, some(_ROUNDS), _SMALL)
    latency = float(np.mean(np.sort([read.ns for read in small])[: len(small) - len(small) // 16]))  # but the slowest
    several = (IN_FLIGHT, MOST_IN_FLIGHT) if latency < _INTERPRETER_NS else (MOST_IN_FLIGHT,)
    rounds = _ROUNDS if latency < _SLOW_NS else MOST_IN_FLIGHT
    together = min(_together(data, some(rounds), _SMALL, threads)[0] for threads in several)
    large = _one_by_one(data, some(_LARGE_ROUNDS), _LARGE)
    rate = float(np.median([read.nbytes / max(read.ns - latency, 0.1 * read.ns) for read in large]))
    began = time.monotonic()
    for _ in range(_MOST_TURNS):  # the first ones may find the source asleep
        rate = max(rate, _together(data, some(_LARGE_ROUNDS), _LARGE, IN_FLIGHT)[1])
        if time.monotonic() - began > _ENOUGH_S:
            break
    if layout.encoded:
        rate = 1 / (1 / rate + float(np.median([_decode_ns(data, sample) for sample in some(_LARGE_ROUNDS)])))
    cached = sum(read.cached for read in small) / len(small)
    in_flight = min(max(latency / together, 1.0), MOST_IN_FLIGHT)
    return SourceCosts(latency, rate * 1e9, in_flight, measured=True, cached=cached, shared_ns=together)


def _one_by_one(data: DataFiles, samples: list[int], nbytes: int) -> list[_Read]:
    """These reads; of a slow source only some."""
    found: list[_Read] = []
    began = time.monotonic()
    for sample in samples:
        found.append(_read(data, sample, nbytes))
        if len(found) >= _LEAST_ROUNDS and time.monotonic() - began > 1.0:
            break
    return found


def _together(data: DataFiles, samples: list[int], nbytes: int, threads: int) -> tuple[float, float]:
    """ns that each of these reads takes, and bytes a ns of all of them, in so many threads."""
    with ThreadPoolExecutor(threads) as pool:
        began = time.monotonic_ns()
        found = list(pool.map(lambda sample: _read(data, sample, nbytes), samples))
        took = time.monotonic_ns() - began
    return took / len(samples), sum(read.nbytes for read in found) / took


class _Read(NamedTuple):
    ns: int
    nbytes: int
    cached: bool


def _read(data: DataFiles, sample: int, nbytes: int) -> _Read:
    """One read of up to `nbytes` at a sample, and whether the kernel had the first of them in memory."""
    layout = data.layout
    chunk = int(layout.chunk_of[sample])
    file = int(layout.chunk_file[chunk])
    at = int(layout.chunk_offset[chunk]) + (0 if layout.encoded else int(layout.sample_offset[sample]))
    at = max(min(at, int(layout.file_nbytes[file]) - nbytes), 0)
    found = opened(os.path.join(data.root, layout.files[file]))
    expect_what_is_asked(found)
    try:
        cached = isinstance(found, LocalFile) and in_page_cache(found.descriptor, at)
        began = time.monotonic_ns()
        got = len(found.read(at, nbytes))
        return _Read(time.monotonic_ns() - began, got, cached)
    except OSError as error:
        raise cannot_be_read(found.path, "file", error) from error


def _decode_ns(data: DataFiles, sample: int) -> float:
    """ns that reading and decoding the whole chunk of a sample takes, for each of its bytes."""
    files, chunk = SourceFiles(data.layout, data.root, data.source), int(data.layout.chunk_of[sample])
    began = time.monotonic_ns()
    files.chunk(chunk, np.array([sample]))
    return (time.monotonic_ns() - began) / int(data.layout.chunk_nbytes[chunk])
