"""Loaders of training data side by side, on one file set with equal room: `python -m benchmarks.data > docs/data.json`.

Samples of lognormal sizes (mean 32 KiB) lie in tar shards of 64; rivals that have a format of their own get the same
samples in it, in shards of as many. Each loader is a process that lives as long as the benchmark; in each round all of
them deliver an epoch, one after the other. A library that is loaded before all others (_described_source.c) counts the
reads of each process and its workers below the folder of the data, and lets them take as long as on a described source.
Sources: files in the page cache; a source of 2 ms a read and 1 GB/s (injected), that serves one or 16 reads at once;
the disk below `--folder`, where the kernel forgets the pages of a file after each read of it. Rivals: the plain
DataLoader over random access, webdataset, datasets, mosaicml-streaming and litdata, as far as they are installed: `pip
install --no-deps -r benchmarks/data_rivals.txt`. On the disk there is the plain DataLoader only. What some rivals write
to caches of their own drives files out of the page cache; therefore all files are read before each epoch, except on the
disk.

`--encoded`: in place of tar shards, Parquet in row groups of 64 and MDS shards of as many packed by zstd, chunks that
are decoded as a whole. The rival there is a cache of the decoded chunks used last, with room for as many bytes, in one
worker, so that it is one cache. In the page cache a chunk of random bytes, which do not shrink, costs little more than
copying it, and so does reading it 51 times; the disk and the described source tell what reads are for.
`python -m benchmarks.data --encoded > docs/data-encoded.json`.

`--closely`: torch's DataLoader and ours alone, in nine rounds, from the page cache, 16 at once and the disk. An epoch
takes a second or two there, single rounds differ by more than what is judged, and in the whole run other libraries,
with threads and caches of their own, live beside all. `python -m benchmarks.data --closely > docs/data-closely.json`.

Beside the tar shards sentinel reads the MDS shards that mosaicml-streaming reads; the size of that library's shuffle
blocks is swept. In a last source, whose times are not compared, exact order has memory for half of the samples, and
reads 16 samples at once: its counts have goals of their own.

`--quick` takes half of the samples and two rounds. How busy others kept the host is in the JSON. With `--parts DIR`
each source is kept there as soon as it is measured, and the same command goes on after what is there. `python -m
benchmarks.data_run` runs this and all else that docs/data.md states; `python -m benchmarks.data_page` writes the tables
into docs/data.md.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench, _data_formats
from benchmarks._data_formats import CHUNK, MEAN_BYTES, SIGMA

BATCH, SHARE = 256, 0.2
UNITS = (4, 8, 16, 32)
"""Samples that are read at once, beside 64, where reads take long: the sweep in which `unit="auto"` has to be good."""
PLAIN = "torch, random access"
LAST_USED, EXACT = "cache of the chunks used last", "sentinel exact"
AUTO, WINDOWED, REDIRECT = 'sentinel exact, unit="auto"', "sentinel windowed", "sentinel redirect"
MDS = ("sentinel exact, MDS", "sentinel windowed, MDS")
"""On the shards that mosaicml-streaming reads."""
MOSAIC = "mosaicml-streaming"
BLOCKS = {f"{MOSAIC}, blocks of {word} the cache": part for word, part in (("1/4", 0.25), ("1/2", 0.5), ("all", 1.0))}
"""The sizes of its shuffle blocks, as parts of what its cache holds."""
HALF, SIXTEEN = "sentinel exact, memory for half", "sentinel exact, 16 samples at once"
UNLIKE: dict[str, dict[str, float]] = {HALF: {"share": 0.5}, SIXTEEN: {"chunk": 16}}
"""Loaders whose settings are not those of all."""
RIVALS = (
    PLAIN,
    EXACT,
    AUTO,
    WINDOWED,
    REDIRECT,
    *(f"sentinel exact, unit={unit}" for unit in UNITS),
    "webdataset",
    "hf-streaming",
    *MDS,
    MOSAIC,
    *BLOCKS,
    "litdata",
    *UNLIKE,
)
CLOSELY = (PLAIN, EXACT, AUTO, *(f"{EXACT}, unit={unit}" for unit in UNITS))
"""Between these times are to differ by little."""
_FORGETS_S = 5.0
"""By then the kernel has let go of a page of a file on a disk."""
_HEAD, _STATE = "3Q", 8 * (7 + 64)
"""Of the state of a described source: latency, bandwidth and depth, then reads and bytes, then its clocks, then whether
it is a bare disk."""


class Described(NamedTuple):
    """A source. Without a latency and a bandwidth reads take what they take. `form`: of its files. `bare`: each read
    asks the disk. `unlike`: what is measured are the loaders with settings of their own."""

    name: str
    latency_ns: int = 0
    read_bytes_per_s: int = 0
    depth: int = 0
    workers: int = 2
    form: str = "tar"
    bare: bool = False
    unlike: bool = False


SOURCES = (
    Described("page cache"),
    Described("2 ms a read, 1 GB/s, one in flight (injected)", 2_000_000, 10**9, 1),
    Described("2 ms a read, 1 GB/s, 16 in flight (injected)", 2_000_000, 10**9, 16, workers=8),
    Described("bare disk", bare=True),
    Described("page cache, other memory and chunks", unlike=True),
)
COMPARED_CLOSELY = tuple(source for source in SOURCES if source.depth != 1 and not source.unlike)
_CHUNKS = (("row groups of Parquet", "parquet"), ("MDS shards packed by zstd", "packed"))
ENCODED = tuple(
    source
    for name, form in _CHUNKS
    for source in (
        Described(f"{name}, in the page cache", workers=1, form=form),
        Described(f"{name}, on the bare disk", workers=1, form=form, bare=True),
        Described(f"{name}, 2 ms a read, 1 GB/s, one in flight (injected)", 2_000_000, 10**9, 1, 1, form),
    )
)


class Comparison(NamedTuple):
    """Which loaders are compared, on which sources, in how many rounds."""

    rivals: tuple[str, ...]
    sources: tuple[Described, ...]
    rounds: int = 3


ALL = Comparison(RIVALS, SOURCES)
OF_CHUNKS = Comparison((LAST_USED, EXACT), ENCODED)
CLOSE = Comparison(CLOSELY, COMPARED_CLOSELY, 9)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8,192 samples and 2 rounds, not 16,384 and 3")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="rivals whose name has this word")
    parser.set_defaults(compared=ALL)
    others = parser.add_mutually_exclusive_group()
    for flag, compared, what in (
        ("--encoded", OF_CHUNKS, "chunks that are decoded as a whole, and a cache of them"),
        ("--closely", CLOSE, "torch's DataLoader and ours alone, in 9 rounds"),
    ):
        others.add_argument(flag, dest="compared", action="store_const", const=compared, help=what)
    parser.add_argument("--folder", type=Path, help="for the data (default: a temporary one)")
    parser.add_argument(
        "--parts", type=Path, metavar="DIR", help="keep each source's result here, and go on from there"
    )
    parser.add_argument("--samples", type=int, help="of the data set (default 16,384)")
    parser.add_argument("--rounds", type=int, help="in which all take turns (default 3, with --closely 9)")
    given = parser.parse_args(arguments)
    rivals, sources, rounds = given.compared
    samples, rounds = (8192, 2) if given.quick else (16_384, rounds)
    samples, rounds = given.samples or samples, given.rounds or rounds
    names = [name for name in rivals if not given.only or any(word in name for word in given.only)]
    settings = {"samples": samples, "chunk": CHUNK, "batch": BATCH, "share": SHARE, "mean_bytes": MEAN_BYTES}
    settings |= {"sigma": SIGMA, "rounds": rounds}
    kept = Kept(given.parts, {**settings, "rivals": names, "commit": _bench.commit()})
    measured = {source: found for source in sources if (found := kept.of(source)) is not None}
    _bench.adopt_orphans()
    with ExitStack() as stack:
        left = [source for source in sources if source not in measured]
        if left:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
            library = _built(folder)
            say(f"writing {samples:,} samples in each format")
            write = _data_formats.write_encoded if given.compared is OF_CHUNKS else _data_formats.write
            refused = write(folder / "source", samples)
        for source in left:
            named = [name for name in names if _compared(name, source)]
            say(f"source {sources.index(source) + 1} of {len(sources)}, {source.name}: {len(named)} loaders")
            measured[source] = {**_measured(folder, library, source, named, samples, rounds), "not_written": refused}
            kept.keep(source, measured[source])
    results = [measured[source] for source in sources]
    told = {"settings": settings, "not_written": results[0]["not_written"]}
    print(json.dumps(_bench.told("a loader in exact order reads a source few times", told, results)))


class Kept:
    """Results of single sources in a folder, of runs with these settings and this commit; in none if it is None."""

    def __init__(self, folder: Path | None, settings: dict[str, Any]) -> None:
        self._folder, self._settings = folder, settings

    def of(self, source: Described) -> dict[str, Any] | None:
        """What is kept; None where nothing is, or that of other settings."""
        try:
            found: dict[str, Any] = json.loads(self._path(source).read_text()) if self._folder else {}
        except (OSError, ValueError):
            return None
        result: dict[str, Any] | None = found.get("result") if found.get("settings") == self._settings else None
        return result

    def keep(self, source: Described, result: dict[str, Any]) -> None:
        """Keep it, whole or not at all."""
        if self._folder is None:
            return
        path = self._path(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(json.dumps({"settings": self._settings, "result": result}))
        path.with_suffix(".part").replace(path)

    def _path(self, source: Described) -> Path:
        assert self._folder is not None
        return self._folder / f"{re.sub('[^a-z0-9]+', '-', source.name.lower())}.json"


def _measured(
    folder: Path, library: Path, source: Described, names: Sequence[str], samples: int, rounds: int
) -> dict[str, Any]:
    """What all loaders did on a source; why nothing, where it is a disk that is none."""
    others = _bench.others_share()
    not_measured = _forgotten(folder / "source" / source.form) if source.bare else ""
    found = (
        {name: {"not_measured": not_measured} for name in names}
        if not_measured
        else _rounds(folder, library, source, names, samples, rounds)
    )
    return {"source": source._asdict(), "rivals": found, "others_share": others()}


def _compared(name: str, source: Described) -> bool:
    """Whether a loader is measured on a source: units where reads take long, other libraries where times are not those
    of this host's disk."""
    if source.unlike or name in UNLIKE:
        return source.unlike and name in UNLIKE
    if source.bare:
        return name not in MDS and (name in (PLAIN, LAST_USED) or name.startswith("sentinel"))
    return bool(source.latency_ns) or "unit=" not in name or "auto" in name


def _forgotten(folder: Path) -> str:
    """The files of a folder are on the disk, and not in the page cache. Returns why not, where there is no disk."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            until = time.monotonic() + _FORGETS_S
            while time.monotonic() < until:  # a page that a processor has not put on the kernel's lists yet stays
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                try:
                    os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
                except BlockingIOError:
                    break
                except OSError as error:
                    return f"the kernel does not tell what is cached there ({error}): give --folder on a disk"
                time.sleep(0.1)
            else:
                return "its folder is in memory, and on no disk: give --folder on a disk"
    return ""


def _cached(folder: Path, source: Described) -> None:
    """The page cache has all files of a source, but of a bare disk."""
    if source.bare:
        return
    piece = bytearray(1 << 20)
    for path in (folder / "source").rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(piece):
                    pass


def say(sentence: str) -> None:
    """On standard error, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def _rounds(
    folder: Path, library: Path, source: Described, names: Sequence[str], samples: int, rounds: int
) -> dict[str, Any]:
    """Rival -> its epochs: a first one, then `rounds` in which all take turns."""
    found: dict[str, Any] = {}
    running: dict[str, _Rival] = {}
    try:
        for name in names:
            try:
                running[name] = _Rival(name, folder, library, source, samples)
                _cached(folder, source)
                found[name] = {"version": running[name].version, "first": running[name].epoch(), "rounds": []}
                found[name] |= UNLIKE.get(name, {})
            except _Ended as error:
                found[name] = {"not_measured": str(error)}
                running.pop(name, _NONE).close()
        for number, order in enumerate(_bench.taking_turns(list(running), rounds)):
            say(f"  round {number + 1} of {rounds}")
            for name in order:
                _cached(folder, source)
                try:
                    found[name]["rounds"].append(running[name].epoch())
                except _Ended as error:
                    found[name]["not_measured"] = str(error)
    finally:
        for rival in running.values():
            rival.close()
    for name, told in found.items():
        times = [epoch["ns"] for epoch in told.get("rounds", ())]
        what = f"{samples / statistics.median(times) * 1e9:,.0f} samples/s" if times else told.get("not_measured", "")
        say(f"  {name}: {what}")
    return found


class _Ended(Exception):
    """A rival has ended; the last line that it said."""


class _Rival:
    """A loader in a process of its own, and what that reads of the source."""

    def __init__(self, name: str, folder: Path, library: Path, source: Described, samples: int) -> None:
        path = Path(tempfile.mkdtemp(dir=folder))
        (path / "state").write_bytes(bytes(_STATE))
        with open(path / "state", "r+b") as file:
            self._state = mmap.mmap(file.fileno(), _STATE)
        self._errors = path / "errors"
        options = {"samples": samples, "chunk": CHUNK, "share": SHARE, "batch": BATCH, "workers": source.workers}
        options |= UNLIKE.get(name, {})
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        words += ["--form", source.form]
        said = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._data_rival", name, str(folder), *words],
            cwd=_bench.ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "SOURCE_ROOT": str(folder / "source"),
                "SOURCE_STATE": str(path / "state"),
                "XDG_CACHE_HOME": str(folder / "cache"),
                "HF_HUB_OFFLINE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        os.close(said)
        self.version = self._answer()["version"]
        struct.pack_into(_HEAD, self._state, 0, source.latency_ns, source.read_bytes_per_s, source.depth)
        struct.pack_into("Q", self._state, _STATE - 8, source.bare)
        self._asked("open")

    def epoch(self) -> dict[str, Any]:
        """What an epoch delivered, what was read for it, and what it took of processors, workers' included."""
        before, cpu_s = struct.unpack_from("2Q", self._state, 24), _bench.tree_s(self._process.pid)
        found = self._asked("epoch")
        reads, nbytes = struct.unpack_from("2Q", self._state, 24)
        cpu_s = round(_bench.tree_s(self._process.pid) - cpu_s, 2)
        return {**found, "cpu_s": cpu_s, "reads": reads - before[0], "read_bytes": nbytes - before[1]}

    def close(self) -> None:
        """The process ends, and its workers."""
        _bench.end_tree(self._process)

    def _asked(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: it says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        said = self._errors.read_text(errors="replace").strip().splitlines()
        raise _Ended(said[-1] if said else "it ended without a word")


class _None:
    """In place of a rival that could not be started."""

    def close(self) -> None:
        """Nothing."""


_NONE: Any = _None()


def _built(folder: Path) -> Path:
    """The library that describes a source."""
    library = folder / "described_source.so"
    source = Path(__file__).parent / "_described_source.c"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


if __name__ == "__main__":
    main()
