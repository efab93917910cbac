"""Jobs that select by loss under one name: each holds other samples, and copies from the memory of the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data import Importance  # noqa: E402
from sentinel.data.importance_loading import ImportanceLoader  # noqa: E402
from sentinel.data.sample_arena import ArenaShape, SampleArena  # noqa: E402
from sentinel.data.selecting_jobs import _HOLDS, SelectingJobs  # noqa: E402
from sentinel.data.share_names import ShareName  # noqa: E402
from tests.data_files import number_of  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402
from tests.torch.loaders import COUNT  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")
SELECTING = Importance(beta=1, warm_up=1, reuse_factor=0)
EPOCHS = 6


def loader_of(source: Any, share: str | None = None, **options: Any) -> ImportanceLoader:
    given = {"batch_size": 32, "memory": "20%", "unit": 1, "share": share, "order": SELECTING, **options}
    made = sentinel.data.loader(source, number_of, **given)
    assert isinstance(made, ImportanceLoader)
    return made


def loss_of(sample: Any, seed: int) -> Any:
    """Which does not change: high for the same samples in all jobs, but not alike."""
    return (sample + (sample * (7 + 4 * seed)) % 97) / COUNT


def epoch_of(loader: ImportanceLoader, seed: int = 0) -> list[int]:
    found: list[int] = []
    for batch in loader:
        found += batch.tolist()
        loader.report_losses(loss_of(batch, seed))
    return found


def arena_of(loader: ImportanceLoader) -> Any:
    return loader._selecting._arena


def processes_of(loader: ImportanceLoader) -> list[int]:
    """This one, and its workers."""
    workers = loader._workers._iterator._workers if loader._batching.workers else []
    return [os.getpid(), *(worker.pid for worker in workers)]


def held_by(loader: ImportanceLoader) -> set[int]:
    """What it says that it holds."""
    return set(np.flatnonzero(arena_of(loader).worth & _HOLDS).tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_jobs_deliver_the_same_and_read_less_together(tars: list[str], name: str, workers: int) -> None:
    alone = [loader_of(tars, seed=seed) for seed in range(2)]
    expected = [[epoch_of(loader, seed) for _ in range(EPOCHS)] for seed, loader in enumerate(alone)]
    jobs = [loader_of(tars, name, seed=seed, workers=workers) for seed in range(2)]
    got: list[list[list[int]]] = [[], []]
    for _ in range(EPOCHS):
        for seed, loader in enumerate(jobs):
            got[seed].append(epoch_of(loader, seed))
    assert got == expected
    ours, theirs = map(held_by, jobs)
    assert len(ours) > COUNT / 8
    assert len(theirs) > COUNT / 8
    assert not ours & theirs
    assert min(ours | theirs) > COUNT / 2, "together they hold those that both deliver most"
    reads = [
        sum(loader.report().feed.source_reads + loader.report().feed.direct_reads for loader in two)
        for two in (alone, jobs)
    ]
    assert reads[1] < 0.85 * reads[0]
    for loader in jobs:
        report = loader.report()
        assert report.feed.hits + report.feed.source_reads + report.feed.direct_reads == report.feed.samples
        assert report.caveats[0] == f"share {name!r}: 1 other job selected from these files"
        assert any("of the hits came from the memory of other jobs" in said for said in report.caveats)
        assert not any("pack small files" in said for said in report.caveats)  # these are shards
        loader.close()


def test_of_two_that_hold_a_sample_one_goes_on(tars: list[str], name: str) -> None:
    """Each planned its first epoch before the other had said what it would hold."""
    jobs = [loader_of(tars, name) for _ in range(2)]
    first, batches = jobs[0], [iter(jobs[0])]
    said = arena_of(first).worth.copy()
    arena_of(first).worth[:] = 0
    batches.append(iter(jobs[1]))
    arena_of(first).worth[:] = said
    for loader, mine in zip(jobs, batches, strict=True):
        for batch in mine:
            loader.report_losses(loss_of(batch, 0))
    twice = [held_by(first) & held_by(jobs[1])]
    for _ in range(4):
        for loader in jobs:
            epoch_of(loader)
        twice.append(held_by(first) & held_by(jobs[1]))
    assert len(twice[1]) < len(twice[0]) / 2
    assert len(twice[-1]) < len(twice[0]) / 20, "what no other sample comes for may stay"


def test_a_job_of_shorter_epochs_counts_more(name: str) -> None:
    shape, now = ArenaShape(4, 4, 64, worth=True), [5]
    shares = [ShareName(name, "data", {}) for _ in range(2)]
    jobs = [SelectingJobs(share, SampleArena(shape), lambda: now[0]) for share in shares]
    first, second = np.array([0.25, 0.5, 0.75, 1]), np.array([1, 0.75, 0.5, 0.25])
    nothing = np.zeros(0, np.int64)
    jobs[0].look(first, nothing, whole=False)
    worth, _ = jobs[1].look(second, nothing, whole=False)
    assert worth == pytest.approx([159, 159, 159, 159], abs=2)  # nobody knows yet how long an epoch takes
    now[0] += 1000
    worth, _ = jobs[1].look(second, nothing, whole=True)
    now[0] += 10
    jobs[0].look(first, nothing, whole=False)  # one that was left, or a part, is no epoch
    worth, _ = jobs[1].look(second, nothing, whole=False)
    assert worth == pytest.approx([159, 159, 159, 159], abs=2)
    now[0] += 100
    jobs[0].look(first, nothing, whole=True)
    worth, _ = jobs[1].look(second, nothing, whole=False)
    assert worth == pytest.approx(127 * (second + 10 * first), abs=6)
    now[0] += 100_000  # the first one does nothing
    worth, _ = jobs[1].look(second, nothing, whole=False)
    assert worth == pytest.approx(127 * second, abs=3)
    for share in shares:
        share.close()


def test_what_a_job_meant_to_keep_and_never_read_is_kept_by_others(tars: list[str], name: str) -> None:
    left, goes_on = loader_of(tars, name), loader_of(tars, name)
    batches = iter(left)
    next(batches)
    meant = held_by(left)
    epoch_of(goes_on)
    assert not held_by(goes_on) & meant
    left.close()
    for _ in range(4):
        epoch_of(goes_on)
    assert len(held_by(goes_on) & meant) > len(meant) / 2


def test_epochs_that_are_left_jumped_to_and_resumed_deliver_the_same(tars: list[str], name: str) -> None:
    def delivered(loader: ImportanceLoader, make: Any) -> list[list[int]]:
        found = [epoch_of(loader)]
        for number, batch in enumerate(loader):
            loader.report_losses(loss_of(batch, 0))
            if number == 2:
                break
        found.append(epoch_of(loader))
        loader.set_epoch(7)
        batches = iter(loader)
        found.append(next(batches).tolist())
        loader.report_losses(loss_of(np.array(found[-1]), 0))
        state = loader.state_dict()
        loader.close()
        again = make()
        again.load_state_dict(state)
        found += [epoch_of(again), epoch_of(again)]
        again.close()
        return found

    expected = delivered(loader_of(tars), lambda: loader_of(tars))
    other = loader_of(tars, name, seed=1)
    epoch_of(other, 1)
    spawned = {"workers": 1, "multiprocessing_context": "spawn"}
    assert delivered(loader_of(tars, name), lambda: loader_of(tars, name, **spawned)) == expected
    other.close()


def test_bytes_that_another_job_spoils_are_read_from_the_files(tars: list[str], name: str) -> None:
    alone = loader_of(tars, seed=1)
    expected = [epoch_of(alone, 1) for _ in range(4)]
    first, second = (loader_of(tars, name, seed=seed) for seed in range(2))
    got = []
    for _ in range(4):
        epoch_of(first)
        arena_of(first).pages[:] ^= 1
        got.append(epoch_of(second, 1))
        arena_of(first).pages[:] ^= 1
    assert got == expected
    assert second.report().feed.direct_reads > 0
    assert not any("came from the memory of other jobs" in said for said in second.report().caveats)


PROGRAM = """
import sys
import sentinel.data
from tests.data_files import number_of
name, *tars = sys.argv[1:]
order = sentinel.data.Importance(beta=1, warm_up=1, reuse_factor=0)
loader = sentinel.data.loader(tars, number_of, batch_size=32, memory="20%", share=name, order=order)
for _ in range(2):
    for batch in loader:
        loader.report_losses(batch / 600)
print("here", loader._selecting._arena.inode, sep="\\n", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_another_job_may_be_killed(tars: list[str], name: str, workers: int) -> None:
    alone = loader_of(tars)
    expected = [epoch_of(alone) for _ in range(4)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, *tars], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        theirs = other.stdout.readline().strip()
        loader = loader_of(tars, name, workers=workers)
        got = [epoch_of(loader)]
        batches = iter(loader)
        epoch = []
        for number, batch in enumerate(batches):
            epoch += batch.tolist()
            loader.report_losses(loss_of(batch, 0))
            if number == 3:
                other.kill()
                other.wait(LONGEST_S)
        got += [epoch, epoch_of(loader), epoch_of(loader)]
        memory = [line for pid in processes_of(loader) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        inodes = {line.split()[4] for line in memory if "/memfd:" in line}
        assert str(arena_of(loader).inode) in inodes
        assert theirs not in inodes, "the memory of a job that has ended is let go"
    assert got == expected
    said = loader.report().caveats
    assert f"share {name!r}: 0 other jobs selected from these files" in said
    assert any("came from the memory of other jobs" in each for each in said)
    loader.close()


def test_what_cannot_be_shared_is_refused(tars: list[str], name: str) -> None:
    with pytest.raises(UsageError, match="needs samples that are read one by one"):
        loader_of(tars, name, unit=16)
    with pytest.raises(UsageError, match="is for jobs of one rank, this one has 2"):
        loader_of(tars, name, rank=0, world=2)
    with pytest.raises(UsageError, match="needs files in exact order, or selected by loss"):
        sentinel.data.loader(tars, number_of, batch_size=32, memory="20%", order="windowed", share=name)
    first = loader_of(tars, name, unit="auto")  # reads samples one by one
    exact = sentinel.data.loader(tars, number_of, batch_size=32, memory="40%", unit=16, share=name)
    epoch_of(first)
    said = (
        f"share {name!r}: 0 other jobs selected from these files; process {os.getpid()} reads for itself, with another "
    )
    assert first.report().caveats[0].startswith(f"{said}order, ")
    exact.close()


def test_close_closes_the_readers_files_too(tars: list[str], name: str) -> None:
    loader = loader_of(tars, name)
    epoch_of(loader)
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    assert {os.readlink(link) for link in links if os.path.lexists(link)} & set(tars)
    loader.close()
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    assert not {os.readlink(link) for link in links if os.path.lexists(link)} & set(tars)
