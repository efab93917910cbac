"""Small data sets in the formats that sentinel.data reads."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def content(sample: int, nbytes: int) -> bytes:
    """Bytes that tell their sample."""
    return np.random.default_rng(sample).bytes(nbytes)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """A member."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def shards(folder: Path, counts: list[int], *, nbytes: int = 700, uneven: bool = True, **options: int) -> list[str]:
    """Paths of WebDataset shards of so many samples: `jpg` of about `nbytes`, and `cls`, the number of the sample."""
    paths, sample = [], 0
    for shard, count in enumerate(counts):
        path = folder / f"train-{shard:03d}.tar"
        with tarfile.open(path, "w", **options) as tar:  # type: ignore[call-overload]
            for _ in range(count):
                size = nbytes + (sample * 37 % 500 if uneven else 0)
                add(tar, f"{sample:06d}.jpg", content(sample, size))
                add(tar, f"{sample:06d}.cls", b"%06d" % sample)
                sample += 1
        paths.append(str(path))
    return paths


def rows(folder: Path, count: int, width: int = 50) -> str:
    """Path of an array whose row i begins with i."""
    array = np.random.default_rng(0).integers(0, 1 << 30, (count, width)).astype(np.int32)
    array[:, 0] = np.arange(count)
    np.save(folder / "rows.npy", array)
    return str(folder / "rows.npy")


def mds(
    folder: Path,
    columns: dict[str, tuple[str, int | None]],
    shards: Iterable[list[dict[str, bytes]]],
    zstd: bool = False,
) -> None:
    """MDS shards of samples whose columns are encoded already, written from the description of the format alone.
    `columns`: encoding and fixed size. Needs pyarrow for `zstd`."""
    index: list[dict[str, Any]] = []
    told = {
        "column_names": sorted(columns),
        "column_encodings": [columns[name][0] for name in sorted(columns)],
        "column_sizes": [columns[name][1] for name in sorted(columns)],
        "compression": "zstd:3" if zstd else None,
        "format": "mds",
    }
    config = json.dumps(told).encode()
    for number, samples in enumerate(shards):
        packed = []
        for sample in samples:
            sizes = [len(sample[name]) for name in sorted(columns) if columns[name][1] is None]
            packed.append(np.array(sizes, "<u4").tobytes() + b"".join(sample[name] for name in sorted(columns)))
        begin = 4 + 4 * (len(packed) + 1) + len(config)
        ends = np.cumsum([begin, *map(len, packed)]).astype("<u4")
        raw = np.array([len(packed)], "<u4").tobytes() + ends.tobytes() + config + b"".join(packed)
        name = f"shard.{number:05d}.mds"
        entry = {**told, "samples": len(packed), "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}}
        entry["zip_data"] = None
        if zstd:
            import pyarrow as pa

            name += ".zstd"
            raw = pa.Codec("zstd").compress(raw, asbytes=True)
            entry["zip_data"] = {"basename": name, "bytes": len(raw), "hashes": {}}
        (folder / name).write_bytes(raw)
        index.append(entry)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": index}))


def number_of(sample: dict[str, Any]) -> int:
    """Which sample of `shards` it is; its bytes are those that were written."""
    number = int(sample["cls"])
    assert sample["__key__"] == f"{number:06d}"
    assert sample["jpg"] == content(number, len(sample["jpg"]))
    return number
