"""What other threads write while tensors are moved in is not lost: what a call may be using stays, and is listed."""

from __future__ import annotations

import ctypes
import functools
import os
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn  # noqa: E402

import sentinel  # noqa: E402
from sentinel import session  # noqa: E402
from sentinel.migration import adopt as adopting  # noqa: E402
from sentinel.migration.adopt import Adoption, adopt  # noqa: E402
from sentinel.migration.memory import ManagedMemory  # noqa: E402
from tests.processes import until  # noqa: E402

pytestmark = pytest.mark.needs("compiler")

PIPE_BYTES = 1 << 22
"""More than a pipe holds."""
_DATA = ctypes.create_string_buffer(PIPE_BYTES)
# write(2), which ignores a fourth argument: an operator that has let go of the GIL while it uses a tensor
_write = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object)(
    ("write", ctypes.CDLL(None)), ((1, "fd"), (1, "data"), (1, "nbytes"), (1, "tensor"))
)


@pytest.fixture
def memory() -> Iterator[ManagedMemory]:
    installed = ManagedMemory.install()
    installed.pass_through()
    yield installed
    installed.uninstall()


class Box:
    """What refers to the tensor between calls."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(500)


Call = Callable[[int, Box], None]


def by_attribute(fd: int, box: Box) -> None:
    _write(fd, _DATA, PIPE_BYTES, box.tensor)


def by_local(fd: int, box: Box) -> None:
    tensor = box.tensor
    _write(fd, _DATA, PIPE_BYTES, tensor)


def by_kept_arguments(fd: int, box: Box) -> None:
    box.arguments = (fd, _DATA, PIPE_BYTES, box.tensor)  # type: ignore[attr-defined]
    _write(*box.arguments)  # type: ignore[attr-defined]


def by_keywords(fd: int, box: Box) -> None:
    box.keywords = {"tensor": box.tensor}  # type: ignore[attr-defined]
    _write(fd, _DATA, PIPE_BYTES, **box.keywords)  # type: ignore[attr-defined]


def by_pool(fd: int, box: Box) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_write, fd, _DATA, PIPE_BYTES, box.tensor)


def by_last_reference_but_one(fd: int, box: Box) -> None:
    """As many references as before the call: what the list had, the call has."""
    _write(fd, _DATA, PIPE_BYTES, box.waiting.pop())  # type: ignore[attr-defined]


CALLS: list[Call] = [
    by_attribute,
    by_local,
    by_kept_arguments,
    by_keywords,
    by_pool,
    by_last_reference_but_one,
]


def adopted(memory: ManagedMemory, box: Box, call: Call, begin: Callable[[Callable[[], None]], None]) -> Adoption:
    """What becomes of the box's storage, and of none other's, while `call` is under way from when `begin` begins it."""
    box.waiting = [box.tensor]  # type: ignore[attr-defined]
    other = torch.zeros(500)
    reading, writing = os.pipe()
    may_begin = threading.Event()

    def work() -> None:
        may_begin.wait()
        call(writing, box)

    thread = threading.Thread(target=work)
    thread.start()

    def start() -> None:
        may_begin.set()
        select.select([reading], [], [])  # it writes, and goes on writing until this is read

    try:
        begin(start)
        rows = adopt(memory, [("tensor", box.tensor), ("other", other)])
    finally:
        may_begin.set()
        left = PIPE_BYTES
        while left:
            left -= len(os.read(reading, left))
        thread.join()
        os.close(reading)
        os.close(writing)
    assert rows[1].moved, rows[1].reason
    return rows[0]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_what_a_call_of_another_thread_uses_stays(memory: ManagedMemory, call: Call) -> None:
    row = adopted(memory, Box(), call, lambda start: start())
    assert not row.moved
    assert row.name == "tensor"
    assert row.reason


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_what_a_call_began_to_use_after_the_references_were_counted_stays(
    memory: ManagedMemory, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box()

    def late(start: Callable[[], None]) -> None:
        def examine_and_start(tensors: Any) -> Any:
            found = examine(tensors)
            assert not found.rows[0].objection
            start()
            return found

        examine = adopting.examine
        monkeypatch.setattr(adopting, "examine", examine_and_start)

    row = adopted(memory, box, call, late)
    assert (row.moved, row.reason) == (False, "another thread may be using it")


def test_what_other_threads_do_not_use_moves(memory: ManagedMemory) -> None:
    """Negative control: the same threads, a call that has nothing to do with the tensor."""
    row = adopted(memory, Box(), lambda fd, box: by_attribute(fd, Box()), lambda start: start())
    assert row.moved


def in_a_tuple_of_a_call(tensor: Any) -> Any:
    """What an extension's function has been called with, by `f(*arguments)`."""
    arguments = (tensor, 1)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(arguments))  # the reference that the call has
    return [arguments]


def in_keywords_of_a_call(tensor: Any) -> Any:
    keywords = {"out": tensor}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(keywords))
    return [keywords]


def in_a_tuple(tensor: Any) -> Any:
    return [(tensor, 1)]


def in_a_dict(tensor: Any) -> Any:
    return [{"out": tensor}]


def in_a_namespace(tensor: Any) -> Any:
    """Running functions refer to it in ways that are not shown."""
    namespace = {"tensor": tensor, "__builtins__": {}}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(namespace))
    return [namespace]


@pytest.mark.parametrize(
    ("hold", "moves"),
    [
        (in_a_tuple_of_a_call, False),
        (in_keywords_of_a_call, False),
        (lambda tensor: tensor.add_, False),
        (lambda tensor: tensor.__setitem__, False),
        (lambda tensor: functools.partial(torch.relu_, tensor), False),
        (in_a_tuple, True),
        (in_a_dict, True),
        (in_a_namespace, True),
    ],
    ids=["tuple of a call", "keywords of a call", "method", "item setter", "partial", "tuple", "dict", "namespace"],
)
def test_what_refers_to_a_tensor_on_behalf_of_a_call_explains_nothing(
    memory: ManagedMemory, hold: Callable[[Any], Any], moves: bool
) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        box = Box()
        box.held = hold(box.tensor)  # type: ignore[attr-defined]
        (row,) = adopt(memory, [("tensor", box.tensor)])
    finally:
        over.set()
        thread.join()
    assert row.moved == moves, row.reason


class Written(nn.Module):
    """A layer that trains, and buffers that other threads write to."""

    WAYS = ("attribute", "closure", "method", "arguments", "keywords", "threads")

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        for name in (*self.WAYS, "idle"):
            self.register_buffer(name, torch.zeros(1 << 18, dtype=torch.int32))

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Writers:
    """Threads that add 1 to whole buffers, each by a way of its own to refer to its buffer."""

    def __init__(self, model: Written) -> None:
        self.made = dict.fromkeys(Written.WAYS, 0)
        self._over = threading.Event()
        self._model = model
        self._threads = [threading.Thread(target=self._go, args=(way,), daemon=True) for way in Written.WAYS]
        for thread in self._threads:
            thread.start()
        try:
            until(lambda: min(self.made.values()) > 0)  # all write, however busy the host is
        except BaseException:
            self._over.set()
            raise

    def _go(self, way: str) -> None:
        add = getattr(self, way)
        with ThreadPoolExecutor(1) as pool:
            while not self._over.is_set():
                add(pool)
                self.made[way] += 1

    def attribute(self, _: ThreadPoolExecutor) -> None:
        self._model.attribute.add_(1)

    def closure(self, pool: ThreadPoolExecutor) -> None:
        buffer = self._model.closure
        pool.submit(lambda: buffer.add_(1)).result()

    def method(self, pool: ThreadPoolExecutor) -> None:
        pool.submit(self._model.method.add_, 1).result()

    def arguments(self, pool: ThreadPoolExecutor) -> None:
        pool.submit(torch.Tensor.add_, self._model.arguments, 1).result()

    def keywords(self, pool: ThreadPoolExecutor) -> None:
        pool.submit(torch._foreach_add_, [self._model.keywords], 1).result()
        pool.submit(functools.partial(torch.sub, self._model.keywords, 1, out=self._model.keywords)).result()
        pool.submit(torch.add, self._model.keywords, 1, out=self._model.keywords).result()

    def threads(self, _: ThreadPoolExecutor) -> None:
        thread = threading.Thread(target=lambda: self._model.threads.add_(1))
        thread.start()
        thread.join()

    def lost(self) -> dict[str, int]:
        """Ends the threads. How many elements do not hold the number of updates."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return {way: int((getattr(self._model, way) != made).sum()) for way, made in self.made.items()}


@pytest.mark.slow
def test_no_update_is_lost_while_profiling_starts() -> None:
    for _ in range(5):
        model = Written()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        writers = Writers(model)
        with sentinel.annotate(model, optimizer):
            sentinel.start_profile(model, optimizer, fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
            stays = {name for name, nbytes, _ in session.current().context.job.left_in_place if nbytes >= 1024}  # type: ignore[union-attr]
            moved = session.current().context.memory.contains(model.idle.data_ptr())  # type: ignore[union-attr]
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            sentinel.end_profile()
            sentinel.stop()
        assert writers.lost() == dict.fromkeys(Written.WAYS, 0)
        assert stays <= set(Written.WAYS)
        assert moved
