"""What a job leaves that is interrupted, and what one delivers that torchrun starts again."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.cli import main  # noqa: E402
from sentinel.core.errors import FormatError  # noqa: E402
from sentinel.data.feeding import permutation  # noqa: E402
from sentinel.data.share_names import path_of  # noqa: E402
from sentinel.samples import Order  # noqa: E402
from tests.data_files import mds, rows, shards  # noqa: E402
from tests.processes import LONGEST_S, started, until  # noqa: E402

COUNT = 600
ROOT = Path(__file__).parents[2]

TRAINING = """
import gc, json, multiprocessing, os, sys, threading
import sentinel.data, sentinel.data.staged_samples
from tests.data_files import number_of
multiprocessing.set_start_method("fork")  # no longer the default on 3.14, whose server and tracker are children too

def here():
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("sentinel"):
            thread.join(600)  # they end once nobody uses the loader
    gc.collect()
    children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
    links = [os.readlink(path) for fd in os.listdir("/proc/self/fd") if os.path.lexists(path := f"/proc/self/fd/{fd}")]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("sentinel")]
    return [sorted(link for link in links if not link.startswith("/proc/")), children, threads]

def train(share, workers, tars):
    sentinel.data.staged_samples.PATIENCE_S = 600.0
    loader = sentinel.data.loader(
        tars, number_of, batch_size=20, memory="40%", unit=16, workers=workers, share=share or None
    )
    done = 0
    while True:
        for batch in loader:
            done += 1
            if done > 5:
                os.write(1, b"training\\n")  # whole or not at all, whenever the signal comes

def main():
    share, workers, *tars = sys.argv[1:]
    import multiprocessing.resource_tracker, torch
    torch.ones(2).sum()
    if share:
        list(sentinel.data.loader(tars, number_of, batch_size=20, memory="40%", unit=16))
    for _ in range(2):
        before = here()
        try:
            train(share, int(workers), tars)
        except KeyboardInterrupt:
            pass
        print(json.dumps([before, here()]), flush=True)
        sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


# Workers with a share have all that either of them could leave.
@pytest.mark.parametrize(
    ("workers", "share"),
    [
        (0, False),
        pytest.param(0, True, marks=pytest.mark.long),
        pytest.param(2, False, marks=pytest.mark.long),
        (2, True),
    ],
)
def test_ctrl_c_leaves_nothing(tmp_path: Path, share: bool, workers: int) -> None:
    """Of the loader, while the process goes on: no descriptor, child or thread, and no name in /dev/shm. As on a
    terminal, the signal comes to workers too. It comes after 1 batch, and to the next loader after 40."""
    name = f"test-{os.getpid()}-{workers}" if share else ""
    tars = shards(tmp_path, [200, 150, 250])
    (tmp_path / "training.py").write_text(TRAINING)
    with started(
        [sys.executable, str(tmp_path / "training.py"), name, str(workers), *tars],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        assert job.stdin is not None
        assert job.stderr is not None
        for batches in (1, 40):
            for _ in range(batches):
                assert job.stdout.readline() == "training\n"
            assert os.path.exists(path_of(name)) if share else True
            working = _members(job.pid)
            assert len(working) == 1 + workers
            os.killpg(job.pid, signal.SIGINT)
            before, after = _told(job)
            assert after[0] == before[0], "descriptors"
            assert after[1] == before[1] == [], "children"
            assert after[2] == [], "threads"
            left = os.listdir("/dev/shm")
            assert not [one for one in left if name and name in one]
            assert not [one for one in left if one.startswith(tuple(f"torch_{pid}_" for pid in working))]
            print(file=job.stdin, flush=True)  # it trains once more, or ends
        job.stdin.close()
        job.wait(LONGEST_S)
    until(lambda: not _in_group(job.pid))


def _told(job: subprocess.Popen[str]) -> list[list[list[str]]]:
    assert job.stdout is not None
    for line in job.stdout:
        if line != "training\n":
            found: list[list[list[str]]] = json.loads(line)
            return found
    assert job.stderr is not None
    raise AssertionError(job.stderr.read())


def _members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def _in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _of_tar(folder: Path) -> str:
    shards(folder, [200, 100])
    return str(folder / "train-{000..001}.tar")


def _of_mds(folder: Path, packed: bool = False) -> str:
    samples = [{"x": np.int64(i).tobytes()} for i in range(300)]
    mds(folder, {"x": ("int64", 8)}, [samples[:200], samples[200:]], zstd=packed)
    return str(folder)


def _of_parquet(folder: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(300))}), folder / "rows.parquet", row_group_size=50)
    return str(folder / "rows.parquet")


def _of_files(folder: Path) -> str:
    for i in range(60):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * 50)
    return str(folder)


def _stated(folder: Path) -> dict[str, tuple[object, ...]]:
    """What would tell of a write, and the bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        state = path.stat()
        what = (state.st_ino, state.st_mode, state.st_nlink, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        found[str(path)] = (*what, path.read_bytes() if path.is_file() else b"")
    return found


SOURCES: dict[str, Callable[[Path], str]] = {
    "tar": _of_tar,
    "rows": lambda folder: rows(folder, 300),
    "MDS": _of_mds,
    "packed MDS": lambda folder: _of_mds(folder, packed=True),
    "Parquet": _of_parquet,
    "folder": _of_files,
}


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("form", SOURCES)
def test_sources_are_only_read(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By loaders, one of which loses a worker, and by all that `sentinel data` does with a source."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    source = SOURCES[form](tmp_path / "data")
    before = _stated(tmp_path / "data")
    for order in ("exact", "windowed", "redirect"):
        loader = sentinel.data.loader(
            source, batch_size=10, memory="1MiB", order=order, workers=2, collate_fn=len, unit="auto"
        )
        for number, _ in enumerate(loader):
            if not number:
                assert loader._workers is not None
                os.kill(loader._workers._iterator._workers[0].pid, signal.SIGKILL)
        assert sum(loader) == len(loader) * 10
        loader.close()
    memory, to = ("--memory", "1MiB"), ("--to", str(tmp_path / "packed"))
    for verb, *words in (("index",), ("plan", *memory), ("run", *memory), ("pack", *to)):
        assert main(["data", verb, source, *words]) == 0, capsys.readouterr().err
    assert (tmp_path / "packed").is_dir()
    assert _stated(tmp_path / "data") == before


class _Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("kept", [False, True])
def test_a_pickle_in_place_of_an_index_is_not_executed(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given as an index, or lying where one is kept: that one is made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tars, ran = shards(tmp_path, [30]), tmp_path / "ran"
    pickled = pickle.dumps(_Runs(ran))
    pickle.loads(pickled)
    assert ran.exists()
    ran.unlink()
    if kept:
        sentinel.data.index(tars)
        (index,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        index.write_bytes(pickled)
        sentinel.data.index(tars)
    else:
        (tmp_path / "given").write_bytes(pickled)
        with pytest.raises(FormatError, match="is not a Sentinel file"):
            sentinel.data.loader(tars, batch_size=10, memory="50%", index_path=str(tmp_path / "given"))
    assert not ran.exists()


RANK = """
import json, os, signal, sys
import torch
import torch.distributed as dist
import sentinel.data
from tests.data_files import number_of

EVERY, DIES_AT = 3, 8

def main():
    folder, *tars = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    loader = sentinel.data.loader(tars, number_of, batch_size=20, memory="20%", unit=16, workers=2)
    kept = os.path.join(folder, "state.json")
    if os.path.exists(kept):
        loader.load_state_dict(json.load(open(kept)))
    log = open(os.path.join(folder, f"got.{attempt}.{rank}"), "w")
    for number, batch in enumerate(loader, 1):
        print(json.dumps(batch.tolist()), file=log, flush=True)
        if number % EVERY == 0:
            dist.barrier()  # as an optimizer's step would be
            if not rank:
                with open(kept + ".new", "w") as file:
                    json.dump(loader.state_dict(), file)
                os.replace(kept + ".new", kept)
            dist.barrier()
        if attempt == 0 and rank == 1 and number == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    loader.close()
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_rank_that_is_killed_loses_and_repeats_nothing_since_the_checkpoint(tmp_path: Path) -> None:
    tars = shards(tmp_path, [200, 150, 250])
    (tmp_path / "rank.py").write_text(RANK)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "--max-restarts", "1", str(tmp_path / "rank.py"), str(tmp_path), *tars],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },  # else gloo of torch 2.13 finds the addresses of ended ranks
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    got = {
        (attempt, rank): [json.loads(line) for line in (tmp_path / f"got.{attempt}.{rank}").read_text().splitlines()]
        for attempt in range(2)
        for rank in range(2)
    }
    assert len(got[0, 1]) == 8
    received = [
        [number for batch in got[0, rank][:6] + got[1, rank] for number in batch] for rank in range(2)
    ]  # the checkpoint was after six batches
    for rank in range(2):
        assert received[rank] == Order(world=2, rank=rank).of_rank(permutation(COUNT, Order(), 0)).tolist()
    assert sorted(received[0] + received[1]) == list(range(COUNT))
