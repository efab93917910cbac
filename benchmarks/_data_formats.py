"""The samples of benchmarks.data in each format that a loader reads, in chunks of CHUNK.

A sample is `cls`, its number as text, and `img`, random bytes of lognormal sizes, at least 8 KiB.
"""

from __future__ import annotations

import sys
import tarfile
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.data_files import add, mds

CHUNK = 64
MEAN_BYTES, SIGMA = 32 << 10, 0.5
_GROUPS = 256
"""Row groups in a file of Parquet."""


def _sizes(samples: int) -> NDArray[np.int64]:
    """(samples,) bytes of the picture of each."""
    lognormal = np.random.default_rng(1).lognormal(np.log(MEAN_BYTES) - SIGMA**2 / 2, SIGMA, samples)
    return lognormal.astype(np.int64) + (8 << 10)


def _sample(number: int, nbytes: int) -> dict[str, bytes]:
    return {"cls": b"%d" % number, "img": np.random.default_rng(number).bytes(nbytes)}


def write(source: Path, samples: int) -> dict[str, str]:
    """The samples in each format that can be read sample by sample. Returns why one could not be written."""
    sizes = _sizes(samples)
    (source / "tar").mkdir(parents=True)
    for shard in range(-(-samples // CHUNK)):
        with tarfile.open(source / "tar" / f"train-{shard:05d}.tar", "w") as tar:
            for number in range(shard * CHUNK, min((shard + 1) * CHUNK, samples)):
                for extension, data in _sample(number, int(sizes[number])).items():
                    add(tar, f"{number:08d}.{extension}", data)
    refused = {}
    for name, made in (("mds", _write_mds), ("litdata", _write_litdata)):
        try:
            made(source / name, sizes.tolist())
        except Exception as error:  # of a rival: it is named as not measured
            refused[name] = f"{type(error).__name__}: {error}"
    return refused


def write_encoded(source: Path, samples: int) -> dict[str, str]:
    """The samples in chunks that are decoded as a whole. Returns what `write` does: nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sizes = _sizes(samples)

    def chunk(first: int) -> list[dict[str, bytes]]:
        numbers = range(first, min(first + CHUNK, samples))
        return [_sample(number, int(sizes[number])) for number in numbers]

    schema = pa.schema([("cls", pa.binary()), ("img", pa.binary())])
    (source / "parquet").mkdir(parents=True)
    (source / "packed").mkdir()
    for begin in range(0, samples, _GROUPS * CHUNK):
        path = source / "parquet" / f"train-{begin:08d}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as file:
            for first in range(begin, min(begin + _GROUPS * CHUNK, samples), CHUNK):
                file.write_table(pa.Table.from_pylist(chunk(first), schema), row_group_size=CHUNK)
    columns: dict[str, tuple[str, int | None]] = {"cls": ("bytes", None), "img": ("bytes", None)}
    mds(source / "packed", columns, map(chunk, range(0, samples, CHUNK)), zstd=True)
    return {}


def without_pictures() -> None:
    """torchvision as far as mosaicml-streaming imports it, for pictures: no build of it goes with every torch."""
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        stub: Any = types.ModuleType(name)
        stub.__spec__ = ModuleSpec(name, None)
        stub.VisionDataset = stub.to_tensor = stub.CIFAR10 = object
        sys.modules.setdefault(name, stub)


def _write_mds(folder: Path, sizes: Sequence[int]) -> None:
    without_pictures()
    from streaming import MDSWriter

    largest = int(2 * CHUNK * MEAN_BYTES * np.exp(4 * SIGMA))  # a shard is closed by number here
    with MDSWriter(out=str(folder), columns={"cls": "bytes", "img": "bytes"}, size_limit=largest) as writer:
        for number, nbytes in enumerate(sizes):
            writer.write(_sample(number, nbytes))
            if number % CHUNK == CHUNK - 1:
                writer.flush_shard()
                writer._reset_cache()


def _write_litdata(folder: Path, sizes: Sequence[int]) -> None:
    from litdata.streaming.cache import Cache

    cache = Cache(str(folder), chunk_size=CHUNK)
    for number, nbytes in enumerate(sizes):
        cache[number] = _sample(number, nbytes)
    cache.done()
    cache.merge()
