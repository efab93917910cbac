"""Three ranks apart and with peers, also while servers fail: `python -m benchmarks.three_ranks > three_ranks.json`.

Each rank is a process with memory for a fifth of 8,192 samples of 8 KB, in chunks of 64. Reads take as long as on a
source of 2 ms a read and 1 GB/s that serves 16 at once (injected, see _described_source.c), and are counted. Cases take
turns, each with ranks and servers of its own, which deliver three epochs; in the middle of the third one a server is
killed or stopped. A server that is full has a quarter of the memory that it should have. Ranks tell a digest of all
that they deliver: with and without peers it must be the same, or nothing is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench, data
from sentinel.system import peer_server
from tests.resp_servers import Server, servers

WORLD, SAMPLES, WIDTH, CHUNK, EPOCHS = 3, 8192, 2048, 64, 3
CASES = ("apart", "peers", "one killed", "one stopped", "one full")
SOURCE = data.SOURCES[2]
_MEMORY = SAMPLES * WIDTH * 4 // 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as one JSON object; with `--rank`, be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--peers", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank is not None:
        be_rank(given.rank, given.path, given.peers)
        return
    results: dict[str, list[Any]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        library = data._built(folder)
        (folder / "source").mkdir()
        rows = np.random.default_rng(1).integers(0, 1 << 30, (SAMPLES, WIDTH)).astype(np.int32)
        np.save(folder / "source" / "rows.npy", rows)
        for order in _bench.taking_turns(list(CASES), given.rounds):
            for case in order:
                results[case].append(measured(case, folder, library))
                data.say(f"{case}: {results[case][-1]['epochs'][-1]}")
    digests = {digest for rounds in results.values() for one in rounds for digest in [tuple(one.pop("digests"))]}
    if len(digests) != 1:
        raise SystemExit("ranks with peers delivered other samples than ranks apart")
    settings = {"world": WORLD, "samples": SAMPLES, "sample_bytes": 4 * WIDTH, "chunk": CHUNK, "share": 0.2}
    print(json.dumps(_bench.told("ranks share memory", {**settings, "source": SOURCE._asdict()}, results)))


def measured(case: str, folder: Path, library: Path) -> dict[str, Any]:
    """What three ranks read, in each of the epochs, and how long these took."""
    count = 0 if case == "apart" else WORLD
    with servers(count, 2 * _MEMORY) as found, servers(case == "one full", _MEMORY // 4) as full:
        peers = [*found[: WORLD - len(full)], *full] if count else []
        ranks = [_Rank(rank, folder, library, peers) for rank in range(WORLD)]
        try:
            epochs = []
            for number in range(EPOCHS):
                before = [rank.reads() for rank in ranks]
                began = time.monotonic_ns()
                for rank in ranks:
                    rank.say("epoch")
                ranks[0].answer()  # at its half
                if number == EPOCHS - 1 and case == "one killed":
                    peers[1].process.kill()
                if number == EPOCHS - 1 and case == "one stopped":
                    peers[1].process.send_signal(signal.SIGSTOP)
                told = [rank.answer() for rank in ranks]
                ns = time.monotonic_ns() - began
                reads = sum(rank.reads() for rank in ranks) - sum(before)
                alone = sum(one["direct_reads"] for one in told)
                epochs.append({"ns": ns, "reads_per_chunk": reads * CHUNK / SAMPLES, "direct_reads": alone})
            return {"epochs": epochs, "digests": [one["digest"] for one in told]}
        finally:
            for rank in ranks:
                rank.close()


class _Rank:
    """A rank in a process of its own."""

    def __init__(self, rank: int, folder: Path, library: Path, peers: list[Server]) -> None:
        state = Path(tempfile.mkdtemp(dir=folder)) / "state"
        state.write_bytes(bytes(data._STATE))
        with open(state, "r+b") as file:
            self._state = mmap.mmap(file.fileno(), data._STATE)
        words = ["--rank", str(rank), "--path", str(folder / "source" / "rows.npy")]
        words += ["--peers", *(peer.address for peer in peers)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.three_ranks", *words],
            cwd=_bench.ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "SOURCE_ROOT": str(folder / "source"),
                "SOURCE_STATE": str(state),
                "XDG_CACHE_HOME": str(folder / "cache"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()
        struct.pack_into(data._HEAD, self._state, 0, SOURCE.latency_ns, SOURCE.read_bytes_per_s, SOURCE.depth)

    def reads(self) -> int:
        """Reads of the source so far."""
        return int(struct.unpack_from("Q", self._state, 24)[0])

    def say(self, word: str) -> None:
        """One line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a rank has ended")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """The process ends."""
        self._process.kill()
        self._process.wait()


def be_rank(rank: int, path: str, peers: list[str]) -> None:
    """Delivers an epoch for each line of standard input."""
    import torch

    import sentinel.data

    torch.set_num_threads(1)
    loader = sentinel.data.loader(
        path, batch_size=CHUNK, memory=_MEMORY, unit=CHUNK, rank=rank, world=WORLD, peers=tuple(peers)
    )
    digest, before = hashlib.sha256(), 0
    print("{}", flush=True)
    for _ in sys.stdin:
        for number, batch in enumerate(loader):
            digest.update(batch.numpy().tobytes())
            if not rank and number == len(loader) // 2:
                print("{}", flush=True)
        alone = loader.report().feed.direct_reads
        print(json.dumps({"direct_reads": alone - before, "digest": digest.hexdigest()}), flush=True)
        before = alone


if __name__ == "__main__":
    peer_server.program()  # names what is missing
    main()
