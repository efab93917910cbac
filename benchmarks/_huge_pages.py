"""The host's choice about transparent huge pages, set for as long as a benchmark runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks import _bench

CHOICES = ("as-is", "always", "madvise")
ENABLED = _bench.THP / "enabled"


def stock_environment(choice: str) -> dict[str, str]:
    """What lets stock PyTorch have huge pages too, where memory has to ask for them: glibc asks from 2.35 on."""
    return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if choice == "madvise" else {}


@contextmanager
def chosen(choice: str, enabled: Path = ENABLED) -> Iterator[None]:
    """Memory gets huge pages by `choice`, one of CHOICES; afterwards as before, also after SIGTERM.

    Raises SystemExit where this process may not set it.
    """
    if choice == "as-is":
        yield
        return
    before = _bench._chosen(enabled)
    if before is None:
        raise SystemExit(f"{enabled} cannot be read: this kernel has no transparent huge pages")
    earlier = signal.signal(signal.SIGTERM, _leave)
    try:
        _set(enabled, choice)
        yield
    finally:
        _set(enabled, before)
        signal.signal(signal.SIGTERM, earlier)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _set(enabled: Path, choice: str) -> None:
    try:
        enabled.write_text(choice)
    except OSError as error:
        why = f"{enabled} cannot be written ({error.strerror})"
        raise SystemExit(f"{why}: run as root, or with --huge-pages as-is") from error
