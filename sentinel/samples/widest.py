"""The widest window that fits."""

from __future__ import annotations

from collections.abc import Callable


def widest(peak: Callable[[int], int], most: int, guess: int, cap: int) -> int:
    """The largest width up to `cap`, within about 1 %, for which `peak` (nearly proportional to it) is at most `most`;
    0 if there is none."""
    low, high, failed = 0, cap + 1, 0
    width = min(max(guess, 1), cap)
    while True:
        found = peak(width)
        if found <= most:
            low = width
            proposed = width * most // max(found, 1)
        else:
            high, failed = width, failed + 1
            proposed = width * most // found * 255 // 256 >> max(failed - 3, 0)  # where little depends on the width
        if low + 1 >= high or (low and (high - low <= low >> 7 or 0 <= proposed - low <= low >> 7)):
            return low
        width = proposed if low < proposed < high else (low + high) // 2
