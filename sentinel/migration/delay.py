"""Injected delays, exact in total: short debts add up until they are worth a sleep."""

from __future__ import annotations

from sentinel.migration.clock import MONOTONIC, Clock

WORTH_A_SLEEP_NS = 50_000
"""Below this the wake-up's own error would show."""


class Delay:
    """Debt of injected time. What a sleep took too long is a credit against the next."""

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._owed_ns = 0
        self.injected_ns = 0

    def inject(self, cost_ns: int, now_ns: int) -> int:
        """Owe `cost_ns` more; pay if it is worth it. Returns the time now."""
        self._owed_ns += cost_ns
        if self._owed_ns < WORTH_A_SLEEP_NS:
            return now_ns
        self._clock.sleep_until(now_ns + self._owed_ns)
        after_ns = self._clock.now_ns()
        self._owed_ns -= after_ns - now_ns
        self.injected_ns += after_ns - now_ns
        return after_ns
