"""Pinning: what keep_fast and keep_slow were told, by the names of the job that is planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import ref

import torch
from torch import nn

from sentinel.core.errors import UsageError
from sentinel.core.pins import Names, Pins
from sentinel.migration.adopt import SMALL_BYTES
from sentinel.profiler.names import aliases, part_here, persistent_tensors, storage_address
from sentinel.runtime import RUNTIME
from sentinel.session.training_job import TrainingJob


def keep(where: str, kept: Sequence[torch.Tensor | nn.Module | str]) -> None:
    """Note it for the plans to come; all of it or, where that raises UsageError, nothing. The last word counts."""
    for each in kept:
        if not isinstance(each, torch.Tensor | nn.Module | str):
            raise UsageError(
                f"keep_{where}({each!r}): a value of type {type(each).__name__} is not accepted",
                "give a tensor, a module, or a pattern of names",
            )
    again = {each if isinstance(each, str) else id(each) for each in kept}
    left = []
    for row in RUNTIME.kept:
        before = row[1] if isinstance(row[1], str) else row[1]()
        if before is not None and (before if isinstance(before, str) else id(before)) not in again:
            left.append(row)
    RUNTIME.kept = [*left, *((where, each if isinstance(each, str) else ref(each)) for each in kept)]


def pins_of_job(asked: Pins, job: TrainingJob) -> tuple[Pins, tuple[str, ...]]:
    """What is asked for, and what was told by objects, as names of the job's tensors; and what to say of the rest.

    A pattern names a tensor by any of its names; a plan knows it by the first. An object counts more than any name.
    """
    models, optimizers = job.with_annotated()
    persistent = persistent_tensors(models, optimizers, numbers=job.numbers)
    names = {storage_address(tensor): name for name, tensor, _ in persistent}
    found: dict[str, list[str]] = {"fast": list(asked.fast), "slow": list(asked.slow)}
    told: dict[str, str] = {}  # name -> fast or slow: the last word on a tensor, be it its own or its module's
    strangers = 0
    for where, each in RUNTIME.kept:
        thing = each if isinstance(each, str) else each()
        if isinstance(thing, str):
            found[where].append(thing)
        elif thing is not None:
            held = _placeable(thing) if isinstance(thing, nn.Module) else [thing]
            known = [names.get(storage_address(tensor)) for tensor in held]
            told |= {name: where for name in known if name is not None}
            strangers += known.count(None)
    for where, other in (("fast", "slow"), ("slow", "fast")):
        own = dict.fromkeys(name for name, home in told.items() if home == where)
        found[where] += own
        found[other] = [pattern for pattern in found[other] if pattern not in own]
    others = aliases(models, optimizers, numbers=job.numbers)
    for patterns in found.values():
        named = Names(patterns)
        patterns += [first for first, also in others.items() if first not in told and any(map(named.naming, also))]
    said = f"{strangers} tensors of keep_fast or keep_slow belong to no model or optimizer of this job"
    fast, slow = (tuple(dict.fromkeys(found[where])) for where in ("fast", "slow"))
    return replace(asked, fast=fast, slow=slow), (said,) if strangers else ()


def _placeable(module: nn.Module) -> list[torch.Tensor]:
    """Its parameters and buffers but for small ones, which no plan has."""
    held = (*module.parameters(), *module.buffers())
    return [t for t in held if not storage_address(t) or part_here(t).untyped_storage().nbytes() >= SMALL_BYTES]


def fast_bytes_of(pins: Pins, job: TrainingJob) -> dict[str, int]:
    """Bytes of what is kept fast by name and there now, by name."""
    models, optimizers = job.with_annotated()
    fast, slow = Names(pins.fast), Names(pins.slow)
    held = persistent_tensors(models, optimizers, numbers=job.numbers)
    return {
        name: tensor.untyped_storage().nbytes()
        for name, tensor, _ in held
        if (by := fast.naming(name)) and (by == name or not slow.naming(name))
    }
