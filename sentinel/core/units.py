"""Bytes, pages and times: parsing and printing. Binary units only."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from sentinel.core.errors import UsageError
from sentinel.core.sizes import format_bytes as format_bytes

MOST_BYTES = 1 << 60
"""Of an amount that a user gives: a million TiB. Sums of a few such still fit into 64 bits."""
PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_DECIMAL = {letter + end: f"{letter.upper()}iB" for letter in "kmgt" for end in ("", "b", "i")}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z%]*)\s*")

_AMOUNTS = 'write "20%" of the footprint, "8GiB", or bytes'
_PER_NODE = "/node"


def page_ceil(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages, in bytes."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


def parse_bytes(text: str | int) -> int:
    """Bytes in `"8GiB"`, `"512 MiB"`, `"4096"` or an int. Raises UsageError for anything else, also for 0.2 bytes, and
    above MOST_BYTES."""
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            shown = text if -text <= MOST_BYTES else "a negative number"  # it may have thousands of digits
            raise UsageError(f"{shown} is not an amount of memory", "give a positive number of bytes")
        return _bounded(text)
    match = _NUMBER.fullmatch(str(text))
    unit = match.group(2).lower() if match else None
    part_of_a_byte = unit in ("", "b") and match is not None and not match.group(1).isdigit()  # 0.2 was to be a share?
    if match is None or unit not in _UNITS or part_of_a_byte:
        hint = f" ({_DECIMAL[unit]}?)" if unit in _DECIMAL else ""
        raise UsageError(f"{text!r} is not an amount of memory{hint}", 'write bytes, "512MiB" or "8GiB"')
    return _bounded(float(match.group(1)) * _UNITS[unit])


def _bounded(nbytes: float) -> int:
    """Not said in numbers where it is refused: they may have thousands of digits."""
    if not nbytes <= MOST_BYTES:
        raise UsageError(
            f"more than {format_bytes(MOST_BYTES)} is not an amount of memory that a machine has", "give less"
        )
    return int(nbytes)


@dataclass(frozen=True)
class Amount:
    """Memory as a user asks for it: `share` of a footprint, else `nbytes`. `text`: in the user's words.

    `per_node`: for all processes of the job on a node together, not for each.
    """

    text: str | int
    nbytes: int = 0
    share: float | None = None
    per_node: bool = False

    def of(self, footprint_bytes: int) -> int:
        """In bytes; a share is rounded down to whole pages, for a budget is never exceeded."""
        if self.share is None:
            return self.nbytes
        return int(min(self.share * footprint_bytes, MOST_BYTES)) // PAGE_BYTES * PAGE_BYTES


def parse_amount(text: str | int) -> Amount:
    """`"20%"` is a share, all else as `parse_bytes` reads it.

    Raises UsageError for what is no amount, and for less than a page: 20 was to be a share.
    """
    if isinstance(text, str) and text.strip().endswith("%"):
        match = _NUMBER.fullmatch(text)
        if match is None or match.group(2) != "%" or float(match.group(1)) == math.inf:
            raise UsageError(f"{text!r} is not a share of memory", 'write it as "20%"')
        return Amount(text, share=float(match.group(1)) / 100)
    try:
        nbytes = parse_bytes(text)
    except UsageError as error:
        raise UsageError(error.what, _AMOUNTS) from None
    if 0 < nbytes < PAGE_BYTES:
        raise UsageError(f"{text!r} would be {format_bytes(nbytes)}, less than a page", _AMOUNTS)
    return Amount(text, nbytes)


def parse_fast(text: str | int) -> Amount:
    """As `parse_amount`; `"8GiB/node"` is for all processes of a job on a node together.

    Raises UsageError as it does, and for a share a node: that is of each process's own footprint anyway.
    """
    if not isinstance(text, str) or not text.rstrip().lower().endswith(_PER_NODE):
        return parse_amount(text)
    amount = parse_amount(text.rstrip()[: -len(_PER_NODE)])
    if amount.share is not None:
        raise UsageError(
            f"{text!r}: a share is one of each process's own footprint, with any number of processes",
            'leave out "/node", or write an amount: "8GiB/node"',
        )
    return replace(amount, text=text, per_node=True)


def parse_budget(text: str | int, footprint_bytes: int) -> int:
    """The bytes of an amount where the footprint is known. Raises what `parse_amount` raises."""
    return parse_amount(text).of(footprint_bytes)


def format_ns(ns: float) -> str:
    """`ns` in the largest unit of at least one, such as `1.62 s`."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= factor:
            return f"{ns / factor:.2f} {unit}"
    return f"{ns:.0f} ns"


def counted(n: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def plain(value: Any) -> Any:
    """A whole number of numpy's as one of Python's, which JSON knows; all else as it is."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, Integral) else value
