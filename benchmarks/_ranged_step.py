"""Child of page_ranges.py: trains one DLRM, profiles one step by pages, and looks at later steps the same way.

Prints one line of JSON: losses, and with Sentinel the plans made of the first profile, by page ranges and by whole
tensors under equal fast memory, each with the served share that it plans and the one that the later steps show.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sentinel
from benchmarks._observed import observed
from sentinel import machines, planner, session
from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.trace import Trace
from sentinel.core.units import PAGE_BYTES, parse_budget
from sentinel.simulator import simulate

PROFILED_STEP = 1
WIDTH, DENSE, BATCH, BAG = 32, 13, 2048, 4


class Dlrm(nn.Module):
    """Tables of sparse gradients between two small MLPs."""

    def __init__(self, tables: int, rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(WIDTH * (tables + 1), 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """dense (batch, DENSE), rows (tables, batch, bag) int64 -> logits (batch,)."""
        features = [self.bottom(dense)]
        sentinel.add_layer("bottom")
        for table, wanted in zip(self.tables, rows, strict=True):
            features.append(table(wanted))
            sentinel.add_layer("table")
        logits: Tensor = self.top(torch.cat(features, dim=1)).squeeze(1)
        sentinel.add_layer("top")
        return logits


def clicks(chosen: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(dense, rows, labels); of sorted rows the k-th is wanted k**-skew times as often as the first."""
    random = np.random.default_rng(0)
    upto = np.cumsum(np.arange(1, chosen.rows + 1) ** -chosen.skew)
    orders = [random.permutation(chosen.rows) for _ in range(chosen.tables)] if chosen.order == "shuffled" else None
    while True:
        rows = upto.searchsorted(random.random((chosen.tables, BATCH, BAG)) * upto[-1])
        if orders is not None:
            rows = np.stack([order[wanted] for order, wanted in zip(orders, rows, strict=True)])
        dense = torch.from_numpy(random.standard_normal((BATCH, DENSE), np.float32))
        yield dense, torch.from_numpy(rows), (torch.from_numpy(rows[0, :, 0]) % 2).float()


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """One that takes sparse gradients."""
    if name == "adagrad":
        return torch.optim.Adagrad(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.1)


def trained(chosen: argparse.Namespace) -> dict[str, Any]:
    """What the line of JSON says."""
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()
    model = Dlrm(chosen.tables, chosen.rows).train()
    optimizer = optimizer_of(chosen.optimizer, model)
    batches, losses, traces = clicks(chosen), [], {}
    first: dict[str, Any] = {}
    for step in range(max(chosen.look) + 2):
        looks = not chosen.stock and (step == PROFILED_STEP or step in chosen.look)
        if looks:
            if step != PROFILED_STEP:
                first.setdefault("headline", sentinel.report().headline)
                sentinel.stop()
            sentinel.start_profile(model, optimizer, fast=chosen.applied, slow=chosen.slow, tracker=chosen.tracker)
        dense, rows, labels = next(batches)
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, rows), labels)
        optimizer.zero_grad()
        loss.backward()
        sentinel.add_layer("backward")
        optimizer.step()
        sentinel.add_layer("optimizer")
        losses.append(loss.item().hex())
        if looks:
            sentinel.end_profile()
            traces[step] = seen()
    if chosen.stock:
        return {"losses": losses}
    profile = traces[PROFILED_STEP][1]
    recorded = {step: trace for step, (trace, _, _) in traces.items()}  # the profiled step too: in the same unit
    known = {chosen.slow: traces[PROFILED_STEP][2], **{name: machines.load(name) for name in chosen.machines}}
    return {
        "losses": losses,
        "headline": first["headline"],
        "tracker": profile.quality.tracker,
        "ranges": ranges_of(profile),
        "cells": [cell(profile, m, name, fast, recorded) for name, m in known.items() for fast in chosen.fast],
    }


def seen() -> tuple[Trace, Profile, Machine]:
    """What the step that has just been profiled showed."""
    now = session.current()
    assert now is not None
    assert now.trace is not None
    assert now.profile is not None
    assert now.flow.machine is not None
    return now.trace, now.profile, now.flow.machine


def ranges_of(profile: Profile) -> dict[str, list[tuple[int, int, int]]]:
    """Tensor -> (first page, stop page, pages touched in all layers) of each range."""
    several = np.bincount(profile.extents["tensor"]) > 1
    seen = profile.accesses[profile.accesses["pages_touched"] > 0]
    touches = np.bincount(seen["extent"], seen["pages_touched"], len(profile.extents)).astype(np.int64)
    found: dict[str, list[tuple[int, int, int]]] = {}
    for (tensor, offset, nbytes), touched in zip(profile.extents.tolist(), touches.tolist(), strict=True):
        if several[tensor] and touched:
            low, high = offset // PAGE_BYTES, -(-(offset + nbytes) // PAGE_BYTES)
            found.setdefault(profile.names[tensor], []).append((low, high, touched))
    return found


def cell(profile: Profile, machine: Machine, name: str, fast: str, recorded: dict[int, Trace]) -> dict[str, Any]:
    """Both plans under one amount of fast memory."""
    budget = parse_budget(fast, planner.footprint_bytes(profile))
    limited = machine.with_fast_capacity(budget)
    plans = {
        "ranged": planner.plan(profile, limited),
        "whole": planner.plan(profile, limited, whole_tensors=True),
    }
    return {
        "machine": name,
        "fast": fast,
        "fast_bytes": budget,
        **{kind: told(plan, profile, limited, recorded) for kind, plan in plans.items()},
    }


def told(plan: Plan, profile: Profile, machine: Machine, recorded: dict[int, Trace]) -> dict[str, Any]:
    """What a plan promises, and what recorded steps show: of all pages, and of those of tables and their state."""
    layers = simulate(plan, profile, machine).layers
    steps = {step: observed(plan, trace) for step, trace in recorded.items()}
    tables = {
        step: np.sum([n for name, n in found.by_tensor.items() if name.startswith("tables.")], axis=0)
        for step, found in steps.items()
    }
    return {
        "predicted_step_ns": plan.predicted_step_ns,
        "fast_peak_bytes": plan.fast_peak_bytes,
        "migrated_bytes_per_step": plan.migrated_bytes_per_step,
        "planned": int(layers["served_fast_bytes"].sum()) / int(layers["touched_bytes"].sum()),
        "observed": {step: found.fast_served_fraction for step, found in steps.items()},
        "observed_tables": {step: float(quick / placed) for step, (placed, quick) in tables.items()},
    }


def main() -> None:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--order", choices=["sorted", "shuffled"], default="sorted")
    parser.add_argument("--optimizer", choices=["adagrad", "sgd"], default="adagrad")
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--skew", type=float, default=1.2)
    parser.add_argument("--tracker", default="ebpf")
    parser.add_argument("--slow", default="emulated:cxl-asic-x8")
    parser.add_argument("--machines", nargs="*", default=[])
    parser.add_argument("--fast", nargs="+", default=["20%"])
    parser.add_argument("--applied", default="20%", help="fast memory of the session that trains")
    parser.add_argument("--look", type=int, nargs="+", default=[7, 12])
    print(json.dumps(trained(parser.parse_args())))


if __name__ == "__main__":
    main()
