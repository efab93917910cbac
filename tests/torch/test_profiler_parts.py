"""Small parts of the profiler: hooks by owner, numbers of objects, operations of a call, ticks within backward."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn

from sentinel.migration.holders import examine
from sentinel.profiler.backward import HEAD, graph_task, watch
from sentinel.profiler.flops import flops, worded
from sentinel.profiler.hooks import Owned, remove_all_of
from sentinel.runtime.ordinals import Ordinals, prefix
from tests.torch.ticking import noted


def test_hooks_are_removed_by_owner_though_their_handles_are_lost() -> None:
    module, ours, theirs = nn.Linear(2, 2), object(), object()
    calls: list[str] = []
    module.register_forward_hook(Owned(ours, lambda *_: calls.append("ours")))
    module.register_forward_hook(Owned(theirs, lambda *_: calls.append("theirs")))
    module.register_forward_hook(lambda *_: calls.append("plain"))
    for _ in range(2):
        remove_all_of(ours, module._forward_hooks)
    remove_all_of(ours, None)
    module(torch.ones(1, 2))
    assert calls == ["theirs", "plain"]


def test_an_object_gets_the_lowest_number_that_is_free() -> None:
    numbers: Ordinals[nn.Module] = Ordinals()
    first, second, third = (nn.Identity() for _ in range(3))
    owner = object()
    assert not numbers
    assert [numbers.join(first, owner), numbers.join(second)] == [0, 1]
    for _ in range(2):
        numbers.remove_all_of(owner)
    assert (numbers.find(first), numbers.find(second)) == (None, 1)
    assert numbers.join(third) == 0
    del second
    gc.collect()
    assert numbers.in_order() == [third]
    assert [prefix(number) for number in (0, 1, 2)] == ["", "1:", "2:"]


def _words(*shapes: list[int]) -> tuple[int, ...]:
    """How the recorder writes the arguments, all tensors, and one result of a call down."""
    tensors = [word for shape in shapes for word in (1, len(shape), *shape)]
    return (len(shapes), *tensors, 1, 1, 2, shapes[0][0], shapes[-1][-1])


def test_operations_are_counted_by_torchs_formulas() -> None:
    assert flops("mm", _words([3, 5], [5, 7])) == 2 * 3 * 5 * 7
    assert flops("mv", (2, 1, 2, 3, 5, 1, 1, 5, 1, 1, 1, 3)) == 2 * 3 * 5
    assert flops("relu", _words([3, 5])) == -1  # without a formula
    assert flops("mm", _words([3, 5])) == -1  # not what its formula takes
    assert {"aten::mm", "aten::mv", "aten::mkldnn_rnn_layer"} <= set(worded())


def test_backward_ticks_as_it_leaves_a_block() -> None:
    x = torch.ones(3, requires_grad=True)
    first = x * 2
    second = first * 3
    with noted() as notes:
        watch(second.sum(), None)
        watch(first, "first")
        watch(second, "second")
        second.sum().backward()
        assert [(name, phase) for name, phase in notes.take()] == [
            (HEAD, "backward"),
            ("second", "backward"),
            ("first", "backward"),
        ]
        assert graph_task() == -1
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6, 6]


@pytest.mark.needs("compiler")
def test_what_holds_a_storage_is_known_or_objected_to() -> None:
    free, viewed, shared = torch.ones(5), torch.ones(7), torch.ones(9)
    view, array = viewed[2:], shared.numpy()
    found = examine([free, view, shared]).rows
    assert [row.nbytes for row in found] == [20, 28, 36]
    assert [row.objection for row in found[:2]] == ["", ""]
    assert found[2].objection
    assert array.sum() == 9
