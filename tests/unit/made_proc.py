"""Files as the kernel has them of a process."""

from __future__ import annotations

from pathlib import Path


def proc(root: Path, pid: int, parent: int, ticks: tuple[int, int, int, int], allowed: str = "0-1") -> None:
    """A process with one thread. `ticks`: its own, as a user and in the kernel, and of those that it has waited for."""
    folder = root / f"proc/{pid}"
    (folder / f"task/{pid}").mkdir(parents=True)
    state = " ".join(["S", str(parent), *["0"] * 9, *map(str, ticks), *["0"] * 30])
    (folder / "stat").write_text(f"{pid} (a name) 7 (x) {state}\n")
    (folder / f"task/{pid}/status").write_text(f"Name:\ta\nCpus_allowed:\t3\nCpus_allowed_list:\t{allowed}\nMems:\t1\n")
