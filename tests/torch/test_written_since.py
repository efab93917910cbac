"""Whether a parameter and its state are as they were: what operators write, and what changes without one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.session.written_since import before, changed, state_of  # noqa: E402

pytestmark = pytest.mark.needs("torch")


def trained() -> tuple[Any, Any]:
    parameter = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.step()
    return parameter, optimizer


def written(parameter: Any, _optimizer: Any) -> None:
    with torch.no_grad():
        parameter.mul_(2)


def exchanged(parameter: Any, _optimizer: Any) -> None:
    parameter.data = torch.ones(8)


def state_written(parameter: Any, optimizer: Any) -> None:
    optimizer.state[parameter]["exp_avg"].zero_()


def state_cleared(_parameter: Any, optimizer: Any) -> None:
    optimizer.state.clear()


def state_loaded(_parameter: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def state_added(parameter: Any, optimizer: Any) -> None:
    optimizer.state[parameter]["mine"] = 3


def number_replaced(parameter: Any, optimizer: Any) -> None:
    optimizer.state[parameter]["count"] = 2


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (written, "a parameter"),
        (exchanged, "a parameter"),
        (state_written, "the state 'exp_avg' of a parameter"),
        (state_cleared, "the state 'step' of a parameter"),
        (state_loaded, "the state 'step' of a parameter"),
        (state_added, "the state 'mine' of a parameter"),
        (number_replaced, "the state 'count' of a parameter"),
    ],
)
def test_what_has_changed_is_named(change: Callable[[Any, Any], None], what: str) -> None:
    parameter, optimizer = trained()
    optimizer.state[parameter]["count"] = 1
    then = before(optimizer, parameter)
    change(parameter, optimizer)
    assert changed(then, optimizer, parameter) == what


def test_what_is_read_or_looked_at_has_not_changed() -> None:
    parameter, optimizer = trained()
    then = before(optimizer, parameter)
    parameter.detach().sum().item()
    optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 0.5
    assert changed(then, optimizer, parameter) == ""
    assert len(state_of(optimizer, parameter)) == 3
    assert state_of(optimizer, torch.nn.Parameter(torch.ones(1))) == []
