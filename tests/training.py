"""A training run, on stock PyTorch or under Sentinel, and what came of it: shared by tests that let something fail."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import sentinel
from sentinel.core.run import Run

BeforeStep = Callable[[int, nn.Module], None]


@dataclass
class Trained:
    """What came of a training run; `run` and `text` (of the report) if it was ours."""

    losses: list[float]
    parameters: list[torch.Tensor]
    run: Run | None = None
    text: str = ""

    def told(self, words: str) -> bool:
        """Whether an event and the report both have `words`."""
        assert self.run is not None
        return any(words in sentence for _, sentence in self.run.events) and words in self.text


def train(
    model: nn.Module,
    data: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    steps: int,
    ours: dict[str, Any] | None,
    before_step: BeforeStep = lambda step, model: None,
    report: Callable[[Run | None], str] = lambda run: sentinel.report().text(),
    ends_by_itself: bool = False,
) -> Trained:
    """Train `model` by SGD with momentum. `ours`: what `start_profile` is asked for, at step 1; None for stock.

    `before_step(step, model)` is called before each, once there is a session; `report(run)` for a text at the end.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = sentinel.annotate(model, optimizer) if ours is not None else None
    losses = []
    for step, (inputs, labels) in zip(range(steps), data, strict=False):
        if ours is not None and step == 1:
            sentinel.start_profile(model, optimizer, **ours)
        before_step(step, model)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if ours is not None and step == 1:
            sentinel.end_profile()
    trained = Trained(losses, [parameter.detach().clone() for parameter in model.parameters()])
    if handle is not None:
        trained.run = None if ends_by_itself else sentinel.stop()
        trained.text = " ".join(report(trained.run).split())
        handle.remove()
    return trained


def assert_same(stock: Trained, ours: Trained) -> Run:
    """Bit for bit, though pages moved. Returns what was executed."""
    assert stock.run is None
    assert stock.losses == ours.losses
    assert all(map(torch.equal, stock.parameters, ours.parameters))
    assert ours.run is not None
    assert ours.run.counters.migrated_bytes > 0
    return ours.run


def total(model: nn.Module) -> float:
    """Of all parameters; by numpy, for tensors made in mid-step would be another dataflow."""
    return sum(float(parameter.detach().numpy().sum(dtype="float64")) for parameter in model.parameters())


def fork_in_each_forward(model: nn.Module, by: str, ended: list[int | None]) -> RemovableHandle:
    """In the middle of each forward pass from now on a child reads all parameters; `ended` gets its exit code, 0 if
    they were the parent's. `by`: "os.fork" or "multiprocessing"."""

    def fork(*_: object) -> None:
        expected = total(model)
        if by == "os.fork":
            child = os.fork()
            if not child:
                _compare(model, expected)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            process = multiprocessing.get_context("fork").Process(target=_compare, args=(model, expected))
            process.start()
            process.join(timeout=600)
            ended.append(process.exitcode)

    return model.get_submodule("4").register_forward_hook(fork)


def _compare(model: nn.Module, expected: float) -> None:
    os._exit(0 if total(model) == expected else 1)
