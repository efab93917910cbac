"""PassiveSession: training under a memory budget whose overflow is in a file, without a profile.

Tensors of 1 MiB and more live in frames; the operands of each operator are brought into memory before it runs. One step
is recorded, and by it what later ones need is read ahead; before, and where a step is another one, what was needed
longest ago leaves. Any script trains so, from before its model is built.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.ending import end_all
from sentinel.core.granule_uses import GranuleUses
from sentinel.core.interrupts import is_interrupt
from sentinel.core.plan import Plan
from sentinel.core.rules import require
from sentinel.core.run import Run
from sentinel.core.trace import Phase
from sentinel.core.units import format_bytes
from sentinel.migration.adopt import adopt
from sentinel.migration.frozen_objects import all_objects
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import annotate, names, torch_shim
from sentinel.profiler.step_ends import StepEnds
from sentinel.reports import Report, Setup, build_report
from sentinel.runtime import RUNTIME
from sentinel.session.applying import nothing_ran
from sentinel.session.fused_steps import FusedSteps
from sentinel.session.overlapped_steps import OverlappedSteps
from sentinel.session.request import Request
from sentinel.session.step_rounds import StepRounds
from sentinel.session.storage_figures import StepTimes, alarms, figures_of, notes_on
from sentinel.system import native
from sentinel.system.progress import say
from sentinel.system.topology import topology
from sentinel.tiers.ahead import recorded_step
from sentinel.tiers.file_tier import FileTier, FramedTensors
from sentinel.tiers.frames import FRAME_BYTES
from sentinel.tiers.pool_cap import pool_now


class PassiveSession:
    """Begins with `open`, ends with `stop`. All threads' tensors and operators count.

    It takes ticks, which lead to nothing: steps are told apart by the optimizers, annotated or not.
    """

    def __init__(self, request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.request = request
        self._tier = FileTier.asked(request.slow, request.fast, request.cap, RUNTIME.bytes_beside(topology().fast))
        unplanned = ("machine", "plan", "rate_limit", "tracker", "policy")
        require(
            *(
                (
                    getattr(request, name) != getattr(Request, name),
                    f"{name}= with slow={request.slow!r}: nothing is planned on a file yet",
                    f"leave {name} out",
                )
                for name in unplanned
            )
        )
        self._models, self._optimizers = list(models), list(optimizers)
        self._framed: FramedTensors | None = None
        self._memory: ManagedMemory | None = None
        self._fused = FusedSteps(lambda: pool_now().frames * FRAME_BYTES)
        self._step_ends = StepEnds(self._step_ended)
        self._overlapped = OverlappedSteps(self._tier.least_bytes) if request.overlap_optimizer else None
        if self._overlapped is not None:
            self._overlapped.check(optimizers)
        self._left: list[tuple[str, int, str]] = []
        self._unnamed_bytes = 0
        self._foreign_before = 0
        self._foreign_bytes: int | None = None  # None before a step has ended
        self._process = os.getpid()
        self._setup_ns = 0
        self._told: set[str] = set()
        self._resident_bytes = 0, 0  # at the end
        self._recorded: GranuleUses | None = None  # then
        self._times, self._rounds = StepTimes(), StepRounds()
        self._began = 0.0
        self._hourly_bytes: float | None = None  # at the end
        self.cut_short = False
        """An interrupt may have come as it ended: `finish_ending` ends it, by the next call of whatever kind."""

    def open(self) -> None:
        """Begin. Whatever is wrong is raised with nothing changed."""
        began = time.perf_counter_ns()
        self._began = time.monotonic()
        for sentence in self._tier.told:
            say(sentence)
        self._memory = ManagedMemory.reserve()
        try:
            RUNTIME.sink = self
            self._framed = self._tier.begin()
            self._memory.activate()
            native.check("sn_operands_watch", torch_shim.function("sn_operands_watch", ctypes.c_int)())
            self._fused.split()
            self._step_ends.watch()
            if self._overlapped is not None:
                self._overlapped.begin()
            self.add(self._models, self._optimizers)
            self._unnamed_bytes = self._bytes_elsewhere()
            self._foreign_before = self._bytes_elsewhere(foreign=True)
        except BaseException:
            self.finish_ending()
            raise
        self._setup_ns = time.perf_counter_ns() - began

    def add(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Move into frames what these have, and what is annotated, that is elsewhere."""
        assert self._memory is not None
        held = _named(models, optimizers)
        wanted = [(name, tensor) for name, tensor, _ in held if self._is_elsewhere(tensor.untyped_storage())]
        if not wanted:
            return
        rows = adopt(self._memory, wanted)
        self._left += [(row.name, row.nbytes, row.reason) for row in rows if not row.moved]

    def read_nothing_ahead(self) -> None:
        """From now on no step is told from the next, so none is recorded: each operator waits for what it needs. For
        who wants to know what reading ahead is worth."""
        self._step_ends.leave()

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""

    def step_boundary(self) -> None:
        """See TickSink."""

    @property
    def profiling(self) -> bool:
        """See BegunSession: on a file no step is profiled."""
        return False

    def end_profile(self) -> Plan:
        """A plan without a layer: on a file none is made yet."""
        return Plan(
            policy="none",
            layers=(),
            tier_names=("fast", self.request.slow),
            capacity_bytes=(self._tier.fast_bytes, self._tier.file_bytes),
            segments=(),
            slots=(),
            blocks=(),
            migrations=(),
            footprint_bytes=0,
            fast_needed_bytes=0,
            provisional=True,
        )

    def stop(self) -> Run:
        """New tensors come from PyTorch's own allocator. Those that live in frames stay there until they die, and are
        brought in where they are needed, as before."""
        if self._framed is not None and RUNTIME.sink is self:
            try:
                self._hourly_bytes = self._written_an_hour()
                self._recorded = recorded_step()
                self._resident_bytes = self._framed.resident_bytes()
            except Exception as error:  # only a report wants these
                if is_interrupt(error):
                    self.finish_ending()
                    raise
        self.finish_ending()
        return nothing_ran(None)

    def report(self, *, bounded: bool = True) -> Report:
        """What moved, and what it took. `bounded`: after a search for the bound, which may take seconds."""
        assert self._framed is not None, "open() comes first"
        assert self._memory is not None
        running = RUNTIME.sink is self
        recorded = recorded_step() if running and bounded else self._recorded
        figures = figures_of(
            self._framed,
            self._tier,
            self._memory.counters(),
            self._framed.resident_bytes() if running else self._resident_bytes,
            recorded if bounded else None,
            self._times,
            self._rounds,
        )
        beside = (*([] if self._overlapped is None else self._overlapped.notes()), *self._about_devices())
        hourly_bytes = self._written_an_hour() if self._hourly_bytes is None else self._hourly_bytes
        left_bytes = max((nbytes for _, nbytes, _ in self._left), default=0)
        kept = {"left_bytes": left_bytes, "foreign_bytes": self._foreign_bytes or 0}
        notes = notes_on(figures, self._tier, self._unnamed_bytes, hourly_bytes, beside, **kept)
        return build_report(
            setup=Setup(
                kind="passive",
                slow=self.request.slow,
                fast=None if self.request.fast is None else str(self.request.fast),
                cap=None if self.request.cap is None else str(self.request.cap),
                setup_ns=self._setup_ns,
                in_place=tuple(self._left),
                notes=tuple(notes),
                script=next(iter(sys.argv), "") or None,  # a script may have taken all of them
                storage=figures,
            )
        )

    def _written_an_hour(self) -> float:
        assert self._framed is not None
        written_bytes: int = self._framed.counters().frames.written_bytes
        return written_bytes * 3600 / max(time.monotonic() - self._began, 1)

    def _about_devices(self) -> list[str]:
        assert self._framed is not None
        stays = self._framed.counters().frames.pinned * FRAME_BYTES
        if not stays:
            return []
        told = (
            f"{format_bytes(stays)} of tensors stay where they are: a device's driver has registered memory there"
            " (cudaHostRegister) and uses its pages, so these stay in memory, also beyond the budget"
        )
        return [told]

    def finish_ending(self) -> None:
        """End it, or what an interrupt has left of it: it may be called again, wherever it was cut short."""
        self.cut_short = True
        self._models, self._optimizers = [], []  # else their tensors would live as long as the report
        if os.getpid() == self._process:  # and no child of a fork that Python was not told of: all is its parent's
            end_all(
                self._leave_optimizers, self._step_ends.leave, self._fused.restore, self._end_frames, self._uninstall
            )
        if RUNTIME.sink is self:
            RUNTIME.sink = None
        self.cut_short = False

    def _leave_optimizers(self) -> None:
        if self._overlapped is not None:
            self._overlapped.end()

    def _step_ended(self) -> None:
        if os.getpid() != self._process:  # a forked child inherits the hook, and nothing that it is for
            return
        self._times.ended()
        if self._framed is None:
            return
        round_ended = self._rounds.step_ended()
        if round_ended:
            self._framed.step()
        if self._foreign_bytes is None:
            self._foreign_bytes = max(self._bytes_elsewhere(foreign=True) - self._foreign_before, 0)
        assert self._memory is not None
        self._memory.give_back()  # what named tensors have left, which other threads may have read until now
        # without resident bytes and the bound, which take time to find
        ordinary, unknown = self._memory.counters(), (0, 0)
        told = figures_of(self._framed, self._tier, ordinary, unknown, None, self._times, self._rounds)
        if round_ended:
            self._rounds.told(told.recorded, too_long=told.record_too_long)
        for kind, sentence in alarms(told, self._tier).items():
            if kind not in self._told:
                self._told.add(kind)
                say(sentence, wrong=True)

    def _end_frames(self) -> None:
        if RUNTIME.sink is self:  # an interrupt may have come before `_framed` was known; a forked child has no sink
            FramedTensors.end()

    def _uninstall(self) -> None:
        if self._memory is not None and RUNTIME.memory is self._memory:
            self._memory.own()  # any thread may stop it
            self._memory.uninstall()

    def _is_elsewhere(self, storage: torch.UntypedStorage) -> bool:
        assert self._framed is not None
        nbytes, address = storage.nbytes(), storage.data_ptr()
        return nbytes >= self._tier.least_bytes and not self._framed.contains(address)

    def _bytes_elsewhere(self, *, foreign: bool = False) -> int:
        """Of parameters that nobody named, and that were there before. `foreign`: of all whose memory is not torch's
        own, and so can never be a frame's."""
        named = {names.storage_address(tensor) for _, tensor, _ in _named(self._models, self._optimizers)}
        found = {}
        for held in all_objects():
            if type(held) is nn.Parameter and (address := names.storage_address(held)) and address not in named:
                storage = held.untyped_storage()
                if self._is_elsewhere(storage) and not (foreign and storage.resizable()):
                    found[address] = storage.nbytes()
        return sum(found.values())


def _named(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> list[names.Named]:
    """What these hold, and what is annotated."""
    annotated_models, annotated_optimizers = annotate.annotated()
    return names.persistent_tensors([*models, *annotated_models], [*optimizers, *annotated_optimizers])
