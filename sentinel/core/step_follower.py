"""StepFollower: where in its step a job is, and which cycle of layers it goes through, from its ticks and its
optimizers' steps alone. A list of those replays it.

Nobody else stores the position, or whether the job is in step: a tick is answered with a Position, and whoever acts on
it is told that. (The native library has the layer under way too: each allocation asks for it.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from sentinel.core.errors import UsageError
from sentinel.core.layer_cycle import MOST_TICKS, CycleChangeDetector, LayerCycle, Tick
from sentinel.core.trace import LayerId

STEPS_BETWEEN_CHANGES = 100
"""Once the job has changed its cycle, another change counts only after this many optimizer steps."""

StepEnd = Literal["whole", "cut short"]


class Position(NamedTuple):
    """The answer to a tick: which `layer` begins with it, and how the step `ended` that is over with it.

    `layer` is None out of step. `ended` is None where no step is over. A step is whole if all its ticks came as
    expected; with the last of them layer 0 begins. It is cut short if not: that shows with the first tick of the next
    step, where layer 1 begins and layer 0 is over already.
    """

    layer: int | None
    ended: StepEnd | None = None


NONE_BEGINS = Position(None)
"""Out of step."""


class StepFollower:
    """Records the ticks of the profiled step (`learn` ends that), then follows the cycle that they make.

    Layer i is ended by `cycle.ticks[i]`. A tick's identity is (name, how-manyth of that name in the step, phase), so a
    tick that is missing or was not expected shifts no other: the job is out of step until the first tick of the next
    step. A step that was cut short leaves counts behind, which the next step's first tick shows (it is one more than
    the cycle has), or the optimizer's boundary.

    While a step of a new cycle is waited for (`follow_change`), the cycle before is kept: `keep_change` drops it,
    `undo_change` goes back to it. `n_changes`: how many new cycles were recorded until now. `cycle` and `layers`, its
    identities, are empty while the first one is recorded. `in_step`: whether every tick since the cycle's first one
    came as expected. `layer`: the one under way as far as identities of ticks tell, also out of step; None if they do
    not.
    """

    def __init__(self) -> None:
        self.cycle, self.layers = LayerCycle(()), tuple[LayerId, ...]()
        self.in_step = True
        self.n_changes = 0
        self.layer: int | None = 0
        self._answers: tuple[Position, ...] = ()  # as each layer begins in step
        self._index: dict[LayerId, int] = {}
        self._known = frozenset[Tick]()  # the cycle's, in any order
        self._counts = Counter[Tick]()  # in this step, while out of step
        self._recorded: list[Tick] = []
        self._recorded_boundaries: list[int] = []
        self._needs_grad: bool | None = None
        self._before: LayerCycle | None = None
        self._detector: CycleChangeDetector | None = None

    # ---- what ticks and optimizer steps say -----------------------------------------------------------------

    def accepts(self, grad: bool) -> bool:
        """Whether an `add_layer` tick counts. `grad`: grad mode is on, or backward is running.

        The first tick decides: in a step that trains, ticks of a validation forward are none; a step that
        starts without grad mode is inference, and all its ticks count.
        """
        if self._needs_grad is None:
            self._needs_grad = grad
        return grad or not self._needs_grad

    def tick(self, tick: Tick) -> Position:
        """A layer has ended. While the first cycle is recorded the tick joins it."""
        ticks = self.cycle.ticks
        if not ticks:
            self._recorded.append(tick)
            self.layer = len(self._recorded)
            return Position(self.layer)
        layer = self.layer
        if layer is None or not self.in_step or tick != ticks[layer]:
            return self._unexpected(tick)
        self.layer = layer = (layer + 1) % len(ticks)
        return self._answers[layer]

    def _unexpected(self, tick: Tick) -> Position:
        """A tick out of step, or one that puts the job out of step; with the cycle's first one a step begins."""
        ticks = self.cycle.ticks
        if self.in_step:
            self._counts = Counter(ticks[: self.layer])
        index = None
        if tick in self._known:  # others are not counted: there may be ever new ones
            index = self._index.get(LayerId(tick[0], self._counts[tick], tick[1]))
            self._counts[tick] += 1
        self.layer = None if index is None else (index + 1) % len(ticks)
        # One more than the cycle has: the step before was cut short, and a new one has begun.
        self.in_step = index == 0 or (index is None and tick == ticks[0])
        if self.in_step:
            self.layer = self.second_layer
            return Position(self.layer, "cut short")
        if self.layer == 0:
            self._counts.clear()
        return NONE_BEGINS

    def changed_by(self, tick: Tick) -> LayerCycle | None:
        """The job's new cycle, if this tick, which was answered, shows that the job has one."""
        return None if self._detector is None else self._detector.hear(tick)

    def boundary(self) -> LayerCycle | None:
        """An optimizer has stepped. The job's new cycle, if that shows that the job has one.

        Where a step has one such boundary, it tells where the job is. Of several, the names of their ticks tell more
        than could be guessed here.
        """
        if not self.layers:
            self._recorded_boundaries.append(len(self._recorded))
        elif len(self.cycle.boundaries) == 1:
            layer = self.cycle.boundaries[0] % len(self.layers)
            if not self.in_step or self.layer != layer:
                self.in_step, self.layer = False, layer
                self._counts = Counter(self.cycle.ticks[:layer])
        return None if self._detector is None else self._detector.boundary()

    # ---- where the job is -------------------------------------------------------------------------------

    @property
    def second_layer(self) -> int:
        """The layer that begins with the cycle's first tick: 1, or 0 in a cycle of one layer."""
        return 1 % len(self.layers)

    @property
    def in_first_layer(self) -> bool:
        """Whether layer 0 is under way, in step: a plan can be taken in for all of the step."""
        return self.in_step and self.layer == 0

    # ---- which cycle is followed ------------------------------------------------------------------------

    def require_end(self, most: int) -> None:
        """Raises UsageError where the profiled step has gone on for more than `most` optimizer steps, or for more
        than MOST_TICKS layers without one."""
        if self.layers:
            return
        steps = len(self._recorded_boundaries)
        ticks = len(self._recorded) - (self._recorded_boundaries or [0])[-1]
        if steps > most or ticks > MOST_TICKS:
            found = f"{steps} optimizer steps" if steps > most else f"{ticks} layers"
            raise UsageError(
                f"the profiled step has gone on for {found}", "call sentinel.end_profile() where the first step ends"
            )

    def learn(self) -> tuple[LayerId, ...]:
        """End the recording: its ticks are the cycle that is followed from now on, and layer 0 has begun.

        Raises UsageError if nothing ticked.
        """
        if not self._recorded:
            raise UsageError(
                "the profiled step has no layer: nothing ticked between start_profile() and end_profile()",
                "call sentinel.annotate(model, optimizer) before it, or sentinel.add_layer() in it",
            )
        self._follow(LayerCycle(tuple(self._recorded), tuple(self._recorded_boundaries)), in_step=True)
        return self.layers

    def follow_saved(self, layers: Sequence[LayerId]) -> None:
        """Follow the layers of a saved plan, the first of which has begun; when its optimizers step is not known before
        `learn_boundaries`."""
        self._follow(LayerCycle.of(layers), in_step=True)

    def learn_boundaries(self, boundaries: Sequence[int]) -> None:
        """Optimizers step after so many ticks of the cycle that is followed."""
        self.cycle = LayerCycle(self.cycle.ticks, tuple(boundaries))

    def follow(self, cycle: LayerCycle) -> None:
        """Follow `cycle`, out of step until its first tick."""
        self._follow(cycle, in_step=False)

    def follow_recorded(self, cycle: LayerCycle) -> None:
        """Follow `cycle`, the ticks of a step that was recorded just now and whose first tick has just come again.

        Where the same cycle is followed already, nothing changes.
        """
        if cycle.ticks != self.cycle.ticks:
            self.follow(cycle)
            self.tick(cycle.ticks[0])

    def _follow(self, cycle: LayerCycle, *, in_step: bool) -> None:
        self.cycle, self.layers = cycle, cycle.layers()
        self._index = {tick: i for i, tick in enumerate(self.layers)}
        self._known = frozenset(cycle.ticks)
        self._answers = (Position(0, "whole"), *(Position(layer) for layer in range(1, len(self.layers))))
        self._counts.clear()
        self.in_step, self.layer = in_step, 0 if in_step else None

    # ---- new cycles -------------------------------------------------------------------------------------

    @property
    def detecting(self) -> bool:
        """Whether new cycles are looked for."""
        return self._detector is not None

    def detect_changes(self) -> None:
        """From now on new cycles are looked for."""
        earliest = STEPS_BETWEEN_CHANGES if self.n_changes else 0
        self._detector = CycleChangeDetector(self.cycle, earliest=earliest)

    def stop_detecting(self) -> None:
        """New cycles are not looked for any more."""
        self._detector = None

    def describe(self, change: LayerCycle) -> str:
        """What the report says of a new cycle, as a sentence."""
        assert self._detector is not None
        return self._detector.describe(change)

    def follow_change(self, change: LayerCycle) -> None:
        """Follow a new cycle until `keep_change` or `undo_change`; another new one is looked for until it comes."""
        self._before = self._before or self.cycle
        self.follow(change)
        self._detector = CycleChangeDetector(change)

    def keep_change(self) -> None:
        """A step of the new cycle, if there is one, was recorded and planned."""
        self.n_changes += self._before is not None
        self._before, self._detector = None, None

    def undo_change(self) -> None:
        """The new cycle got no plan: follow the one before, out of step until its first tick."""
        assert self._before is not None
        self.follow(self._before)
        self.keep_change()
