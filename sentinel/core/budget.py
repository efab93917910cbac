"""Budget: the fast memory that one job may use. What there is says the Machine; that is another fact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.units import PAGE_BYTES, Amount, format_bytes, page_ceil


@dataclass(frozen=True)
class Budget:
    """Bytes of the fast tier that one job may use. They may be fewer than the tier has: several processes on a node
    have one Budget each, and one Machine.

    `capped`: why they are fewer than was asked for; "" if they are not.
    """

    fast_bytes: int
    capped: str = ""

    def __post_init__(self) -> None:
        if self.fast_bytes < 0:
            raise UsageError(f"a budget of {self.fast_bytes} bytes", "give 0 bytes of fast memory or more")

    def reach(self, machine: Machine) -> Machine:
        """The machine as far as a job may use it: what a policy plans for."""
        return machine.with_fast_capacity(self.fast_bytes)

    def share_of(self, processes: int) -> Budget:
        """What each of so many processes may use, in whole pages. Raises UsageError for none."""
        if processes < 1:
            raise UsageError(f"a budget for {processes} processes", "give at least 1")
        return replace(self, fast_bytes=self.fast_bytes // processes // PAGE_BYTES * PAGE_BYTES)


def budget_within(available_bytes: int, asked: Amount, footprint_bytes: int, tier: str) -> Budget:
    """The budget where `tier`, the fast one, has `available_bytes` for the job; `capped` names both amounts."""
    nbytes = asked.of(footprint_bytes)
    if nbytes <= available_bytes:
        return Budget(nbytes)
    return Budget(
        available_bytes,
        f"fast={asked.text!r}: {format_bytes(nbytes)} of fast memory are requested, but"
        f" {tier} has {format_bytes(available_bytes)}",
    )


def parts_by_need(total_bytes: int, needs: Sequence[int | None]) -> tuple[int, ...]:
    """What each of several processes gets of a budget, in whole pages: what it needs, and where that is too much for
    all, none gets more than another that is short of it. `needs`: bytes, None: not known, at most an equal part."""
    equal = Budget(total_bytes).share_of(len(needs)).fast_bytes
    wanted = [equal if need is None else page_ceil(need) for need in needs]
    parts, left = [0] * len(needs), total_bytes
    for done, index in enumerate(sorted(range(len(needs)), key=wanted.__getitem__)):
        parts[index] = min(wanted[index], Budget(left).share_of(len(needs) - done).fast_bytes)
        left -= parts[index]
    return tuple(parts)
