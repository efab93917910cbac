"""Every error Sentinel raises.

SentinelError
├── CapabilityError     this host does not allow it     (what, why, remedy)
├── FormatError         a file is damaged, or no such file (path, field, rule)
├── UsageError          calls in the wrong order, or a wrong argument (what, remedy)
├── PlanError           no plan, or a broken one        (layer, block, rule)
│   └── Infeasible      needs more memory than there is (needed_bytes, available_bytes, layer)
├── TierError           a move or a copy failed         (tier, block, errno)
│   └── TierFull
└── NativeError         a native call failed            (call, errno)

A message says what was tried, on what, what came back, and what to do.
"""

from __future__ import annotations

import os

from sentinel.core.sizes import format_bytes


class SentinelError(Exception):
    """Base of all errors raised by Sentinel."""


class CapabilityError(SentinelError):
    """This host does not allow something."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        self.what, self.why, self.remedy = what, why, remedy
        super().__init__(f"{what}: {why}; {remedy}")


class FormatError(SentinelError):
    """A file is damaged, or holds something else than was asked for."""

    def __init__(self, path: str | os.PathLike[str], field: str, rule: str) -> None:
        self.path, self.field, self.rule = os.fspath(path), field, rule
        super().__init__(f"{self.path}: {field}: {rule}")


class UsageError(SentinelError):
    """A call came in the wrong order, or an argument is wrong."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}; {remedy}")


class PlanError(SentinelError):
    """There is no plan, or it breaks a law."""

    def __init__(self, rule: str, *, layer: int | None = None, block: int | None = None) -> None:
        self.rule, self.layer, self.block = rule, layer, block
        where = [f"layer {layer}"] if layer is not None else []
        where += [f"block {block}"] if block is not None else []
        super().__init__(f"{', '.join(where)}: {rule}" if where else rule)


class Infeasible(PlanError):
    """The step needs more fast memory than there is, or, without a layer, more than all tiers have."""

    def __init__(self, needed_bytes: int, available_bytes: int, layer: int | None, why: str = "") -> None:
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes
        needed, available = format_bytes(needed_bytes), format_bytes(available_bytes)
        missing = format_bytes(needed_bytes - available_bytes)  # the others may look alike
        if layer is None:
            super().__init__(
                f"needs {needed}, {missing} more than the {available} that all tiers have; give more fast memory, or a"
                " larger slow tier"
            )
            return
        reason = why or "the slow tier is not used in place, and what a layer uses has no room beside what moves"
        super().__init__(
            f"needs {needed} of fast memory, {missing} more than the {available} that there are: {reason};"
            " raise fast=, or take more memory that is used in place",
            layer=layer,
        )


class TierError(SentinelError):
    """A move or a copy between tiers failed."""

    def __init__(self, what: str, *, tier: str, block: int | None = None, errno: int = 0) -> None:
        self.tier, self.block, self.errno = tier, block, errno
        cause = f": {os.strerror(errno)} (errno {errno})" if errno else ""
        super().__init__(f"tier {tier}: {what}{cause}")


class TierFull(TierError):
    """A tier has no room for what was to be moved there."""


class NativeError(SentinelError):
    """A native call failed."""

    def __init__(self, call: str, errno: int, remedy: str = "") -> None:
        self.call, self.errno = call, errno
        tail = f"; {remedy}" if remedy else ""
        super().__init__(f"{call}: {os.strerror(errno)} (errno {errno}){tail}")
