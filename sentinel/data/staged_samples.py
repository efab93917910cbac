"""The data set as a worker of a DataLoader sees it: samples come from the arena, late or lost ones from their file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from sentinel.core.errors import CapabilityError, FormatError
from sentinel.data.sample_arena import PULSE, RUNNING, SampleArena
from sentinel.data.source_files import SourceFiles
from sentinel.data.sources.source import Source

Transform = Callable[[Any], Any]

PATIENCE_S = 5.0
"""How long nothing may happen in the reader before a sample that it should bring is read without it."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 20e-6, 1e-3


class Request(NamedTuple):
    """A batch: `samples` of the data set at positions [position, position + batch) of the epoch.

    `first`: where a sample is the one that its chunk is read for. `direct`: where it is read alone, as planned.
    """

    position: int
    samples: NDArray[np.int64]
    first: NDArray[np.bool_]
    direct: NDArray[np.bool_]


@dataclass
class Served:
    """How the samples of a batch were got."""

    samples: int = 0
    sample_bytes: int = 0
    hits: int = 0
    direct_reads: int = 0
    direct_bytes: int = 0
    wait_ns: int = 0
    late: int = 0
    """Of the direct reads: those that the plan did not have."""


class Failed(NamedTuple):
    """A FormatError on its way from a worker: an exception of several arguments can't be pickled."""

    path: str
    field: str
    rule: str


class BytesOfSamples(Protocol):
    """Gives the bytes of samples, and counts how."""

    def get(self, request: Request, number: int, served: Served) -> Any:
        """Sample `number` of the request, decoded."""


class FromArena:
    """Samples of files: out of the arena, or read alone where they are not there in time."""

    def __init__(self, files: SourceFiles, arena: SampleArena, source: Source) -> None:
        self._files, self._arena, self._source = files, arena, source

    def get(self, request: Request, number: int, served: Served) -> Any:
        """Sample `number` of the request, decoded. Raises FormatError, naming file and sample, where the source does
        not have it as it was indexed."""
        sample, position = int(request.samples[number]), request.position + number
        nbytes = int(self._files.layout.sample_nbytes[sample])
        data = None if request.direct[number] else self._staged(sample, position, nbytes, served)
        if data is None:
            found = self._files.sample(sample).data
            served.direct_reads += 1
            served.direct_bytes += int(self._files.layout.alone_nbytes[sample])
            served.late += not request.direct[number]
        else:
            found = memoryview(data)
            served.hits += not request.first[number]
        self._arena.taken[position] = 1
        served.sample_bytes += nbytes
        return self._source.decode(found, self._files.path_of(sample))

    def _staged(self, sample: int, position: int, nbytes: int, served: Served) -> bytearray | None:
        """Its bytes; None where the reader will not bring them, or nothing happens in it for PATIENCE_S."""
        data = self._arena.copy(sample, nbytes)
        if data is not None:
            return data
        counters, began = self._arena.counters, time.monotonic_ns()
        pulse, since, wait = -1, began, _FIRST_WAIT_S
        while data is None and counters[RUNNING] and not self._arena.taken[position]:  # it was here: a worker was lost
            now = time.monotonic_ns()
            if int(counters[PULSE]) != pulse:
                pulse, since = int(counters[PULSE]), now
            elif now - since > PATIENCE_S * 1e9:
                break
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
            data = self._arena.copy(sample, nbytes)
        served.wait_ns += time.monotonic_ns() - began
        return data


class FromDataset:
    """Samples of a map-style Dataset, which reads them by itself."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def get(self, request: Request, number: int, served: Served) -> Any:
        """The Dataset's item, as it is."""
        served.direct_reads += 1
        return self._dataset[int(request.samples[number])]


class StagedSamples(Dataset[Any]):
    """What the DataLoader inside asks: a Request gives the samples of a batch, transformed, and how they were got."""

    def __init__(self, source: BytesOfSamples, transform: Transform | None) -> None:
        self._source, self._transform = source, transform

    def __getitems__(self, request: Request) -> tuple[list[Any] | Failed, Served]:
        """The batch, not yet collated."""
        served = Served(samples=len(request.samples))
        items: list[Any] = []
        try:
            for number in range(len(request.samples)):
                item = self._source.get(request, number, served)
                items.append(item if self._transform is None else self._transform(item))
        except FormatError as error:
            return Failed(error.path, error.field, error.rule), served
        return items, served

    def __getitem__(self, index: int) -> Any:
        raise CapabilityError("one sample of a loader", "it gives batches", "iterate over the loader")


class Collate:
    """Collates the samples of a batch as `collate_fn` does, and passes on what is beside them."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate_fn or torch.utils.data.default_collate

    def __call__(self, got: tuple[list[Any] | Failed, Served]) -> tuple[Any, Served]:
        items, served = got
        return (items if isinstance(items, Failed) else self._collate(items)), served
