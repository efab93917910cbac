"""What the launcher of a job tells each of its processes: its rank, how many there are, and how many on this node."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
"""How torchrun, srun and Open MPI tell a process its rank and how many there are, in all and on its node."""

_JOB: tuple[str, ...] = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_JOB += ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")

SHOWN = "-"
"""As the path of a report: its text is shown on stderr, and no file is written."""


class Launched(NamedTuple):
    """`rank` of `size` processes, `local_rank` of the `local_size` on this node. `job`: what the launcher says of the
    job, the same in all of its processes. A process that no launcher has started is the only one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    job: str = ""


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """What the first of LAUNCHERS says that says something. Where it does not tell who is on this node, all are."""
    for names in LAUNCHERS:
        rank, size, local_rank, local_size = (environment.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            there = _on_this_node(local_size, environment) or max(int(size), 1)
            local = int(local_rank) if local_rank.isdigit() else int(rank) % there
            job = "|".join(environment.get(name, "") for name in _JOB)
            return Launched(int(rank), max(int(size), 1), min(local, there - 1), there, job)
    return Launched()


def _on_this_node(told: str, environment: Mapping[str, str]) -> int:
    """How many processes that is: `4`, or Slurm's list `4(x2),3` of all nodes. 0 where it is not told."""
    counts: list[int] = []
    for part in told.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return 0
        counts += [int(match[1])] * min(int(match[2] or 1), 1 << 16)
    node = environment.get("SLURM_NODEID", "")
    return counts[int(node)] if len(counts) > 1 and node.isdigit() and int(node) < len(counts) else counts[0]


def of_rank(path: str, rank: int) -> str:
    """`path` with a rank before its suffix."""
    root, suffix = os.path.splitext(path)
    return f"{root}.rank{rank}{suffix}"


def of_this_rank(path: str, environment: Mapping[str, str] = os.environ) -> str:
    """`path` with the rank before its suffix where the job has several processes, as the launcher tells.
    SHOWN stays."""
    told = launched(environment)
    return path if path == SHOWN or told.size < 2 else of_rank(path, told.rank)
