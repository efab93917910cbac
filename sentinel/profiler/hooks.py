"""Hooks that are removed by owner: an interrupt may lose a handle, but torch's table still has the hook."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any


class Owned:
    """A hook that calls `call` with what torch gives it, on behalf of `owner`."""

    __slots__ = ("call", "owner")

    def __init__(self, owner: object, call: Callable[..., Any]) -> None:
        self.owner, self.call = owner, call

    def __call__(self, *given: Any) -> Any:
        return self.call(*given)


def remove_all_of(owner: object, table: MutableMapping[int, Any] | None) -> None:
    """Takes every hook of `owner` out of one of torch's tables; None is an empty one. May be called again."""
    if table:
        for key in [key for key, hook in table.items() if isinstance(hook, Owned) and hook.owner is owner]:
            table.pop(key, None)
