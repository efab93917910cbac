"""What a session was asked for: arguments, settings, and overrides from the command line."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from types import NoneType
from typing import Any

from sentinel import files, tiers
from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.pins import Pins, patterns_in, smallest_in
from sentinel.core.plan import Plan
from sentinel.core.rules import require
from sentinel.core.units import parse_fast
from sentinel.planner import check_policies
from sentinel.profiler.pages.trackers import check_words as check_tracker
from sentinel.runtime import RUNTIME
from sentinel.system.configuration import Setting, configuration
from sentinel.tiers.file_tier import FASTEST_DISK, FileTier, is_file


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `start_profile` that say where tensors may live, and how fast they may move, as given."""

    fast: str | int | None = None
    slow: str = "auto"
    tracker: str = "auto"
    policy: str = "sentinel"
    machine: str | os.PathLike[str] | Machine | None = None
    plan: str | os.PathLike[str] | Plan | None = None
    rate_limit: str | None = None
    cap: str | int | None = None
    overlap_optimizer: bool = False
    keep_fast: str | Sequence[str] | None = None
    keep_slow: str | Sequence[str] | None = None
    smallest: str | int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for an argument of another kind than any that can be meant."""
        for name, kinds, remedy in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool) != (kinds == (bool,)):
                kind = type(value).__name__
                raise UsageError(f"start_profile({name}={value!r}): a value of type {kind} is not accepted", remedy)

    def check(self) -> None:
        """Raises what `start_profile` would raise for these words alone; nothing is changed."""
        if is_file(self.slow):
            FileTier.asked(self.slow, self.fast, self.cap)
        elif self.slow != Request.slow:
            tiers.machine_for(self.slow)
        require_file(self)
        require_planning(self)
        if self.fast is not None:
            parse_fast(self.fast)
        check_tracker(self.tracker)
        check_policies([self.policy])
        if self.machine is not None and not isinstance(self.machine, Machine):
            machine_named(self.machine)
        load_plan(self)
        if self.rate_limit is not None:
            tiers.parse_rate(self.rate_limit)

    @property
    def pins(self) -> Pins:
        """What the words say of tensors whose tier is fixed. Raises UsageError for what is no pattern or amount."""
        return Pins(
            patterns_in(self.keep_fast, "keep_fast"),
            patterns_in(self.keep_slow, "keep_slow"),
            smallest_in(self.smallest),
        )

    @property
    def bytes_per_s(self) -> int:
        """What `rate_limit` says, 0 for no limit. Raises UsageError for what is not a rate."""
        return tiers.parse_rate(self.rate_limit) if self.rate_limit is not None else 0


_KINDS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("fast", (str, Integral, NoneType), 'give "20%", "8GiB" or bytes'),
    ("slow", (str,), 'give a word such as "numa:1"'),
    ("tracker", (str,), 'give a word such as "ebpf"'),
    ("policy", (str,), "give the name of one"),
    ("machine", (str, os.PathLike, Machine, NoneType), "give a path, a name or a Machine"),
    ("plan", (str, os.PathLike, Plan, NoneType), "give a path or a Plan"),
    ("rate_limit", (str, NoneType), 'give a rate such as "500MB/s"'),
    ("cap", (str, Integral, NoneType), 'give "8GiB" or bytes'),
    ("overlap_optimizer", (bool,), "give True or False"),
    ("keep_fast", (str, list, tuple, NoneType), 'give a pattern of names such as "embed.*", or a list'),
    ("keep_slow", (str, list, tuple, NoneType), 'give a pattern of names such as "embed.*", or a list'),
    ("smallest", (str, Integral, NoneType), 'give "64KiB" or bytes'),
)
"""Argument of `start_profile`, what it may be, and what to give."""


_OF_A_FILE = ("cap", "overlap_optimizer")
"""Arguments that have a meaning with a file only."""


def require_file(request: Request) -> None:
    """Raises UsageError for what needs a file as slow memory, where that is another place: a cap on the process, and
    updates in backward."""
    elsewhere, slow = not is_file(request.slow), f"slow={request.slow!r}"
    remedy = 'give slow="file:DIR", or "file:auto" for the fastest local disk'
    require(
        (
            elsewhere and request.cap is not None,
            f"cap={request.cap!r} with {slow}: what exceeds a cap needs a file",
            remedy,
        ),
        (
            elsewhere and request.overlap_optimizer,
            f"overlap_optimizer=True with {slow}: it works only with a file as slow tier",
            remedy,
        ),
    )


def require_planning(asked: Request) -> None:
    """Raises UsageError for pins where nothing is planned, and for words of pins that mean nothing."""
    if asked.pins and is_file(asked.slow):
        raise UsageError(
            f"keep_fast, keep_slow or smallest with slow={asked.slow!r}: on a file nothing is planned",
            "leave them out",
        )


def settled(asked: Request, options: Collection[str] = ()) -> Request:
    """`asked`, and where it says nothing, what is configured: the environment's word, or that of a file in this folder.

    `options`: names of what the command line says, which stays, be it the default.
    Of what is configured, only amount and place are taken where the place is a file: there no plan is made. What is
    configured for a file goes with that file, where another place is asked for. A cap needs a file: where nobody says
    which, it is on the disk that looks fastest.
    Raises what `configuration` raises.
    """
    configured = settings()
    said = {*options, *(name for name, value in vars(asked).items() if value != getattr(Request, name))}
    told: dict[str, Any] = {name: each.value for name, each in configured.items() if name not in {*said, "report"}}
    place = told.get("slow", asked.slow)
    if not is_file(place) and "slow" in configured and is_file(str(configured["slow"].value)):
        for name in _OF_A_FILE:
            told.pop(name, None)
    if place == Request.slow and told.get("cap", asked.cap) is not None:
        place = told["slow"] = FASTEST_DISK
    if is_file(place):
        told = {name: value for name, value in told.items() if name in ("fast", "slow", *_OF_A_FILE)}
    return replace(asked, **told)


def settings() -> Mapping[str, Setting]:
    """What is configured: as `sentinel run` found it before its script, else as it is now."""
    return configuration() if RUNTIME.configured is None else RUNTIME.configured


def load_plan(request: Request) -> Plan | None:
    """The plan asked for, read from its file if a path was given."""
    if request.plan is None or isinstance(request.plan, Plan):
        return request.plan
    return files.load_plan(request.plan)


def machine_named(machine: str | os.PathLike[str]) -> Machine:
    """A described machine by its name, or one in a file by its path. Raises what loading that raises."""
    text = os.fspath(machine)
    if Path(text).suffix or os.sep in text:
        return files.load_machine(text)
    from sentinel import machines

    return machines.load(text)
