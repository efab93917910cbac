"""Which disk is taken where the user names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.core.errors import UsageError
from sentinel.system import scratch_disk
from sentinel.system.disks import Disk, disk_of
from sentinel.system.scratch_disk import NAMED, fastest_disk

DISKS = {
    "nvme": ("259:1", "ext4", "/dev/nvme0n1p1", "nvme0n1", "0"),
    "flash": ("8:1", "xfs", "/dev/sda1", "sda", "0"),
    "rotating": ("8:16", "ext4", "/dev/sdb", "sdb", "1"),
    "bound": ("254:0", "ext4", "/dev/vda", "vda", "0"),
    "remote": ("43:0", "ext4", "/dev/nbd0", "nbd0", "0"),
    "boot": ("259:2", "vfat", "/dev/nvme1n1p1", "nvme1n1", "0"),
    "nfs": ("0:45", "nfs4", "server:/export/sda", "", ""),
    "memory": ("252:0", "ext4", "/dev/zram0", "zram0", "0"),
    "tmpfs": ("0:26", "tmpfs", "tmpfs", "", ""),
}
"""number, file system, source, the whole device, whether it rotates"""


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAMED, raising=False)


def host_with(root: Path, *names: str) -> Path:
    """A host whose root file system is on vda, and on which these are mounted."""
    lines = ["22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw"]
    for name in (*names, "bound"):
        number, file_system, source, whole, rotates = DISKS[name]
        place = root / "data" / name
        place.mkdir(parents=True, exist_ok=True)
        lines.append(f"30 22 {number} / {place} rw - {file_system} {source} rw")
        if not whole:
            continue
        device = root / "sys/devices" / whole
        (device / "queue").mkdir(parents=True)
        (device / "queue/rotational").write_text(f"{rotates}\n")
        if source != f"/dev/{whole}":
            device /= Path(source).name
            device.mkdir()
            (device / "partition").write_text("1\n")
        link = root / "sys/dev/block" / number
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize(
    ("there", "found", "why"),
    [
        (("rotating", "nvme", "flash"), "nvme", "NVMe"),
        (("rotating", "flash", "remote", "boot", "nfs"), "flash", "flash"),
        (("rotating", "memory", "tmpfs"), "rotating", "a disk that rotates, or does not tell"),
    ],
)
def test_the_one_that_looks_fastest_is_taken(there: tuple[str, ...], found: str, why: str, tmp_path: Path) -> None:
    scratch = fastest_disk(1, host_with(tmp_path, *there))
    assert (scratch.disk.folder, scratch.why) == ((tmp_path / "data" / found).resolve(), why)


def test_neither_memory_nor_the_root_file_system_nor_another_host_is(tmp_path: Path) -> None:
    root = host_with(tmp_path, "remote", "boot", "nfs", "memory", "tmpfs")
    with pytest.raises(
        UsageError, match=r"no local disk but the root file system's has 1\.00 KiB free where this user"
    ):
        fastest_disk(1 << 10, root)


def test_a_server_that_may_not_answer_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def noted(folder: Path, root: Path) -> Disk:
        asked.append(folder)
        return disk_of(folder, root)

    monkeypatch.setattr(scratch_disk, "disk_of", noted)
    assert fastest_disk(1, host_with(tmp_path, "nfs", "remote", "nvme")).why == "NVMe"
    assert tmp_path / "data" / "nvme" in asked
    assert {tmp_path / "data" / "nfs", tmp_path / "data" / "remote"}.isdisjoint(asked)


def test_it_has_room(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"has 1024.00 TiB free.*; name a directory: .*{NAMED}="):
        fastest_disk(1 << 50, host_with(tmp_path, "nvme"))


def test_what_the_user_names_may_be_on_the_root_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host_with(tmp_path, "nvme")
    monkeypatch.setenv(NAMED, str(tmp_path / "data" / "bound"))
    scratch = fastest_disk(1, root)
    assert (scratch.disk.folder, scratch.why) == ((tmp_path / "data" / "bound").resolve(), f"{NAMED} names it")
