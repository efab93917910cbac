"""Which optimizer steps make one training step: the period of their sequence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

PATIENCE = 32
"""After 32 optimizer steps a period counts though it leaves parameters out: some are never trained."""
MOST = 128
"""Optimizer steps that are looked at, the latest; a period has at most half of them."""


class OptimizerStep(NamedTuple):
    """A step of the optimizer with this number, or identity, that changed `trained`, the identities of parameters."""

    optimizer: int
    trained: frozenset[int]


def period_of(steps: Sequence[OptimizerStep], wanted: Callable[[], AbstractSet[int]] = frozenset) -> int:
    """How many of the latest `steps` are one training step; 0 while that is not known.

    It is the shortest sequence that they end with twice and in which every optimizer that has stepped does. Several
    steps of a discriminator before the first one of its generator look like a period of their own: so all parameters
    that are `wanted` must be trained in it, unless 32 steps have gone by. Where the parameters that are trained
    vary at random (experts, dropped layers), no sequence comes twice: so after 32 steps without a period, only
    which optimizer stepped counts.
    """
    latest = list(steps[-MOST:])
    if length := _repeated(latest):
        once = latest[-length:]
        trains_all = len(steps) >= PATIENCE or wanted() <= frozenset().union(*(step.trained for step in once))
        return length if trains_all else 0  # a longer repetition of it would leave the same parameters out
    return _repeated([step._replace(trained=frozenset()) for step in latest]) if len(steps) >= PATIENCE else 0


def _repeated(steps: list[OptimizerStep]) -> int:
    """Length of the shortest sequence that `steps` end with twice and in which every optimizer steps; 0 without one."""
    optimizers = {step.optimizer for step in steps}
    for length in range(max(len(optimizers), 1), len(steps) // 2 + 1):
        once = steps[-length:]
        if once == steps[-2 * length : -length] and {step.optimizer for step in once} == optimizers:
            return length
    return 0
