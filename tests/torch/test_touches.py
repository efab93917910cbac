"""What operators touch, line by line, and where: against tensors whose lines are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.executed.touches import LINE_BYTES, Touches  # noqa: E402


def fast_below(limit: int) -> object:
    """Pages below address `limit` are on node 0, the others on node 1."""

    def nodes(pages: NDArray[np.uint64]) -> NDArray[np.int32]:
        return np.where(pages < limit, 0, 1).astype(np.int32)

    return nodes


def all_on(node: int) -> object:
    return lambda pages: np.full(len(pages), node, np.int32)


def floats(lines: int) -> Any:
    """A tensor of so many whole lines."""
    tensor = torch.ones(lines * LINE_BYTES // 4)
    assert tensor.data_ptr() % LINE_BYTES == 0
    return tensor


def test_nothing_touched_nothing_counted() -> None:
    tensor = floats(7)
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        tensor.view(-1, 4).t()[1:]
        torch.empty(100)
    assert not touches.by_node


def test_operands_count_once_a_layer_and_again_in_the_next() -> None:
    a, b = floats(7), floats(7)
    with Touches(all_on(1)) as touches:  # type: ignore[arg-type]
        a.add_(b)
        a.mul_(2.0)
        assert touches.by_node == {1: 14 * LINE_BYTES}
        touches.end_layer()
        a.mul_(2.0)
    assert touches.by_node == {1: 21 * LINE_BYTES}


def test_a_tensor_that_takes_the_address_of_a_dead_one_counts_by_itself() -> None:
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        for _ in range(3):
            torch.zeros(11 * LINE_BYTES // 4)
    assert touches.by_node == {0: 33 * LINE_BYTES}


def test_a_tensor_on_two_nodes_is_told_apart_by_page() -> None:
    tensor = torch.ones(4 * 4096 // 4 + 1024)
    page = -(-tensor.data_ptr() // 4096) * 4096
    skipped = (page - tensor.data_ptr()) // 4
    inside = tensor[skipped : skipped + 3 * 1024]
    with Touches(fast_below(page + 4096)) as touches:  # type: ignore[arg-type]
        inside.mul_(2.0)
    assert touches.by_node == {0: 4096, 1: 8192}


def test_a_table_is_touched_in_the_rows_that_are_asked_for() -> None:
    table = torch.ones(1000, LINE_BYTES // 4)
    rows = torch.tensor([5, 17, 5, 900])
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        found = torch.nn.functional.embedding(rows, table)
    own = -(-rows.nbytes // LINE_BYTES) + found.nbytes // LINE_BYTES
    assert touches.by_node[0] == (3 + own) * LINE_BYTES


def test_a_sparse_update_touches_its_rows_only() -> None:
    table, values = torch.zeros(1000, LINE_BYTES // 4), torch.ones(2, LINE_BYTES // 4)
    update = torch.sparse_coo_tensor(torch.tensor([[3, 700]]), values, table.shape, check_invariants=False)
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        table.add_(update)
    assert touches.by_node[0] <= (2 + 2 + 2) * LINE_BYTES
    assert table.sum() == 2 * LINE_BYTES // 4


def test_backward_is_seen() -> None:
    weight = floats(13).requires_grad_()
    loss = (weight * 2.0).sum()
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        loss.backward()
    assert weight.grad is not None
    assert touches.by_node[0] >= 13 * LINE_BYTES
