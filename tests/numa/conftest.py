from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.numa import vm_calls


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
