"""Recording: one observed step, from allocations, operators and touched pages to a Trace."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from sentinel.core.ending import end_all
from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.trace import LayerId, Trace
from sentinel.core.units import format_bytes
from sentinel.migration.memory import ManagedMemory
from sentinel.migration.other_threads import holders
from sentinel.profiler.pages.armed_tracker import GRANULE_BYTES, close_all
from sentinel.profiler.pages.protocol import AddressRange, PageSamples, PageTracker
from sentinel.profiler.pages.trackers import AUTO, check_words, choose
from sentinel.profiler.record import StepRecorder
from sentinel.session.training_job import TrainingJob
from sentinel.system import native

LARGE_BYTES = 16 << 30
"""Jobs whose tensors hold so much are watched in granules: at 0.5 to 0.9 µs a fault and about five faults a page, the
pages of 16 GiB take 10 to 20 s of a watched step, those of 128 GiB two minutes."""

MOST_FORKS = 3
"""Where 3 steps in a row fork while they are recorded, the last one goes by its operators: no step would ever be
watched to its end."""


def choose_tracker(name: str, held_bytes: int = 0) -> tuple[PageTracker | None, list[str]]:
    """The page tracker asked for (`"ebpf:2MiB"`: large tensors in granules), None for operators alone; and what to say
    of the choice: why more exact ones were not taken, and why in granules. Without a word on granules, the `held_bytes`
    of the job decide."""
    check_words(name)
    if name == "ops":
        return None, []
    by_size = ":" not in name and name != "uffd" and held_bytes >= LARGE_BYTES
    tracker, untaken = choose(f"{name}:{format_bytes(GRANULE_BYTES).replace(' ', '')}" if by_size else name)
    told = [f"tracker not taken: {why}" for why in untaken]
    if by_size and tracker is not None:
        told.append(
            f"large tensors are watched in granules of {format_bytes(GRANULE_BYTES)}, for the job's hold"
            f' {format_bytes(held_bytes)}: tracker="{tracker.name}:4KiB" tells each page, and takes longer'
        )
    return tracker, told


_REGISTERED_LATE = (
    "a device's driver registered memory of tensors (cudaHostRegister) while their pages were watched: these were"
    " replaced as the watch ended, and the device goes on using the old ones; register it before start_profile(), or"
    " after end_profile()"
)


class Recording:
    """Records the steps of `job` one at a time: `begin`, `end_layer` at each tick, then `finish` or `close`.

    `notes`: what to say of the choice of its tracker. `cut_short`: a fork ended the watch of the step recorded last, so
    which pages it touched is not known.
    """

    def __init__(self, memory: ManagedMemory, job: TrainingJob) -> None:
        self._memory, self._job = memory, job
        self._tracker: PageTracker | None = None
        self._required = False  # the tracker: asked for by name, for the step that is profiled between two calls
        self._recorder: StepRecorder | None = None
        self.notes: list[str] = []
        self.cut_short = False
        self._forks = 0  # whole steps in a row that were cut short

    def choose(self, tracker: str) -> None:
        """Watch by the page tracker asked for (`"ebpf:2MiB"`: large tensors in granules), `"ops"`: by operators alone.

        Raises CapabilityError where one asked for by name does not work here.
        """
        self._required = tracker.partition(":")[0] != "auto"
        self._tracker, self.notes = choose_tracker(tracker, self._job.held_bytes())

    @property
    def replaces_pages(self) -> bool:
        """Whether the next step is recorded by a page tracker, as far as is known: it replaces all pages twice."""
        return self._tracker is not None

    def prepare(self) -> None:
        """To be called before the job's tensors are adopted, if a recording comes next: they are copied once less."""
        watched, tensors = [self._arena()], set(self._job.addresses().values()) - {0}

        def others() -> list[str]:
            return holders(lambda address: address in tensors or self._memory.contains(address))

        self._leave_registered()
        self._with_tracker(lambda tracker: tracker.prepare(watched, others))

    def begin(self, layer: int) -> None:
        """The step to record begins in `layer`: 0 at a step boundary, 1 at the cycle's first tick."""
        self._memory.record()
        self._recorder = recorder = StepRecorder()
        recorder.start(self._job.models, self._job.optimizers, self._job.numbers)
        self._watch_pages(layer)
        self._memory.tick(layer)
        recorder.resume()

    def _arena(self) -> AddressRange:
        base, _, reserved = self._memory.exclusive_extent()
        return AddressRange(base, base + reserved)

    def _is_registered(self) -> bool:
        """Whether a device uses pages that watching replaces, as it begins and as it ends."""
        base, used, _ = self._memory.exclusive_extent()
        pins = native.function("sn_device_pins", ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
        return bool(pins(base, used)) or any(pins(each, 1) for each in self._job.addresses().values() if each)

    def _leave_registered(self) -> None:
        """No tracker watches what a device uses. Raises CapabilityError where one was asked for by name."""
        if self._tracker is not None and self._is_registered():
            self._give_up_tracker(
                CapabilityError(
                    "replacing the memory of tensors that a device's driver has registered (cudaHostRegister)",
                    "the device would go on using the pages that were there",
                    "register it after the profiled step, or use --tracker ops",
                )
            )

    def _watch_pages(self, layer: int) -> None:
        def watch(tracker: PageTracker) -> None:
            tracker.start([self._arena()], lambda: holders(self._memory.contains))
            tracker.mark(layer)

        self._leave_registered()
        self._with_tracker(watch)

    def _with_tracker(self, call: Callable[[PageTracker], None]) -> None:
        """One that was not asked for by name, and fails at full size, gives way to the next."""
        while self._tracker is not None:
            try:
                call(self._tracker)
                return
            except (CapabilityError, NativeError) as error:
                failed = self._tracker
                self._give_up_tracker(error)
                if failed.name in AUTO:
                    self._tracker, untaken = choose(f"auto:{failed.granule_bytes}", below=failed.name)
                    self.notes += [f"tracker not taken: {why}" for why in untaken]

    def _give_up_tracker(self, error: CapabilityError | NativeError) -> None:
        """It failed: what it saw of this step is lost, operators remain. Raises `error` where it is required."""
        if self._tracker is None or self._required:
            raise error
        self.notes.append(f"tracker not taken: {self._tracker.name}: {error}")
        self._tracker.close()
        self._tracker = None

    def end_layer(self, ended: int, begins: int) -> None:
        """A tick of the step: layer `ended` is over, `begins` is the next."""
        recorder = self._running()
        recorder.tick(ended)
        self._memory.tick(begins)
        if self._tracker is not None:
            try:
                self._tracker.mark(begins)
            except (CapabilityError, NativeError) as error:
                self._give_up_tracker(error)
            recorder.resume()

    def end_last_layer(self, ended: int) -> None:
        """The tick that closes the step: `finish` comes next."""
        self._running().tick(ended)

    def finish(self, layers: tuple[LayerId, ...]) -> Trace:
        """End the step, whose layers are these."""
        recorder = self._running()
        recorder.stop()
        if self._tracker is not None and self._is_registered():
            self.notes.append(_REGISTERED_LATE)
        samples = self._samples()
        self.cut_short = self._tracker is not None and self._tracker.cut_short
        if self.cut_short:
            samples = None
        self._required = False  # later recordings come when the session chooses: they make do with less
        return recorder.finish(self._memory.events(), layers, self._job.persistent(), samples)

    def to_repeat(self) -> bool:
        """Whether the step that has finished, a whole one, is recorded once more since a fork cut it short."""
        self._forks = self._forks + 1 if self.cut_short else 0
        return 0 < self._forks < MOST_FORKS

    def _samples(self) -> PageSamples | None:
        if self._tracker is None:
            return None
        try:
            return self._tracker.stop()
        except (CapabilityError, NativeError) as error:
            self._give_up_tracker(error)
            return None

    def close(self) -> None:
        """End what is under way without a Trace, however far it came, also trials of trackers. May be called again."""
        ends: list[Callable[[], None]] = [close_all]
        if self._tracker is not None:
            ends.insert(0, self._tracker.close)
        if self._recorder is not None:
            ends.insert(0, self._recorder.abandon)
        end_all(*ends)

    def _running(self) -> StepRecorder:
        assert self._recorder is not None, "begin() comes first"
        return self._recorder
