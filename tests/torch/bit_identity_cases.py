"""Small training jobs, each with one habit that a memory runtime could break.

A case is a function `build() -> Job`; `Job.step(i)` runs one whole training step and returns its loss.
The same seeds are set before every build, so two builds train alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.torch import cases_of_holders, cases_of_loops, cases_of_networks, cases_of_shapes
from tests.torch.case_parts import Job

__all__ = ["ASKED", "CASES", "Job", "job"]

ASKED: dict[str, Any] = {"fast": "20%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"}
"""What `start_profile` is asked for where a test is of something else."""

CASES: dict[str, Callable[[], Job]] = {
    f.__name__: f
    for f in (
        cases_of_networks.plain,
        cases_of_networks.inplace_activations,
        cases_of_networks.tied_weights,
        cases_of_networks.dropout,
        cases_of_networks.checkpointing,
        cases_of_loops.accumulation_and_clipping,
        cases_of_loops.grads_kept,
        cases_of_loops.two_optimizers,
        cases_of_networks.autocast_bf16,
        cases_of_shapes.data_dependent_shapes,
        cases_of_shapes.shapes_that_take_turns,
        cases_of_shapes.smaller_last_batch,
        cases_of_shapes.skipped_experts,
        cases_of_shapes.packed_sequences,
        cases_of_shapes.dense_lstm,
        cases_of_holders.dataloader_workers,
        cases_of_holders.numpy_alias,
        cases_of_holders.deepcopies,
        cases_of_holders.state_dict_round_trip,
        cases_of_loops.exception_in_step,
        cases_of_loops.validation_between,
        cases_of_shapes.sparse_embedding,
        cases_of_loops.closure_and_scheduler,
        cases_of_loops.unknown_optimizer,
        cases_of_holders.kept_outputs,
    )
}


def job(name: str = "plain") -> Job:
    """A case, built with the same seed each time."""
    torch.manual_seed(3)
    return CASES[name]()
