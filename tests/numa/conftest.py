from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sentinel.system import processor
from tests.numa import vm_calls

if processor.is_emulated():
    # An optimizer imports PyTorch's compiler, though nothing is compiled: that takes an emulated processor longer than
    # all of torch. What an optimizer asks of it is to do nothing. Placements are compared in processes that import it.
    compiler = ModuleType("torch._dynamo")
    vars(compiler).update(graph_break=lambda: None, disable=lambda function, *_, **__: function)
    sys.modules[compiler.__name__] = compiler


@pytest.fixture
def no_balancing() -> Iterator[None]:
    """Automatic NUMA balancing off, for pages without a policy: it moves them, and Linux 6.1 answers a question for a
    huge page that it has its eye on with -EFAULT."""
    with vm_calls.setting("/proc/sys/kernel/numa_balancing", "0"):
        yield


@pytest.fixture
def one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """No better plan takes over in the middle: a run has the rows of the last plan only."""
    monkeypatch.setattr("sentinel.session.applying_plans.REFINE_STEPS", 1 << 30)
