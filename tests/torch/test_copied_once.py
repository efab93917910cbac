"""The persistent tensors of a job that is to be watched move into memory that is watched already, in one copy."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.migration.memory import ManagedMemory  # noqa: E402
from sentinel.profiler.pages import native_touch, obstacle  # noqa: E402
from sentinel.profiler.pages.protocol import AddressRange  # noqa: E402
from sentinel.session.recording import Recording  # noqa: E402
from sentinel.session.training_job import TrainingJob  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def _rss_bytes(start: int, stop: int) -> int:
    """Of what is mapped in [start, stop)."""
    total, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            word = line.split(maxsplit=1)[0]
            if "-" in word and not word.endswith(":"):
                low, high = (int(end, 16) for end in word.split("-"))
                inside = start <= low and high <= stop
            elif word == "Rss:" and inside:
                total += int(line.split()[1]) << 10
    return total


@pytest.mark.parametrize("tracker", ["ebpf", "perf", "pagemap", "uffd", "ops"])
def test_tensors_move_straight_into_watched_memory(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = None if tracker == "ops" else obstacle(tracker)
    if refused is not None:
        pytest.skip(f"needs tracker {tracker}: {refused}")
    model = torch.nn.Linear(2048, 1024)
    before = model.weight.detach().clone()
    seen: list[tuple[bool, int, bool]] = []
    adopt = TrainingJob.adopt

    def watched_adopt(job: TrainingJob, memory: ManagedMemory) -> None:
        base, _, reserved = memory.exclusive_extent()
        adopt(job, memory)
        backed = native_touch.is_backed(AddressRange(base, base + reserved))
        seen.append((backed, _rss_bytes(base, base + reserved), memory.contains(model.weight.data_ptr())))

    monkeypatch.setattr(TrainingJob, "adopt", watched_adopt)
    sentinel.start_profile(model, slow="emulated:cxl-asic-x8", tracker=tracker)
    try:
        (backed, resident, managed) = seen[0]
        assert managed
        assert backed == (tracker != "ops")
        assert (resident < 1 << 20) == backed  # the memfd holds it, no page is mapped for it
        assert torch.equal(model.weight, before)
    finally:
        sentinel.stop()
    assert torch.equal(model.weight, before)


def test_a_fork_meanwhile_only_costs_the_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = obstacle("pagemap")
    if refused is not None:
        pytest.skip(f"needs tracker pagemap: {refused}")
    model = torch.nn.Linear(512, 512)
    before = model.weight.detach().clone()
    prepare = Recording.prepare

    def prepare_and_fork(recording: Recording, *arguments: Any) -> None:
        prepare(recording, *arguments)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    monkeypatch.setattr(Recording, "prepare", prepare_and_fork)
    sentinel.start_profile(model, slow="emulated:cxl-asic-x8", tracker="pagemap")
    try:
        model(torch.ones(1, 512)).sum().backward()
        assert torch.equal(model.weight, before)
    finally:
        sentinel.stop()
    assert torch.equal(model.weight, before)
