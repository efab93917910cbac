"""Order: which rank delivers which samples of an epoch, and in what order, as torch's samplers have it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.units import plain

KINDS = ("exact", "windowed", "redirect")
"""`exact`: torch's order. `windowed`: each chunk is read once, its samples spread as widely as the room allows.
`redirect`: MemHub's, in which a request takes any sample of its group of chunks that lies at its place in memory."""


@dataclass(frozen=True)
class Order:
    """The order of an epoch for one rank of `world`, made from the epoch's permutation of all samples.

    The permutation is torch's for the epoch's seed, and given by the caller:
    `torch.randperm(n, generator=torch.Generator().manual_seed(order.epoch_seed(epoch)))`. Nothing else is left to
    chance. `drop_last`: as DistributedSampler's: samples that would leave ranks with unlike numbers are dropped, else
    the first ones of the permutation are repeated. Raises UsageError for a kind that does not exist and a rank outside
    the world.
    """

    kind: str = "exact"
    seed: int = 0
    world: int = 1
    rank: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"there is no order {self.kind!r}", f"choose one of {', '.join(KINDS)}")
        for name in ("rank", "world", "seed"):
            object.__setattr__(self, name, number := plain(getattr(self, name)))
            if isinstance(number, bool) or not isinstance(number, int):
                raise UsageError(f"{name}={number!r} is not a whole number", f"give {name}=int(...)")
        if not 0 <= self.rank < self.world:
            raise UsageError(f"there is no rank {self.rank} of {self.world}", f"give a rank below {max(self.world, 1)}")

    def epoch_seed(self, epoch: int) -> int:
        """The seed of the generator that makes the permutation of this epoch."""
        return self.seed + epoch

    def per_rank(self, n: int) -> int:
        """How many of `n` samples each rank delivers."""
        return n // self.world if self.drop_last else -(-n // self.world)

    def of_rank(self, permutation: NDArray[np.int64], delivered: int = 0) -> NDArray[np.int64]:
        """(m,) the samples of this rank in torch's order; see `of_all`."""
        return self.of_all(permutation, delivered)[self.rank :: self.world]

    def of_all(self, permutation: NDArray[np.int64], delivered: int = 0) -> NDArray[np.int64]:
        """What all ranks deliver, in turn. `permutation`: (n,) of all samples.

        `delivered`: how many of the epoch all ranks together have delivered before; the rest is split again, so a job
        goes on with another number of ranks where it stopped. Raises UsageError for less than none.
        """
        if delivered < 0:
            raise UsageError(f"{delivered} samples were delivered", "give a number of at least 0")
        rest = permutation[delivered:]
        total = self.per_rank(len(rest)) * self.world
        if total > len(rest):
            repeats = -(-(total - len(rest)) // len(permutation))
            rest = np.concatenate([rest, np.tile(permutation, repeats)[: total - len(rest)]])
        return np.asarray(rest[:total], np.int64)
