"""What `gc.freeze()` has hidden from the collector, for as long as somebody looks for objects (decision 220)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def thawed() -> Iterator[None]:
    """The collector shows what is frozen. Afterwards all that is alive is frozen, if anything was before."""
    if not gc.get_freeze_count():
        yield
        return
    gc.collect()  # what is frozen below is never collected
    try:
        gc.unfreeze()
        yield
    finally:
        gc.freeze()


def all_objects() -> list[Any]:
    """Every object that the collector knows, frozen or not."""
    with thawed():
        return gc.get_objects()
