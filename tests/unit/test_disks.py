"""What is under a directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.core.errors import UsageError
from sentinel.system.disks import disk_of, mount_of

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / {folder} rw - xfs /dev/vdb rw
31 22 0:26 / {folder} rw,nosuid shared:2 master:1 - tmpfs tmpfs rw
32 22 0:27 / {folder}/with\\040space rw - btrfs /dev/vdc rw
33 22 252:0 / {folder}/zram rw - ext4 /dev/zram0 rw
34 22 0:28 / {folder}/pool rw - btrfs /dev/zram0 rw
35 22 253:0 / {folder}/mapped rw - xfs /dev/mapper/fast rw
36 22 7:1 / {folder}/loop rw - ext4 /dev/loop0p1 rw
37 22 0:29 / {folder}/merged rw - overlay overlay rw,lowerdir=/lower,upperdir={folder}/up\\040per,workdir=/work
38 22 254:0 / {folder}/Bücher\u0085\u00a0x rw - ext4 /dev/vda rw
a line that says nothing
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("with space", "zram", "pool", "mapped", "loop", "merged", "up per", "Bücher\u0085\u00a0x"):
        (tmp_path / "data" / name).mkdir(parents=True)
    mountinfo = tmp_path / "proc/self/mountinfo"
    mountinfo.parent.mkdir(parents=True)
    mountinfo.write_text(MOUNTS.format(folder=tmp_path / "data"))
    return tmp_path


def test_the_last_of_the_deepest_mounts_counts(root: Path) -> None:
    disk = disk_of(root / "data", root)
    assert (disk.file_system, mount_of(root / "data", root).at, disk.in_memory) == ("tmpfs", root / "data", True)
    disk = disk_of(root / "data" / "with space", root)
    assert (disk.file_system, disk.in_memory) == ("btrfs", False)
    disk = disk_of(root, root)
    assert (disk.file_system, mount_of(root, root).at) == ("ext4", Path("/"))


@pytest.fixture
def devices(root: Path) -> Path:
    """zram0, a mapped device on it, and a partition of a loop device whose file is in a tmpfs."""
    block = root / "sys/devices/virtual/block"
    for name in ("zram0", "dm-0/slaves", "loop0/loop", "loop0/loop0p1"):
        (block / name).mkdir(parents=True)
    (block / "dm-0/slaves/zram0").symlink_to(block / "zram0")
    (block / "loop0/loop0p1/partition").write_text("1\n")
    (block / "loop0/loop/backing_file").write_text(f"{root}/data/image\n")
    for folder, name, device in (
        ("sys/dev/block", "252:0", "zram0"),
        ("sys/class/block", "zram0", "zram0"),
        ("sys/dev/block", "253:0", "dm-0"),
        ("sys/dev/block", "7:1", "loop0/loop0p1"),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / name).symlink_to(block / device)
    return root


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zram", "/dev/zram0 is in memory"),
        ("pool", "/dev/zram0 is in memory"),
        ("mapped", "/dev/zram0 is in memory"),
        ("loop", "a tmpfs, which is in memory"),
        ("merged", "an overlay whose files are in memory: .* is a tmpfs"),
    ],
)
def test_what_lies_over_memory_is_in_memory(devices: Path, name: str, says: str) -> None:
    disk = disk_of(devices / "data" / name, devices)
    assert disk.in_memory
    assert re.search(says, disk.memory)


def test_names_are_what_they_are(root: Path) -> None:
    disk = disk_of(root / "data" / "Bücher\u0085\u00a0x", root)
    assert (disk.file_system, disk.in_memory) == ("ext4", False)


def test_an_overlay_over_memory_that_cannot_be_seen_is_found_out(tmp_path: Path) -> None:
    """As in a container: the upper directory has no name there."""
    memory, merged = tmp_path / "memory", tmp_path / "merged"
    for folder in (memory, merged, tmp_path / "lower"):
        folder.mkdir()
    layers = f"lowerdir={tmp_path}/lower,upperdir={memory}/upper,workdir={memory}/work"
    asks = "import sys; from sentinel.system.disks import disk_of; print(disk_of(sys.argv[1]).memory)"
    script = (
        f"mount -t tmpfs tmpfs {memory} && mkdir {memory}/upper {memory}/work &&"
        f" mount -t overlay overlay -o {layers} {merged} && umount -l {memory} &&"
        f" {sys.executable} -c '{asks}' {merged}"
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        pytest.skip(f"needs mounts: root, and a kernel with overlays ({done.stderr.strip()})")
    assert "an overlay whose files are in memory" in done.stdout


def test_a_disk_without_a_line_is_unknown(root: Path) -> None:
    (root / "proc/self/mountinfo").unlink()
    assert disk_of(root, root).file_system == "unknown"


def test_what_it_allows_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    disk = disk_of(tmp_path)
    assert disk.free_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert not disk.direct or disk.unnamed


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(UsageError, match=name):
            disk_of(tmp_path / name)


def test_a_loop_of_links_and_too_long_a_name_are_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for folder in (tmp_path / "loop", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match="cannot be used"):
            disk_of(folder)
