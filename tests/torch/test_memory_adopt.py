"""Moving what exists: everything that follows its storage moves, whatever may know an address stays."""

from __future__ import annotations

import ctypes
import gc
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn  # noqa: E402

from sentinel.migration import adopt as adopting  # noqa: E402
from sentinel.migration.adopt import Adoption, adopt  # noqa: E402
from sentinel.migration.memory import ManagedMemory  # noqa: E402

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture
def memory() -> Iterator[ManagedMemory]:
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no other Python thread runs: those by which tests are run side by side touch no tensor."""
    monkeypatch.setattr(adopting, "others_run", lambda: False)


def stock(*shape: int) -> Any:
    return torch.arange(float(np.prod(shape))).reshape(shape)


def only(rows: list[Adoption]) -> Adoption:
    assert len(rows) == 1
    return rows[0]


class Everything(nn.Module):
    """Ties, an LSTM with its list of flat weights, an embedding, a buffer."""

    buffer: Any

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight
        self.lstm, self.table = nn.LSTM(32, 64, 2), nn.Embedding(50, 32)
        self.register_buffer("buffer", torch.ones(777))

    def forward(self, words: Any) -> Any:
        return self.second(torch.relu(self.first(self.lstm(self.table(words))[0]))).sum() + self.buffer.sum()


def trained() -> tuple[Any, Any, Any]:
    torch.manual_seed(5)
    model = Everything()
    optimizer = torch.optim.Adam(model.parameters())
    loss = model(torch.arange(20).reshape(10, 2))
    loss.backward()
    optimizer.step()
    return model, optimizer, loss  # the loss keeps the graph's nodes alive, as a training loop's variable does


def named(model: Any, optimizer: Any) -> list[tuple[str, Any]]:
    pairs = [*model.named_parameters(), *model.named_buffers()]
    pairs += [(f"{name}.grad", p.grad) for name, p in model.named_parameters()]
    return pairs + [(key, v) for s in optimizer.state.values() for key, v in s.items()]


def test_a_trained_module_moves_whole(memory: ManagedMemory) -> None:
    memory.uninstall()  # what it is made of is stock memory
    model, optimizer, loss = trained()
    views = [model.first.weight.view(-1), model.first.weight.detach()[3:]]
    held = [model.table.weight]

    class Slots:
        __slots__ = ("parameter",)
        parameter: Any

    slots = Slots()
    slots.parameter = model.first.weight
    hooks = [p.register_post_accumulate_grad_hook(lambda _, p=p: None) for p in model.parameters()]
    before = [t.clone() for _, t in named(model, optimizer)]
    again = ManagedMemory.install()
    rows = adopt(again, named(model, optimizer))
    try:
        assert [row for row in rows if not row.moved and row.reason != "it is smaller than 1 KiB"] == []
        assert sum(row.moved for row in rows) >= 20
        assert len({row.address for row in rows}) == len(rows)
        for (_, t), bytes_before in zip(named(model, optimizer), before, strict=True):
            assert torch.equal(t, bytes_before)
            assert again.contains(t.data_ptr()) == (t.untyped_storage().nbytes() >= 1024)
        with torch.no_grad():
            model.first.weight.fill_(7)
        assert model.second.weight.data_ptr() == model.first.weight.data_ptr() == views[0].data_ptr()
        assert all(bool((v == 7).all()) for v in (*views, slots.parameter))
        assert held[0].data_ptr() == model.table.weight.data_ptr()
        model(torch.arange(20).reshape(10, 2)).backward()
        optimizer.step()
        assert loss.isfinite()
    finally:
        for hook in hooks:  # Python's collector does not see this cycle: torch alone would keep the parameters for ever
            hook.remove()
        again.uninstall()


def test_ties_give_one_row_named_by_the_first(memory: ManagedMemory) -> None:
    memory.pass_through()
    tensor = stock(100, 10)
    row = only(adopt(memory, [("a", tensor), ("b", tensor.t()), ("c", tensor[5:])]))
    assert row == Adoption("a", tensor.data_ptr(), 4000, True, "")


def test_what_is_managed_already_is_left_where_it_is(memory: ManagedMemory) -> None:
    tensor = stock(1000)
    first, second = only(adopt(memory, [("t", tensor)])), only(adopt(memory, [("t", tensor)]))
    assert first.moved
    assert (second.address, second.moved, second.reason) == (first.address, False, "it is in managed memory already")


def as_numpy(t: Any) -> Any:
    return t.numpy()


def as_array_of_a_detached_one(t: Any) -> Any:
    return np.asarray(t.detach())


def as_view_of_a_slice(t: Any) -> Any:
    return t[3:].numpy()[1:]


def as_memoryview(t: Any) -> Any:
    return memoryview(t.numpy())


def as_dlpack(t: Any) -> Any:
    return torch.utils.dlpack.to_dlpack(t)


def as_numpy_by_dlpack(t: Any) -> Any:
    return np.from_dlpack(t)


def as_torch_by_dlpack(t: Any) -> Any:
    return torch.from_dlpack(t.detach())


def inside_an_object_array(t: Any) -> Any:
    array = np.empty(1, dtype=object)
    array[0] = t.numpy()
    return array


def inside_a_closure(t: Any) -> Any:
    array = t.numpy()
    return lambda: array


def back_as_a_tensor(t: Any) -> Any:
    return torch.from_numpy(t.numpy())


def as_frombuffer(t: Any) -> Any:
    return torch.frombuffer(t.numpy(), dtype=torch.float32)


def as_a_slice_of_the_storage(t: Any) -> Any:
    return t.untyped_storage()[8:800]


def in_a_live_graph(t: Any) -> Any:
    return (t * torch.ones(1, requires_grad=True)).exp()


ALIASES: list[Callable[[Any], Any]] = [
    as_numpy,
    as_array_of_a_detached_one,
    as_view_of_a_slice,
    as_memoryview,
    as_dlpack,
    as_numpy_by_dlpack,
    as_torch_by_dlpack,
    inside_an_object_array,
    inside_a_closure,
    back_as_a_tensor,
    as_frombuffer,
    as_a_slice_of_the_storage,
    in_a_live_graph,
]


@pytest.mark.parametrize("alias", ALIASES, ids=lambda f: f.__name__)
def test_an_alias_outside_keeps_a_storage_in_place(memory: ManagedMemory, alias: Callable[[Any], Any]) -> None:
    memory.pass_through()
    tensor = stock(500)
    escaped = alias(tensor)
    address = tensor.data_ptr()
    row = only(adopt(memory, [("t", tensor)]))
    assert not row.moved
    assert row.reason
    assert tensor.data_ptr() == address
    del escaped


@pytest.mark.parametrize("aliased", [True, False])
def test_a_captured_local_counts_once(memory: ManagedMemory, aliased: bool) -> None:
    memory.pass_through()
    tensor = stock(500)
    escaped = tensor.numpy() if aliased else None

    def captures() -> Any:
        return tensor  # so that the local variable is a cell

    assert only(adopt(memory, [("t", captures())])).moved == (not aliased)
    del escaped


@pytest.mark.parametrize("held", [False, True], ids=["", "held"])
def test_an_argument_hides_nobody_who_holds_a_tensor_unknown(memory: ManagedMemory, held: bool) -> None:
    """From Python 3.14 on it need not have a reference of its own."""

    def moved(tensor: Any) -> bool:
        return only(adopt(memory, [("w", tensor)])).moved

    weight = stock(64, 64)
    if held:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(weight))  # as an extension does that the collector can't ask
    try:
        assert moved(weight) is not held
    finally:
        if held:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(weight))


@pytest.mark.parametrize("alias", [as_numpy, as_dlpack, as_torch_by_dlpack, in_a_live_graph], ids=lambda f: f.__name__)
def test_once_the_alias_is_gone_the_storage_moves(memory: ManagedMemory, alias: Callable[[Any], Any]) -> None:
    memory.pass_through()
    tensor = stock(500)
    escaped = alias(tensor)
    assert not only(adopt(memory, [("t", tensor)])).moved
    del escaped
    assert only(adopt(memory, [("t", tensor)])).moved
    assert torch.equal(tensor, stock(500))


def test_an_alias_keeps_only_its_own_storage_in_place(memory: ManagedMemory) -> None:
    memory.pass_through()
    tensors = [(str(i), stock(500)) for i in range(5)]
    array = tensors[3][1].numpy()
    rows = adopt(memory, tensors)
    assert [row.moved for row in rows] == [True, True, True, False, True]
    assert rows[3].reason == "a numpy array shares its memory"
    array[0] = 42
    assert tensors[3][1][0] == 42


def test_foreign_memory_stays(memory: ManagedMemory) -> None:
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"t": stock(500)}, file.name)
        mapped = torch.load(file.name, mmap=True)["t"]
        shared = stock(500).share_memory_()
        pairs = [("numpy", torch.from_numpy(np.ones(500))), ("mapped", mapped), ("shared", shared)]
        rows = adopt(memory, pairs)
        assert [row.moved for row in rows] == [False, False, False]
        assert all("not torch's own" in row.reason for row in rows)


class Marked(torch.Tensor):  # type: ignore[name-defined]
    pass


def test_subclasses_stay(memory: ManagedMemory) -> None:
    memory.pass_through()
    tensor = stock(500).as_subclass(Marked)
    assert "Marked" in only(adopt(memory, [("t", tensor)])).reason


def test_tensors_without_host_memory_stay(memory: ManagedMemory) -> None:
    pairs = [
        ("meta", torch.empty(500, device="meta")),
        ("sparse", torch.eye(50).to_sparse()),
        ("empty", torch.empty(0)),
    ]
    rows = adopt(memory, pairs)
    assert [row.moved for row in rows] == [False, False, False]
    assert all(row.reason for row in rows)


def test_counting_keeps_no_local_of_a_running_function_alive(memory: ManagedMemory) -> None:
    tensor, short_lived = stock(500), stock(500)
    assert only(adopt(memory, [("t", tensor)])).moved
    living = memory.counters().unmanaged_live_bytes
    del short_lived
    gc.collect()
    assert memory.counters().unmanaged_live_bytes < living
    assert "tensor" in dir()


@pytest.mark.usefixtures("alone")
def test_a_generator_and_an_exception_in_flight_are_looked_into(memory: ManagedMemory) -> None:
    memory.pass_through()

    def suspended(held: Any) -> Iterator[None]:
        yield
        assert held is not None

    def failing(held: Any) -> None:
        raise ValueError(held.numel())

    tensor = stock(500)
    generator = suspended(tensor)
    next(generator)
    moved = False
    try:
        failing(tensor)
    except ValueError:
        moved = only(adopt(memory, [("t", tensor)])).moved
    assert moved
    next(generator, None)


@pytest.mark.parametrize("by_name", [True, False])
def test_what_another_threads_functions_have_as_a_local_stays(memory: ManagedMemory, by_name: bool) -> None:
    """It may be in use; what they only reach by attributes moves."""
    memory.pass_through()
    box, ready, done = SimpleNamespace(tensor=stock(500)), threading.Event(), threading.Event()

    def hold(held: Any) -> None:
        ready.set()
        done.wait()
        assert held is not None

    thread = threading.Thread(target=hold, args=(box.tensor if by_name else box,))
    thread.start()
    assert ready.wait(timeout=600)
    try:
        row = only(adopt(memory, [("t", box.tensor)]))
    finally:
        done.set()
        thread.join()
    assert row.moved == (not by_name)


def test_malloc_is_asked_to_give_back_what_moved_storages_leave(
    memory: ManagedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five storages of 4 KiB and a bound of two: after the second, the fourth and the last."""
    trims: list[int] = []
    monkeypatch.setattr("sentinel.migration.adopt.TRIM_BYTES", 2 * 4096)
    monkeypatch.setattr(memory, "trim", lambda: trims.append(1))
    rows = adopt(memory, [(f"t{i}", tensor) for i, tensor in enumerate([stock(1024) for _ in range(5)])])
    assert [row.moved for row in rows] == [True] * 5
    assert len(trims) == 3


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("held", [True, False])
def test_what_is_held_since_the_references_were_counted_stays(
    memory: ManagedMemory, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """A storage that has got one more user than was counted; unchanged, it moves."""
    memory.pass_through()
    tensor, later = stock(500), []

    def examine_and_hold(tensors: Any) -> Any:
        found = examine(tensors)
        if held:
            later.append(tensor.detach())
        return found

    examine = adopting.examine
    monkeypatch.setattr(adopting, "examine", examine_and_hold)
    row = only(adopt(memory, [("t", tensor)]))
    assert (row.moved, row.reason) == (not held, "its references changed while they were counted" if held else "")
    assert torch.equal(tensor, stock(500))
