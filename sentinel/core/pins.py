"""Pins: tensors whose tier a user has fixed, by patterns of names and by size; and plans around them.

A policy sees a profile in which pinned tensors are not managed, so none can do otherwise; they come back to its plan.
Their bytes are off the capacities that it sees. What is kept slow is always served by slow memory: on a machine that
takes recorded times that time is part of the layers; on one that computes them, part of their traffic. Both are rounded
down, so a bound of what is left is a bound of all plans that keep the pins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import slow_extra_ns
from sentinel.core.errors import UsageError
from sentinel.core.extents import merge_extents
from sentinel.core.machine import Machine
from sentinel.core.plan import Block, Plan, Segment, Slot
from sentinel.core.profile import Profile
from sentinel.core.units import PAGE_BYTES, format_bytes, parse_bytes

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


def kept_in(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each tensor that a plan keeps by the user's word `name`, `nbytes`, `tier` and `slow_use_ns`, from its
    `details`; rows that make no sense are left out."""
    told = details.get("pins")
    rows = told.get("tensors") if isinstance(told, Mapping) else None
    return [row for row in rows if _is_kept(row)] if isinstance(rows, list) else []


def _is_kept(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in ("name", "tier"))
        and all(
            isinstance(amount := row.get(name), int | float) and 0 <= amount < 1 << 63
            for name in ("nbytes", "slow_use_ns")
        )
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


@dataclass(frozen=True, eq=False)
class Rest:
    """What a policy is to plan. `profile`, `machine`: without the pinned tensors and the room that they take.

    `tensors`: (pinned,) indexes of these; `tiers`: (pinned,) where each is kept; `saved_ns`: (pinned,) what slow memory
    takes longer for their uses in a step, so much is saved by, or lost with, each pin.
    """

    profile: Profile
    machine: Machine
    tensors: NDArray[np.int64]
    tiers: NDArray[np.int64]
    saved_ns: NDArray[np.int64]
    pins: Pins


def rest_of(profile: Profile, machine: Machine, pins: Pins) -> Rest:
    """What is left to plan. Raises UsageError where what is pinned does not fit, or cannot be used where it is kept."""
    homes = pins.homes(profile)
    nbytes = -(-profile.tensors["nbytes"] // PAGE_BYTES) * PAGE_BYTES
    fast_bytes, slow_bytes = (int(nbytes[homes == home].sum()) for home in (FAST, SLOW))
    budget = machine.fast.capacity_bytes
    if fast_bytes > budget:
        kept = np.flatnonzero(homes == FAST)
        largest = kept[np.argsort(-nbytes[kept], kind="stable")].tolist()
        named = [f"{profile.names[i]} ({format_bytes(nbytes[i])})" for i in largest]
        raise UsageError(too_large(fast_bytes, budget, named), "keep less fast, or give more fast memory")
    slow = _slow_tier(machine, slow_bytes)
    tensors = np.flatnonzero(homes >= 0)
    tiers = np.where(homes[tensors] == FAST, 0, slow)
    # several slower tiers: what is not kept slow would be in the first one that can be used in place
    extra = slow_extra_ns(profile, machine, slow)
    own = profile.extents["tensor"][profile.accesses["extent"]]
    saved = np.bincount(own, extra, len(profile.names))[tensors].astype(np.int64)
    capacities = {0: fast_bytes, slow: slow_bytes}
    left = tuple(
        replace(tier, capacity_bytes=tier.capacity_bytes - capacities.get(index, 0))
        for index, tier in enumerate(machine.tiers)
    )
    return Rest(
        _without(profile, machine, homes, slow, extra), replace(machine, tiers=left), tensors, tiers, saved, pins
    )


def put_back(plan: Plan, rest: Rest, profile: Profile, machine: Machine) -> Plan:
    """`plan`, one of `rest`, with the pinned tensors: first in its addresses, in blocks that never migrate."""
    order = np.argsort(rest.tiers, kind="stable")
    tensors, tiers = rest.tensors[order], rest.tiers[order]
    nbytes = profile.tensors["nbytes"][tensors]
    pages = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
    offsets = np.cumsum(pages) - pages
    shift, length = int(pages.sum()), profile.n_layers
    rows = list(zip(tensors.tolist(), tiers.tolist(), nbytes.tolist(), pages.tolist(), offsets.tolist(), strict=True))
    own = [Slot(i, profile.names[i], None, offset, room) for i, _, room, _, offset in rows]
    kept = [
        Block(offset, room, 0, length, tier, (i,), profile.names[i], persistent=True)
        for i, tier, _, room, offset in rows
    ]
    first = [
        Segment(int(offsets[tiers == tier].min()), int(pages[tiers == tier].sum()), tier)
        for tier in np.unique(tiers).tolist()
    ]
    shifted = (replace(slot, offset=slot.offset + shift) for slot in plan.slots)
    fast_bytes = int(pages[tiers == 0].sum())
    return replace(
        plan,
        capacity_bytes=tuple(tier.capacity_bytes for tier in machine.tiers),
        segments=(*first, *(replace(each, offset=each.offset + shift) for each in plan.segments)),
        slots=tuple(sorted((*own, *shifted), key=lambda slot: slot.tensor)),
        blocks=(*(replace(block, offset=block.offset + shift) for block in plan.blocks), *kept),
        footprint_bytes=plan.footprint_bytes + shift,
        fast_needed_bytes=plan.fast_needed_bytes + fast_bytes,
        predicted_step_ns=None,
        uses=plan.uses[:0],
        details={**plan.details, "pins": {**rest.pins.told(), "tensors": _told(rest, profile)}},
    )


def _told(rest: Rest, profile: Profile) -> list[dict[str, Any]]:
    """Of each pinned tensor: its name and size, where it is kept, and what that saves or costs a step."""
    rows = zip(rest.tensors.tolist(), rest.tiers.tolist(), rest.saved_ns.tolist(), strict=True)
    return [
        {
            "name": profile.names[i],
            "nbytes": int(profile.tensors["nbytes"][i]),
            "tier": rest.machine.tiers[tier].name,
            "slow_use_ns": ns,
        }
        for i, tier, ns in rows
    ]


def _slow_tier(machine: Machine, nbytes: int) -> int:
    """The first slower tier whose bytes can be used in place. Raises UsageError where `nbytes` have no such place."""
    usable = [tier for tier in machine.slower if machine.tiers[tier].addressable]
    if not nbytes:
        return next(iter(usable), machine.slower[0])
    fits = [tier for tier in usable if machine.tiers[tier].capacity_bytes >= nbytes]
    if not fits:
        why = "has room for that" if usable else "can be used in place"
        raise UsageError(
            f"{format_bytes(nbytes)} are in keep_slow, but no slower tier of {machine.name} {why}",
            "keep less slow",
        )
    return fits[0]


def _without(
    profile: Profile, machine: Machine, homes: NDArray[np.int8], slow: int, extra: NDArray[np.float64]
) -> Profile:
    """`profile` with what is pinned not managed, and with the time that slow memory takes for what is kept there."""
    length = profile.n_layers
    tensor: NDArray[np.int64] = profile.extents["tensor"][profile.accesses["extent"]]
    in_slow = homes[tensor] == SLOW
    changes: dict[str, Any] = {}
    if machine.flops_per_s is None:
        lost = np.bincount(profile.accesses["layer"][in_slow], extra[in_slow], length)
        changes["layer_ns"] = profile.layer_ns + np.floor(lost).astype(np.int64)
    else:  # as many bytes as fast memory would move in the time that slow memory takes
        accesses = profile.accesses.copy()
        fast, there = machine.fast, machine.tiers[slow]
        for column, dearer in (
            ("read_bytes", fast.read_bytes_per_s / there.read_bytes_per_s),
            ("written_bytes", fast.write_bytes_per_s / there.write_bytes_per_s),
        ):
            accesses[column][in_slow] = (accesses[column][in_slow] * max(dearer, 1.0)).astype(np.int64)
        changes["accesses"] = accesses
    tensors = profile.tensors.copy()
    whole = merge_extents(replace(profile, **changes), homes >= 0)
    tensors["managed"][homes >= 0] = False
    return replace(whole, tensors=tensors)
