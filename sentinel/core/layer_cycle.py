"""LayerCycle: the ticks of one step. CycleChangeDetector: notices when they are others from now on, step after step.

Part of a model is unfrozen, gradients are accumulated over more micro-batches, a critic trains more often. A step that
is other now and then (a skipped layer, a larger batch of micro-batches at an epoch's end) is left out of step, as
docs/decisions/0072 says; docs/decisions/0082 says when there is a new cycle.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

from sentinel.core.trace import LayerId, Phase
from sentinel.core.units import counted

Tick = tuple[str, Phase]
Stretch = tuple[Tick, ...]

ROUNDS = 16
"""The job has a new cycle once 16 rounds in a row had the same new layers."""
UNSEEN_ROUNDS = 3
"""As ROUNDS, while no step has ticked as the profiled one did: that one was cut short, or otherwise no usual step."""
LONGEST = 16
"""Optimizer steps in a round, at most."""
MOST_TICKS = 1 << 16
"""Ticks between two optimizer steps that are followed, at most."""


@dataclass(frozen=True)
class LayerCycle:
    """The ticks of one round of a job, and after how many of them an optimizer stepped: empty where none is known."""

    ticks: Stretch
    boundaries: tuple[int, ...] = ()

    @classmethod
    def of(cls, layers: Iterable[LayerId]) -> LayerCycle:
        """That of the layers of a plan, which does not say when optimizers step."""
        return cls(tuple((layer.name, layer.phase) for layer in layers))

    def layers(self) -> tuple[LayerId, ...]:
        """The identity of each tick: those of one name and phase are numbered as they come."""
        found, counts = [], Counter[Tick]()
        for tick in self.ticks:
            found.append(LayerId(tick[0], counts[tick], tick[1]))
            counts[tick] += 1
        return tuple(found)

    def stretches(self) -> list[Stretch]:
        """What ticks before each boundary, since the one before it."""
        if not self.boundaries:
            return []
        cuts = [0, *self.boundaries]
        found = [self.ticks[low:high] for low, high in pairwise(cuts)]
        found[0] = self.ticks[cuts[-1] :] + found[0]
        return found


class CycleChangeDetector:
    """Hears each tick and each step of an optimizer (`boundary`), which says when there is a new cycle, and which.

    Where no optimizer is known, the cycle's last tick stands for its step, and `hear` says so. `earliest`: no cycle is
    new before so many optimizer steps.
    """

    def __init__(self, cycle: LayerCycle, *, earliest: int = 0) -> None:
        self._cycle, self._earliest = cycle, earliest
        self._by_ticks = not cycle.boundaries
        self.seen = False  # whether a round ticked as the cycle does
        self.steps = 0  # of optimizers, or what stands for them
        self._expect(LayerCycle(cycle.ticks, _ends(cycle.ticks)) if self._by_ticks else cycle)

    def hear(self, tick: Tick) -> LayerCycle | None:
        """A tick. The job's new cycle, if this shows that it has one."""
        if len(self._stretch) < MOST_TICKS:
            self._stretch.append(tick)
        return self._mark() if self._by_ticks and tick == self._cycle.ticks[-1] else None

    def boundary(self) -> LayerCycle | None:
        """An optimizer has stepped. The job's new cycle, if this shows that it has one."""
        if self._by_ticks:  # none did in the profiled step, so that was no whole one
            self._by_ticks = self.seen = False
            self._expect(self._cycle)
            return None
        return self._mark()

    def describe(self, cycle: LayerCycle) -> str:
        """What a report says of it where `cycle` is new, as a sentence."""
        before, now = counted(len(self._cycle.ticks), "layer"), counted(len(cycle.ticks), "layer")
        if not self.seen:
            return (
                f"the profiled step ({before}) was cut short or unusual: none of {self.steps} after it was like"
                f" it, so one of those ({now}) was profiled instead"
            )
        pairs = zip_longest(cycle.ticks, self._cycle.ticks)
        other = next((tick for tick, was in pairs if tick != was), None)
        first = f"the first other one is {LayerId(other[0], 0, other[1])}" if other else "the last ones are missing"
        steps = "steps" if self._by_ticks else "optimizer steps"
        return (
            f"after {self.steps} {steps} the job goes through other layers ({now} a step, until then {before};"
            f" {first}): a step was profiled and planned again, and the report shows its layers and plan"
        )

    def _expect(self, cycle: LayerCycle) -> None:
        self._known = deque(cycle.stretches())
        self._known_hashes = [hash(stretch) for stretch in self._known]
        self._stretch: list[Tick] = []
        self._round: deque[Stretch] = deque(maxlen=len(self._known))
        self._last: deque[Stretch] = deque(maxlen=LONGEST)
        self._hashes: deque[int | None] = deque([None] * LONGEST, LONGEST)  # of the last stretches, the last one first
        self._alike = [0] * LONGEST  # how many stretches in a row were as the one 1, 2, ... before each

    def _mark(self) -> LayerCycle | None:
        """A stretch has ended."""
        ended = tuple(self._stretch)
        self._stretch.clear()
        self._round.append(ended)
        self._last.append(ended)
        newest = hash(ended)
        self._alike = [n + 1 if newest == each else 0 for n, each in zip(self._alike, self._hashes, strict=True)]
        self._hashes.appendleft(newest)
        self.steps += 1
        if self._known and self._round == self._known:
            self.seen = True
            return None
        period = self._period() if self.steps >= self._earliest else 0
        found = self._as_cycle(list(self._last)[-period:]) if period else LayerCycle(())
        return found if found.ticks else None

    def _period(self) -> int:
        """Stretches in a round that has come over and over again until now, the cycle's own in few of them; or 0."""
        rounds, known = ROUNDS if self.seen else UNSEEN_ROUNDS, len(self._known)
        repeated = (n for n, alike in enumerate(self._alike, 1) if n + alike >= rounds * max(n, known))
        period = next(repeated, 0)
        return period if period and self._is_new([hash(stretch) for stretch in self._last][-period:]) else 0

    def _is_new(self, one: list[int]) -> bool:
        """Whether at least as many steps of this round are other ones as are the cycle's."""
        known = len(self._known_hashes)
        turned = one * (known // len(one) + 2)
        whole = sum(turned[i : i + known] == self._known_hashes for i in range(len(one))) if known else 0
        return len(one) - whole * known >= whole

    def _as_cycle(self, stretches: list[Stretch]) -> LayerCycle:
        """As a cycle that ends where the known one does: as many ticks after its last optimizer step."""
        if self._known and self._known[-1] in stretches:
            last = stretches.index(self._known[-1]) + 1
            stretches = stretches[last:] + stretches[:last]
        ticks = tuple(tick for stretch in stretches for tick in stretch)
        after = len(self._cycle.ticks) - self._cycle.boundaries[-1] if self._cycle.boundaries else 0
        after = after if after < len(stretches[0]) else 0
        marks = tuple(mark - after for mark in accumulate(map(len, stretches)))
        return LayerCycle(ticks[after:] + ticks[:after], () if self._by_ticks else marks)


def _ends(ticks: Stretch) -> tuple[int, ...]:
    """After how many ticks those like the last one have come."""
    return tuple(i for i, tick in enumerate(ticks, 1) if tick == ticks[-1])
