"""Jobs that share a name: the same order and bytes as alone, and one of them reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.cli import main  # noqa: E402
from sentinel.core.errors import FormatError, SentinelError, UsageError  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.sample_arena import (  # noqa: E402
    DONE,
    EPOCH,
    JOINED,
    MOST_JOBS,
    RUNNING,
    WANTED,
    ArenaShape,
    SampleArena,
    arena_of,
)
from sentinel.data.served_samples import Served  # noqa: E402
from sentinel.data.share_names import FOLDER, ShareName, _entered, path_of, remove  # noqa: E402
from sentinel.data.shared_feeding import SharedFeeding  # noqa: E402
from sentinel.data.source_files import SourceFiles  # noqa: E402
from sentinel.data.staged_samples import FromArena, Request  # noqa: E402
from sentinel.samples import DIRECT, Begun, Epoch, Order, Room, plan  # noqa: E402
from tests.data_files import number_of, rows  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402

COUNT = 600


@pytest.fixture(autouse=True)
def _patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for where in ("staged_samples.PATIENCE_S", "chunk_reader.APART_S", "shared_feeding.APART_S"):
        monkeypatch.setattr(f"sentinel.data.{where}", 600.0)  # however busy the host is


def loader_of(tars: Any, name: str | None, **options: Any) -> Loader:
    given = {"batch_size": 20, "memory": "40%", "unit": 16, "transform": number_of, "share": name, **options}
    return sentinel.data.loader(tars, **given)


def alone(tars: list[str], epochs: int) -> tuple[list[list[int]], int]:
    """What a job delivers that shares with nobody, and how many chunks one reads that could: its room is smaller, for
    each of eight jobs has marks of its own."""
    numbers = []
    for loader in (loader_of(tars, None), loader_of(tars, f"alone-{os.getpid()}")):
        numbers.append([[number for batch in loader for number in batch.tolist()] for _ in range(epochs)])
    assert numbers[0] == numbers[1]
    return numbers[0], loader.report().feed.source_reads


PROGRAM = """
import json, sys
import sentinel.data, sentinel.data.chunk_reader, sentinel.data.shared_feeding, sentinel.data.staged_samples
from tests.data_files import number_of

def main():
    patience, workers, epochs, name, *tars = sys.argv[1:]
    for module in (sentinel.data.chunk_reader, sentinel.data.shared_feeding):
        module.APART_S = 600.0
    sentinel.data.staged_samples.PATIENCE_S = float(patience)
    loader = sentinel.data.loader(
        tars, number_of, batch_size=20, memory="40%", unit=16, workers=int(workers), share=name
    )
    got = []
    for epoch in range(int(epochs)):
        batches = iter(loader)
        for number in range(30):
            if epoch == 0 and number in (0, 12):
                print("here", flush=True)
                sys.stdin.readline()
            got += next(batches).tolist()
        assert next(batches, None) is None
    report = loader.report()
    loader.close()
    print(json.dumps([got, report.headline, report.caveats]), flush=True)

if __name__ == "__main__":
    main()
"""


class OfAShare:
    """A job in a process of its own, which waits for a word after its epoch is planned, and after 12 batches."""

    def __init__(self, tmp_path: Path, name: str, tars: list[str], workers: int = 0, patience: float = 600.0) -> None:
        script = tmp_path / "job.py"
        script.write_text(PROGRAM)
        words = [str(patience), str(workers), "2", name, *tars]
        self.process = subprocess.Popen(
            [sys.executable, str(script), *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.came()

    def came(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "here\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> tuple[list[int], dict[str, int], list[str]]:
        assert self.process.stdout is not None
        got, headline, caveats = json.loads(self.process.stdout.readline())
        assert self.process.wait(timeout=600) == 0
        return got, headline, caveats

    def end(self) -> None:
        with suppress(ProcessLookupError):  # its workers too, who wait long for a reader that was killed
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(timeout=600)


@pytest.fixture
def job(tmp_path: Path, name: str, tars: list[str]) -> Iterator[Callable[..., OfAShare]]:
    made: list[OfAShare] = []

    def job(**options: Any) -> OfAShare:
        made.append(OfAShare(tmp_path, name, tars, **options))
        return made[-1]

    yield job
    for one in made:
        one.end()


@pytest.mark.parametrize("workers", [0, 2])
def test_two_jobs_that_share_read_once(tars: list[str], job: Callable[..., OfAShare], workers: int) -> None:
    expected, reads = alone(tars, 2)
    first, second = (job(workers=workers) for _ in range(2))
    for half in range(2):
        for one in (first, second):
            one.go()
        for one in (first, second) if not half else ():
            one.came()
    results = [first.result(), second.result()]
    for got, headline, _ in results:
        assert got == expected[0] + expected[1]
        assert headline["samples"] == 2 * COUNT
    assert results[0][1]["source_reads"] == reads
    assert results[1][1]["source_reads"] == 0
    assert sum(headline["direct_reads"] for _, headline, _ in results) <= 0.05 * reads
    assert any("another job read 2 epochs for this one" in said for said in results[1][2])


def test_a_sample_that_is_brought_again_while_it_is_copied_is_not_read_alone(
    tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_data(tars)
    files, one, none = SourceFiles(data.layout, data.root, data.source), np.array([4]), np.zeros(1, np.bool_)
    raw, pages = files.sample(4), np.arange(20, dtype=np.int32)
    arena = SampleArena(ArenaShape(COUNT, len(pages), -(-len(raw) // len(pages) // 8) * 8, jobs=2))
    pages = pages[: -(-len(raw) // arena.shape.page_bytes)]
    reads = [1, 2]

    def bring() -> None:
        size = np.array([len(raw)])
        arena.publish(one, arena.put(raw, np.zeros(1, np.int64), size, one, pages, reads.pop(0)))

    def sums(*arguments: Any) -> Any:
        if len(reads) == 1:
            monkeypatch.setattr(arena, "_sums", real)
            bring()
        return real(*arguments)

    real = arena._sums
    bring()
    monkeypatch.setattr(arena, "_sums", sums)
    for counter in (RUNNING, EPOCH, WANTED, JOINED):
        arena.counters[counter] = 1
    arena.counters[DONE] = 10  # all is there that is due before
    served = Served()
    (found,) = FromArena(files, arena, data.source).fetch(Request(4, one, none, none), served)
    assert not reads
    assert number_of(found) == 4
    assert (served.hits, served.direct_reads, served.apart) == (1, 0, 0)


def test_a_job_goes_on_by_itself_when_the_one_that_reads_is_killed(
    tars: list[str], job: Callable[..., OfAShare]
) -> None:
    expected, _ = alone(tars, 2)
    first, second = job(workers=1), job(workers=1, patience=0.2)
    for one in (first, second):
        one.go()
    for one in (first, second):
        one.came()
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(timeout=600)
    second.go()
    got, headline, caveats = second.result()
    assert got == expected[0] + expected[1]
    assert headline["source_reads"] > 0
    assert any("1 of them not to their end" in said for said in caveats)


def test_a_guest_that_is_killed_is_not_waited_for(tars: list[str], job: Callable[..., OfAShare]) -> None:
    expected, reads = alone(tars, 2)
    first, second = job(), job(workers=1)
    for one in (first, second):
        one.go()
    for one in (first, second):
        one.came()
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait(timeout=600)
    first.go()
    got, headline, _ = first.result()  # after 600 s if it waited
    assert got == expected[0] + expected[1]
    assert headline["source_reads"] == reads


def test_jobs_at_unlike_places_read_for_themselves(tars: list[str], name: str) -> None:
    expected, reads = alone(tars, 1)
    first, second = loader_of(tars, name), loader_of(tars, name)
    batches = iter(first)
    got = [next(batches).tolist() for _ in range(10)]
    assert [number for batch in second for number in batch.tolist()] == expected[0]
    got += [batch.tolist() for batch in batches]
    assert [number for batch in got for number in batch] == expected[0]
    for loader in (first, second):
        assert loader.report().feed.source_reads == reads
        assert any("another job read 0 epochs" in said for said in loader.report().caveats)


def test_jobs_of_unlike_batch_sizes_share(tars: list[str], name: str) -> None:
    """What is read does not depend on what a batch is: one reads for both."""
    expected, reads = alone(tars, 1)
    loaders = [loader_of(tars, name, batch_size=size) for size in (20, 50)]
    batches = [iter(loader) for loader in loaders]
    begun = [next(each).tolist() for each in batches]  # both, before one is far
    with ThreadPoolExecutor(2) as threads:  # neither gets far ahead of the other, whose copies it needs
        rest = list(threads.map(lambda each: [number for batch in each for number in batch.tolist()], batches))
    assert [first + later for first, later in zip(begun, rest, strict=True)] == [expected[0], expected[0]]
    assert [loader.report().feed.source_reads for loader in loaders] == [reads, 0]
    assert any("another job read 1 epochs for this one" in said for said in loaders[1].report().caveats)
    for loader in loaders:
        loader.close()
    del batches


def test_a_job_without_a_whole_batch_is_not_waited_for(tars: list[str], name: str) -> None:
    one, other = (loader_of(tars, name, drop_last=True, batch_size=size) for size in (20, COUNT + 1))
    batches = iter(one)
    assert list(other) == []
    reads = one._feeding
    assert isinstance(reads, SharedFeeding)
    assert reads._reader._state.joined() == [reads._arena.slot]
    assert len(list(batches)) == COUNT // 20
    other.set_epoch(4)
    assert list(other) == []
    assert not other._feeding._arena.counters[EPOCH], "nobody joins it"  # type: ignore[attr-defined]
    for loader in (one, other):
        loader.close()


def test_jobs_of_other_seeds_read_for_themselves_and_say_so(tars: list[str], name: str) -> None:
    first, second = loader_of(tars, name), loader_of(tars, name, seed=1, memory="30%")
    one, other = iter(first), iter(second)
    next(one), next(other)
    assert any("with another seed, memory" in said for said in second.report().caveats)
    with pytest.raises(UsageError, match="in use for another data set, by process"):
        loader_of(tars[:1], name)
    del one, other
    first.close()
    second.close()


def test_files_of_the_same_names_and_sizes_are_another_data_set(tmp_path: Path, name: str) -> None:
    for folder in ("raw", "scaled"):
        (tmp_path / folder).mkdir()
    one, other = (rows(tmp_path / folder, 640) for folder in ("raw", "scaled"))
    first = loader_of(one, name, transform=None, memory="90%")
    first.close()  # others may copy from it yet
    with pytest.raises(UsageError, match=r"in use for another data set, .*, or `del` the loader of this process"):
        loader_of(other, name, transform=None, memory="90%")
    del first
    loader_of(other, name, transform=None, memory="90%").close()


def test_jobs_part_where_one_is_not_to_be_waited_for(
    tars: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two is slow: the one that reads goes on with its plan, the other one makes its own."""
    expected, reads = alone(tars, 1)
    for slow in ("first", "second"):
        monkeypatch.setattr("sentinel.data.chunk_reader.APART_S", 0.05)
        first, second = loader_of(tars, name), loader_of(tars, name)
        jobs = {"first": iter(first), "second": iter(second)}
        got: dict[str, list[int]] = {"first": [], "second": []}
        for one in (*jobs, *[job for job in jobs if job != slow], slow):
            for _ in range(2 if not got[one] else 28):
                got[one] += next(jobs[one]).tolist()
        assert got["first"] == got["second"] == expected[0]
        assert any("1 of them not to their end" in said for said in second.report().caveats)
        assert first.report().feed.source_reads == reads
        assert second.report().feed.source_reads > 0
        first.close()
        second.close()
        del first, second, jobs


def test_the_memory_of_a_guest_is_let_go(tars: list[str], name: str) -> None:
    first, second = loader_of(tars, name), loader_of(tars, name)
    one, other = iter(first), iter(second)
    next(one), next(other)
    feedings = [loader._feeding for loader in (first, second)]
    held = []
    for feeding in feedings:
        assert isinstance(feeding, SharedFeeding)
        held.append(os.fstat(feeding._arena.descriptor).st_blocks * 512)
    tables = sum(feedings[0]._arena.shape.parts[:-1])  # type: ignore[attr-defined]
    assert held[0] >= feedings[0]._arena.shape.nbytes  # type: ignore[attr-defined]
    assert held[1] <= tables + 4096
    del one, other
    first.close()
    second.close()


def test_a_guest_reads_alone_where_its_memory_is_gone(
    tars: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = alone(tars, 2)
    first, second = loader_of(tars, name), loader_of(tars, name)
    one, other = iter(first), iter(second)
    assert next(one).tolist() == next(other).tolist()
    del one, other
    first.close()
    monkeypatch.setattr("sentinel.data.sample_arena.available_bytes", lambda: 0)
    assert [number for batch in second for number in batch.tolist()] == expected[1]
    report = second.report()
    assert (report.feed.source_reads, report.epoch.direct_reads) == (0, COUNT)
    with pytest.raises(UsageError, match="cannot be reserved"):
        iter(loader_of(tars, name))


def test_a_guest_that_goes_back_to_a_state_reads_by_itself(tars: list[str], name: str) -> None:
    expected, _ = alone(tars, 1)
    first, second = (loader_of(tars, name, memory="4MiB", batch_size=COUNT // 2) for _ in range(2))
    one, other = iter(first), iter(second)
    next(one), next(other)
    state = second.state_dict()
    next(one), next(other)
    second.load_state_dict(state)
    assert [number for batch in second for number in batch.tolist()] == expected[0][COUNT // 2 :]
    report = second.report()
    assert report.epoch.source_reads > 0
    assert any("another job read 1 epochs for this one" in said for said in report.caveats)
    assert not any("not to their end" in said for said in report.caveats)


def test_what_a_killed_job_left_is_taken_over(name: str) -> None:
    program = (
        "import os, signal, sys; from sentinel.data.share_names import ShareName\n"
        "place = ShareName(sys.argv[1], 'a', {}); place.publish(3, 7)\n"
        "print(place.slot, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"0\n"
    assert os.path.exists(path_of(name))
    place = ShareName(name, "b", {"seed": 1})  # another data set: nobody uses it
    with pytest.raises(UsageError, match="another data set"):
        ShareName(name, "a", {})  # though the other one has no arena yet
    assert place.slot == 0
    assert place.others() == []
    assert os.stat(path_of(name)).st_mode & 0o777 == 0o600
    place.close()
    place.close()


def test_a_job_goes_though_another_one_is_stopped_as_it_comes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.data.share_names._LEAVING_S", 0.01)
    place, coming = ShareName(name, "a", {}), _entered(path_of(name))
    place.close()
    os.close(coming)
    last = ShareName(name, "b", {})
    assert last.slot == 0
    last.close()


def test_a_forked_child_has_no_part_in_a_share(name: str) -> None:
    program = (
        "import os, sys; from sentinel.data.share_names import ShareName, path_of\n"
        "place = ShareName(sys.argv[1], 'a', {})\n"
        "if not (child := os.fork()):\n"
        "    place.close()\n"
        "    os._exit(0 if os.path.exists(path_of(sys.argv[1])) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "if not os.fork():\n"
        "    print('lives on', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    os._exit(0)\n"
        "sys.stdin.readline()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", program, name], **pipes) as job:  # type: ignore[call-overload]
        assert job.stdout.readline() == b"lives on\n"
        job.kill()
        job.wait(timeout=600)
        place = ShareName(name, "b", {})
        assert place.slot == 0
        place.close()


def test_a_name_has_room_for_some_jobs_and_is_taken_away_by_hand(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    places = [ShareName(name, "a", {"job": job}) for job in range(MOST_JOBS)]
    for place in places:
        place.publish(7, 8)
    assert [job.reads["job"] for job in places[3].others()] == [0, 1, 2, *range(4, MOST_JOBS)]
    assert places[0].alive(5)
    with pytest.raises(UsageError, match=f"in use by {MOST_JOBS} jobs"):
        ShareName(name, "a", {})
    assert main(["data", "rm", name]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    places.pop().close()
    assert not places[0].alive(MOST_JOBS - 1)
    assert main(["data", "rm", name, "--force"]) == 0
    with pytest.raises(UsageError, match="there is no share"):
        remove(name)
    other = ShareName(name, "b", {})  # the name is free, and those that had it go on
    assert other.others() == []
    for place in (*places, other):
        place.close()


@pytest.mark.parametrize("wrong", ["a/b", "", "..", "x" * 65, 3])
def test_what_is_no_name_is_refused(tars: list[str], wrong: Any) -> None:
    with pytest.raises(UsageError, match="is no name"):
        loader_of(tars, wrong)


def test_what_cannot_be_shared_is_refused(tars: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, said in (
        ({"order": "windowed"}, "needs files in exact order, or selected by loss"),
        ({"order": sentinel.data.Importance()}, "needs samples that are read one by one"),  # it is given unit=16
    ):
        with pytest.raises(UsageError, match=said):
            loader_of(tars, name, **options)
    Path(path_of(name)).write_bytes(b"")
    os.chmod(path_of(name), 0o644)
    with pytest.raises(FormatError, match="only this user may read"):
        loader_of(tars, name)
    os.unlink(path_of(name))
    monkeypatch.setattr("sentinel.data.share_names.FOLDER", f"{FOLDER}/not-there")
    with pytest.raises(SentinelError, match="leave share= out"):
        loader_of(tars, name)


def test_an_arena_of_another_shape_is_none() -> None:
    shape = ArenaShape(10, 20, 64, MOST_JOBS)
    arena = SampleArena(shape, slot=2, reserved=False)
    arena.reserve()
    arena.pages[3] = 7
    same = arena_of(os.getpid(), arena.descriptor, arena.inode, shape, 5)
    assert same is not None
    assert same.pages[3, 0] == 7
    same.take(np.array([4]))
    assert arena.taken_by[5].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    arena.let_go()
    assert same.pages[3, 0] == 0
    larger = ArenaShape(10, 400, 64, MOST_JOBS)
    assert arena_of(os.getpid(), arena.descriptor, arena.inode, larger, 5) is None
    assert arena_of(os.getpid(), 0, arena.inode, shape, 5) is None
    assert arena_of(2**22, arena.descriptor, arena.inode, shape, 5) is None
    other = SampleArena(shape, slot=2, reserved=False)
    assert arena_of(os.getpid(), other.descriptor, arena.inode, shape, 5) is None  # its descriptor was used again


def test_the_rest_of_an_epoch_is_planned_at_its_place(tmp_path: Path) -> None:
    from sentinel.data.data_index import open_data

    layout = open_data(rows(tmp_path, 640)).layout.cut(16)
    orders = [np.random.default_rng(seed).permutation(640) for seed in range(2)]
    room = Room.of(layout, layout.nbytes // 2)
    rest = plan(layout, Order(), room, Epoch(orders[0], orders[1], Begun(200, 1, room)))
    found = rest.after(orders[0][:200])
    assert np.array_equal(found.order, orders[0])
    assert np.all(found.stay_at[:200] == DIRECT)
    assert np.array_equal(found.stay_sample[found.stay_at[200:]], orders[0][200:])
    assert int(found.read_due[0]) == 200
    assert len(found.kept) == len(rest.kept) > 0


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_the_memory_that_is_named_for_a_share_suffices(tmp_path: Path, name: str, suffix: str) -> None:
    if suffix == "npy":
        path = rows(tmp_path, 50_000, 2)
    else:
        pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install '.[data]'")
        path = str(tmp_path / "rows.parquet")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"a": range(50_000)}), path, row_group_size=64)
    with pytest.raises(UsageError, match="give at least") as refused:
        loader_of(path, name, memory=8192)
    number, unit = str(refused.value).partition("give at least ")[2].partition(",")[0].split()[:2]
    loader_of(path, name, memory=f"{float(number) + 0.1:.1f}{unit}").close()


@pytest.mark.parametrize("later_s", [0.0, 0.2, 0.8])
def test_jobs_that_begin_together_share_however_long_planning_takes(
    tars: list[str], name: str, monkeypatch: pytest.MonkeyPatch, later_s: float
) -> None:
    real = SharedFeeding._planned

    def slow(self: SharedFeeding, *given: Any) -> Any:
        time.sleep(0.5)
        return real(self, *given)

    monkeypatch.setattr(SharedFeeding, "_planned", slow)
    for reverse in (False, True):
        loaders = [loader_of(tars, name) for _ in range(2)]
        both = threading.Barrier(2)

        def deliver(place: int, loader: Loader, both: threading.Barrier = both) -> list[int]:
            time.sleep(later_s * place)
            batches = iter(loader)
            both.wait(LONGEST_S)  # the first may be at its first batch as the second comes
            return [sample for batch in batches for sample in batch.tolist()]

        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(deliver, range(2), reversed(loaders) if reverse else loaders))
        assert got[0] == got[1]
        hosted = [loader._feeding._hosted for loader in loaders]  # type: ignore[attr-defined]
        assert sorted(hosted) == [0, 1]
        for loader in loaders:
            loader.close()


def test_a_job_that_others_wait_for_waits_for_none_of_them(tars: list[str], name: str) -> None:
    """The guest has the lower slot, and looks for who reads the next epoch while the host still ends this one."""
    guest, host = (loader_of(tars, name, batch_size=4) for _ in range(2))  # who comes at the second batch is not late
    began, comes, looks = (threading.Event() for _ in range(3))

    def reads_for_others() -> list[int]:
        got, batches = [], iter(host)
        for number, batch in enumerate(batches, 1):
            if number == 1:
                began.set()
                assert comes.wait(LONGEST_S)
            if number == COUNT // 4 - 1:
                assert looks.wait(LONGEST_S)
                time.sleep(0.3)
            got += batch.tolist()
        return got + [sample for batch in host for sample in batch.tolist()]

    def is_read_for() -> list[int]:
        assert began.wait(LONGEST_S)
        got = []
        for batch in guest:
            comes.set()
            got += batch.tolist()
        looks.set()
        return got + [sample for batch in guest for sample in batch.tolist()]

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(reads_for_others), pool.submit(is_read_for)]
        got = [each.result(LONGEST_S) for each in both]
    assert got[0] == got[1]
    assert len(got[0]) == 2 * COUNT
    hosted = [loader._feeding._hosted for loader in (guest, host)]  # type: ignore[attr-defined]
    assert hosted == [2, 0]
    for loader in (guest, host):
        loader.close()
