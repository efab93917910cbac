"""Injected delays, exact in total: short debts add up until they are worth a sleep."""

from __future__ import annotations

from sentinel.migration.clock import MONOTONIC, Clock

WORTH_A_SLEEP_NS = 50_000
"""Below this the wake-up's own error would show."""
MOST_CREDIT_NS = 50_000_000
"""What a sleep took too long beyond this was a pause of the process, as by Ctrl-Z, and pays for nothing."""


class Delay:
    """Debt of injected time. What a sleep took too long is a credit against the next, up to MOST_CREDIT_NS."""

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
        took_ns = min(after_ns - now_ns, self._owed_ns + MOST_CREDIT_NS)
        self._owed_ns -= took_ns
        self.injected_ns += took_ns
        return after_ns
