"""What moved storages leave stays readable until the next step boundary, while other threads run and within a bound."""

from __future__ import annotations

import ctypes
import errno
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import sentinel  # noqa: E402
from sentinel.migration import adopt as adopting  # noqa: E402
from sentinel.migration.adopt import adopt, kept_bytes  # noqa: E402
from sentinel.migration.memory import ManagedMemory  # noqa: E402
from tests.torch.full_heap import filled  # noqa: E402

pytestmark = pytest.mark.needs("compiler")

MIB = 1 << 20
LARGE = 37 * MIB
"""Beyond malloc's largest threshold: memory of that size is a mapping of its own, gone as soon as it is freed."""

libc = ctypes.CDLL(None, use_errno=True)


def is_mapped(address: int) -> bool:
    """By mincore(2), which says ENOMEM of a page that is not mapped."""
    page, seen = address // 4096 * 4096, ctypes.c_ubyte()
    if libc.mincore(ctypes.c_void_p(page), ctypes.c_size_t(4096), ctypes.byref(seen)) == 0:
        return True
    assert ctypes.get_errno() == errno.ENOMEM
    return False


def stock(mark: int) -> Any:
    return torch.full((LARGE // 4,), mark, dtype=torch.int32)


@pytest.fixture(autouse=True)
def heap_without_room() -> Iterator[None]:
    """What other tests of this process have freed would hold what is to be mapped by itself."""
    kept = filled(LARGE)
    yield
    kept.clear()


@pytest.fixture
def memory() -> Iterator[ManagedMemory]:
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


@pytest.fixture
def tensors() -> list[tuple[str, Any]]:
    """Made before memory is managed: fixtures are made in the order in which a test names them."""
    return [(f"t{mark}", stock(mark)) for mark in (11, 13, 17)]


def addresses(tensors: list[tuple[str, Any]]) -> list[int]:
    return [tensor.data_ptr() for _, tensor in tensors]


def keep(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(adopting, "kept_bytes", lambda: nbytes)


def test_what_was_left_holds_its_bytes_until_it_is_given_back(
    tensors: list[tuple[str, Any]], memory: ManagedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 3 * LARGE)
    old = addresses(tensors)
    assert all(row.moved for row in adopt(memory, tensors))
    for _, tensor in tensors:
        tensor.zero_()
    assert [ctypes.c_int32.from_address(address).value for address in old] == [11, 13, 17]
    assert memory.give_back() == 3 * LARGE
    assert not any(map(is_mapped, old))
    assert memory.give_back() == 0


def test_nothing_is_kept_where_nobody_else_runs(
    tensors: list[tuple[str, Any]], memory: ManagedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, 0)
    old = addresses(tensors)
    assert all(map(is_mapped, old))
    adopt(memory, tensors)
    assert not any(map(is_mapped, old))
    assert memory.give_back() == 0


@pytest.mark.parametrize(("nbytes", "stays"), [(2 * LARGE, [False, True, True]), (LARGE - 1, [False, False, True])])
def test_the_oldest_goes_first_and_the_last_one_stays(
    tensors: list[tuple[str, Any]],
    memory: ManagedMemory,
    monkeypatch: pytest.MonkeyPatch,
    nbytes: int,
    stays: list[bool],
) -> None:
    keep(monkeypatch, nbytes)
    old = addresses(tensors)
    adopt(memory, tensors)
    assert [is_mapped(address) for address in old] == stays
    memory.uninstall()
    assert not any(map(is_mapped, old))


def test_an_eighth_of_what_is_free_may_be_kept_while_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_current_frames", lambda: {1: None})
    assert kept_bytes() == 0
    monkeypatch.setattr(sys, "_current_frames", lambda: {1: None, 2: None})
    monkeypatch.setattr(adopting.limits, "room_bytes", lambda: 800)
    assert kept_bytes() == 100
    monkeypatch.setattr(adopting.limits, "room_bytes", lambda: None)
    assert 0 < kept_bytes() <= adopting.os.sysconf("SC_PHYS_PAGES") * 4096 // 8


@pytest.mark.parametrize("ends", ["boundary", "end_profile", "stop"])
def test_a_session_gives_it_back_at_the_next_step_boundary(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, 1 << 40)
    model = torch.nn.Embedding(LARGE // 4 // 64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = model.weight.data_ptr()
    sentinel.start_profile(model, optimizer, fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
    try:
        assert model.weight.data_ptr() != old
        assert is_mapped(old)
        model(torch.arange(7)).sum().backward()
        sentinel.add_layer()
        assert is_mapped(old)
        if ends == "boundary":
            optimizer.step()
        elif ends == "end_profile":
            sentinel.end_profile()
        else:
            sentinel.stop()
        assert not is_mapped(old)
    finally:
        if ends != "stop":
            sentinel.stop()
