"""When a process started: with its number, what tells it from a later process of the same number."""

from __future__ import annotations

_STATE, _STARTED = 0, 19
"""Fields of /proc/PID/stat behind the name, which may hold anything."""


def started_at(pid: int) -> int:
    """In ticks since the host started; 0 where that process has ended, also where its parent has not asked for that."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[_STATE] in (b"Z", b"X") else int(fields[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0
