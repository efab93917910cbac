"""What tensors have of a node: against pages whose nodes are known."""

from __future__ import annotations

from unittest import mock

import numpy as np
from numpy.typing import NDArray

from sentinel.core.units import PAGE_BYTES
from sentinel.executed import tensor_room
from sentinel.executed.tensor_room import TensorRoom


class Kernel:
    """Where each page is: on the node that `at` has for it, else nowhere."""

    def __init__(self) -> None:
        self.at: dict[int, int] = {}
        self.asked: list[int] = []

    def nodes(self, addresses: NDArray[np.uint64]) -> NDArray[np.int32]:
        self.asked.append(len(addresses))
        return np.array([self.at.get(int(a) // PAGE_BYTES, -14) for a in addresses], np.int32)


def pages(begin: int, end: int) -> NDArray[np.int64]:
    return np.arange(begin, end)


def test_a_page_of_several_tensors_counts_once_and_where_it_is_now() -> None:
    kernel = Kernel()
    room = TensorRoom(kernel.nodes)
    assert room.nbytes(0) == 0
    kernel.at = dict.fromkeys(range(100, 120), 0)
    room.add(pages(100, 112))
    room.add(pages(108, 120))
    assert room.nbytes(0) == 20 * PAGE_BYTES
    assert room.nbytes(1) == 0
    kernel.at.update(dict.fromkeys(range(100, 105), 1))
    assert (room.nbytes(0), room.nbytes(1)) == (15 * PAGE_BYTES, 5 * PAGE_BYTES)


def test_what_was_given_back_is_forgotten_until_it_is_touched_again() -> None:
    kernel = Kernel()
    room = TensorRoom(kernel.nodes)
    kernel.at = dict.fromkeys(range(10), 0)
    room.add(pages(0, 10))
    del kernel.at[3], kernel.at[4]
    assert room.nbytes(0) == 8 * PAGE_BYTES
    kernel.at[3] = 0  # of whoever maps there now
    assert room.nbytes(0) == 8 * PAGE_BYTES
    room.add(pages(3, 4))
    assert room.nbytes(0) == 9 * PAGE_BYTES


def test_of_many_pages_some_stand_for_all() -> None:
    kernel = Kernel()
    kernel.at = dict.fromkeys(range(1000), 0) | dict.fromkeys(range(1000, 3000), 1)
    with mock.patch.object(tensor_room, "_MOST_PAGES", 500):
        room = TensorRoom(kernel.nodes)
        room.add(pages(0, 1500))
        room.nbytes(0)
        room.add(pages(1500, 3000))
        assert abs(room.nbytes(0) - 1000 * PAGE_BYTES) <= 9 * PAGE_BYTES
        assert abs(room.nbytes(1) - 2000 * PAGE_BYTES) <= 9 * PAGE_BYTES
    assert max(kernel.asked) <= 500
