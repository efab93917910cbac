"""The ranks of a distributed job: who this one is, and whether all were given the same."""

from __future__ import annotations

from typing import Any

import torch

from sentinel.core.errors import UsageError


def world_and_rank(rank: int | None, world: int | None) -> tuple[int, int]:
    """(world, rank) as given, else as torch.distributed knows them, else (1, 0)."""
    if (rank is None) != (world is None):
        raise UsageError("rank= and world= go together", "give both or none")
    if rank is not None and world is not None:
        return world, rank
    if _distributed():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def of_all_ranks(world: int, mine: Any) -> list[Any]:
    """What each rank gives, by rank. All ranks must call it. Raises UsageError where torch.distributed does not join
    the `world` ranks."""
    if world == 1:
        return [mine]
    if not _distributed() or torch.distributed.get_world_size() != world:
        raise UsageError(
            f"{world} ranks must tell one another their losses, and torch.distributed does not join them",
            "call torch.distributed.init_process_group() first",
        )
    everybody: list[Any] = [None] * world
    torch.distributed.all_gather_object(everybody, mine)
    return everybody


def check_ranks_agree(world: int, said: dict[str, object]) -> None:
    """Raises UsageError, on every rank, for the first name whose value is not the same on all of them.

    All ranks must call it. Does nothing where torch.distributed was not initialized, or where the `world` of the caller
    is not all of it: others may then have no loader, and would never answer.
    """
    if world == 1 or not _distributed() or torch.distributed.get_world_size() != world:
        return
    everybody: list[dict[str, object]] = [{} for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(everybody, said)
    for name, first in everybody[0].items():
        for rank, theirs in enumerate(everybody):
            if theirs.get(name) != first:
                raise UsageError(
                    f"ranks differ in {name}: rank 0 has {first!r}, rank {rank} has {theirs.get(name)!r}",
                    "give all ranks the same",
                )


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
