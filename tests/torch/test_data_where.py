"""Where the memory for samples lies, on a node or in a file; what loaders hold of fast memory is not for tensors."""

from __future__ import annotations

import errno
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn  # noqa: E402

import sentinel  # noqa: E402
import sentinel.data  # noqa: E402
from sentinel.cli import main  # noqa: E402
from sentinel.core.errors import CapabilityError, NativeError, SentinelError, UsageError  # noqa: E402
from sentinel.data.arena_memory import is_sealed, new_memory  # noqa: E402
from sentinel.data.data_index import open_data  # noqa: E402
from sentinel.data.feeding import FileFeeding, permutation  # noqa: E402
from sentinel.data.loading import Loader  # noqa: E402
from sentinel.data.reading_thread import ReadingThread  # noqa: E402
from sentinel.data.room_here import memory_bytes  # noqa: E402
from sentinel.data.sample_arena import ArenaShape, SampleArena  # noqa: E402
from sentinel.runtime import RUNTIME  # noqa: E402
from sentinel.samples import Order  # noqa: E402
from sentinel.session.planning import Dataflow, Planning  # noqa: E402
from sentinel.session.request import Request  # noqa: E402
from sentinel.system import numa, probes  # noqa: E402
from sentinel.system.disks import disk_of  # noqa: E402
from sentinel.system.nodes import Node  # noqa: E402
from sentinel.system.topology import Topology, topology  # noqa: E402
from sentinel.tiers.arena_place import ANYWHERE, ArenaPlace, place_of  # noqa: E402
from sentinel.tiers.file_tier import FileTier  # noqa: E402
from sentinel.tiers.pool_cap import PoolCap, taken_bytes  # noqa: E402
from tests.builders import MIB, make_profile, param  # noqa: E402
from tests.processes import LONGEST_S  # noqa: E402
from tests.torch.loaders import COUNT, loader_of  # noqa: E402
from tests.unit.engine_builders import emulated_machine  # noqa: E402

GB = 10**9


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests() -> None:
    """A loader's threads end a moment after it, and have its memory and descriptors until then."""
    gc.collect()
    for thread in threading.enumerate():
        if isinstance(thread, ReadingThread):
            thread.stopping.set()
            thread.join(LONGEST_S)
            assert not thread.is_alive()


@pytest.fixture
def placing() -> None:
    try:
        probes.mbind()
        probes.move_pages()
    except (probes.Missing, SentinelError) as error:
        pytest.skip(f"needs memory policies, which are refused here: {error}")


def arena_of(loader: Loader) -> SampleArena:
    feeding = loader._feeding
    assert isinstance(feeding, FileFeeding)
    return feeding._arena


def delivers_all(loader: Loader) -> bool:
    numbers = [number for batch in loader for number in batch.tolist()]
    return numbers == permutation(COUNT, Order(), 0).tolist() and loader.report().feed.direct_reads == 0


# --- on a node ---


@pytest.mark.usefixtures("placing")
@pytest.mark.parametrize("workers", [0, 2])
def test_all_pages_are_on_the_node_that_was_asked_for_before_a_sample_is_read(tars: list[str], workers: int) -> None:
    node = topology().fast
    for where in ("fast", f"numa:{node}"):
        loader = loader_of(tars, where=where, workers=workers)
        arena = arena_of(loader)
        whole = np.frombuffer(arena._memory, np.uint8)
        assert numa.policy(whole.ctypes.data) == (numa.MPOL_PREFERRED, (node,))
        assert numa.bytes_on(node, [(whole.ctypes.data, whole.nbytes)]) == arena.shape.nbytes
        report = loader.report()
        assert report.node_pages == {node: arena.shape.parts[-1] // 4096}
        assert any(f"on node {node}, whose fast tier" in caveat for caveat in report.caveats)
        assert delivers_all(loader)
        assert loader.report().node_pages == report.node_pages
        loader.close()


def test_memory_without_a_word_lies_where_the_kernel_puts_it(tars: list[str]) -> None:
    if topology().slower:
        pytest.skip("this host has slower memory, which the default takes")
    loader = loader_of(tars)
    assert arena_of(loader).node is None
    assert -1 in loader.report().node_pages  # nothing is touched before it is needed
    assert RUNTIME.bytes_beside(topology().fast) == 0


@pytest.mark.usefixtures("placing")
def test_jobs_that_share_have_their_memory_where_they_asked_for_it(tars: list[str]) -> None:
    node = topology().fast
    loader = loader_of(tars, share=f"where-{os.getpid()}", where="fast")
    arena = arena_of(loader)
    tables = RUNTIME.bytes_beside(node)
    assert tables == arena.shape.nbytes - arena.shape.parts[-1]  # the pages are reserved as an epoch begins
    assert delivers_all(loader)
    assert RUNTIME.bytes_beside(node) == arena.shape.nbytes
    assert loader.report().node_pages == {node: arena.shape.parts[-1] // 4096}
    arena.let_go()
    assert RUNTIME.bytes_beside(node) == tables


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("here", UsageError, '"numa:N" or "file:DIR"'),
        (3, UsageError, "where=3 is not a place"),
        ("numa:", UsageError, "is not a place"),
        ("numa:one", UsageError, "is not a place"),
        ("numa:²", UsageError, "is not a place"),
        (f"numa:{'9' * 5000}", UsageError, "is not a place"),
        ("numa:77", CapabilityError, r"no memory on a node 77 \(nodes with memory for it: \d"),
        ("file:", UsageError, "names no directory"),
        ("file:/no/such/folder", UsageError, "is not a directory"),
        ("file:/dev/shm", UsageError, "/dev/shm is tmpfs, which is in memory, so a file there would save none"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tars: list[str], where: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        loader_of(tars, where=where)


def test_words_that_go_with_other_arguments_only(tars: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a file is for one job"):
        loader_of(tars, where=f"file:{disk_folder(tmp_path)}", share="where")
    with pytest.raises(UsageError, match="samples lie in the servers' memory"):
        loader_of(tars, where="fast", peers=("127.0.0.1:1",))


@pytest.mark.usefixtures("placing")
def test_pages_that_are_elsewhere_by_the_kernels_word_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    node, open_before = topology().fast, len(os.listdir("/proc/self/fd"))
    shape = ArenaShape(10, 40, 64)
    with monkeypatch.context() as patch:
        patch.setattr("sentinel.system.numa.bytes_on", lambda _node, _ranges: 0)
        patch.setattr("sentinel.system.numa.move", lambda _address, _nbytes, _node: 2)
        with pytest.raises(UsageError, match=rf"node {node} took 8\.00 KiB: it has no room for more"):
            SampleArena(shape, place=ArenaPlace(node))
        patch.setattr("sentinel.system.numa.bind", refused)
        with pytest.raises(CapabilityError, match=r"placing memory for samples on node 0: mbind.*SYS_NICE"):
            SampleArena(shape, place=ArenaPlace(0))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert RUNTIME.bytes_beside(node) == 0


def refused(*_: object) -> None:
    raise NativeError("mbind", errno.EPERM)


# --- which node ---

ROOM = 1 << 30
"""Free on each node."""
HOST = Topology(
    (Node(0, (0, 1), 4 * ROOM, ROOM), Node(1, (), 4 * ROOM, ROOM), Node(2, (), 4 * ROOM, ROOM)), 0, (1, 2), "hmat"
)


@pytest.fixture
def two_slower_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 1 reads 30 GB/s, node 2 reads 5; nothing is asked of this kernel."""
    monkeypatch.setattr("sentinel.tiers.arena_place._read_bytes_per_s", {1: 30 * GB, 2: 5 * GB}.__getitem__)
    for probe in ("mbind", "move_pages"):
        monkeypatch.setattr(f"sentinel.system.probes.{probe}", lambda: "")


@pytest.mark.parametrize(
    ("brought", "node", "said"),
    [(GB, 2, "reads 4.66 GiB/s"), (2 * GB, 1, "reads 27.94 GiB/s"), (20 * GB, 1, "no slower node reads 3 times that")],
)
@pytest.mark.usefixtures("two_slower_nodes")
def test_auto_is_the_slowest_node_that_reads_three_times_what_the_source_brings(
    brought: float, node: int, said: str
) -> None:
    place = place_of("auto", MIB, lambda: brought, HOST)
    assert (place.node, place.folder) == (node, "")
    assert said in place.why


@pytest.mark.usefixtures("two_slower_nodes")
def test_auto_passes_over_nodes_without_room_and_named_ones_are_refused() -> None:
    def host(*free_bytes: int) -> Topology:
        nodes = tuple(Node(n, (), 4 * ROOM, free) for n, free in enumerate(free_bytes))
        return Topology(nodes, 0, (1, 2), "hmat")

    assert place_of("auto", MIB, lambda: GB, host(ROOM, ROOM, 0)).node == 1
    fast = place_of("auto", MIB, lambda: GB, host(ROOM, 0, 0))
    assert fast.node == 0
    assert "whose fast tier has so much less for tensors: no slower node has 1.00 MiB left" in fast.why
    assert place_of("auto", MIB, lambda: GB, host(0, 0, 0)).node is None
    for where in ("slow", "numa:2"):
        assert place_of(where, MIB, lambda: GB, host(0, 0, ROOM)).node == 2
        with pytest.raises(UsageError, match=r'node 2 has 512\.00 KiB left; give memory="0MiB"'):
            place_of(where, MIB, lambda: GB, host(ROOM, ROOM, MIB // 2))


def test_a_host_without_slower_memory_is_asked_nothing() -> None:
    def never() -> float:
        raise AssertionError

    one = Topology((Node(0, (0,), 4 * ROOM, ROOM),), 0)
    assert place_of("auto", MIB, never, one) is ANYWHERE
    with pytest.raises(CapabilityError, match="this host has no slower memory"):
        place_of("slow", MIB, never, one)
    forbidden = Topology(HOST.nodes, 0, (1,), "hmat", forbidden=(2,))
    with pytest.raises(CapabilityError, match=r"no memory on a node 2 \(nodes with memory for it: 0, 1\)"):
        place_of("numa:2", MIB, never, forbidden)


def test_auto_leaves_memory_to_a_kernel_that_refuses_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.system.probes.mbind", refused)
    place = place_of("auto", MIB, lambda: GB, HOST)
    assert place.node is None
    assert "policies are refused here" in place.why


# --- in a file ---


def disk_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    if disk_of(folder).in_memory:
        pytest.skip("the tests' own folder is in memory")
    return folder


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_without_a_name_holds_samples_too(tars: list[str], tmp_path: Path, workers: int) -> None:
    folder = disk_folder(tmp_path)
    loader = loader_of(tars, where=f"file:{folder}", workers=workers)
    arena = arena_of(loader)
    assert os.readlink(f"/proc/self/fd/{arena.descriptor}").startswith(str(folder))
    assert os.fstat(arena.descriptor).st_mode & 0o777 == 0o600
    assert arena.held_bytes >= arena.shape.nbytes  # reserved on the disk: no later write finds it full
    assert os.listdir(folder) == []
    assert any(f"a file in {folder}" in caveat for caveat in loader.report().caveats)
    assert delivers_all(loader)
    assert RUNTIME.bytes_beside(topology().fast) == 0
    loader.close()


def test_a_disk_without_room_is_refused(tars: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = disk_folder(tmp_path)
    layout = open_data(tars).layout
    disk = disk_of(folder)
    assert memory_bytes("50%", layout, disk) == memory_bytes("50%", layout)
    with pytest.raises(UsageError, match=rf"{folder} has .* left"):
        memory_bytes(disk.free_bytes * 2, layout, disk)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(UsageError, match=r"cannot be reserved \(No space left on device\)"):
        loader_of(tars, where=f"file:{folder}")


def test_memory_is_reserved_in_parts_and_given_back_where_one_is_not_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older kernels take back all that a call has reserved once a signal comes, and Python answers signals between
    calls only."""
    arena = SampleArena(ArenaShape(10, 10 * 1024, 4096), reserved=False)
    tables, whole, parts, real = arena.held_bytes, arena.shape.parts[-1], list[int](), os.posix_fallocate
    stops: list[BaseException] = [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]

    def reserved(descriptor: int, at: int, nbytes: int) -> None:
        if stops and len(parts) == 2:
            raise stops.pop(0)
        parts.append(nbytes)
        real(descriptor, at, nbytes)

    monkeypatch.setattr("os.posix_fallocate", reserved)
    for error in (UsageError, KeyboardInterrupt):
        parts.clear()
        with pytest.raises(error):
            arena.reserve()
        assert sum(parts) < whole
        assert arena.held_bytes == tables
    parts.clear()
    arena.reserve()
    assert (sum(parts), max(parts) <= 64 * MIB) == (whole, True)
    assert arena.held_bytes >= arena.shape.nbytes
    parts.clear()
    stops.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        arena.reserve()
    assert arena.held_bytes >= arena.shape.nbytes, "what was there before may hold samples"


# --- what it takes from tensors ---

MACHINE = emulated_machine(64 * MIB, promote=GB, demote=GB, slow_bw=GB, slow_node=1)


def test_what_loaders_hold_of_fast_memory_comes_off_the_budget() -> None:
    held = [2 * MIB]

    def planning(fast: str | int | None) -> Planning:
        return Planning(Request(fast=fast), MACHINE, 12 * MIB, beside=lambda: held[0])

    asked = planning(8 * MIB)
    asked.check_words()
    assert asked._budget(0).fast_bytes == 6 * MIB
    assert planning("50%")._budget(10 * MIB).fast_bytes == 3 * MIB
    assert planning(None)._budget(0).fast_bytes == 10 * MIB
    assert asked.notes() == ["Loaders hold 2.00 MiB of fast memory, so tensors have that much less."]
    held[0] = 9 * MIB
    (_, since) = asked.notes()
    assert since.startswith("A loader that was made after the plan holds 7.00 MiB of fast memory on top")
    with pytest.raises(UsageError, match=r"8\.00 MiB of fast memory .* loaders hold 9\.00 MiB of it; ask for more"):
        planning(8 * MIB).check_words()
    share = planning("50%")
    share.check_words()  # what it comes to, only the footprint tells
    budget = share._budget(10 * MIB)
    assert budget.fast_bytes == 0
    assert "loaders hold 9.00 MiB" in budget.capped


def test_a_saved_plan_is_held_to_what_loaders_leave() -> None:
    held = [0]
    planning = Planning(Request(fast=8 * MIB), MACHINE, 12 * MIB, beside=lambda: held[0])
    profile = make_profile([param("a", 8 * MIB, [1, 2])], 8, layer_ns=10**7)
    plan = planning.planned(Dataflow(profile=profile)).plan
    assert plan is not None
    assert plan.fast_peak_bytes == 8 * MIB
    assert planning.saved(plan).plan is not None
    held[0] = MIB
    with pytest.raises(UsageError, match=r"allows 7\.00 MiB"):
        planning.saved(plan)


@pytest.mark.usefixtures("placing")
@pytest.mark.needs("native", "compiler")
def test_a_session_plans_for_what_a_loader_leaves() -> None:
    def capacity() -> int:
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = sentinel.annotate(model, optimizer)
        sentinel.start_profile(model, optimizer, fast="64MiB", slow="emulated:cxl-asic-x8", tracker="ops")
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        plan = sentinel.end_profile()
        sentinel.stop()
        handle.remove()
        return plan.capacity_bytes[0]

    assert capacity() == 64 * MIB
    arena = SampleArena(ArenaShape(10, 256, 4096), place=ArenaPlace(topology().fast))
    assert capacity() == 64 * MIB - arena.shape.nbytes
    del arena
    gc.collect()
    assert capacity() == 64 * MIB


@pytest.mark.usefixtures("placing")
@pytest.mark.needs("native")
def test_a_pool_under_a_cap_has_less_room_from_the_first_read_on() -> None:
    gc.collect()
    cap = f"{(taken_bytes() >> 20) + 1024}MiB"
    before, taken = PoolCap.asked(cap, None, 1), taken_bytes()
    assert before is not None
    arena = SampleArena(ArenaShape(10, 16384, 4096), place=ArenaPlace(topology().fast))
    after = PoolCap.asked(cap, None, 1)
    assert after is not None
    assert taken_bytes() - taken >= 60 * MIB  # of 64: what else the process has may be given back meanwhile
    assert before.pool_bytes - after.pool_bytes >= 60 * MIB
    assert arena.held_bytes >= 64 * MIB


def test_a_pool_of_a_size_is_less_what_loaders_hold(tmp_path: Path) -> None:
    slow = f"file:{disk_folder(tmp_path)}=64MiB"
    assert FileTier.asked(slow, 16 * MIB, None, 4 * MIB).fast_bytes == 12 * MIB
    with pytest.raises(UsageError, match=r"less 15\.00 MiB that loaders hold of it, is less than one frame"):
        FileTier.asked(slow, 16 * MIB, None, 15 * MIB)


# --- the command ---


@pytest.mark.usefixtures("placing")
def test_the_command_takes_the_word(tars: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = topology().fast
    assert main(["data", "run", *tars, "--where", "fast", "--unit", "64", "--epochs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["node_pages"]) == [str(node)]
    assert found["node_pages"][str(node)] > 0
    assert main(["data", "run", *tars, "--where", "fast", "--unit", "64", "--epochs", "1"]) == 0
    assert f"memory for samples is on node {node}" in capsys.readouterr().out
    folder = disk_folder(tmp_path)
    assert main(["data", "plan", *tars, "--where", f"file:{folder}", "--memory", "20%"]) == 0
    assert f"note: memory 20%: memory for samples is a file in {folder}" in capsys.readouterr().out
    assert main(["data", "plan", *tars, "--where", "numa:77", "--memory", "20%"]) == 1
    assert 'where="numa:77"' in capsys.readouterr().err


def test_memory_has_a_size_that_nobody_changes_and_a_file_no_name(tmp_path: Path) -> None:
    memory = new_memory(MIB)
    assert is_sealed(memory)
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 0)
    file = new_memory(MIB, str(tmp_path))
    assert os.fstat(file).st_size == MIB
    assert os.fstat(file).st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == []
    for descriptor in (memory, file):
        os.close(descriptor)
    with pytest.raises(UsageError, match="no file for samples can be made"):
        new_memory(MIB, str(tmp_path / "missing"))
