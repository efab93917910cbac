"""Which process of its job this one is: its rank, how many there are, and how many on this node.

A launcher tells that by the environment. Who starts processes without one, as `torch.multiprocessing.spawn`, MPICH or
Lightning do, tells it to torch.distributed later. So ask as late as possible: no answer is kept here.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from sentinel.system.process_start import started_at

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


def launched(environment: Mapping[str, str] | None = None) -> Launched:
    """What the launcher says in `environment`; without one, in this process's. There torch.distributed knows better,
    unless it has joined fewer processes than the launcher has started."""
    told = _told(os.environ if environment is None else environment)
    distributed: Any = sys.modules.get("torch.distributed") if environment is None else None
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return told
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if told.size > size or (told.rank, told.size) == (rank, size):
        return told
    return _joined(rank, size, os.environ, distributed)


def _told(environment: Mapping[str, str]) -> Launched:
    """What the first of LAUNCHERS says that says something. Where it does not tell who is on this node, all are."""
    for names in LAUNCHERS:
        rank, size, local_rank, local_size = (environment.get(name, "") for name in names)
        if rank == "" and names is LAUNCHERS[0] and _node(environment) == 0:
            rank = local_rank  # Lightning's own launcher tells no more; on its first node they are the same
        if rank.isdigit() and size.isdigit():
            there = _on_this_node(local_size, environment) or max(int(size), 1)
            local = int(local_rank) if local_rank.isdigit() else int(rank) % there
            return Launched(int(rank), max(int(size), 1), min(local, there - 1), there, _job_of(environment))
    return Launched()


def _joined(rank: int, size: int, environment: Mapping[str, str], distributed: Any) -> Launched:
    """A process of torch.distributed of which the environment does not tell, or of the process that has started it. All
    are on this node, unless Lightning says how many came before this one's."""
    there, local, node = size, rank, _node(environment)
    if "RANK" not in environment and environment.get("LOCAL_RANK", "").isdigit():
        local = int(environment["LOCAL_RANK"])
        if node > 0 and rank >= local and (rank - local) % node == 0:
            there = max((rank - local) // node, local + 1)
    job = _job_of(environment) + ("" if environment.get("MASTER_PORT") else _meeting_place(distributed))
    return Launched(rank, size, min(local, there - 1), there, job)


def _node(environment: Mapping[str, str]) -> int:
    """The number of this node among those of the job, as torch.distributed's launchers tell; 0 where they don't."""
    told = environment.get("NODE_RANK") or environment.get("GROUP_RANK", "")
    return int(told) if told.isdigit() else 0


def _job_of(environment: Mapping[str, str]) -> str:
    return "|".join(environment.get(name, "") for name in _JOB)


def _meeting_place(distributed: Any) -> str:
    """Where the processes of torch.distributed meet, in words that are the same in all of them; or, where it does not
    tell, who has started them."""
    with contextlib.suppress(Exception):
        store = distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return f"|{store.path}" if hasattr(store, "path") else f"|{store.host}:{store.port}"
    parent = os.getppid()
    return f"|{parent} {started_at(parent)}"


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


def of_this_rank(path: str, environment: Mapping[str, str] | None = None) -> str:
    """`path` with the rank before its suffix where the job has several processes, as `launched` tells. SHOWN stays."""
    told = launched(environment)
    return path if path == SHOWN or told.size < 2 else of_rank(path, told.rank)
