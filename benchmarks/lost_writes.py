"""Do stores of other threads survive while memory changes its backing? Counts those that are lost, tracker by tracker.

    python -m benchmarks.lost_writes [--rounds N] [--mib N] [--trackers NAME...] [--control]

While N rounds of profile, apply and stop run, three threads write to buffers of the model that is trained: small
operators in place, which keep the GIL; operators over the whole of a large buffer, which do not; and C that
steps a number in each page. All read, step and write: one that is lost shows at the end, whatever is written later.
Prints JSON: of each tracker the updates made and lost, and what watched; progress on stderr. Exit 1 if one was lost,
or if another tracker watched than was asked for. With --control each buffer is copied away and back once while it is
written to, as a change of backing that holds nobody would: 0 if updates of each kind are seen to be lost.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

import sentinel
from benchmarks._bench import emit
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
        works = (self._write_small, self._write_large, self._write_plain)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()
        while not all(self.made.values()) and all(thread.is_alive() for thread in self._threads):
            time.sleep(0.001)

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
        step = ctypes.CDLL(None).rand_r  # from C, without the GIL: from one number to the next
        while not self._over.is_set():
            step(ctypes.c_void_p(self._plain_at + self.made["plain"] % self._pages * PAGE))
            self.made["plain"] += 1

    def _numbers(self) -> torch.Tensor:
        """What the page numbers should be: some pages were stepped once more than the others."""
        whole, more = divmod(self.made["plain"], self._pages)
        number = ctypes.c_uint(0)
        for _ in range(whole):
            ctypes.CDLL(None).rand_r(ctypes.byref(number))
        expected = torch.full((self._pages,), ctypes.c_int(number.value).value, dtype=torch.int32)
        ctypes.CDLL(None).rand_r(ctypes.byref(number))
        expected[:more] = ctypes.c_int(number.value).value
        return expected

    def lose(self) -> None:
        """Loses some updates of each kind: what is written between two copies of a buffer."""
        for kind, buffer in (("small", self._small), ("large", self._large), ("plain", self._plain)):
            before, at = buffer.clone(), self.made[kind]
            while self.made[kind] < at + (self._pages if kind == "plain" else 1) + 2:
                time.sleep(0.001)
            buffer.copy_(before)

    def lost(self) -> dict[str, int]:
        """Ends the threads. How many elements, or page numbers, are not what they should be."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        plain = self._plain.view(torch.int32)[:: PAGE // 4]
        return {
            "small": int((self.made["small"] - self._small[:: PAGE // 4]).sum()),
            "large": int((self._large != self.made["large"]).sum()),
            "plain": int((plain != self._numbers()).sum()),
        }


def measure(tracker: str, rounds: int, large_bytes: int, control: bool) -> dict[str, Any]:
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
        stays = session.current().context.job.left_in_place
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
    if control:
        writers.lose()
    lost = writers.lost()
    annotation.remove()
    return {"rounds": rounds, "watched_by": watched, "made": writers.made, "lost": lost}


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mib", type=int, default=1024, help="the large buffer's size")
    parser.add_argument("--trackers", nargs="+", default=TRACKERS, choices=TRACKERS)
    parser.add_argument("--control", action="store_true", help="lose updates on purpose, and see that it is told")
    options = parser.parse_args()
    seen = {}
    for tracker in options.trackers:
        print(f"lost_writes: {tracker}, {options.rounds} rounds", file=sys.stderr, flush=True)
        seen[tracker] = measure(tracker, options.rounds, options.mib << 20, options.control)
    settings = {"large_bytes": options.mib << 20, "control": options.control}
    emit("no update of another thread is lost", settings, {"trackers": seen})
    if options.control:
        return 0 if all(all(s["lost"].values()) for s in seen.values()) else 1
    fine = all(not any(s["lost"].values()) and s["watched_by"] == [tracker] for tracker, s in seen.items())
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
