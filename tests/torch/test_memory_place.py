"""Planned slots under real training: bits stay the same, and live bytes are never anyone else's."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn  # noqa: E402

from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.core.units import HUGE_PAGE_BYTES  # noqa: E402
from sentinel.migration.memory import (  # noqa: E402
    ALLOC,
    FOREIGN,
    FREE,
    GRANULE_BYTES,
    SLOT,
    SMALL,
    TICK,
    ManagedMemory,
)

pytestmark = pytest.mark.needs("compiler")

Table = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]


@pytest.fixture
def memory() -> Iterator[ManagedMemory]:
    installed = ManagedMemory.install()
    yield installed
    installed.uninstall()


def arcs(events: NDArray[np.void]) -> tuple[int, list[tuple[int, int, int, int, int]]]:
    """Period and (birth, death, nbytes, layer, ordinal) of the first step's tensors, of two equal recorded steps."""
    first, second = [i for i, e in enumerate(events) if e["kind"] == TICK and e["layer"] == 0][:2]
    period = second - first
    living: dict[int, tuple[int, int, int, int]] = {}
    found: list[tuple[int, int, int, int, int]] = []
    for i, e in enumerate(events[first:]):
        if e["kind"] == ALLOC and not e["flags"] & (SMALL | FOREIGN):
            living[int(e["address"])] = (i, int(e["nbytes"]), int(e["layer"]), int(e["ordinal"]))
        elif e["kind"] == FREE and int(e["address"]) in living:
            birth, nbytes, layer, ordinal = living.pop(int(e["address"]))
            if birth < period and i - birth <= period:
                found.append((birth, i, nbytes, layer, ordinal))
    return period, found


def packed(events: NDArray[np.void]) -> Table:
    """Largest first, at the lowest address that fits, on the circle of the step."""
    period, found = arcs(events)
    rows: list[tuple[int, int, int, int, int, int, int]] = []
    for birth, death, nbytes, layer, ordinal in sorted(found, key=lambda arc: (-arc[2], arc[0])):
        length, at = -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES, 0
        for offset, end, b, d, *_ in sorted(rows):
            if not any(birth + turn < d and b < death + turn for turn in (-period, 0, period)):
                continue
            if offset - at >= length:
                break
            at = max(at, end)
        rows.append((at, at + length, birth, death, layer, ordinal, nbytes))
    table = np.array(rows, dtype=np.int64)
    return table[:, 4:6], table[:, 0], table[:, 6], int(table[:, 1].max())


def served(memory: ManagedMemory, act: Callable[[], Any]) -> tuple[float, Any]:
    """Share of the bytes of 1 KiB and more that came from slots, and the result of `act`."""
    before = memory.counters()
    result = act()
    after = memory.counters()
    fallback = {
        why: n - before.fallback.get(why, (0, 0))[1] for why, (_, n) in after.fallback.items() if why != "small"
    }
    ours = after.served_bytes - before.served_bytes
    return ours / max(1, ours + sum(fallback.values())), result


class Job:
    """A small transformer, ticked per block, with dropout and AdamW."""

    def __init__(self, tick: Callable[[int], None]) -> None:
        torch.manual_seed(7)
        self.tick = tick
        self.embed, self.head = nn.Embedding(97, 64), nn.Linear(64, 97)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(3))
        self.optimizer = torch.optim.AdamW([*self.parameters()], lr=1e-3)

    def parameters(self) -> list[Any]:
        return [p for module in (self.embed, self.blocks, self.head) for p in module.parameters()]

    def step(self, i: int, tokens: int = 24) -> float:
        self.tick(0)
        words = torch.randint(0, 97, (4, tokens), generator=torch.Generator().manual_seed(i))
        x = self.embed(words)
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            self.tick(number)
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.tick(len(self.blocks) + 1)
        self.optimizer.step()
        return float(loss.item())


def applied(memory: ManagedMemory, *, log: bool = False) -> Job:
    """A job whose first four steps have run: two stock, two recorded; now its slots are served."""
    memory.pass_through()
    job = Job(memory.tick)
    for i in range(2):
        job.step(i)
    memory.record()
    for i in range(2, 4):
        job.step(i)
    memory.place(*packed(memory.events()), log=log)
    return job


def test_training_from_slots_is_bit_identical(memory: ManagedMemory) -> None:
    memory.pass_through()
    stock = Job(lambda _: None)
    expected = [stock.step(i) for i in range(12)]
    job = applied(memory)
    share, losses = served(memory, lambda: [job.step(i) for i in range(4, 12)])
    assert losses == expected[4:]
    assert all(torch.equal(a, b) for a, b in zip(stock.parameters(), job.parameters(), strict=True))
    assert share > 0.99


def test_each_step_is_served_at_the_same_addresses(memory: ManagedMemory) -> None:
    job = applied(memory, log=True)
    steps = []
    for i in range(4, 7):
        seen = len(memory.events())
        job.step(i)
        fresh = memory.events()[seen:]
        steps.append(fresh[(fresh["flags"] & SLOT) != 0][["layer", "ordinal", "address", "nbytes"]].tolist())
    assert len(steps[0]) > 100
    assert steps[0] == steps[1] == steps[2]


def test_steps_of_other_lengths_are_still_right_and_partly_served(memory: ManagedMemory) -> None:
    memory.pass_through()
    stock = Job(lambda _: None)
    lengths = [24, 24, 24, 24, 17, 31, 24, 9, 24]
    expected = [stock.step(i, n) for i, n in enumerate(lengths)]
    job = applied(memory)
    shorter, first = served(memory, lambda: job.step(4, lengths[4]))
    longer, second = served(memory, lambda: job.step(5, lengths[5]))
    assert [first, second, *(job.step(i, lengths[i]) for i in range(6, 9))] == expected[4:]
    assert shorter > 0.9  # what is shorter fits
    assert longer > 0.2


def test_without_ticks_slots_are_served_where_they_fit(memory: ManagedMemory) -> None:
    memory.pass_through()
    stock = Job(lambda _: None)
    expected = [stock.step(i) for i in range(6)]
    job = applied(memory)
    memory.tick(None)
    job.tick = lambda _: None
    share, losses = served(memory, lambda: [job.step(i) for i in range(4, 6)])
    assert losses == expected[4:]
    assert 0.05 < share < 1
    assert memory.counters().fallback["unsynchronised"][0] > 0


def test_activations_kept_for_steps_keep_their_bytes(memory: ManagedMemory) -> None:
    job = applied(memory)
    kept = []
    for i in range(4, 9):
        kept.append((i, job.embed.weight.detach() * i, (job.embed.weight.detach() * i).sum().item()))
        job.step(i)
    assert all(tensor.sum().item() == total for _, tensor, total in kept)


@pytest.mark.parametrize("seed", range(3))
def test_no_byte_of_a_live_tensor_changes_under_a_wrong_plan(memory: ManagedMemory, seed: int) -> None:
    """Slots that overlap at will, sizes that differ, lives that cross steps: each tensor equals its shadow."""
    chance = random.Random(seed)
    keys = np.array([(layer, ordinal) for layer in range(5) for ordinal in range(40)], dtype=np.int64)
    offsets = np.array([chance.randrange(2000) * GRANULE_BYTES for _ in keys], dtype=np.int64)
    nbytes = np.array([chance.randrange(1024, 200_000) for _ in keys], dtype=np.int64)
    memory.place(keys, offsets, nbytes, int((offsets + nbytes).max()))
    live: list[tuple[Any, bytes]] = []
    checked = 0
    for _ in range(12):
        for layer in range(5):
            memory.tick(chance.choice([layer, layer, layer, layer, -1]))
            for ordinal in range(40):
                planned = int(nbytes[layer * 40 + ordinal])
                length = planned if chance.random() < 0.7 else chance.randrange(1, 300_000)
                content = chance.randbytes(16) * (length // 16 + 1)
                tensor = torch.empty(length, dtype=torch.uint8)
                tensor.numpy()[:] = np.frombuffer(content[:length], dtype=np.uint8)
                live.append((tensor, content[:length]))
                while len(live) > 5 and chance.random() < 0.6:
                    tensor, shadow = live.pop(chance.randrange(len(live)))
                    assert tensor.numpy().tobytes() == shadow
                    checked += 1
    assert checked > 1000
    counted = memory.counters()
    assert counted.served > 0
    assert {"busy", "size_differs"} <= set(counted.fallback)


def test_a_table_that_breaks_the_rules_is_refused(memory: ManagedMemory) -> None:
    keys = np.array([[0, 0], [0, 1]])
    good = np.array([0, 4096]), np.array([4096, 4096])
    memory.place(keys, *good, 8192)
    for bad_keys, offsets, nbytes, extent in [
        (np.array([[0, 0], [0, 0]]), *good, 8192),
        (keys, np.array([0, 100]), good[1], 8192),
        (keys, *good, 8191),
        (keys, good[0][:1], good[1], 8192),
    ]:
        with pytest.raises(UsageError):
            memory.place(bad_keys, offsets, nbytes, extent)
    memory.tick(0)
    assert torch.empty(4096, dtype=torch.uint8).data_ptr() == memory.placement_base


def test_tenants_survive_a_new_table_and_the_end(memory: ManagedMemory) -> None:
    key, at, length = np.array([[0, 0]]), np.array([0]), np.array([40028])
    memory.place(key, at, length, 40448)
    memory.tick(0)
    tenant = torch.arange(10007, dtype=torch.int32)
    assert tenant.data_ptr() == memory.placement_base
    memory.place(key, at, length, 40448, log=True)
    memory.tick(0)
    refused = torch.arange(10007, dtype=torch.int32)
    assert not memory.contains(refused.data_ptr())
    assert memory.counters().fallback["busy"][0] > 0
    assert [int(e["kind"]) for e in memory.events()] == [TICK, ALLOC]
    memory.uninstall()
    assert torch.equal(tenant, refused)


PAGE = 4096


def two_tensors(memory: ManagedMemory, offsets: tuple[int, int]) -> tuple[Any, Any]:
    """Tensors of 2048 bytes, ones and twos, for which slots at these offsets are planned."""
    sizes = np.array([2048, 2048])
    memory.place(np.array([[0, 0], [0, 1]]), np.array(offsets), sizes, 4 * PAGE)
    memory.tick(0)
    return torch.ones(512), torch.full((512,), 2.0)


@pytest.mark.parametrize(
    ("offset", "nbytes", "dropped"),
    [
        pytest.param(0, 512, False, id="before the tenant, on its page"),
        pytest.param(2560, 512, False, id="behind the tenant, on its page"),
        pytest.param(2560, PAGE, False, id="a part of two pages"),
        pytest.param(2560, 2 * PAGE, True, id="a page and parts of two"),
        pytest.param(PAGE, PAGE, True, id="a page that is free"),
        pytest.param(0, PAGE, False, id="the tenant's page"),
        pytest.param(0, 2 * PAGE, True, id="the tenant's page and a free one"),
        pytest.param(-PAGE, PAGE, False, id="before the arena"),
    ],
)
def test_no_page_with_a_tenant_is_discarded(memory: ManagedMemory, offset: int, nbytes: int, dropped: bool) -> None:
    first, last = two_tensors(memory, (512, 3 * PAGE + 512))
    free = (ctypes.c_char * PAGE).from_address(memory.placement_base + PAGE)
    free[0] = b"x"
    assert memory.discard(offset, nbytes) == (PAGE if dropped else 0)
    assert first.data_ptr() == memory.placement_base + 512  # negative control: it was served from its slot
    assert (first == 1).all()
    assert (last == 2).all()
    assert (free[0] == b"\0") == dropped


def test_what_a_tensor_has_of_discarded_pages_is_discarded_once_it_is_freed(memory: ManagedMemory) -> None:
    """As the batch of a step, which a loop holds until the next one is made, while its block is dead by the plan."""
    first, last = two_tensors(memory, (0, 3 * PAGE))
    held = [(ctypes.c_char * 2048).from_address(memory.placement_base + offset) for offset in (0, 3 * PAGE)]
    assert memory.discard(0, PAGE) == 0
    assert (first == 1).all()
    del first
    assert not any(held[0].raw)
    del last
    assert any(held[1].raw)  # negative control: it was not to be discarded


@pytest.mark.parametrize("offset", [512, 1024, 2048])
def test_slots_that_share_bytes_serve_one_tensor_at_a_time(memory: ManagedMemory, offset: int) -> None:
    before = memory.counters().fallback.get("busy", (0, 0))[0]
    first, second = two_tensors(memory, (512, offset))
    assert first.data_ptr() == memory.placement_base + 512
    assert not memory.contains(second.data_ptr())
    assert memory.counters().fallback["busy"][0] > before
    assert (first == 1).all()
    assert (second == 2).all()


def test_a_slot_before_the_arena_is_refused(memory: ManagedMemory) -> None:
    with pytest.raises(UsageError, match="slots can't be served"):
        two_tensors(memory, (512, -512))


def advised(address: int, count: int) -> list[bool]:
    """Whether each of so many 2 MiB from `address` on may be a huge page, as the kernel tells of its mapping."""
    found = [False] * count
    low = high = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
        elif first == "VmFlags:" and "hg" in rest.split():
            for i in range(count):
                found[i] |= low <= address + i * HUGE_PAGE_BYTES < high
    return found


@pytest.mark.needs("huge pages")
def test_the_kernel_is_told_what_may_be_huge_pages_and_what_no_more_may_is_dropped(memory: ManagedMemory) -> None:
    chunks, nbytes = [0, 2], 4 * HUGE_PAGE_BYTES
    keys, offsets = np.array([[0, 0], [0, 1]], np.int64), np.array([0, nbytes], np.int64)
    memory.place(keys, offsets, np.array([nbytes, 4096], np.int64), nbytes + 2 * HUGE_PAGE_BYTES)
    memory.set_huge_pages([(chunk * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES) for chunk in chunks])
    memory.tick(0)
    filled = torch.ones(nbytes, dtype=torch.uint8)
    assert filled.data_ptr() == memory.placement_base
    assert advised(memory.placement_base, 5) == [True, False, True, False, False]
    memory.set_huge_pages([(2 * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES)])
    assert bool((filled == 1).all())  # a tensor is there: nothing is dropped yet
    del filled
    memory.set_huge_pages([(HUGE_PAGE_BYTES, HUGE_PAGE_BYTES)])
    assert advised(memory.placement_base, 5) == [False, True, False, False, False]
    after = (ctypes.c_char * nbytes).from_address(memory.placement_base)
    assert [after[i * HUGE_PAGE_BYTES] for i in range(4)] == [b"\0", b"\1", b"\0", b"\1"]
