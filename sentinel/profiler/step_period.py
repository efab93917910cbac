"""Which optimizer steps make one training step: the period of their sequence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

PATIENCE = 32
"""After 32 optimizer steps a period counts though it leaves parameters out: some are never trained."""
LEAST, MOST = 128, 4096
"""Of the latest optimizer steps 128 are looked at, or 4 for each optimizer, up to 4,096. A period has at most half."""
LIMIT = f"at most {LEAST // 2} optimizer steps, or 2 for each optimizer up to {MOST // 2:,}"
"""What is taken for one training step, for the sentences of what was not found."""


class OptimizerStep(NamedTuple):
    """A step of the optimizer with this number, or identity, that changed `trained`, the identities of parameters."""

    optimizer: int
    trained: frozenset[int]


def looked_at(optimizers: int) -> int:
    """How many of the latest steps may show a period of so many optimizers."""
    return min(max(LEAST, 4 * optimizers), MOST)


def period_of(steps: Sequence[OptimizerStep], wanted: Callable[[], AbstractSet[int]] = frozenset) -> int:
    """How many of the latest `steps`, as many as are looked at, are one training step; 0 while that is not known.

    It is the shortest sequence that they end with twice and in which every optimizer that has stepped does. Several
    steps of a discriminator before the first one of its generator look like a period of their own: so all parameters
    that are `wanted` must be trained in it, unless 32 steps have gone by. Where the parameters that are trained
    vary at random (experts, dropped layers), no sequence comes twice: so after 32 steps without a period, only
    which optimizer stepped counts.
    """
    optimizers = [step.optimizer for step in steps]
    if length := _repeated(steps, optimizers):
        once = steps[-length:]
        trains_all = len(steps) >= PATIENCE or wanted() <= frozenset().union(*(step.trained for step in once))
        return length if trains_all else 0  # a longer repetition of it would leave the same parameters out
    return _repeated(optimizers, optimizers) if len(steps) >= PATIENCE else 0


def _repeated(turns: Sequence[object], optimizers: list[int]) -> int:
    """Length of the shortest sequence that `turns` end with twice and in which every optimizer steps; 0 without one."""
    last = {optimizer: i for i, optimizer in enumerate(optimizers)}
    least = len(turns) - min(last.values(), default=0)
    for length in range(max(least, 1), len(turns) // 2 + 1):
        if turns[-1] == turns[-1 - length] and turns[-length:] == turns[-2 * length : -length]:
            return length
    return 0
