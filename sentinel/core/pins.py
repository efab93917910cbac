"""Pins: tensors whose tier a user has fixed, by patterns of names and by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.errors import UsageError
from sentinel.core.profile import Profile
from sentinel.core.units import format_bytes, parse_bytes

FREE, FAST, SLOW = -1, 0, 1
"""Of a tensor's home: a policy chooses, fast memory, slow memory."""


@dataclass(frozen=True)
class Pins:
    """`fast`, `slow`: patterns of names, as a shell has them (`embed.*`); also the name itself. They hold for what
    lives across steps: parameters, buffers, optimizer state. A name itself counts more than a pattern that matches it.
    `smallest_bytes`: what is smaller stays in fast memory, unless `slow` names it.
    """

    fast: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    smallest_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.fast or self.slow or self.smallest_bytes)

    def homes(self, profile: Profile) -> NDArray[np.int8]:
        """(n,) FAST, SLOW or FREE of each tensor. Raises UsageError where words of one kind want one in both."""
        t = profile.tensors
        out = np.full(len(t), FREE, np.int8)
        rows = np.flatnonzero(t["managed"] & t["persistent"])
        if self.smallest_bytes:
            out[rows[t["nbytes"][rows] < self.smallest_bytes]] = FAST
        named_fast, named_slow = Names(self.fast), Names(self.slow)
        for row in rows.tolist() if self.fast or self.slow else ():
            name = profile.names[row]
            fast, slow = named_fast.naming(name), named_slow.naming(name)
            if fast and slow:
                if (fast == name) == (slow == name):
                    raise UsageError(
                        f"{name} matches {fast!r} of keep_fast and {slow!r} of keep_slow", "leave one of the two out"
                    )
                fast, slow = (fast, "") if fast == name else ("", slow)
            out[row] = FAST if fast else SLOW if slow else out[row]
        return out

    def overruled(self, profile: Profile) -> str:
        """A sentence where tensors are named themselves and a pattern says otherwise, else ""."""
        t = profile.tensors
        fast, slow = Names(self.fast), Names(self.slow)
        found = []
        for row in np.flatnonzero(t["managed"] & t["persistent"]).tolist() if self.fast and self.slow else ():
            name = profile.names[row]
            by_fast, by_slow = fast.naming(name), slow.naming(name)
            if by_fast and by_slow:
                where, against = ("fast", by_slow) if by_fast == name else ("slow", by_fast)
                found.append(f"{name} {where}, not as {against!r}")
        return (
            f"keep_fast and keep_slow: a tensor's own name counts more than a pattern: {_some(found)}" if found else ""
        )

    def idle(self, profile: Profile) -> tuple[str, ...]:
        """Patterns that name nothing that lives across steps and can be placed."""
        t = profile.tensors
        there = {profile.names[row] for row in np.flatnonzero(t["managed"] & t["persistent"]).tolist()}
        rest = [pattern for pattern in dict.fromkeys((*self.fast, *self.slow)) if pattern not in there]
        return tuple(p for p in rest if not (_is_wild(p) and any(fnmatchcase(name, p) for name in there)))

    def with_names(self, fast: Iterable[str] = (), slow: Iterable[str] = ()) -> Pins:
        """These pins, and those of further names."""
        return Pins(
            tuple(dict.fromkeys((*self.fast, *fast))), tuple(dict.fromkeys((*self.slow, *slow))), self.smallest_bytes
        )

    def told(self) -> dict[str, Any]:
        """As a plan's `details["pins"]` has them."""
        return {"fast": list(self.fast), "slow": list(self.slow), "smallest_bytes": self.smallest_bytes}


class Names:
    """Patterns of names. A job may have thousands that are names themselves: these are looked up, not tried in turn."""

    def __init__(self, patterns: Iterable[str]) -> None:
        every = tuple(patterns)
        self._exact = frozenset(every)
        self._wild = tuple(filter(_is_wild, every))

    def naming(self, name: str) -> str:
        """`name` itself if it is one of them, else the first that matches it; "" if none does."""
        if name in self._exact:
            return name
        return next((pattern for pattern in self._wild if fnmatchcase(name, pattern)), "")


def _is_wild(pattern: str) -> bool:
    """Whether it can match other names than itself."""
    return any(sign in pattern for sign in "*?[")


def pins_of(details: Mapping[str, Any]) -> Pins:
    """The pins that a plan was made with, from its `details`; none where it tells of none, or of no such thing."""
    told = details.get("pins")
    if not isinstance(told, Mapping):
        return Pins()
    fast, slow, smallest = told.get("fast"), told.get("slow"), told.get("smallest_bytes")
    return Pins(
        tuple(map(str, fast)) if isinstance(fast, list) else (),
        tuple(map(str, slow)) if isinstance(slow, list) else (),
        smallest if isinstance(smallest, int) and smallest > 0 else 0,
    )


def patterns_in(text: object, what: str) -> tuple[str, ...]:
    """The patterns of an argument: one, several with commas between them, or a list. Raises UsageError for others."""
    if text is None:
        return ()
    words = text.split(",") if isinstance(text, str) else text
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{what}={text!r} is not a pattern of names", f'give {what}="embed.*", or a list of patterns')
    return tuple(word.strip() for word in words if word.strip())


def smallest_in(text: str | int | None) -> int:
    """The bytes of `smallest`, 0 for None. Raises UsageError for what is no amount."""
    return 0 if text is None else parse_bytes(text)


def too_large(nbytes: int, budget_bytes: int, names: Iterable[str]) -> str:
    """Says that what is kept fast does not fit."""
    return (
        f"keep_fast names {format_bytes(nbytes)}, the budget of fast memory is"
        f" {format_bytes(budget_bytes)}: {_some(list(names))}"
    )


def _some(named: list[str]) -> str:
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
