"""A DataLoader forks its workers in the middle of a step whose pages are watched: each has the bytes of its birth."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

import sentinel  # noqa: E402
from sentinel import session  # noqa: E402
from sentinel.profiler.pages import obstacle  # noqa: E402

pytestmark = [
    pytest.mark.needs("torch", "compiler"),
    # Python 3.12 and later warn of any fork of a process with threads
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
WORKERS, ITEMS = 3, 13


class Looks(Dataset[Any]):
    """Each item is what a worker sees of the model: its weights' sum, then it writes over its own copy of them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        if index >= ITEMS:
            raise IndexError(index)
        with torch.no_grad():
            seen = self.model.weight.sum(dtype=torch.float64) - self.model.bias.sum(dtype=torch.float64)
            self.model.bias.add_(1)
            self.model.weight.add_(1 / self.model.in_features)  # of as much in all: the difference stays
        return seen


def _notes() -> tuple[str, ...]:
    current = session.current()
    assert current is not None
    return current.notes


@pytest.mark.parametrize("tracker", ["ebpf", "ebpf:2MiB", "perf", "pagemap", "uffd", "ops"])
def test_workers_have_a_copy_of_their_own(tracker: str) -> None:
    refused = None if tracker == "ops" else obstacle(tracker)
    if refused is not None:
        pytest.skip(f"needs tracker {tracker}: {refused}")
    torch.manual_seed(5)
    model = torch.nn.Linear(1024, 3072)  # 12 MiB of weights: large enough for granules
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(3.0)
    at_fork = 2.0 * 1024 * 3072 - 3.0 * 3072
    loader = DataLoader(Looks(model), batch_size=None, num_workers=WORKERS, multiprocessing_context="fork")

    def plain_step() -> None:
        optimizer.zero_grad()
        model(torch.ones(5, 1024)).sum().backward()
        sentinel.add_layer("computed")
        sentinel.add_layer("written")
        optimizer.step()

    def step() -> list[float]:
        optimizer.zero_grad()
        model(torch.ones(5, 1024)).sum().backward()
        sentinel.add_layer("computed")
        workers = iter(loader)
        with torch.no_grad():  # what the parent writes after the fork is the parent's
            model.weight.add_(10.0)
        sentinel.add_layer("written")
        found = [float(value) for value in workers]
        with torch.no_grad():
            model.weight.sub_(10.0)
        optimizer.step()
        return found

    sentinel.start_profile(model, optimizer, fast="100%", slow="emulated:cxl-asic-x8", tracker=tracker)
    found = step()
    sentinel.end_profile()
    assert found == [at_fork] * ITEMS
    assert model.weight.detach().eq(2.0 - 0.125 * 5).all()
    assert model.bias.detach().eq(3.0 - 0.125 * 5).all()
    if tracker == "ops":
        return
    name = tracker.partition(":")[0]
    assert sentinel.report().headline["tracker"] == "ops"  # of pages only those before the fork were seen
    for _ in range(3):
        plain_step()
    sentinel.stop()
    assert sentinel.report().headline["tracker"] == name
    assert any("the process forked in the profiled step" in note for note in _notes())
    assert model.weight.detach().eq(2.0 - 0.125 * 20).all()


def test_steps_that_all_fork_are_planned_by_their_operators() -> None:
    if obstacle("pagemap") is not None:
        pytest.skip("needs tracker pagemap")
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(5, 256)).sum().backward()
        sentinel.add_layer("computed")
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        sentinel.add_layer("forked")
        optimizer.step()

    sentinel.start_profile(model, optimizer, fast="100%", slow="emulated:cxl-asic-x8", tracker="pagemap")
    step()
    sentinel.end_profile()
    for _ in range(6):
        step()
    sentinel.stop()
    assert sentinel.report().headline["tracker"] == "ops"
    assert any("each of 3 profiled steps forked" in note for note in _notes())
