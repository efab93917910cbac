"""One loader of benchmarks.data, in a process of its own: answers `open` and `epoch` on standard input with JSON.

Each sample is (number, the first 8 KiB as a tensor), whatever loads it. Rivals that are not installed say so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import sentinel.data
from benchmarks._data_formats import without_pictures
from benchmarks.data import (
    AUTO,
    BLOCKS,
    EXACT,
    LAST_USED,
    MDS,
    MOSAIC,
    PLAIN,
    REDIRECT,
    UNITS,
    UNLIKE,
    WINDOWED,
)
from sentinel.data.data_index import open_data
from sentinel.data.sources.source import EncodedSource, UnpackedChunk
from sentinel.data.sources.stored_file import OpenedFile, opened

CROP = 8 << 10
BUFFERED = ("webdataset", "hf-streaming")
"""Those that shuffle in a buffer of samples."""


def item(sample: dict[str, Any]) -> tuple[int, torch.Tensor]:
    """What training gets of a sample."""
    return int(sample["cls"]), torch.frombuffer(bytearray(sample["img"][:CROP]), dtype=torch.uint8)


class RandomAccess(Dataset[Any]):
    """What a plain DataLoader reads from: each sample where it lies."""

    def __init__(self, shards: list[str]) -> None:
        data = open_data(shards)
        layout, self._decode, self._open = data.layout, data.source.decode, {}
        file = layout.chunk_file[layout.chunk_of]
        self._file, self._nbytes = file.tolist(), layout.sample_nbytes.tolist()
        self._at = (layout.chunk_offset[layout.chunk_of] + layout.sample_offset).tolist()
        self._paths = [str(Path(data.root) / name) for name in layout.files]

    def __len__(self) -> int:
        return len(self._nbytes)

    def __getitem__(self, sample: int) -> tuple[int, torch.Tensor]:
        path = self._paths[self._file[sample]]
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
        data = os.pread(self._open[path], self._nbytes[sample], self._at[sample])
        return item(self._decode(memoryview(data), path))


class LastUsed(Dataset[Any]):
    """Samples of chunks that are decoded as a whole; of the decoded chunks as many as have room stay, those used
    last."""

    def __init__(self, shards: list[str], share: float) -> None:
        data = open_data(shards)
        assert isinstance(data.source, EncodedSource)
        self._data, self._source, layout = data, data.source, data.layout
        self._nbytes = np.add.reduceat(layout.sample_nbytes, layout.first_sample[:-1]).tolist()
        self._free = int(layout.nbytes * share)
        self._held: OrderedDict[int, UnpackedChunk] = OrderedDict()
        self._open: dict[int, OpenedFile] = {}

    def __len__(self) -> int:
        return self._data.layout.n_samples

    def __getitem__(self, sample: int) -> tuple[int, torch.Tensor]:
        layout = self._data.layout
        chunk = int(layout.chunk_of[sample])
        if chunk not in self._held:
            self._free -= self._nbytes[chunk]
            while self._free < 0:
                self._free += self._nbytes[self._held.popitem(last=False)[0]]
            self._held[chunk] = self._read(chunk)
        self._held.move_to_end(chunk)
        one = np.array([sample - int(layout.first_sample[chunk])])
        data, (begin,), (nbytes,) = self._held[chunk].samples(one)
        path = self._path(int(layout.chunk_file[chunk]))
        return item(self._source.decode(memoryview(data)[begin : begin + nbytes], path))

    def _path(self, file: int) -> str:
        return str(Path(self._data.root) / self._data.layout.files[file])

    def _read(self, chunk: int) -> UnpackedChunk:
        layout, file = self._data.layout, int(self._data.layout.chunk_file[chunk])
        if file not in self._open:
            self._open[file] = opened(self._path(file))
        number = chunk - int(np.searchsorted(layout.chunk_file, file))
        return self._source.unpack(self._open[file], int(layout.file_nbytes[file]), number)


def last_used(given: argparse.Namespace) -> Iterable[Any]:
    """A DataLoader over them."""
    return DataLoader(LastUsed(shards_of(given), given.share), shuffle=True, **batches_of(given))


def ours(given: argparse.Namespace, order: str, unit: int | str, shards: list[str] | None = None) -> Iterable[Any]:
    """Sentinel's loader, of these files or those of the form."""
    return sentinel.data.loader(
        shards or shards_of(given),
        item,
        batch_size=given.batch,
        memory=f"{given.share:.0%}",
        order=order,
        unit=unit,
        workers=given.workers,
    )


def torchs(given: argparse.Namespace) -> Iterable[Any]:
    """The plain DataLoader."""
    return DataLoader(RandomAccess(shards_of(given)), shuffle=True, **batches_of(given))


def webdataset(given: argparse.Namespace) -> Iterable[Any]:
    """Shards in random order, and a buffer of samples, of all workers together as large as the room."""
    import webdataset as wds

    shards = shards_of(given)
    found = wds.WebDataset(shards, shardshuffle=len(shards), seed=0, empty_check=False)
    buffered = found.shuffle(buffer_of(given), initial=buffer_of(given)).map(item)
    return DataLoader(buffered, **batches_of(given))


def hf_streaming(given: argparse.Namespace) -> Iterable[Any]:
    """The same of datasets."""
    import datasets

    datasets.disable_progress_bars()
    cache = given.folder / "hf-cache"
    found = datasets.load_dataset(
        "webdataset", data_files={"train": shards_of(given)}, streaming=True, split="train", cache_dir=str(cache)
    )
    shuffled = found.shuffle(seed=0, buffer_size=buffer_of(given))
    return DataLoader(Mapped(shuffled), **batches_of(given))


class Mapped(torch.utils.data.IterableDataset[Any]):
    """`item` of each sample of a stream of datasets."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._epoch = stream, 0

    def __iter__(self) -> Any:
        self._stream.set_epoch(self._epoch)
        self._epoch += 1
        return map(item, self._stream)


def of_mds(given: argparse.Namespace, order: str) -> Iterable[Any]:
    """Sentinel's loader on the shards that mosaicml-streaming reads."""
    return ours(given, order, given.chunk, [str(given.folder / "source" / "mds")])


def mosaic(given: argparse.Namespace, part: float | None) -> Iterable[Any]:
    """mosaicml-streaming on MDS shards, its cache as large as the room. `part`: how much of that the samples of a
    shuffle block are; None for the library's own size, with which the whole data set is one block."""
    block = None if part is None else int(given.samples * given.share * part)
    without_pictures()
    import streaming

    class Samples(streaming.StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return item(super().__getitem__(at))

    local = given.folder / f"mosaic-cache-{block}"
    shutil.rmtree(local, ignore_errors=True)
    streaming.base.util.clean_stale_shared_memory()
    nbytes = sum(path.stat().st_size for path in (given.folder / "source" / "mds").glob("*.mds"))
    found = Samples(
        remote=str(given.folder / "source" / "mds"),
        local=str(local),
        shuffle=True,
        cache_limit=int(nbytes * given.share),
        batch_size=given.batch,
        num_canonical_nodes=1,
        **({"shuffle_block_size": block} if block else {}),
    )
    return DataLoader(found, **batches_of(given))


def litdata(given: argparse.Namespace) -> Iterable[Any]:
    """LitData on its own chunks, its cache as large as the room."""
    import litdata as lit

    class Samples(lit.StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return item(super().__getitem__(at))

    chunks = given.folder / "source" / "litdata"
    nbytes = sum(path.stat().st_size for path in chunks.glob("*.bin"))
    cache = given.folder / "litdata-cache"
    shutil.rmtree(cache, ignore_errors=True)
    found = Samples(
        input_dir=f"local:{chunks}",
        cache_dir=str(cache),
        shuffle=True,
        max_cache_size=int(nbytes * given.share),
    )
    return lit.StreamingDataLoader(found, batch_size=given.batch, num_workers=given.workers, shuffle=True)


def batches_of(given: argparse.Namespace) -> dict[str, Any]:
    """Options of a DataLoader."""
    return {
        "batch_size": given.batch,
        "num_workers": given.workers,
        "persistent_workers": given.workers > 0,
    }


def buffer_of(given: argparse.Namespace) -> int:
    """Samples in the buffer of one worker."""
    return max(int(given.samples * given.share) // max(given.workers, 1), 1)


def shards_of(given: argparse.Namespace) -> list[str]:
    """The files of this form; of MDS their folder."""
    folder: Path = given.folder / "source" / given.form
    return [str(folder)] if given.form == "packed" else sorted(map(str, folder.glob(f"*.{given.form}")))


RIVALS: dict[str, Callable[[argparse.Namespace], Iterable[Any]]] = {
    PLAIN: torchs,
    LAST_USED: last_used,
    EXACT: lambda given: ours(given, "exact", given.chunk),
    AUTO: lambda given: ours(given, "exact", "auto"),
    WINDOWED: lambda given: ours(given, "windowed", given.chunk),
    REDIRECT: lambda given: ours(given, "redirect", given.chunk),
    **{name: lambda given: ours(given, "exact", given.chunk) for name in UNLIKE},
    MDS[0]: lambda given: of_mds(given, "exact"),
    MDS[1]: lambda given: of_mds(given, "windowed"),
    **{f"sentinel exact, unit={unit}": lambda given, unit=unit: ours(given, "exact", unit) for unit in UNITS},
    "webdataset": webdataset,
    "hf-streaming": hf_streaming,
    MOSAIC: lambda given: mosaic(given, None),
    **{name: lambda given, part=part: mosaic(given, part) for name, part in BLOCKS.items()},
    "litdata": litdata,
}
PACKAGES = {
    "webdataset": "webdataset",
    "hf-streaming": "datasets",
    **dict.fromkeys((MOSAIC, *BLOCKS), MOSAIC),
    "litdata": "litdata",
}


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rival")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--form", default="tar", help="of the files")
    for name, kind in (("--samples", int), ("--chunk", int), ("--share", float), ("--batch", int), ("--workers", int)):
        parser.add_argument(name, type=kind, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    package = PACKAGES.get(given.rival)
    answer({"version": metadata.version(package) if package else None})
    loader: Any = None
    for line in sys.stdin:
        if line.strip() == "open":
            if hasattr(loader, "close"):
                loader.close()
            loader = None  # its workers end before others begin
            loader = RIVALS[given.rival](given)
            answer({})
        else:
            began = time.perf_counter_ns()
            numbers = [batch[0].numpy() for batch in loader]
            answer({"ns": time.perf_counter_ns() - began, **mixed(np.concatenate(numbers), given)})


def mixed(numbers: Any, given: argparse.Namespace) -> dict[str, Any]:
    """How many samples were delivered, how many of them once, and how well they were mixed: distinct chunks in a batch
    of `--batch`, and how much of the epoch lies between the first and the last sample of a chunk, in the mean."""
    chunks = numbers // given.chunk
    batches = [chunks[at : at + given.batch] for at in range(0, len(chunks) - given.batch + 1, given.batch)]
    spans = [np.ptp(np.flatnonzero(chunks == chunk)) / len(chunks) for chunk in np.unique(chunks)]
    return {
        "samples": len(numbers),
        "distinct": len(np.unique(numbers)),
        "chunks_per_batch": float(np.mean([len(np.unique(batch)) for batch in batches])),
        "span": float(np.mean(spans)),
    }


def answer(found: dict[str, Any]) -> None:
    """One line to whoever asks."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
