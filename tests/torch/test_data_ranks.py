"""Ranks of a job: known from torch.distributed, and told if they were given unlike seeds."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'sentinel-hm[torch]'")

import sentinel.data  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.data.ranks import check_ranks_agree, world_and_rank  # noqa: E402
from tests.data_files import number_of, shards  # noqa: E402

COUNT = 50


def test_a_job_of_one_rank() -> None:
    assert world_and_rank(None, None) == (1, 0)
    assert world_and_rank(2, 3) == (3, 2)
    check_ranks_agree(1, {"seed": 1})


def _rank(rank: int, meeting: str, paths: list[str], found: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
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
