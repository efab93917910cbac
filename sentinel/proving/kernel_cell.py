"""One workload under the kernel's own placements on two nodes, beside ours, each with the same fast bytes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sentinel.executed import comparing
from sentinel.executed.child import compared_job
from sentinel.executed.observer import Window
from sentinel.files.disk import write_whole
from sentinel.proving.orders import KernelOrder
from sentinel.session import Request
from sentinel.system.progress import telling
from sentinel.tiers import machine_for

MEASURED = 2
"""Steps in which each operator's operands are asked for."""


def compared(order: KernelOrder) -> dict[str, Any]:
    """Run them; returns how many there are. Raises what `comparing.rows` raises.

    With the first one, those of a comparison that was cut short go: all are held against ours and all-fast of one run.
    """
    training = order.training
    said = training.said or {}
    Request(**said).check()
    machine = machine_for(said["slow"])
    job = compared_job(training.script, training.arguments, machine, said, Window(order.warm_up, MEASURED))
    done = 0
    for row, (fast_bytes, beside_bytes) in comparing.rows(job, order.names, telling):
        if not done:
            for name in order.names:
                _path(order, name).unlink(missing_ok=True)
        told = {"row": asdict(row), "fast_bytes": fast_bytes, "beside_bytes": beside_bytes}
        write_whole(_path(order, row.name), json.dumps(told).encode())
        done += 1
    return {"placements": done}


def _path(order: KernelOrder, name: str) -> Path:
    return Path(order.folder) / f"{order.workload}.kernel.{name}.json"
