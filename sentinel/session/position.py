"""StepPosition: where in its step the job is, and whether it goes through another cycle of layers from now on.

The only file of the session that feeds ticks and optimizer steps to the clock (`LayerClock.identify`, `advance`,
`boundary`) and to the detector of new cycles (`CycleChangeDetector.hear`, `boundary`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.core.trace import LayerId
from sentinel.profiler.layers import LayerClock
from sentinel.session.layer_cycle import CycleChangeDetector, LayerCycle, Tick

STEPS_BETWEEN_CHANGES = 100
"""Once the job has changed its cycle, another change counts only after this many optimizer steps."""


class StepPosition:
    """Records the ticks of the profiled step (`learn` ends that), then follows the cycle that they make.

    While a step of a new cycle is waited for (`follow_change`), the clock of the cycle before is kept: `keep_change`
    drops that clock, `undo_change` takes it back. `n_changes`: how many new cycles were recorded until now.
    """

    def __init__(self) -> None:
        self._clock = LayerClock()
        self._before: LayerClock | None = None
        self._detector: CycleChangeDetector | None = None
        self.n_changes = 0

    # ---- what ticks and optimizer steps say -----------------------------------------------------------------

    def accepts(self, grad: bool) -> bool:
        """Whether an `add_layer` tick counts: see LayerClock.accepts."""
        return self._clock.accepts(grad)

    def advance(self, tick: Tick) -> int | None:
        """The layer that begins with this tick; None while out of step."""
        clock = self._clock
        if clock.ring:
            return clock.follow(*tick)
        clock.identify(*tick)
        return clock.layer

    def changed_by(self, tick: Tick) -> LayerCycle | None:
        """The job's new cycle, if this tick, which was advanced by, shows that the job has one."""
        return None if self._detector is None else self._detector.hear(tick)

    def boundary(self) -> LayerCycle | None:
        """An optimizer has stepped. The job's new cycle, if that shows that the job has one."""
        self._clock.boundary()
        return None if self._detector is None else self._detector.boundary()

    # ---- where the job is -------------------------------------------------------------------------------

    @property
    def layer(self) -> int | None:
        """The layer under way as far as identities of ticks tell, also out of step; None if they do not."""
        return self._clock.layer

    @property
    def in_step(self) -> bool:
        """Whether every tick since the cycle's first one came as expected."""
        return self._clock.in_step

    @property
    def layers(self) -> tuple[LayerId, ...]:
        """The cycle that is followed; empty while the first one is recorded."""
        return self._clock.ring

    @property
    def boundaries(self) -> tuple[int, ...]:
        """After how many ticks of the cycle an optimizer steps."""
        return self._clock.boundaries

    @property
    def second_layer(self) -> int:
        """The layer that begins with the cycle's first tick: 1, or 0 in a cycle of one layer."""
        return 1 % len(self._clock.ring)

    # ---- which cycle is followed ------------------------------------------------------------------------

    def require_end(self, most: int) -> None:
        """Raises UsageError where the profiled step has gone on for more than `most` optimizer steps."""
        self._clock.require_end(most)

    def learn(self) -> tuple[LayerId, ...]:
        """End the recording: its ticks are the cycle that is followed from now on. Raises UsageError if there were
        none."""
        return self._clock.learn()

    def follow_saved(self, layers: Sequence[LayerId]) -> None:
        """Follow the layers of a saved plan; when its optimizers step is not known before `learn_boundaries`."""
        self._clock = LayerClock(layers)

    def learn_boundaries(self, boundaries: Sequence[int]) -> None:
        """Optimizers step after so many ticks of the cycle that is followed."""
        self._clock.boundaries = tuple(boundaries)

    def follow(self, cycle: LayerCycle) -> None:
        """Follow `cycle`, out of step until its first tick."""
        self._clock = self._clock.another(cycle.ticks, cycle.boundaries)

    def follow_recorded(self, cycle: LayerCycle) -> None:
        """Follow `cycle`, the ticks of a step that was recorded just now and whose first tick has just come again.

        Where the same cycle is followed already, nothing changes.
        """
        clock = self._clock.another(cycle.ticks, cycle.boundaries)
        if clock.ring != self._clock.ring:
            clock.advance(clock.identify(*cycle.ticks[0]))
            self._clock = clock

    # ---- new cycles -------------------------------------------------------------------------------------

    @property
    def detecting(self) -> bool:
        """Whether new cycles are looked for."""
        return self._detector is not None

    def detect_changes(self) -> None:
        """From now on new cycles are looked for."""
        earliest = STEPS_BETWEEN_CHANGES if self.n_changes else 0
        self._detector = CycleChangeDetector(self._cycle(), earliest=earliest)

    def stop_detecting(self) -> None:
        """New cycles are not looked for any more."""
        self._detector = None

    def describe(self, change: LayerCycle) -> str:
        """What the report says of a new cycle, as a sentence."""
        assert self._detector is not None
        return self._detector.describe(change)

    def follow_change(self, change: LayerCycle) -> None:
        """Follow a new cycle until `keep_change` or `undo_change`; another new one is looked for until it comes."""
        self._before = self._before or self._clock
        self.follow(change)
        self._detector = CycleChangeDetector(change)

    def keep_change(self) -> None:
        """A step of the new cycle was recorded and planned."""
        self._before, self._detector = None, None
        self.n_changes += 1

    def undo_change(self) -> None:
        """The new cycle got no plan: follow the one before, out of step until its first tick."""
        assert self._before is not None
        self._clock = self._before
        self._clock.lose()
        self.keep_change()

    def _cycle(self) -> LayerCycle:
        return LayerCycle.of(self._clock.ring, self._clock.boundaries)
