"""What operators touch, line by line, and where: against tensors whose lines are known."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.executed.touches import LINE_BYTES, Touches  # noqa: E402
from sentinel.system.numa import nodes_of  # noqa: E402
from tests import warm  # noqa: E402


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


def test_what_tensors_have_of_a_node_is_known_of_those_that_were_touched() -> None:
    tensor, other = torch.ones(8 * 4096 // 4), torch.ones(8 * 4096 // 4)
    with Touches() as touches:
        tensor.mul_(2.0)
        touches.end_layer()
        at = nodes_of(np.array([tensor.data_ptr()], np.uint64))[0]
        assert 8 * 4096 <= touches.room.nbytes(int(at)) <= 10 * 4096
        other.mul_(2.0)
        assert 16 * 4096 <= touches.room.nbytes(int(at)) <= 20 * 4096


def test_backward_is_seen() -> None:
    weight = floats(13).requires_grad_()
    loss = (weight * 2.0).sum()
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        loss.backward()
    assert weight.grad is not None
    assert touches.by_node[0] >= 13 * LINE_BYTES


def test_a_gradient_is_added_up_where_it_is_as_in_a_step_that_nobody_watches() -> None:
    weight = floats(13).requires_grad_()
    (weight * 2.0).sum().backward()
    assert weight.grad is not None
    address = weight.grad.data_ptr()
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        (weight * 2.0).sum().backward()
    assert weight.grad.data_ptr() == address
    assert touches.by_node[0] >= 4 * 13 * LINE_BYTES  # weight, its double, two gradients


def test_an_operand_that_gives_its_size_alone_is_not_touched() -> None:
    a = floats(7)
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        made = torch.zeros_like(a)
    assert touches.by_node == {0: made.nbytes}


def test_what_an_operator_passes_on_is_not_touched() -> None:
    a = floats(7)
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        assert a.to(torch.float32) is a
        assert a.contiguous() is a
        torch.nn.functional.dropout(a, training=False)
        a.reshape(-1, 4)
    assert not touches.by_node


def test_rows_are_found_whatever_the_strides_of_their_numbers() -> None:
    table = torch.ones(1000, LINE_BYTES // 4)
    rows = torch.tensor([[5, 17], [900, 999], [5, 5]]).t()[:, ::2]  # 5, 5, 17, 5
    assert not rows.is_contiguous()
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        found = torch.nn.functional.embedding(rows, table)
    others = found.nbytes // LINE_BYTES + 2 * 2  # the numbers, and their copy
    assert 2 + found.nbytes // LINE_BYTES <= touches.by_node[0] // LINE_BYTES <= 2 + others


def test_a_bag_reads_its_rows_only() -> None:
    table = torch.ones(1000, LINE_BYTES // 4)
    rows, offsets = torch.tensor([5, 17, 5, 900]), torch.tensor([0, 2])
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        torch.nn.functional.embedding_bag(rows, table, offsets, mode="sum")
    assert 3 <= touches.by_node[0] // LINE_BYTES <= 20


def test_what_counting_raises_comes_at_the_end_of_the_layer() -> None:
    def fails(_pages: NDArray[np.uint64]) -> NDArray[np.int32]:
        raise ValueError("no nodes")

    a = floats(7)
    with Touches(fails) as touches:
        a.add_(1.0)
        with pytest.raises(ValueError, match="no nodes"):
            touches.end_layer()
    assert a[0] == 2.0


def test_two_at_once_are_refused() -> None:
    with Touches(all_on(0)), pytest.raises(UsageError, match="watched already"), Touches(all_on(0)):  # type: ignore[arg-type]
        pass
    with Touches(all_on(0)) as touches:  # type: ignore[arg-type]
        floats(3).add_(1.0)
    assert touches.by_node


def test_other_threads_are_not_watched_and_a_forked_child_counts_nothing() -> None:
    done = warm.run([sys.executable, "-c", _FORKS])
    assert done.returncode == 0, done.stderr


_FORKS = """
import os, threading
import numpy as np, torch
from sentinel.executed.touches import Touches
torch.set_num_threads(1)
a = torch.ones(1 << 12)
with Touches(lambda pages: np.zeros(len(pages), np.int32)) as touches:
    other = threading.Thread(target=lambda: a.add_(1.0))
    other.start()
    other.join()
    assert not touches.by_node, touches.by_node
    child = os.fork()
    if not child:
        a.add_(1.0)
        os._exit(0 if not touches.by_node else 3)
    assert os.waitpid(child, 0)[1] == 0
    a.add_(1.0)
assert touches.by_node == {0: 1 << 14}, touches.by_node
"""
