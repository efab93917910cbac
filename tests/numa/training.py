"""A small net trained on two real nodes while something fails there, and the same on stock PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import nn

from sentinel.core.run import OUTCOMES, Run
from sentinel.reports import build_report
from sentinel.system import native
from tests import training
from tests.training import Trained, assert_same

WIDTH = 96
STEPS = 8


class Net(nn.Sequential):
    """Five linear layers: parameters, gradients and momentum make some hundred blocks of a few pages."""

    def __init__(self) -> None:
        hidden = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        super().__init__(*hidden, nn.Linear(WIDTH, 10))


Loader = Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]
Fault = Callable[[nn.Module], contextlib.AbstractContextManager[object]]


def in_process() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches without end."""
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(32, WIDTH, generator=generator), torch.randint(0, 10, (32,), generator=generator)


def train(data: Loader = in_process, *, ours: bool, fault: Fault | None = None, at: int = 3, until: int = 6) -> Trained:
    """Eight steps; `fault` holds from step `at` to before step `until`, or else until the session has ended."""
    held = contextlib.ExitStack()

    def before_step(step: int, model: nn.Module) -> None:
        if fault is not None and step == at:
            held.enter_context(fault(model))
        if step == until:
            held.close()

    torch.manual_seed(0)
    asked = {"fast": "20%", "slow": "numa:1", "tracker": "ops"} if ours else None
    with held:
        return training.train(Net(), data(), steps=STEPS, ours=asked, before_step=before_step, report=_text)


def _text(run: Run | None) -> str:
    return build_report(executed=run).text()


@cache
def stock() -> Trained:
    """What stock PyTorch makes of `in_process`."""
    return train(ours=False)


def same(stock: Trained, ours: Trained) -> Run:
    """Bit for bit, by real migrations. Returns what was executed."""
    run = assert_same(stock, ours)
    assert not run.emulated
    return run


def failed(run: Run) -> set[int]:
    """The errno of every migration that failed, in whole or in part."""
    words = [OUTCOMES.index(word) for word in ("failed", "partial")]
    rows = run.migrations[[outcome in words for outcome in run.migrations["outcome"]]]
    return set(rows["errno"].tolist())


def arenas() -> list[tuple[int, int]]:
    """Address and bytes of the memory that Sentinel manages."""
    spans = []
    for name in ("sn_exclusive_range", "sn_placement_range"):
        found = native.Range()
        assert getattr(native.library(), name)(ctypes.byref(found)) == 0
        spans.append((found.base, found.reserved_bytes))
    return spans
