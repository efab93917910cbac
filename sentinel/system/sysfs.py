"""Small files of the kernel: what is not there reads as empty."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """The file's text, "" where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def field(path: Path, name: str) -> str:
    """What follows `name:` in the first line of the file that begins so; "" without one."""
    for line in text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def entries(folder: Path) -> list[Path]:
    """What is in the folder, sorted; nothing where it cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def numbers(listed: str) -> list[int]:
    """The numbers in `0-3,8`; what has no such form is left out."""
    found: list[int] = []
    for part in listed.strip().split(","):
        low, dash, high = part.strip().partition("-")
        if low.isdigit() and (high.isdigit() or not dash):
            found += range(int(low), int(high or low) + 1)
    return found


def as_list(found: list[int] | tuple[int, ...] | set[int] | frozenset[int]) -> str:
    """Numbers as the kernel writes them: `0-3,8`."""
    parts: list[list[int]] = []
    for number in sorted(found):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
