"""Tables that only `frames()`, JSON and CSV have: the steps of the run, the blocks of the plan."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sentinel.core.run import STEP_DTYPE
from sentinel.reports.facts import Facts
from sentinel.reports.frame_columns import of_names, truths, whole, words
from sentinel.reports.headline import migrated_by_step
from sentinel.reports.section import Section


def _steps(facts: Facts) -> pd.DataFrame:
    """One row a step of the run."""
    run = facts.run
    rows = run.steps if run is not None else np.zeros(0, STEP_DTYPE)
    moved = migrated_by_step(run) if run is not None else {}
    numbers = ("step", "start_ns", "duration_ns", "stall_ns", "fast_peak_bytes", "unmanaged_bytes")
    return pd.DataFrame(
        {
            **{name: whole(rows[name]) for name in numbers},
            "migrated_bytes": whole([moved[step] for step in rows["step"].tolist()]),
            "in_step": truths(rows["in_step"]),
        }
    )


def _blocks(facts: Facts) -> pd.DataFrame | None:
    """One row a block; `tensor` where it holds one only."""
    plan, names = facts.plan, facts.names
    if plan is None:
        return None
    rows = plan.blocks
    one = np.array([b.tensors[0] if len(b.tensors) == 1 and b.tensors[0] < len(names) else -1 for b in rows], np.int64)
    return pd.DataFrame(
        {
            "block": whole(np.arange(len(rows))),
            "name": words(b.name for b in rows),
            "tensor": of_names(names, one),
            "tensors": whole([len(b.tensors) for b in rows]),
            "nbytes": whole([b.nbytes for b in rows]),
            "first_layer": whole([b.start for b in rows]),
            "last_layer": whole([(b.stop - 1) % plan.n_layers for b in rows]),
            "tier": of_names(plan.tier_names, np.array([b.tier for b in rows], np.int64)),
            "persistent": truths([b.persistent for b in rows]),
            "fixed": truths([b.fixed for b in rows]),
            "migrations": whole(np.bincount(plan.move_columns.block, minlength=len(rows))),
        }
    )


STEPS = Section[Facts]("Steps", "steps", _steps)
BLOCKS = Section[Facts]("Blocks", "blocks", _blocks)
