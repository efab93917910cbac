"""Ranks of a job: known from torch.distributed, and told if they were given unlike seeds, worlds or data."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel.data  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data import ranks as data_ranks  # noqa: E402
from sentinel.data.ranks import check_ranks_agree, world_and_rank  # noqa: E402
from tests.data_files import number_of, shards  # noqa: E402
from tests.processes import LONGEST_S, until  # noqa: E402

COUNT = 50


def test_a_job_of_one_rank() -> None:
    assert world_and_rank(None, None) == (1, 0)
    assert world_and_rank(2, 3) == (3, 2)
    check_ranks_agree(1, {"seed": 1})


@pytest.mark.parametrize("launcher", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")])
def test_a_loader_before_the_process_group_is_refused_where_several_ranks_were_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: tuple[str, str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in zip(launcher, ("1", "2"), strict=True):
        monkeypatch.setenv(name, value)
    paths = shards(tmp_path, [COUNT])
    with pytest.raises(
        UsageError, match=r"rank 1 of 2.*; call torch.distributed.init_process_group\(\) first, or give"
    ):
        sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB")
    alone = sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB", rank=0, world=1)
    assert sum(len(batch) for batch in alone) == COUNT
    monkeypatch.setenv(launcher[1], "1")
    assert world_and_rank(None, None) == (1, 0)


class Group:
    """Ranks of a process group that are threads, which have a store as real ones have."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.store, self.own = size, torch.distributed.HashStore(), threading.local()
        self.store.set_timeout(timedelta(seconds=LONGEST_S))
        monkeypatch.setattr(data_ranks, "_store", lambda: self.store)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: self.own.rank)

    def begin(self, rank: int, world: int | None = None, **said: Any) -> str:
        """What this rank is told of a loader that it begins."""
        self.own.rank = rank
        try:
            check_ranks_agree(world or self.size, {"seed": 0, "data set": "images", **said})
        except UsageError as error:
            return str(error)
        return ""

    def all(self, *ranks: Callable[[], str]) -> list[str]:
        """What each is told, all at once."""
        told = [""] * len(ranks)

        def run(number: int) -> None:
            told[number] = ranks[number]()

        running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(ranks))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(LONGEST_S)
            assert not thread.is_alive(), "a rank waits for ever"
        return told


def test_all_ranks_are_told_what_differs_and_meet_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(3, monkeypatch)
    for said in ({"seed": 1}, {"data set": "others"}, {"batch_size": 4}, {"more": 1}):
        name = next(iter(said))
        agreed = group.all(*(lambda rank=rank: group.begin(rank, batch_size=2) for rank in range(3)))
        assert agreed == [""] * 3
        last = {"batch_size": 2, **said}
        first = [lambda rank=rank: group.begin(rank, batch_size=2) for rank in range(2)]
        (told,) = set(group.all(*first, lambda last=last: group.begin(2, **last)))
        if name == "more":
            assert told == ""  # rank 0 says what counts
        else:
            assert told.startswith(f"ranks differ in {name}: rank 0 has ")
            assert told.endswith(f", rank 2 has {said[name]!r}; give all ranks the same")


@pytest.mark.parametrize("apart", [0, 2])
@pytest.mark.parametrize("comes_first", [False, True])
def test_a_rank_of_another_world_is_named_whoever_comes_first(
    monkeypatch: pytest.MonkeyPatch, apart: int, comes_first: bool
) -> None:
    group = Group(3, monkeypatch)
    others = [rank for rank in range(3) if rank != apart]
    there = [f"sentinel.data/asked/{rank}" for rank in others]
    told_apart = ""

    def comes_last() -> str:
        until(lambda: group.store.check(there))
        return group.begin(apart, world=2)

    if comes_first:
        assert group.begin(apart, world=2) == ""  # it may be alone
        told = group.all(*(lambda rank=rank: group.begin(rank) for rank in others))
    else:
        *told, told_apart = group.all(*(lambda rank=rank: group.begin(rank) for rank in others), comes_last)
    worlds = ", ".join(f"rank {rank} has {2 if rank == apart else 3}" for rank in sorted((0, apart or 1)))
    assert told[0].startswith(f"ranks differ in world: {worlds}; give all ranks the same")
    assert all("ranks differ in world" in said for said in told)
    if told_apart:  # else the others had been told before, and nobody waited any more
        assert told_apart.startswith("ranks differ in world: ")
    if apart or not comes_first:  # else rank 0 delivers alone still
        assert group.all(*(lambda rank=rank: group.begin(rank) for rank in range(3))) == [""] * 3


def test_a_world_of_some_that_all_ranks_have_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with tensor parallel ranks, which share their data: first loaders of two, then one of all four."""
    group = Group(4, monkeypatch)

    def ranks_begin(rank: int) -> str:
        return group.begin(rank, world=2) + group.begin(rank)

    for _ in range(2):
        assert group.all(*(lambda rank=rank: ranks_begin(rank) for rank in range(4))) == [""] * 4


def test_a_world_of_other_data_keeps_nobody_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(2, monkeypatch)

    def validates_first() -> str:
        until(lambda: group.store.check(["sentinel.data/asked/0"]))
        return group.begin(1, world=5, **{"data set": "others"}) + group.begin(1)

    assert group.all(lambda: group.begin(0), validates_first) == ["", ""]


def test_a_rank_that_delivers_alone_is_waited_for_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group, said = Group(2, monkeypatch), threading.Event()
    monkeypatch.setattr("sentinel.system.progress.QUIET_SECONDS", 0.0)
    say = data_ranks.progress.say

    def saying(sentence: str) -> None:
        say(sentence)
        said.set()

    monkeypatch.setattr(data_ranks.progress, "say", saying)

    def counts_first() -> str:
        told = group.begin(0, world=1)
        assert said.wait(LONGEST_S)
        return told + group.begin(0)

    assert group.all(counts_first, lambda: group.begin(1)) == ["", ""]
    told = "rank 1 waits for rank 0, which has not begun its loader for all 2 ranks, but one of world=1"
    assert f"{told} of the same data set" in capsys.readouterr().err


@pytest.mark.parametrize("apart", [0, 1])
def test_a_rank_that_comes_after_the_end_of_a_meeting_is_told_of_it_once(
    monkeypatch: pytest.MonkeyPatch, apart: int
) -> None:
    """The meeting ends for ranks 0 and 1 before rank 2 has come. It waited for the next one until the group's time."""
    group = Group(3, monkeypatch)

    def comes_last() -> str:
        until(lambda: group.store.check([f"sentinel.data/asked/{1 - apart}"]))
        return group.begin(apart, world=2)

    ended = group.all(lambda: group.begin(1 - apart), comes_last)
    assert all("ranks differ in world: rank 0 has " in told for told in ended), ended
    group.store.set_timeout(timedelta(0))  # it waits for nobody
    assert group.begin(2) == ended[0]
    group.store.set_timeout(timedelta(seconds=LONGEST_S))
    assert group.all(*(lambda rank=rank: group.begin(rank) for rank in range(3))) == [""] * 3


def test_a_rank_that_is_waited_for_too_long_is_told_so_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(2, monkeypatch)
    group.store.set_timeout(timedelta(0))
    told = group.begin(0)
    assert told.startswith("rank 1 has not begun its loader for all 2 ranks within ")
    assert group.begin(1, world=1) == ""  # that one delivers alone
    assert group.begin(1) == told
    group.store.set_timeout(timedelta(seconds=LONGEST_S))
    assert group.all(lambda: group.begin(0), lambda: group.begin(1)) == ["", ""]


def test_a_rank_that_does_not_come_is_named_after_the_groups_time(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(2, monkeypatch)
    assert group.begin(0, world=1) == ""
    group.store.set_timeout(timedelta(0))
    told = "has not begun its loader for all 2 ranks within"
    assert group.begin(0).startswith(f"rank 1 {told}")
    group = Group(2, monkeypatch)
    assert group.begin(0, world=1) == ""
    group.store.set_timeout(timedelta(0))
    said = group.begin(1)
    assert said.startswith(f"rank 0 {told}")
    assert "but one of world=1 of the same data set; make the same loaders on all ranks" in said


def test_a_backend_without_a_store_compares_by_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(2, monkeypatch)
    monkeypatch.setattr(data_ranks, "_store", lambda: None)

    def gathered(everybody: list[Any], mine: Any) -> None:
        everybody[:] = [mine, {**mine, "seed": 8}]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    assert group.begin(0).startswith("ranks differ in seed: rank 0 has 0, rank 1 has 8")
    assert group.begin(0, world=1) == ""


def _rank(rank: int, meeting: str, paths: list[str], found: Any) -> None:
    early = sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB")
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with pytest.raises(UsageError, match=r"made for 1 rank, torch\.distributed joins 2"):
        iter(early)
    delivered: list[int] = []
    said = ""
    for seed in (7, 7 + rank):
        loader = sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB", seed=seed)
        try:
            for batch in loader:
                delivered += batch.tolist()
        except UsageError as error:
            said = str(error)
    loader = sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB")
    if rank:  # only one of them has found its checkpoint
        loader.load_state_dict(loader.state_dict() | {"delivered": 16})
    with pytest.raises(UsageError, match="ranks differ in delivered: rank 0 has 0, rank 1 has 16"):
        iter(loader)
    unlike = {"rank": 1, "world": 3} if rank else {}
    loader = sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB", **unlike)
    with suppress(UsageError) if rank else pytest.raises(UsageError, match="world: rank 0 has 2, rank 1 has 3"):
        iter(loader)  # if rank 1 comes last it is told too
    torch.distributed.barrier()
    loader = sentinel.data.loader(paths, number_of, batch_size=8 + rank, memory="1MiB")
    with pytest.raises(UsageError, match="ranks differ in batch_size: rank 0 has 8, rank 1 has 9"):
        iter(loader)
    if not rank:  # the others have no such loader, and would not answer
        alone = sentinel.data.loader(paths, number_of, batch_size=8, memory="1MiB", rank=0, world=1)
        assert sum(len(batch) for batch in alone) == COUNT
    found.put((rank, delivered, said))
    torch.distributed.destroy_process_group()


def test_two_ranks_share_an_epoch_and_unlike_seeds_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = shards(tmp_path, [COUNT])
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path / "meet"), paths, found)) for rank in range(2)]
    for process in ranks:
        process.start()
    results = sorted(found.get(timeout=300) for _ in ranks)
    for process in ranks:
        process.join(timeout=600)
    assert sorted(results[0][1] + results[1][1]) == list(range(COUNT))
    for _, _, said in results:
        assert "ranks differ in seed: rank 0 has 7, rank 1 has 8" in said
