"""The placements that are compared, and how the kernel is asked for each."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.executed.node_memory import write_if_possible
from sentinel.system.kernel import system_call

OURS = "sentinel"
ALL_FAST, ALL_SLOW = "all-fast", "all-slow"
_PREFERRED, _INTERLEAVE, _WEIGHTED = 1, 3, 6
_BALANCING = Path("/proc/sys/kernel/numa_balancing")
_DEMOTION = Path("/sys/kernel/mm/numa/demotion_enabled")
_WEIGHTS = Path("/sys/kernel/mm/mempolicy/weighted_interleave")


@dataclass(frozen=True)
class Placement:
    """`limited`: gets the same fast bytes as ours, by ballast. `mode`: of the child's memory policy, None for the
    kernel's own; over `nodes` of "fast" and "slow". `tiering`: the kernel's own tiering is on."""

    name: str
    how: str
    limited: bool = True
    mode: int | None = None
    nodes: tuple[str, ...] = ()
    tiering: bool = False


PLACEMENTS = (
    Placement(OURS, "a plan within the budget, carried out by the runtime", limited=False),
    Placement(ALL_FAST, "everything on the fast node, no limit", False, _PREFERRED, ("fast",)),
    Placement(ALL_SLOW, "everything from the script's start on the slow node", False, _PREFERRED, ("slow",)),
    Placement("first-touch", "the kernel's default: the fast node until it is full, then the slow one"),
    Placement("interleave", "page by page in turn", mode=_INTERLEAVE, nodes=("fast", "slow")),
    Placement(
        "weighted-interleave",
        "page by page, as many on each node as it has bandwidth",
        mode=_WEIGHTED,
        nodes=("fast", "slow"),
    ),
    Placement("kernel-tiering", "first touch, with numa_balancing=2 and demotion_enabled=1", tiering=True),
)
NAMES = tuple(placement.name for placement in PLACEMENTS)


def weights(fast_bytes_per_s: int, slow_bytes_per_s: int) -> tuple[int, int]:
    """Small whole numbers in about the ratio of two bandwidths, the kernel's to be at most 255."""
    return max(1, min(round(fast_bytes_per_s / slow_bytes_per_s), 255)), 1


def set_policy(mode: int, nodes: Sequence[int]) -> None:
    """The memory policy of this thread and those it starts. Raises CapabilityError where the kernel has no such."""
    mask = (ctypes.c_uint64 * 16)()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    try:
        system_call("set_mempolicy", mode, mask, 1024)
    except NativeError as error:
        name = "weighted interleave (Linux 6.9)" if mode == _WEIGHTED else f"memory policy {mode}"
        raise CapabilityError(f"asking for {name}", str(error), "leave it out with --policies") from error


@contextlib.contextmanager
def kernel_settings(placement: Placement, weights: dict[int, int]) -> Iterator[None]:
    """The sysctls that `placement` needs, and what they were before afterwards, whatever happens in between.

    Without tiering NUMA balancing is off: a baseline is what its name says. Raises CapabilityError.
    """
    wanted: dict[Path, str] = {}
    if _BALANCING.exists():
        wanted[_BALANCING] = "2" if placement.tiering else "0"
    if _DEMOTION.exists():
        wanted[_DEMOTION] = "true" if placement.tiering else "false"
    if placement.tiering and len(wanted) < 2:
        raise CapabilityError(
            "the kernel's own tiering", "this kernel has no numa_balancing or no demotion", "use Linux 5.18 or later"
        )
    if placement.mode == _WEIGHTED:
        if not _WEIGHTS.is_dir():
            raise CapabilityError("weighted interleave", f"{_WEIGHTS} is not there", "use Linux 6.9 or later")
        wanted |= {_WEIGHTS / f"node{node}": str(weight) for node, weight in weights.items()}
    with contextlib.ExitStack() as undo:
        if placement.mode == _WEIGHTED and (automatic := _WEIGHTS / "auto").exists():
            # a weight that is written turns it off (Linux 6.16), and to turn it on again is refused where firmware told
            # no bandwidths, though it says "true" there until then
            undo.callback(write_if_possible, automatic, automatic.read_text())
        for path, value in wanted.items():
            before = path.read_text().strip()
            if before == value:
                continue
            _write(path, value)
            undo.callback(_write, path, before)
        yield


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise CapabilityError(f"writing {value} to {path}", str(error), "run as root") from error
