"""Profile and Machine -> Plan. Pure: no clock, no I/O, no randomness; same inputs, same plan, byte for byte.

Nothing here is imported before it is used, so that whoever only needs the names of the policies loads no solver.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sentinel.core.errors import UsageError

if TYPE_CHECKING:
    from sentinel.planner.assemble import footprint_bytes as footprint_bytes
    from sentinel.planner.lower_bound import Bound as Bound
    from sentinel.planner.lower_bound import bound as bound
    from sentinel.planner.lower_bound import exchange_bound as exchange_bound
    from sentinel.planner.make_plan import Policy as Policy
    from sentinel.planner.make_plan import not_slower as not_slower
    from sentinel.planner.make_plan import plan as plan
    from sentinel.planner.window_bound import needs_windows as needs_windows
    from sentinel.planner.window_bound import profile_window_bound_ns as profile_window_bound_ns

POLICIES = {
    "sentinel": "portfolio:Sentinel",
    "sentinel-2021": "paper:Sentinel2021",
    "autotm": "moving_rivals:AutoTm",
    "capuchin": "moving_rivals:Capuchin",
    "next-use": "moving_rivals:NextUse",
    "lru": "moving_rivals:Lru",
    "tiertrain": "moving_rivals:TierTrain",
    "best-static": "static_placements:BestStatic",
    "static": "static_placements:Static",
    "weighted-interleave": "static_placements:WeightedInterleave",
    "interleave": "static_placements:Interleave",
    "first-touch": "static_placements:FirstTouch",
    "all-fast": "static_placements:AllFast",
    "all-slow": "static_placements:AllSlow",
}
"""Module below this package, and what there makes each policy, by name. The first one is the default."""

_LAZY = {
    "Bound": "lower_bound",
    "Policy": "make_plan",
    "bound": "lower_bound",
    "exchange_bound": "lower_bound",
    "footprint_bytes": "assemble",
    "needs_windows": "window_bound",
    "not_slower": "make_plan",
    "plan": "make_plan",
    "profile_window_bound_ns": "window_bound",
}


def check_policies(names: Iterable[str]) -> None:
    """Raises UsageError for a policy that does not exist."""
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"there is no policy {name!r}", f"choose one of {', '.join(sorted(POLICIES))}")


def load_policy(name: str) -> Policy:
    """The policy of this name; its module is imported now. Raises UsageError for a policy that does not exist."""
    check_policies([name])
    module, _, kind = POLICIES[name].partition(":")
    policy: Policy = getattr(import_module(f"{__name__}.{module}"), kind)()
    return policy


def __getattr__(name: str) -> Any:
    """What `_LAZY` lists, imported when first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    return found


def __dir__() -> list[str]:
    """With what is imported when first used."""
    return sorted({*globals(), *_LAZY})
