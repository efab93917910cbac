"""Operators of a session's own, which nothing of the script's sees or changes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sentinel.profiler.unobserved import unobserved  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


class Dispatched(TorchDispatchMode):
    seen: list[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    seen: list[str]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Dispatched, Called])
def test_modes_see_nothing_within_and_everything_after(kind: Any) -> None:
    held = torch.ones(3)
    with kind() as mode:
        mode.seen = []
        with suppress(KeyboardInterrupt), unobserved():
            held.mul(2)
            raise KeyboardInterrupt
        assert mode.seen == []
        held.mul(2)
        assert len(mode.seen) == 1


def test_a_profiler_sees_nothing_within_and_everything_after() -> None:
    held = torch.ones(3)
    with torch.profiler.profile() as profile:
        with unobserved():
            held.mul(2)
        held.add(2)
    names = {event.key for event in profile.key_averages()}
    assert "aten::add" in names
    assert "aten::mul" not in names
