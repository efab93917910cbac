"""How many bytes, in words: beside `units`, since errors say it too."""

from __future__ import annotations


def format_bytes(nbytes: float) -> str:
    """`nbytes` in the largest binary unit of at least one, such as `1.50 GiB`."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{int(nbytes)} B"
