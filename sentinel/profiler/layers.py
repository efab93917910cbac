"""LayerClock: which layer a tick ends, and which one begins. Pure; the session feeds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sentinel.core.errors import UsageError
from sentinel.core.trace import LayerId, Phase


class LayerClock:
    """Counts occurrences while a step is recorded, then follows the ring that was learned.

    Layer i is ended by `ring[i]`. A tick's identity is (name, how-manyth of that name in the step, phase), so a
    tick that is missing or was not expected shifts no other: the clock is out of step until the first tick of
    the next step. Occurrences restart where the ring closes; a step that was cut short leaves counts behind,
    which the next step's first tick shows (it is one more than the ring has), or the optimizer's boundary.
    """

    def __init__(self, ring: Sequence[LayerId] = (), boundaries: Sequence[int] = ()) -> None:
        """`ring`: of a saved plan, to follow at once; without it, recording starts."""
        self.ring: tuple[LayerId, ...] = ()
        self.boundaries: tuple[int, ...] = ()
        self.in_step = True  # every tick since the ring's first one came as learned
        self.layer: int | None = 0  # the layer we are in as far as identities tell; None: they don't
        self._position = 0  # index of the tick that ends the present layer
        self._counts: dict[tuple[str, Phase], int] = {}
        self._seen: list[LayerId] = []
        self._seen_boundaries: list[int] = []
        self._index: dict[LayerId, int] = {}
        self._needs_grad: bool | None = None
        if ring:
            self._follow(tuple(ring), tuple(boundaries))

    @property
    def recording(self) -> bool:
        """Whether no ring has been learned yet."""
        return not self.ring

    def accepts(self, grad: bool) -> bool:
        """Whether an `add_layer` tick counts. `grad`: grad mode is on, or backward is running.

        The first tick decides: in a step that trains, ticks of a validation forward are none; a step that
        starts without grad mode is inference, and all its ticks count.
        """
        if self._needs_grad is None:
            self._needs_grad = grad
        return grad or not self._needs_grad

    def identify(self, name: str, phase: Phase = "") -> LayerId:
        """The identity of a tick that comes now. While recording, it joins the ring to be learned."""
        occurrence = self._counts.get((name, phase), 0)
        self._counts[name, phase] = occurrence + 1
        found = LayerId(name, occurrence, phase)
        if not self.ring:
            self._seen.append(found)
            self.layer = len(self._seen)
        return found

    def follow(self, name: str, phase: Phase = "") -> int | None:
        """`advance` by the identity of a tick that comes now, which is not made where it is the expected one."""
        if self.in_step:
            expected, key = self.ring[self._position], (name, phase)
            if name == expected.name and phase == expected.phase:
                occurrence = self._counts.get(key, 0)
                if occurrence == expected.occurrence:
                    self._counts[key] = occurrence + 1
                    return self._arrive(self._position)
        return self.advance(self.identify(name, phase))

    def require_end(self, most: int) -> None:
        """Raises UsageError where what is recorded as one step has gone on for more than `most` optimizer steps."""
        if not self.ring and len(self._seen_boundaries) > most:
            raise UsageError(
                f"the profiled step has gone on for {len(self._seen_boundaries)} optimizer steps",
                "call sentinel.end_profile() at the end of the first one",
            )

    def learn(self) -> tuple[LayerId, ...]:
        """End the recording: what ticked since it began is the ring from now on, and layer 0 has begun.

        Raises UsageError if nothing ticked.
        """
        if not self._seen:
            raise UsageError(
                "the profiled step has no layer: nothing ticked between start_profile() and end_profile()",
                "call sentinel.annotate(model, optimizer) before it, or sentinel.add_layer() in it",
            )
        self._follow(tuple(self._seen), tuple(self._seen_boundaries))
        return self.ring

    def another(self, ticks: Sequence[tuple[str, Phase]], boundaries: Sequence[int]) -> LayerClock:
        """A clock of the same job for a ring of these ticks, an optimizer having stepped after so many of them. It is
        out of step until the ring's first tick."""
        clock = LayerClock()
        seen = [clock.identify(name, phase) for name, phase in ticks]
        clock._follow(tuple(seen), tuple(boundaries))
        clock._needs_grad = self._needs_grad
        clock.in_step, clock.layer = False, None
        return clock

    def lose(self) -> None:
        """Ticks were not heard for a while: out of step until the ring's first one."""
        self.in_step, self.layer = False, None

    def record(self) -> None:
        """Forget the ring and record anew, from a step boundary."""
        self.ring, self._index = (), {}
        self._counts.clear()
        self._seen.clear()
        self._seen_boundaries.clear()
        self._needs_grad = None
        self.in_step, self.layer, self._position = True, 0, 0

    def advance(self, tick: LayerId) -> int | None:
        """The layer that begins with this tick, or None while out of step.

        Out of step, `layer` still tells where identities say we are. Back in step at the ring's first tick.
        """
        if self.in_step and tick == self.ring[self._position]:
            return self._arrive(self._position)
        index = self._index.get(tick)
        if index is None and LayerId(tick.name, 0, tick.phase) == self.ring[0]:
            # One more than the ring has: the step before was cut short, and a new one has begun.
            self._counts.clear()
            self._counts[tick.name, tick.phase] = 1
            index = 0
        if index == 0:
            self.in_step = True
            return self._arrive(0)
        self.in_step = False
        self.layer = None
        if index is not None:
            self._arrive(index)
        return None

    def boundary(self) -> None:
        """An optimizer has stepped. Where a step has one such boundary, it tells where we are."""
        if not self.ring:
            self._seen_boundaries.append(len(self._seen))
            return
        if len(self.boundaries) != 1:
            return  # with several, the names of their ticks tell more than we could guess here
        position = self.boundaries[0] % len(self.ring)
        if self.in_step and self._position == position:
            return
        self.in_step = False
        self.layer = self._position = position
        self._counts = dict(Counter((tick.name, tick.phase) for tick in self.ring[:position]))

    def _follow(self, ring: tuple[LayerId, ...], boundaries: tuple[int, ...]) -> None:
        self.ring, self.boundaries = ring, boundaries
        self._index = {tick: i for i, tick in enumerate(ring)}
        if len(self._index) != len(ring):
            raise UsageError("a ring of layers holds one identity twice", "record the step anew")
        self._counts.clear()
        self.in_step, self.layer, self._position = True, 0, 0

    def _arrive(self, index: int) -> int:
        """The tick `ring[index]` has come."""
        position = index + 1
        if position == len(self.ring):
            self._counts.clear()
            position = 0
        self.layer = self._position = position
        return position
