"""Recording and passing through: what is logged, where memory comes from, and that it never goes wrong."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn  # noqa: E402

from sentinel.core.errors import CapabilityError, NativeError, UsageError  # noqa: E402
from sentinel.migration.memory import ALLOC, FALLBACK, FOREIGN, FREE, SMALL, TICK, ManagedMemory  # noqa: E402

pytestmark = pytest.mark.needs("compiler")


@pytest.fixture
def memory() -> Iterator[ManagedMemory]:
    gc.collect()  # what earlier tests left in cycles would die in the middle of a count
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


def summary(events: Any) -> list[tuple[int, int, int, int, int]]:
    return [tuple(int(e[f]) for f in ("kind", "layer", "ordinal", "nbytes", "flags")) for e in events]  # type: ignore[misc]


def test_without_recording_nothing_is_recorded(memory: ManagedMemory) -> None:
    memory.record()
    memory.pass_through()
    tensor = torch.ones(5003)
    assert len(memory.events()) == 0
    assert not memory.contains(tensor.data_ptr())


def test_each_recorded_tensor_has_its_own_pages_and_its_event(memory: ManagedMemory) -> None:
    memory.record()
    memory.tick(0)
    first, second = torch.empty(1000), torch.empty(7)
    memory.tick(1)
    third = torch.empty(2003)
    address = first.data_ptr()
    del first
    assert summary(memory.events()) == [
        (TICK, 0, -1, 0, 0),
        (ALLOC, 0, 0, 4000, 0),
        (ALLOC, 0, 1, 28, SMALL),
        (TICK, 1, -1, 0, 0),
        (ALLOC, 1, 0, 8012, 0),
        (FREE, 1, -1, 0, 0),
    ]
    assert memory.events()["address"][5] == address
    assert address % 4096 == third.data_ptr() % 4096 == 0
    assert memory.contains(third.data_ptr())
    assert not memory.contains(second.data_ptr())
    seqs, times = memory.events()["seq"], memory.events()["time_ns"]
    assert (np.diff(seqs.astype(np.int64)) > 0).all()
    assert (np.diff(times.astype(np.int64)) >= 0).all()


def test_recording_again_starts_an_empty_log(memory: ManagedMemory) -> None:
    memory.record()
    tensor = torch.empty(1000)
    memory.record()
    assert len(memory.events()) == 0
    del tensor
    assert [int(e["kind"]) for e in memory.events()] == [FREE]


def test_memory_is_aligned_and_empty_tensors_have_none(memory: ManagedMemory) -> None:
    for change in (memory.record, memory.pass_through):
        change()
        assert all(torch.empty(n, dtype=torch.uint8).data_ptr() % 64 == 0 for n in (1, 3, 1023, 1025, 100003))
        assert torch.empty(0).data_ptr() == 0


def test_storages_outlive_every_change(memory: ManagedMemory) -> None:
    memory.record()
    recorded = torch.arange(10007)
    memory.pass_through()
    passed = torch.arange(10007)
    memory.uninstall()
    after = torch.arange(10007)
    assert torch.equal(recorded, after)
    assert torch.equal(passed, after)
    recorded.resize_(20011)
    assert torch.equal(recorded[:10007], after)
    del recorded, passed
    memory.uninstall()  # the second time it does nothing
    with pytest.raises(UsageError):
        memory.record()
    ManagedMemory.install().uninstall()


def test_one_at_a_time(memory: ManagedMemory) -> None:
    with pytest.raises(UsageError, match="managed already"):
        ManagedMemory.install()


def test_resized_storages_keep_their_bytes(memory: ManagedMemory) -> None:
    memory.record()
    tensor = torch.arange(1009)
    for n in (5003, 100, 20011, 1009):
        tensor.resize_(n)
        assert torch.equal(tensor[:100], torch.arange(100))


def test_other_threads_use_malloc_and_may_free(memory: ManagedMemory) -> None:
    before = memory.counters().live_bytes
    memory.record()
    mine: list[Any] = [torch.ones(5003)]
    theirs: list[Any] = []

    def work() -> None:
        theirs.append(torch.full((5003,), 2.0))
        mine.clear()
        memory.tick(9)  # not theirs to tick
        with pytest.raises(NativeError, match="thread that installed"):
            memory.record()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not memory.contains(theirs[0].data_ptr())
    flags = [(k, f) for k, _, _, n, f in summary(memory.events()) if n >= 1024 or k == FREE]
    assert flags[:2] == [(ALLOC, 0), (ALLOC, FOREIGN | FALLBACK)]
    assert (FREE, FOREIGN) in flags
    assert not [e for e in memory.events() if e["kind"] == TICK]
    assert memory.counters().fallback["foreign_thread"][1] >= 20012
    memory.tick(0)  # the owner's turn to take it back
    gc.collect()
    assert memory.counters().live_bytes == before


def test_an_lstm_trains_alike(memory: ManagedMemory) -> None:
    """oneDNN frees by the raw deleter."""

    def losses() -> list[float]:
        torch.manual_seed(3)
        model = nn.LSTM(32, 64, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(7, 3, 32))[0].square().sum()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return out

    memory.pass_through()
    stock = losses()
    memory.record()
    assert losses() == stock


def test_an_exception_and_a_kept_graph_leave_memory_right(memory: ManagedMemory) -> None:
    before = memory.counters().live_bytes
    memory.record()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(32, 64)
    kept = model(x).sum()
    first = torch.autograd.grad(kept, list(model.parameters()), retain_graph=True)
    with pytest.raises(RuntimeError):
        model(torch.randn(32, 63))
    memory.pass_through()
    second = torch.autograd.grad(kept, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    del kept, first, second, model, x
    gc.collect()
    assert memory.counters().live_bytes == before


def test_out_of_memory_is_torchs_error(memory: ManagedMemory) -> None:
    memory.record()
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory: you tried to allocate"):
        torch.empty(1 << 56, dtype=torch.uint8)
    assert torch.ones(5003).sum() == 5003


def test_counters_tell_live_peak_and_reasons(memory: ManagedMemory) -> None:
    memory.record()
    memory.reset_peaks()
    before = memory.counters()
    first = torch.empty(1 << 20, dtype=torch.uint8)
    second = torch.empty(1 << 19, dtype=torch.uint8)
    del first
    now = memory.counters()
    assert now.live_bytes - before.live_bytes == 1 << 19
    assert now.peak_live_bytes - before.peak_live_bytes == 3 << 19
    assert now.served - before.served == 2
    assert now.served_bytes - before.served_bytes == 3 << 19
    memory.pass_through()
    third = torch.empty(1 << 20, dtype=torch.uint8)
    assert memory.counters().fallback["pass_through"][1] - before.fallback.get("pass_through", (0, 0))[1] == 1 << 20
    assert memory.counters().unmanaged_live_bytes - before.unmanaged_live_bytes >= 1 << 20
    del second, third


def test_a_kernel_of_other_pages_is_refused_before_anything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 65536)
    with pytest.raises(CapabilityError, match=r"65536 bytes.*4 KiB pages"):
        ManagedMemory.install()
    monkeypatch.undo()
    ManagedMemory.install().uninstall()
