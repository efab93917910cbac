"""By what large tensors are watched: as asked, else by how much the job holds."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages.armed_tracker import GRANULE_BYTES, ArmedTracker
from sentinel.profiler.pages.trackers import make, parse
from sentinel.session import recording
from sentinel.session.recording import LARGE_BYTES, choose_tracker


@pytest.mark.parametrize(
    ("asked", "held_bytes", "granule_bytes"),
    [
        ("ebpf", LARGE_BYTES - 1, PAGE_BYTES),
        ("ebpf", LARGE_BYTES, GRANULE_BYTES),
        ("ebpf:4KiB", LARGE_BYTES, PAGE_BYTES),
        ("ebpf:2MiB", 0, GRANULE_BYTES),
        ("auto", LARGE_BYTES, GRANULE_BYTES),
        ("uffd", LARGE_BYTES, PAGE_BYTES),
    ],
)
def test_the_granule(monkeypatch: pytest.MonkeyPatch, asked: str, held_bytes: int, granule_bytes: int) -> None:
    def chosen(spec: str) -> tuple[object, list[str]]:
        name, granule = parse(spec)
        return make(f"{'ebpf' if name == 'auto' else name}:{granule}"), ["another: not here"]

    monkeypatch.setattr(recording, "choose", chosen)
    tracker, told = choose_tracker(asked, held_bytes)
    assert isinstance(tracker, ArmedTracker)
    assert tracker.granule_bytes == granule_bytes
    by_size = granule_bytes == GRANULE_BYTES and ":" not in asked
    assert told[0] == "tracker not taken: another: not here"
    assert ['tracker="ebpf:4KiB"' in sentence for sentence in told[1:]] == [True] * by_size


def test_operators_have_none() -> None:
    assert choose_tracker("ops", LARGE_BYTES) == (None, [])
