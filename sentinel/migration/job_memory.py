"""What an engine is given of the job whose plan it applies: its memory, and how to tell it of trouble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.migration.clock import MONOTONIC, Clock


@dataclass(frozen=True)
class JobMemory:
    """`ranges(block)`: (address, nbytes) of a block's pieces in this process.

    `warn`: tells the user of the first trouble of a kind. `strict`: raise TierError instead.

    `discard(offset, nbytes)`: drop the pages of dead transient blocks at these plan addresses, so that the next ones
    are born at home, those of tensors that live on as these are freed; returns the bytes dropped at once. Without it
    they stay. `unmanaged_bytes()`: most bytes that fell back to
    malloc at one time since the plan was applied. `bytes_per_s`: migrations between nodes go no faster, each way; 0: no
    limit. `clock`: what times its layers, waits and injected delays.
    """

    ranges: Callable[[int], list[tuple[int, int]]]
    warn: Callable[[str], None]
    strict: bool = False
    discard: Callable[[int, int], int] | None = None
    unmanaged_bytes: Callable[[], int] = lambda: 0
    bytes_per_s: int = 0
    clock: Clock = MONOTONIC
