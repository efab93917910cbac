"""What is under a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.core.errors import UsageError
from sentinel.system.disks import disk_of

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / {folder} rw - xfs /dev/vdb rw
31 22 0:26 / {folder} rw,nosuid shared:2 master:1 - tmpfs tmpfs rw
32 22 0:27 / {folder}/with\\040space rw - btrfs /dev/vdc rw
a line that says nothing
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data" / "with space").mkdir(parents=True)
    mountinfo = tmp_path / "proc/self/mountinfo"
    mountinfo.parent.mkdir(parents=True)
    mountinfo.write_text(MOUNTS.format(folder=tmp_path / "data"))
    return tmp_path


def test_the_last_of_the_deepest_mounts_counts(root: Path) -> None:
    disk = disk_of(root / "data", root)
    assert (disk.file_system, disk.mounted_at, disk.in_memory) == ("tmpfs", root / "data", True)
    disk = disk_of(root / "data" / "with space", root)
    assert (disk.file_system, disk.in_memory) == ("btrfs", False)
    disk = disk_of(root, root)
    assert (disk.file_system, disk.mounted_at) == ("ext4", Path("/"))


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
