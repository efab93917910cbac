"""The table of touched pages: as large as the memory that a process may have asks for, and no larger."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.core.errors import CapabilityError
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import AddressRange, armed_tracker, native_touch
from sentinel.profiler.pages.ebpf import EbpfReader
from sentinel.system import limits
from sentinel.system.limits import LimitedGroup

ARENA = AddressRange(1 << 40, (1 << 40) + (1 << 38))
HERE = Path("here")


def limited_to(nbytes: int) -> LimitedGroup:
    return LimitedGroup(nbytes // 2, nbytes, HERE, HERE, HERE, "idle", "busy")


@pytest.mark.parametrize(
    ("group", "pages"),
    [(None, 2 * (64 << 30) // PAGE_BYTES), (limited_to(512 << 20), 2 * (512 << 20) // PAGE_BYTES)],
    ids=["host", "container"],
)
def test_the_table_ends_with_twice_the_memory_that_the_process_may_have(
    monkeypatch: pytest.MonkeyPatch, group: LimitedGroup | None, pages: int
) -> None:
    """A host of 64 GiB has a table of 64 MiB. In a container of 512 MiB that much may be more than is left."""
    monkeypatch.setattr(limits, "host_bytes", lambda: 64 << 30)
    monkeypatch.setattr(limits, "limited_groups", lambda *_: [] if group is None else [group])
    assert armed_tracker._layout([ARENA]) == (pages, [(ARENA, 0)])


def test_a_table_for_which_the_container_has_no_room_is_refused_before_the_kernel_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "room_bytes", lambda: 64 << 20)
    with pytest.raises(CapabilityError, match=r"has 64.00 MiB left.* takes 16.00 MiB; give .*, or use --tracker perf"):
        EbpfReader().open((16 << 20) // 2, [])


def test_no_page_is_watched_where_the_kernel_counts_what_it_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a step that needs more than is left would end by SIGBUS while it is watched."""
    monkeypatch.setattr(limits, "promises_no_more_than_there_is", lambda: True)
    with pytest.raises(CapabilityError, match=r"vm\.overcommit_memory=2\).*; set .* or use --tracker ops"):
        native_touch.back(ARENA, guarded=False)
