"""PassiveSession: training under a memory budget whose overflow is in a file, without a profile.

Tensors of 1 MiB and more live in frames; the operands of each operator are brought into memory before it runs. One step
is recorded, and by it what later ones need is read ahead; before, and where a step is another one, what was needed
longest ago leaves. Any script trains so, from before its model is built.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from sentinel.core.ending import end_all
from sentinel.core.plan import Plan
from sentinel.core.rules import holding, require
from sentinel.core.run import Run
from sentinel.core.trace import Phase
from sentinel.core.units import PAGE_BYTES, counted, format_bytes
from sentinel.migration.adopt import adopt
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import annotate, names, torch_shim
from sentinel.profiler.step_ends import StepEnds
from sentinel.reports import Report, Setup, StorageFigures, build_report
from sentinel.runtime import RUNTIME
from sentinel.session.applying import nothing_ran
from sentinel.session.fused_steps import FusedSteps
from sentinel.session.overlapped_steps import OverlappedSteps
from sentinel.session.request import Request
from sentinel.system import native
from sentinel.system.progress import say
from sentinel.tiers.file_tier import LEAST_BYTES, FileTier, FramedTensors
from sentinel.tiers.frames import FRAME_BYTES
from sentinel.tiers.pool_cap import pool_now

NAMED = 'name the model, start_profile(model, optimizer, fast=..., slow="file:..."), or begin before it is built'

_NO_STEP = (
    "No step was recorded, so what an operator needs is read before it runs, and nothing ahead: that begins after three"
    " steps of torch.optim optimizers."
)
_TOO_LONG = "A step uses more than 4 million pieces of 2 MiB: it is not recorded, and nothing is read ahead."
_OTHERS = (
    "Most operators were not those of the recorded step, as with batches of many shapes: nothing is read ahead there."
)


class PassiveSession:
    """Begins with `open`, ends with `stop`. All threads' tensors and operators count.

    It takes ticks, which lead to nothing: steps are told apart by the optimizers, annotated or not.
    """

    def __init__(self, request: Request, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.request = request
        self._tier = FileTier.asked(request.slow, request.fast, request.cap)
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
        self._overlapped = OverlappedSteps(LEAST_BYTES) if request.overlap_optimizer else None
        if self._overlapped is not None:
            self._overlapped.check(optimizers)
        self._left: list[tuple[str, int, str]] = []
        self._unnamed_bytes = 0
        self._process = os.getpid()
        self._setup_ns = 0
        self._told_too_large = False
        self._resident_bytes = 0  # at the end
        self._began = 0.0

    def open(self) -> None:
        """Begin. Whatever is wrong is raised with nothing changed."""
        began = time.perf_counter_ns()
        self._began = time.monotonic()
        if self._tier.chosen:
            say(self._tier.chosen)
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
        except BaseException:
            self._close()
            raise
        self._setup_ns = time.perf_counter_ns() - began

    def add(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Move into frames what these have, and what is annotated, that is elsewhere."""
        assert self._memory is not None
        annotated_models, annotated_optimizers = annotate.annotated()
        held = names.persistent_tensors([*models, *annotated_models], [*optimizers, *annotated_optimizers])
        wanted = [(name, tensor) for name, tensor, _ in held if self._is_elsewhere(tensor.untyped_storage())]
        if not wanted:
            return
        rows = adopt(self._memory, wanted)
        self._left += [(row.name, row.nbytes, row.reason) for row in rows if not row.moved]

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """See TickSink."""

    def step_boundary(self) -> None:
        """See TickSink."""

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
            self._resident_bytes = self._framed.resident_bytes()
        self._close()
        return nothing_ran(None)

    def report(self) -> Report:
        """What moved, and what it took."""
        assert self._framed is not None, "open() comes first"
        figures = self._figures(self._framed)
        return build_report(
            setup=Setup(
                kind="passive",
                slow=self.request.slow,
                fast=None if self.request.fast is None else str(self.request.fast),
                cap=None if self.request.cap is None else str(self.request.cap),
                setup_ns=self._setup_ns,
                in_place=tuple(self._left),
                notes=tuple(self._notes(figures)),
                script=sys.argv[0] or None,
                storage=figures,
            )
        )

    def _close(self) -> None:
        """May be called again, wherever it was cut short."""
        self._models, self._optimizers = [], []  # else their tensors would live as long as the report
        if os.getpid() == self._process:  # and no child of a fork that Python was not told of: all is its parent's
            end_all(
                self._leave_optimizers, self._step_ends.leave, self._fused.restore, self._end_frames, self._uninstall
            )
        if RUNTIME.sink is self:
            RUNTIME.sink = None

    def _leave_optimizers(self) -> None:
        if self._overlapped is not None:
            self._overlapped.end()

    def _step_ended(self) -> None:
        if self._framed is None:
            return
        self._framed.step()
        if not self._told_too_large and self._framed.counters().too_large:
            self._told_too_large = True
            say(self._about_too_large(self._figures(self._framed)), wrong=True)

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
        return nbytes >= LEAST_BYTES and not self._framed.contains(address)

    def _bytes_elsewhere(self) -> int:
        """Of parameters that nobody named, and that were there before."""
        found = {}
        for held in gc.get_objects():
            if type(held) is nn.Parameter and names.storage_address(held):
                storage = held.untyped_storage()
                if self._is_elsewhere(storage):
                    found[storage.data_ptr()] = storage.nbytes()
        return sum(found.values()) - sum(nbytes for _, nbytes, _ in self._left)

    def _figures(self, framed: FramedTensors) -> StorageFigures:
        told, facts, pool, cap = framed.counters(), framed.facts, pool_now(), self._tier.cap
        ahead = framed.ahead()
        assert self._memory is not None
        ordinary = self._memory.counters()
        running = RUNTIME.sink is self
        return StorageFigures(
            pool_bytes=pool.frames * FRAME_BYTES,
            least_pool_bytes=pool.least_frames * FRAME_BYTES,
            most_pool_bytes=pool.most_frames * FRAME_BYTES,
            cap_bytes=0 if cap is None else cap.cap_bytes,
            taken_bytes=0 if cap is None else cap.taken_bytes,
            most_taken_bytes=0 if cap is None else max(cap.taken_bytes, pool.most_taken_bytes),
            spare_bytes=0 if cap is None else cap.spare_bytes,
            over_bytes=pool.over_bytes,
            looks=pool.looks,
            resident_bytes=framed.resident_bytes() if running else self._resident_bytes,
            huge_bytes=pool.huge_frames * FRAME_BYTES,
            file_bytes=self._tier.file_bytes,
            direct=facts.direct,
            tensor_peak_bytes=told.peak_live_bytes,
            elsewhere_peak_bytes=ordinary.unmanaged_peak_bytes,
            read_bytes=told.frames.read_bytes,
            written_bytes=told.frames.written_bytes,
            dropped_granules=told.frames.dropped,
            unread_bytes=told.frames.unread_bytes,
            beside_peak_bytes=told.frames.most_own_pages * PAGE_BYTES,
            carried_pages=told.frames.carried_pages,
            waited_stores=told.frames.waited,
            fork_bytes=told.frames.fork_bytes,
            operators=told.needs,
            waited_ns=told.need_ns,
            too_large=told.too_large,
            too_large_bytes=told.too_large_bytes,
            too_large_by=told.too_large_by,
            sliced=told.sliced,
            refused=told.refused,
            refused_bytes=told.refused_bytes,
            failed=told.failed,
            recorded=ahead.recorded,
            matched=ahead.matched,
            missed=ahead.missed,
            hit_bytes=ahead.hit_bytes,
            late_bytes=ahead.late_bytes,
            vain_bytes=ahead.vain_bytes,
            demanded_bytes=ahead.demanded_bytes,
            wait_before_ns=ahead.wait_before_ns,
            wait_after_ns=ahead.wait_after_ns,
            record_too_long=bool(ahead.too_long),
        )

    def _notes(self, told: StorageFigures) -> list[str]:
        budget, there = format_bytes(told.pool_bytes), format_bytes(self._unnamed_bytes)
        allocations, refused = counted(told.refused, "allocation"), format_bytes(told.refused_bytes)
        more = "raise fast" if self._tier.cap is None else "raise cap (and fast, if given)"
        hour = told.written_bytes * 3600 / max(time.monotonic() - self._began, 1)
        return holding(
            (not told.recorded and not told.record_too_long, _NO_STEP),
            (told.record_too_long and not told.recorded, _TOO_LONG),
            (told.missed > told.matched, _OTHERS),
            *((True, note) for note in (() if self._overlapped is None else self._overlapped.notes())),
            (self._tier.chosen, self._tier.chosen),
            (told.cap_bytes, self._about_cap(told)),
            (
                told.over_bytes,
                (
                    f"The cap was missed by up to {format_bytes(told.over_bytes)}: the rest of the process left too"
                    f" little; allow at least {format_bytes(told.cap_bytes + told.over_bytes)}"
                ),
            ),
            (told.written_bytes, f"{format_bytes(hour)} an hour are written to the disk, which wears."),
            (
                self._unnamed_bytes > 0,
                f"{there} of parameters were there before and stayed in ordinary memory: {NAMED}",
            ),
            (told.too_large, self._about_too_large(told)),
            (
                told.refused,
                f"{allocations} ({refused} added up) found no room and took memory beyond the budget; {more}",
            ),
            (told.failed, f"{counted(told.failed, 'operand')} could not be read ahead of use; the kernel read them"),
            (not told.direct, "The disk is read and written through the page cache only, which takes memory too."),
            (told.huge_bytes < told.pool_bytes, f"Only {format_bytes(told.huge_bytes)} of {budget} are huge pages."),
        )

    def _about_too_large(self, told: StorageFigures) -> str:
        # Under a cap the budget may have been less then than it is now.
        missing = max(told.too_large_bytes - told.least_pool_bytes, FRAME_BYTES)
        if self._tier.cap is None:
            enough = f'fast="{told.too_large_bytes >> 20}MiB" would do'
        else:
            enough = f"a cap higher by {format_bytes(missing)} would do (and as much fast, if given)"
        return (
            f"{counted(told.too_large, 'operator')}, first {told.too_large_by}, used up to"
            f" {format_bytes(told.too_large_bytes)} at once, more than {format_bytes(told.least_pool_bytes)}: such a"
            " one runs on pages read one by one, which is slow, and what it writes takes memory beyond the budget until"
            f" it is taken in, a few milliseconds later; {enough}"
        )

    def _about_cap(self, told: StorageFigures) -> str:
        cap = self._tier.cap
        if cap is None:
            return ""
        least, most = format_bytes(told.least_pool_bytes), format_bytes(told.most_pool_bytes)
        return (
            f"{format_bytes(cap.cap_bytes)} is the cap on {cap.whose}: {format_bytes(cap.taken_bytes)} were taken"
            f" before, {format_bytes(cap.spare_bytes)} stay free, and tensors got {format_bytes(cap.pool_bytes)}; as"
            f" the rest took up to {format_bytes(told.most_taken_bytes)}, they had {least} to {most}."
        )
