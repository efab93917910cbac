"""Trains under Sentinel where userfaultfd is refused, while another Python thread runs, and prints what came of it.

    python without_userfaultfd.py holds|address|nothing user|rights TRACKER...

The other thread `holds` a managed tensor and writes to it; or it knows only its `address`, and writes there by
ctypes, which keeps the GIL; or it runs and knows `nothing` of it. A filter of seccomp refuses userfaultfd, also
by way of /dev/userfaultfd; a `user` has given up all rights as well.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sentinel
from sentinel import session
from sentinel.core.errors import CapabilityError
from sentinel.profiler import operators
from sentinel.profiler.pages import native_touch
from sentinel.system import native
from tests.contract.confined import give_up_rights, import_all, refuse_userfaultfd
from tests.without_rights import draw_a_report, read_beforehand

PAGE = 4096
PAGES = 509
ROUNDS = 2
NAME = "feeder"
ASKED = {"fast": "50%", "slow": "emulated:cxl-asic-x8"}


class Trained(nn.Module):
    """A layer that trains, and a buffer of which every page is written by the other thread only."""

    buffer: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.register_buffer("buffer", torch.zeros(PAGES * PAGE, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the buffer nothing."""
        return self.layer(x)


class Work:
    """The training, the same for everyone who makes one."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = Trained()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self) -> float:
        """One step on random numbers; its loss."""
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 256)).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


class Other:
    """The other thread: adds 1 to the first byte of every page in turn, again and again: what was lost stays so."""

    def __init__(self, add: Callable[[int], Any] | None) -> None:
        self._add = add
        self.written = [0] * PAGES
        self._over = threading.Event()
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), name=NAME, daemon=True)
        self._thread.start()
        begun.wait()

    def _run(self, begun: threading.Event) -> None:
        add, written = self._add or (lambda page: None), self.written
        while not self._over.is_set():
            for page in range(PAGES):
                add(page)
                written[page] += 1
                begun.set()

    def end(self) -> None:
        """Returns when it has written its last."""
        self._over.set()
        self._thread.join()


def adder(how: str, model: Trained) -> Callable[[int], Any] | None:
    """What the other thread writes with: it refers to the tensor only where it is to hold it."""
    if how == "nothing":
        return None
    if how == "holds":
        held = model.buffer
        return lambda page: held[page * PAGE].add_(1)
    of_numbers = (ctypes.c_uint8 * (PAGES * PAGE)).from_address(model.buffer.data_ptr())

    def add(page: int) -> None:
        of_numbers[page * PAGE] = (of_numbers[page * PAGE] + 1) % 256

    return add


def state() -> dict[str, Any]:
    """Of this process: what a session that began would have changed."""
    maps = Path("/proc/self/maps").read_text()
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {
        "active": sentinel.active(),
        "memfd mapped": "memfd:sentinel" in maps,
        "descriptors": sorted(link for link in links if "anon_inode" in link or "memfd" in link),
        "mode": native.library().sn_memory_mode(),
        "operators recorded": operators.recording(),
    }


def one_round(work: Work, losses: list[float], tracker: str) -> dict[str, Any]:
    """Profile a step, apply the plan to the next, stop."""
    sentinel.start_profile(work.model, work.optimizer, tracker=tracker, **ASKED)
    stays = session.current().context.job.left_in_place
    losses.append(work.step())
    sentinel.end_profile()
    losses.append(work.step())
    sentinel.stop()
    told = sentinel.report()
    return {"tracker": told.headline["tracker"], "text": told.text(), "stays": [name for name, _, _ in stays]}


def refused(work: Work, tracker: str) -> dict[str, Any]:
    """What was told, and what a refused session has changed: the addresses, the bytes, this process."""
    params = list(work.model.parameters())
    before = state(), [(param.data_ptr(), param.detach().clone()) for param in params]
    try:
        sentinel.start_profile(work.model, work.optimizer, tracker=tracker, **ASKED)
    except CapabilityError as error:
        told = {"what": error.what, "why": error.why, "remedy": error.remedy, "text": str(error)}
    else:
        sentinel.stop()
        return {}
    seen = [(param.data_ptr(), param.detach()) for param in params]
    same = all(at == at_now and bits.equal(now) for (at, bits), (at_now, now) in zip(before[1], seen, strict=True))
    return {**told, "before": before[0], "after": state(), "same parameters": same}


def under(tracker: str, how: str, work: Work, losses: list[float]) -> dict[str, Any]:
    """What `tracker` does while the other thread runs, and after it."""
    other = Other(adder(how, work.model))
    named = {} if tracker == "auto" else refused(work, tracker)
    rounds = [] if named else [one_round(work, losses, tracker) for _ in range(ROUNDS)]
    losses.append(work.step())
    other.end()
    firsts = work.model.buffer[::PAGE].tolist()
    wrong = sum(first != written % 256 for first, written in zip(firsts, other.written, strict=True))
    with torch.no_grad():
        work.model.buffer.zero_()
    after = one_round(work, losses, tracker)["tracker"]
    return {"refused": named, "rounds": rounds, "pages lost": wrong, "written": max(other.written), "after": after}


def main() -> None:
    """See the module's docstring."""
    how, rights, *trackers = sys.argv[1:]
    torch.set_num_threads(1)
    import_all()
    read_beforehand()
    draw_a_report()
    operators.start()
    operators.stop()
    work, stock, losses = Work(), Work(), list[float]()
    annotation = sentinel.annotate(work.model, work.optimizer)
    if rights == "user":
        give_up_rights()
    refuse_userfaultfd()
    torch.manual_seed(6)
    losses.append(work.step())
    stays = one_round(work, losses, "ops")["stays"]  # moves all to managed memory
    seen = {tracker: under(tracker, how, work, losses) for tracker in trackers}
    annotation.remove()
    torch.manual_seed(6)
    identical = losses == [stock.step() for _ in losses]
    print(json.dumps({"guarded": native_touch.guarded(), "stays": stays, "identical": identical, "seen": seen}))


if __name__ == "__main__":
    main()
