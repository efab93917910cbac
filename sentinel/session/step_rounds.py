"""Rounds: how many training steps a record of them is of."""

from __future__ import annotations

from dataclasses import dataclass

LENGTHS = (1, 2, 4, 1)
"""Steps in a round, in the order in which they are tried."""
RECORDS = 2
"""2 rounds of a length are recorded before another length is tried."""
OFTEN = 4
"""Where 1 round in 4 is recorded, records are too often of no use."""


@dataclass
class StepRounds:
    """A loop that keeps what a step made until the next step has made its own, as `output = model(batch)` does, finds
    its memory where it was two steps ago. So a step is recorded alone first. Where steps are others than the record
    again and again, rounds of more steps are, and where none of these repeats either, steps alone for good.

    `of_record`: the steps that the latest record is of; `last`: that the latest round was of.
    """

    of_record: int = 1
    last: int = 1
    _tried: int = 0
    _steps: int = 0  # of this round
    _rounds: int = 0  # of this length
    _records: int = 0  # of these
    _recorded: int = 0  # in all

    def step_ended(self) -> bool:
        """Whether a round has ended with it."""
        self._steps += 1
        if self._steps < LENGTHS[self._tried]:
            return False
        self.last, self._steps = self._steps, 0
        self._rounds += 1
        return True

    def told(self, recorded: int, *, too_long: bool = False) -> None:
        """After a round: so many have been recorded in all. Where that one was, no other is being recorded. `too_long`:
        the last one that was to be could not."""
        if too_long and LENGTHS[self._tried] > 1:
            self._try(len(LENGTHS) - 1)
        if recorded == self._recorded:
            return
        self._recorded, self.of_record = recorded, self.last
        self._records += 1
        if self._records >= RECORDS and OFTEN * self._records >= self._rounds and self._tried + 1 < len(LENGTHS):
            self._try(self._tried + 1)

    def _try(self, which: int) -> None:
        self._tried = which
        self._rounds = self._records = 0
