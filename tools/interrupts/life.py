"""One life of a session, with an interrupt at one line of it, in a process forked for that.

The rule by which training is judged: an interrupt may cut the step that it comes in, as it would without Sentinel. So
each parameter must then be as it was before the step, or as after it, and those that are as after it must be whole
slices, the first of them. Stock training with a step that did just that, and nothing else, must end with the same bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizer

import sentinel
from sentinel.core.errors import UsageError
from sentinel.profiler import operators, slices, torch_shim
from sentinel.runtime import RUNTIME
from sentinel.system import native

PACKAGE = str(Path(sentinel.__file__).parent) + os.sep
STEPS, WIDTH, DEPTH = 9, 48, 3
FAST, SLOW = "40%", "emulated:cxl-asic-x8"

Place = tuple[str, str, int]
"""(part of the life, file within the package, line)."""


class Interrupter:
    """Notes each place of ours when it is first run; with a `target`, only raises KeyboardInterrupt there, and
    follows nothing else: to be followed takes most of a life's time."""

    def __init__(self, target: Place | None) -> None:
        self.part = ""
        self.places: dict[Place, None] = {}
        self.raised = False
        self._target = target
        self._followed = PACKAGE if target is None else PACKAGE + target[1]

    def follows(self) -> bool:
        """Whether anything of the present part matters."""
        return not self.raised and (self._target is None or self.part == self._target[0])

    def __call__(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._followed) else None

    def _line(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            place = (self.part, frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno)
            if place not in self.places:
                self.places[place] = None
                if place == self._target:
                    self.raised = True
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self._line


@dataclass
class Outcome:
    """What one life left behind. `wrong`: sentences, empty where all is well."""

    raised: bool = False
    session_went_on: bool = False
    cut_step: int | None = None
    wrong: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


class Training:
    """A small model; `step(i)` trains on its i-th batch. The same numbers for everyone who makes one."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.batches = [torch.randn(32, WIDTH) for _ in range(STEPS + 8)]
        self.losses: dict[int, float] = {}

    def step(self, i: int) -> None:
        self.optimizer.zero_grad()
        loss = self.model(self.batches[i]).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses[i] = loss.item()

    def bits(self) -> list[bytes]:
        """Of each parameter and its state. By address: an array would be an alias that keeps the parameter in place."""
        return [b"".join(map(_bits, self._tensors(param))) for param in self.model.parameters()]

    def cut_step(self, i: int, updated: set[int]) -> None:
        """The step as one that was cut after these parameters, by number, had stepped."""
        params = list(self.model.parameters())
        kept = {n: self._copy(param) for n, param in enumerate(params) if n not in updated}
        self.step(i)
        del self.losses[i]
        for n, (value, state) in kept.items():
            with torch.no_grad():
                params[n].copy_(value)
            self.optimizer.state.pop(params[n], None)
            if state:
                self.optimizer.state[params[n]] = state

    def _copy(self, param: torch.nn.Parameter) -> tuple[torch.Tensor, dict[str, Any]]:
        state = self.optimizer.state.get(param, {})
        return param.detach().clone(), {name: value.clone() for name, value in state.items()}

    def _tensors(self, param: torch.nn.Parameter) -> list[torch.Tensor]:
        state = self.optimizer.state.get(param, {})
        return [param, *(state[name] for name in sorted(state))]


def _bits(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def live(tracker: str, target: Place | None) -> Outcome:
    """The life of a session in this process, which must be a fresh one, with an interrupt at `target`."""
    warnings.simplefilter("ignore")
    outcome, training, interrupter = Outcome(), Training(), Interrupter(target)
    before_fds = _descriptors()
    annotation = sentinel.annotate(training.model, training.optimizer)
    asked = {"fast": FAST, "slow": SLOW, "tracker": tracker}
    updated: set[int] = set()

    def end_profile() -> None:
        """A step that was cut before its first layer ended has no profile: that is said, and the session has ended."""
        if not sentinel.active():
            return
        try:
            sentinel.end_profile()
        except UsageError as error:
            if outcome.cut_step is None or "has no layer" not in str(error) or sentinel.active():
                raise

    def stop() -> None:
        if sentinel.active():
            sentinel.stop()

    parts: list[tuple[str, Callable[[], None], int | None]] = [
        ("start_profile", lambda: sentinel.start_profile(**asked), None),
        *(("watched step", *_step(training, i)) for i in range(1)),
        ("end_profile", end_profile, None),
        *(("step watched again", *_step(training, i)) for i in range(1, 3)),
        *(("applied step", *_step(training, i)) for i in range(3, STEPS)),
        ("stop", stop, None),
    ]
    for part, call, step in parts:
        interrupter.part = part
        before = training.bits()
        try:
            with _traced(interrupter):
                call()
        except KeyboardInterrupt:
            if step is not None and step not in training.losses:
                outcome.cut_step, updated = step, {n for n, b in enumerate(training.bits()) if b != before[n]}
                outcome.wrong += _within_a_slice(training, step, updated)
            elif step is not None:
                del training.losses[step]
            outcome.session_went_on = sentinel.active()
        if part == "stop":
            training.step(STEPS)  # its ticks are the next call, where the stop was cut short
            stop()  # where it had not begun, the session went on whole
    outcome.raised, outcome.places = interrupter.raised, list(interrupter.places)
    outcome.wrong += _left(before_fds)
    outcome.wrong += _hooks(training)
    _second_session(training, asked, outcome)
    annotation.remove()
    outcome.wrong += _left(before_fds)
    outcome.wrong += _unlike_stock(training, outcome.cut_step, updated)
    return outcome


def _step(training: Training, i: int) -> tuple[Callable[[], None], int]:
    return lambda: training.step(i), i


@contextlib.contextmanager
def _traced(interrupter: Interrupter) -> Iterator[None]:
    if interrupter.follows():
        sys.settrace(interrupter)
    try:
        yield
    finally:
        sys.settrace(None)


def _within_a_slice(training: Training, step: int, updated: set[int]) -> list[str]:
    """A step that was cut has stepped whole slices, the first ones: what is wrong with it otherwise."""
    whole: set[int] = set()
    for parts in ([], *slices.slices(training.optimizer)):
        whole |= {n for _, start, end in parts for n in range(start, end)}
        if updated == whole:
            return []
    return [f"step {step} was cut within a slice: parameters {sorted(updated)} have stepped"]


def _left(before_fds: list[str]) -> list[str]:
    """What must not be there when no session runs."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    found = []
    if "memfd:sentinel" in maps:
        found.append("the memfd is mapped")
    if operators.recording():
        found.append("operators are recorded")
    if RUNTIME.sink is not None:
        found.append("a session takes ticks")
    if RUNTIME.memory is not None or torch_shim.function("sn_shim_installed", ctypes.c_int)():
        found.append("our allocator is installed")
    if native.library().sn_memory_mode() != 0:
        found.append(f"the allocator's mode is {native.library().sn_memory_mode()}")
    if (now := _descriptors()) != before_fds:
        found.append(f"descriptors: {now} instead of {before_fds}")
    tasks = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    threads = len(tasks) - tasks.count("jemalloc_bg_thd")  # pyarrow's allocator's, where pandas finds that library
    if threads > 1:
        found.append(f"{threads} threads run")
    held = native.function("sn_log_count", ctypes.c_uint64)()
    torch.zeros(4096)
    if native.function("sn_log_count", ctypes.c_uint64)() != held:
        found.append("the log grows")
    return found


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kind = os.readlink(f"/proc/self/fd/{name}")
            if kind.startswith(("anon_inode:", "/memfd:")):
                found.append(kind)
    return sorted(found)


def _hooks(training: Training) -> list[str]:
    """Of a step that ran and of sessions that ended: none but those of `annotate`, which has none in these tables."""
    params = sum(len(p._post_accumulate_grad_hooks or ()) for p in training.model.parameters())
    optimizer = training.optimizer
    own = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    counts = {
        "parameters": params,
        "the optimizer": own,
        "all optimizers": len(torch_optimizer._global_optimizer_post_hooks),
    }
    whole = sum(len(group["params"]) for group in optimizer.param_groups)
    cut = [] if whole == 2 * DEPTH else [f"the optimizer has {whole} parameters of {2 * DEPTH}"]
    return cut + [f"{count} hooks are left on {where}" for where, count in counts.items() if count]


def _second_session(training: Training, asked: dict[str, Any], outcome: Outcome) -> None:
    try:
        sentinel.start_profile(**asked)
        training.step(STEPS + 1)
        sentinel.end_profile()
        for i in range(STEPS + 2, STEPS + 6):
            training.step(i)
        if sentinel.stop().steps.size < 1:
            outcome.wrong.append("the second session applied nothing")
        sentinel.report().text()
    except Exception as error:
        outcome.wrong.append(f"the second session: {type(error).__name__}: {error}")


def _unlike_stock(training: Training, cut: int | None, updated: set[int]) -> list[str]:
    stock = Training()
    for i in range(STEPS + 6):
        if i == cut:
            stock.cut_step(i, updated)
        else:
            stock.step(i)
    found = []
    if stock.losses != training.losses:
        found.append("losses differ from stock's")
    if stock.bits() != training.bits():
        found.append("parameters differ from stock's")
    return found
