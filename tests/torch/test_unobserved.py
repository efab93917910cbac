"""Operators of a session's own, which nothing of the script's sees or changes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sentinel.profiler.unobserved import unobserved, without_function_modes  # noqa: E402

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


def test_function_modes_see_no_attribute_that_is_read_within() -> None:
    held = torch.ones(3, requires_grad=True)
    with Called() as mode:
        mode.seen = []
        with suppress(KeyboardInterrupt), without_function_modes():
            assert held.grad is None
            raise KeyboardInterrupt
        assert mode.seen == []
        assert held.grad is None
        assert mode.seen == ["__get__"]


def test_tensor_subclasses_are_asked_where_no_mode_is_entered() -> None:
    class Asked(torch.Tensor):  # type: ignore[name-defined,misc]  # torch is a value here
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    seen: list[str] = []
    held = torch.ones(3).as_subclass(Asked)
    with without_function_modes():
        held.numel()
    assert seen == ["numel"]
