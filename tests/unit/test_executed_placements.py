"""What a node has room for, which settings of the kernel a placement asks for, and that they are given back."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.executed import memory_pressure, node_memory, placements
from sentinel.executed.cgroup import held_bytes, new_cgroup
from sentinel.executed.memory_pressure import Ballast
from sentinel.executed.node_memory import promotion_reserve_bytes, room_bytes

ZONES = """\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 0
  pages free     3776
        boost    0
        min      153
        low      191
        high     229
        protection: (0, 739, 739, 739, 739)
Node 0, zone    DMA32
  pages free     90620
        min      7571
        low      9463
        protection: (0, 0, 0, 0, 0)
  pagesets
    cpu: 0
              count:    62
              high:     252
              batch:    63
  vm stats threshold: 18
    cpu: 1
              count:    700
              high:     252
              batch:    63
  vm stats threshold: 18
Node 0, zone   Normal
  pages free     0
        min      0
        low      0
        protection: (0, 0, 0, 0, 0)
Node 1, zone    DMA32
  pages free     1000
        low      1009
        protection: (0, 0, 0, 0, 0)
  pagesets
    cpu: 0
              count:    11
"""


def test_room_is_what_is_free_above_the_low_watermark_and_the_reserve_of_each_zone() -> None:
    """What processors have in lists of their own is free too, but given to no one below the watermark."""
    assert room_bytes(ZONES, 0) == (3776 - 191 - 739 + 90620 - 9463) * 4096
    assert room_bytes(ZONES, 1) == 0
    assert room_bytes(ZONES, 2) == 0


def test_tiering_keeps_free_twice_what_lies_between_low_and_high() -> None:
    assert promotion_reserve_bytes(ZONES, 0) == 2 * (229 - 191) * 4096  # only one zone here names its high watermark
    assert promotion_reserve_bytes(ZONES, 2) == 0


NUMA_STAT = """\
anon N0=8192 N1=40960
file N0=4096 N1=0
kernel_stack N0=16384 N1=0
pagetables N0=20480 N1=12288
shmem N0=4096 N1=0
anon_thp N0=0 N1=0
inactive_anon N0=8192 N1=40960
slab_reclaimable N0=700 N1=0
slab_unreclaimable N0=11 N1=13
"""


def test_what_a_job_holds_is_counted_once_kernel_memory_included() -> None:
    assert held_bytes(NUMA_STAT, 0) == 8192 + 4096 + 16384 + 20480 + 700 + 11
    assert held_bytes(NUMA_STAT, 1) == 40960 + 12288 + 13
    assert held_bytes(NUMA_STAT, 10) == 0


def test_counts_are_exact_by_settings_that_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lists, absent = tmp_path / "lists", tmp_path / "absent"
    lists.write_text("8\n")
    setting = node_memory._Setting("1000000", "0")
    monkeypatch.setattr(node_memory, "_SETTINGS", {absent: setting, lists: setting})
    with node_memory.exact_free_counts():
        assert lists.read_text() == "1000000"
    assert lists.read_text() == "8\n"
    assert not absent.exists()
    assert not capsys.readouterr().err
    lists.write_text("1000000\n")  # of a comparison that was killed
    with suppress(KeyboardInterrupt), node_memory.exact_free_counts():
        raise KeyboardInterrupt
    assert lists.read_text() == "0"
    assert f"{lists} was set by a comparison" in capsys.readouterr().err


def locked_bytes() -> int:
    """What this process has pinned."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck:"))
    return int(line.split()[1]) << 10


def test_ballast_that_gets_no_memory_policy_stays_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    left, pinned, before = 7 << 20, 64 << 10, locked_bytes()

    def bind(*arguments: int) -> None:
        if len(arguments) == 3:  # as the last step; that of a mode of its own went well
            raise NativeError("mbind", errno.EPERM)

    monkeypatch.setattr(memory_pressure, "node_bytes", lambda _: 16 * pinned)
    monkeypatch.setattr(memory_pressure, "node_room_bytes", lambda _: left + pinned - (locked_bytes() - before))
    monkeypatch.setattr(memory_pressure.numa, "bind", bind)
    ballast = Ballast(0, left)
    with pytest.raises(NativeError, match="mbind"), ballast:
        pass
    assert ballast.took_bytes == pinned
    assert locked_bytes() == before


def test_without_memory_cgroups_there_is_no_group_and_nothing_stays(tmp_path: Path) -> None:
    with new_cgroup(0, tmp_path) as group:
        assert group is None
    (tmp_path / "cgroup.subtree_control").write_text("memory")  # but a folder made here is no cgroup
    with new_cgroup(0, tmp_path) as group:
        assert group is None
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.subtree_control"]


@pytest.fixture
def knobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    files = {"_BALANCING": "1", "_DEMOTION": "false"}
    for name, value in files.items():
        (tmp_path / name).write_text(value)
        monkeypatch.setattr(placements, name, tmp_path / name)
    weights = tmp_path / "weights"
    weights.mkdir()
    for node in (0, 1):
        (weights / f"node{node}").write_text("1")
    monkeypatch.setattr(placements, "_WEIGHTS", weights)
    return {**{name: tmp_path / name for name in files}, **{f"node{n}": weights / f"node{n}" for n in (0, 1)}}


def named(name: str) -> placements.Placement:
    return next(placement for placement in placements.PLACEMENTS if placement.name == name)


def values(knobs: dict[str, Path]) -> list[str]:
    return [path.read_text() for path in knobs.values()]


BEFORE = ["1", "false", "1", "1"]


@pytest.mark.parametrize(
    ("name", "during"),
    [
        ("first-touch", ["0", "false", "1", "1"]),
        ("weighted-interleave", ["0", "false", "7", "1"]),
        ("kernel-tiering", ["2", "true", "1", "1"]),
    ],
)
def test_a_placement_sets_what_it_needs_and_gives_it_back(knobs: dict[str, Path], name: str, during: list[str]) -> None:
    with placements.kernel_settings(named(name), {0: 7, 1: 1}):
        assert values(knobs) == during
    assert values(knobs) == BEFORE


@pytest.mark.parametrize("refused", [False, True])
def test_the_kernel_finds_weights_itself_again_where_it_can(
    knobs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    automatic = knobs["node0"].with_name("auto")
    automatic.write_text("true\n")
    plain = Path.write_text

    def as_the_kernel(path: Path, text: str) -> int:
        if path == automatic and refused:
            raise OSError(errno.ENODEV, "No such device")
        if path.parent == automatic.parent and path != automatic:
            plain(automatic, "false\n")
        return plain(path, text)

    monkeypatch.setattr(Path, "write_text", as_the_kernel)
    with placements.kernel_settings(named("weighted-interleave"), {0: 7, 1: 1}):
        assert automatic.read_text() == "false\n"
    assert automatic.read_text() == ("false\n" if refused else "true\n")
    assert values(knobs) == BEFORE


def test_what_was_set_is_given_back_after_an_interrupt_too(knobs: dict[str, Path]) -> None:
    with pytest.raises(KeyboardInterrupt), placements.kernel_settings(named("kernel-tiering"), {}):
        raise KeyboardInterrupt
    assert values(knobs) == BEFORE


def test_a_kernel_without_tiering_is_named_and_nothing_is_changed(knobs: dict[str, Path]) -> None:
    knobs["_DEMOTION"].unlink()
    with pytest.raises(CapabilityError, match="tiering"), placements.kernel_settings(named("kernel-tiering"), {}):
        pass
    assert knobs["_BALANCING"].read_text() == "1"
