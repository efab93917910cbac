"""What the launcher of a job tells each of its processes: a rank, which goes into the names of files."""

from __future__ import annotations

import os
from collections.abc import Mapping

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""How torchrun, srun and Open MPI tell a process its rank, and how many there are."""

SHOWN = "-"
"""As the path of a report: its text is shown on stderr, and no file is written."""


def of_this_rank(path: str, environment: Mapping[str, str] = os.environ) -> str:
    """`path` with the rank before its suffix where the job has several processes, as the first of LAUNCHERS tells.
    SHOWN stays."""
    told = ((environment.get(rank, ""), environment.get(size, "")) for rank, size in LAUNCHERS)
    rank, size = next((each for each in told if all(map(str.isdigit, each))), ("", "1"))
    if path == SHOWN or int(size) < 2:
        return path
    root, suffix = os.path.splitext(path)
    return f"{root}.rank{rank}{suffix}"
