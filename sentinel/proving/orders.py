"""What the proof's parent asks of its children: plain values, which need no torch to be made and pass between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingOrder:
    """Train `script` with `arguments`, which make it `steps` long; the last `judged` steps count.

    `said`: arguments of the session by name; None trains stock.
    """

    script: str
    arguments: tuple[str, ...]
    steps: int
    judged: int
    said: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class WatchOrder:
    """Train with a watched step, plan it by each of `policies` with `fast`, and save the plans in `folder`, named
    after `workload`. Without policies only what the step needs is told."""

    training: TrainingOrder
    workload: str
    folder: str
    fast: str
    policies: tuple[str, ...]


@dataclass(frozen=True)
class CalibrationOrder:
    """Measure this host's memory for the slow tier that `slow` names, and write the machine to `path`."""

    slow: str
    path: str
    quick: bool


@dataclass(frozen=True)
class KernelOrder:
    """Compare ours with the kernel's placements `names` on two nodes; a file in `folder` for each, as soon as it ended.

    `warm_up`: steps before the measured ones; `training.said` is what ours is asked for.
    """

    training: TrainingOrder
    workload: str
    folder: str
    names: tuple[str, ...]
    warm_up: int
