"""From `add_layer()` to a move that is submitted: through which files, one within the other."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import FrameType

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.migration.mover import NativeMover  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def train(steps: int, walks: set[tuple[str, ...]]) -> None:
    """Steps of a network with too little fast memory; `walks` gets the files of each walk, the outermost first."""

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is NativeMover.submit_all.__code__:
            files, at = [], frame
            while at.f_code is not sentinel.add_layer.__code__:
                files.append(at.f_code.co_filename)
                if at.f_back is None:
                    return
                at = at.f_back
            files.append(at.f_code.co_filename)
            walks.add(tuple(Path(file).name for file, _ in itertools.groupby(reversed(files))))

    torch.manual_seed(1)
    layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(6))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    for number in range(steps):
        if number == 1:
            sentinel.start_profile(layers, optimizer, fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
        sys.setprofile(watch if number > 6 else None)
        x = torch.ones(256, 256)
        for layer in layers:
            x = torch.relu(layer(x))
            sentinel.add_layer()
        x.sum().backward()
        sentinel.add_layer()
        optimizer.step()
        optimizer.zero_grad()
        sentinel.add_layer()
        sys.setprofile(None)
        if number == 1:
            sentinel.end_profile()


def test_a_tick_reaches_the_mover_through_eight_files_at_most_and_none_of_them_twice() -> None:
    walks: set[tuple[str, ...]] = set()
    try:
        train(10, walks)
    finally:
        sys.setprofile(None)
        sentinel.stop()
    assert walks
    for walk in walks:
        assert len(walk) == len(set(walk)) <= 8
