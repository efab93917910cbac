"""What sentinel.data takes beside reading, and what two jobs that share take: `python -m benchmarks.data_limits >
docs/data-limits.json`.

- `index`: 100,000 samples of 1 KiB in ten tar shards, whose headers are in the page cache.
- `planning` and `resume`: 1,281,152 rows of 1 KiB, memory for a fifth of them; from the begin of an epoch and from its
  last twentieth to the first batch, and how much of that is planning. The rows are a hole in a file, so nothing is read
  from a disk.
- `share`: two jobs of two workers each deliver two epochs of 8,192 rows of 8 KiB, with memory for a fifth: as one
  share with one seed, with unlike seeds, and apart with half of the memory each. Reads are counted by the loaders;
  memory by the kernel, in the middle of the second epoch: the Pss of what all processes have mapped for samples.

Counts do not depend on the host. Times are given as they passed and as processor time, with how busy others kept the
host meanwhile. Each is of a process of its own. `python -m benchmarks.data_page` writes the table into docs/data.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench
from benchmarks.data import say
from tests.data_files import add

INDEXED, SHARDS = 100_000, 10
LARGE, ROW_BYTES = 1_281_152, 1024
SHARED, SHARED_ROW_BYTES = 8192, 8192
CHUNK, BATCH, SHARE = 64, 256, 0.2
CASES = {"alone": ((0, 1.0),), "one seed": ((0, 1.0), (0, 1.0)), "unlike seeds": ((0, 1.0), (1, 1.0))}
CASES |= {"apart, half the memory": ((0, 0.5), (1, 0.5))}
"""Seed and part of the memory of each job."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object; with `--part`, do one of the parts and print that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the data (default: a temporary one)")
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.part:
        print(json.dumps(PARTS[given.part](*given.words)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        environment = {"XDG_CACHE_HOME": str(folder / "cache")}
        rows, shared = folder / "rows.npy", folder / "shared.npy"
        _hole(rows, (LARGE, ROW_BYTES))
        np.save(shared, np.random.default_rng(1).integers(0, 256, (SHARED, SHARED_ROW_BYTES), np.uint8))
        _write_tars(folder / "tar")
        parts = {
            "index": [str(folder / "tar")],
            "begin": [str(rows), "0"],
            "resume": [str(rows), str(LARGE * 19 // 20)],
        }
        results: dict[str, Any] = {part: [] for part in parts}
        for order in _bench.taking_turns(list(parts), given.rounds):
            for part in order:
                others = _bench.others_share()
                command = ["--part", "first" if part in ("begin", "resume") else part, *parts[part]]
                found = _bench.child("benchmarks.data_limits", command, environment)
                results[part].append(found | {"others_share": others()})
                say(f"{part}: {results[part][-1]}")
        results["share"] = {}
        for case, jobs in CASES.items():
            results["share"][case] = shared_by(shared, jobs, environment)
            say(f"{case}: {results['share'][case]}")
    settings: dict[str, Any] = {
        "indexed": INDEXED,
        "large": LARGE,
        "row_bytes": ROW_BYTES,
        "shared": SHARED,
        "chunk": CHUNK,
    }
    settings |= {"shared_row_bytes": SHARED_ROW_BYTES, "share": SHARE, "rounds": given.rounds}
    print(json.dumps(_bench.told("beside reading, a loader takes little", {"settings": settings}, results)))


# --- the parts, each in a process of its own ---


def indexed(folder: str) -> dict[str, float]:
    """Seconds of indexing the shards, the second time: then their headers are in the page cache."""
    import sentinel.data

    paths = sorted(map(str, Path(folder).glob("*.tar")))
    for _ in range(2):
        with _timed() as spent:
            kept = sentinel.data.index(paths)
    return {**spent, "index_bytes": kept.stat().st_size}


def first_batch(path: str, delivered: str) -> dict[str, float]:
    """Seconds from `iter` to the first batch, where so many samples of the epoch were delivered before, and how much of
    them is planning."""
    import sentinel.data
    from sentinel.data.feeding import FileFeeding

    loader = sentinel.data.loader(path, batch_size=BATCH, memory=f"{SHARE:.0%}", unit=CHUNK, workers=2)
    if int(delivered):
        loader.load_state_dict({**loader.state_dict(), "delivered": int(delivered)})
    real, planning = FileFeeding._planned, dict[str, float]()

    def planned(*arguments: Any) -> Any:
        with _timed() as spent:
            found = real(*arguments)
        planning.update({f"planning_{name}": seconds for name, seconds in spent.items()})
        return found

    FileFeeding._planned = planned  # type: ignore[assignment,method-assign]
    with _timed() as spent:
        batches = iter(loader)
        next(batches)
    told = {**spent, **planning, "reads_per_chunk": _planned_reads(loader)}
    del batches
    loader.close()
    return told


def _planned_reads(loader: Any) -> float:
    """Reads that the plan has, over chunks."""
    reads: float = loader._feeding.predicted().reads_per_chunk
    return reads


def job(path: str, seed: str, share: str, name: str) -> dict[str, Any]:
    """Two epochs of a job, each begun and gone on with after a word on standard input: at its begin, in its middle."""
    import sentinel.data

    options = {"share": name} if name else {}
    memory = int(SHARED * SHARED_ROW_BYTES * SHARE * float(share))
    loader = sentinel.data.loader(
        path, batch_size=BATCH, memory=memory, unit=CHUNK, workers=2, seed=int(seed), **options
    )
    for _ in range(2):
        _wait("ready")
        batches = iter(loader)
        _wait("begun")
        half = len(loader) // 2
        for _ in range(half):
            next(batches)
        _wait("half")
        for _ in batches:
            pass
    feed = loader.report().feed
    told = {"samples": feed.samples, "source_reads": feed.source_reads, "direct_reads": feed.direct_reads}
    loader.close()
    return told


def _wait(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"index": indexed, "first": first_batch, "job": job}


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """`seconds` that pass in the block, and `cpu_s` that this process spends in it."""
    spent: dict[str, float] = {}
    began, cpu = time.perf_counter(), time.process_time()
    yield spent
    spent |= {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


# --- two jobs ---


def shared_by(path: Path, jobs: Sequence[tuple[int, float]], environment: dict[str, str]) -> dict[str, Any]:
    """What jobs of these seeds and parts of the memory read, and what memory for samples they hold."""
    name = "" if len(jobs) == 1 or jobs[0][1] < 1 else f"data-limits-{os.getpid()}"
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.data_limits", "--part", "job", str(path), str(seed), str(part), name],
            cwd=_bench.ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed, part in jobs
    ]
    try:
        held: dict[str, float] = {}
        for _ in range(2):
            for process in running:  # all are there before one begins
                _read(process, "ready")
            for process in running:  # one after the other, so that the second finds what the first one reads
                _go_on(process)
                _read(process, "begun")
            for process in running:
                _go_on(process)
            for process in running:
                _read(process, "half")
            held = _memory(running)
            for process in running:
                _go_on(process)
        told = [json.loads(_line(process)) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    chunks = SHARED // CHUNK
    reads = sum(one["source_reads"] for one in told) / chunks / 2
    return {**held, "reads_per_chunk": reads, "direct_reads": sum(one["direct_reads"] for one in told), "jobs": told}


def _memory(running: Sequence[subprocess.Popen[str]]) -> dict[str, float]:
    """`pss_bytes`: of the mappings for samples of these processes and their workers; `arena_bytes`: of the largest."""
    pss = arena = 0
    for process in running:
        folder = Path(f"/proc/{process.pid}/task")
        children = [pid for task in folder.iterdir() for pid in (task / "children").read_text().split()]
        for pid in (process.pid, *children):
            ours = False
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                words = line.split()
                if not words[0].endswith(":"):
                    ours = "memfd:sentinel-samples" in line
                elif ours and words[0] == "Size:":
                    arena = max(arena, int(words[1]) << 10)
                elif ours and words[0] == "Pss:":
                    pss += int(words[1]) << 10
    return {"pss_bytes": pss, "arena_bytes": arena}


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _read(process: subprocess.Popen[str], word: str) -> None:
    line = _line(process)
    if line != word:
        raise SystemExit(f"a job said {line!r}, not {word!r}")


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- files ---


def _hole(path: Path, shape: tuple[int, int]) -> None:
    """An array of zeros that takes no room on the disk."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)


def _write_tars(folder: Path) -> None:
    folder.mkdir()
    data, of_shard = bytes(1024), INDEXED // SHARDS
    for shard in range(SHARDS):
        with tarfile.open(folder / f"train-{shard:03d}.tar", "w") as tar:
            for number in range(shard * of_shard, (shard + 1) * of_shard):
                add(tar, f"{number:08d}.img", data)


if __name__ == "__main__":
    main()
