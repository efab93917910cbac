"""Do stores of other threads survive while memory changes its backing? Counts those that are lost, tracker by tracker.

    python benchmarks/lost_writes.py [--rounds N] [--mib N] [--trackers NAME...]

While N rounds of profile, apply and stop run, three threads write to buffers of the model that is trained: small
operators in place, which keep the GIL; operators over the whole of a large buffer, which do not; and memset from C.
Prints JSON: of each tracker the updates made and lost, and what watched. Exit 1 if one was lost, or if another
tracker watched than was asked for.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
from typing import Any

import torch
from torch import nn

import sentinel
from sentinel import session

TRACKERS = ("ops", "ebpf", "perf", "pagemap", "uffd")
PAGE = 4096


class Watched(nn.Module):
    """A layer that trains, and three buffers that other threads write to."""

    def __init__(self, large_bytes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.register_buffer("small", torch.zeros(large_bytes // 32, dtype=torch.int32))
        self.register_buffer("large", torch.zeros(large_bytes // 4, dtype=torch.int32))
        self.register_buffer("plain", torch.zeros(large_bytes // 8, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of what is written by others nothing."""
        return self.layer(x)


class Writers:
    """The three threads, and what they have written."""

    def __init__(self, model: Watched) -> None:
        self._small, self._large, self._plain = model.small, model.large, model.plain
        self._over = threading.Event()
        self._pages = self._plain.numel() // PAGE
        self._plain_at = self._plain.data_ptr()
        self.made = {"small": 0, "large": 0, "plain": 0}
        self._written = [0] * self._pages
        works = (self._write_small, self._write_large, self._write_plain)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _write_small(self) -> None:
        few = self._small[:: PAGE // 4]
        while not self._over.is_set():
            few.add_(1)
            self.made["small"] += 1
            self._over.wait(0.002)

    def _write_large(self) -> None:
        while not self._over.is_set():
            self._large.add_(1)
            self.made["large"] += 1

    def _write_plain(self) -> None:
        while not self._over.is_set():
            count = self.made["plain"]
            page, value = count % self._pages, count // self._pages % 251 + 1
            ctypes.memset(self._plain_at + page * PAGE, value, PAGE)
            self._written[page] = value
            self.made["plain"] += 1

    def lost(self) -> dict[str, int]:
        """Ends the threads. How many elements, or pages, do not hold what was written last."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        plain = self._plain.view(self._pages, PAGE).to(torch.int32)
        last = torch.tensor(self._written, dtype=torch.int32)
        return {
            "small": int((self.made["small"] - self._small[:: PAGE // 4]).sum()),
            "large": int((self._large != self.made["large"]).sum()),
            "plain": int((plain != last[:, None]).any(1).sum()),
        }


def measure(tracker: str, rounds: int, large_bytes: int) -> dict[str, Any]:
    """`rounds` of profile, apply and stop under `tracker`, while the threads write."""
    torch.manual_seed(5)
    model = Watched(large_bytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    annotation = sentinel.annotate(model, optimizer)

    def step() -> None:
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def one_round(tracker: str) -> str:
        sentinel.start_profile(model, optimizer, fast="50%", slow="emulated:cxl-asic-x8", tracker=tracker)
        stays = session.current()._job.stays
        step()
        sentinel.end_profile()
        step()
        sentinel.stop()
        assert not stays, stays
        return str(sentinel.report().headline["tracker"])

    step()
    one_round("ops")  # moves the buffers to managed memory, where they stay
    writers = Writers(model)
    watched = sorted({one_round(tracker) for _ in range(rounds)})
    lost = writers.lost()
    annotation.remove()
    return {"rounds": rounds, "watched_by": watched, "made": writers.made, "lost": lost}


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mib", type=int, default=1024, help="the large buffer's size")
    parser.add_argument("--trackers", nargs="+", default=TRACKERS, choices=TRACKERS)
    options = parser.parse_args()
    seen = {tracker: measure(tracker, options.rounds, options.mib << 20) for tracker in options.trackers}
    print(json.dumps({"large_bytes": options.mib << 20, "trackers": seen}))
    fine = all(not any(s["lost"].values()) and s["watched_by"] == [tracker] for tracker, s in seen.items())
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
