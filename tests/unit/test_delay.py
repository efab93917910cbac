"""Injected time: exact in total, whatever each sleep takes too long."""

from __future__ import annotations

import pytest

from sentinel.migration.clock import Clock
from sentinel.migration.delay import MOST_CREDIT_NS, WORTH_A_SLEEP_NS, Delay
from tests.unit.engine_builders import HandClock


class Sleeper:
    """A clock by hand whose sleeps take `share` longer than they are to."""

    def __init__(self, share: float) -> None:
        self.ns, self.share, self.sleeps = 1_000_000, share, 0

    def sleep_until(self, deadline_ns: int) -> None:
        nap = max(deadline_ns - self.ns, 0)
        self.ns += nap + int(nap * self.share)
        self.sleeps += 1

    def clock(self) -> Clock:
        return Clock(lambda: self.ns, self.sleep_until)


@pytest.mark.parametrize("cost_ns", [7_000, 43_000, 170_000], ids=["many a sleep", "about one a sleep", "each slept"])
@pytest.mark.parametrize("share", [0.0, 0.3], ids=["punctual", "30 % too long"])
def test_the_total_is_what_was_owed_however_long_sleeps_take(cost_ns: int, share: float) -> None:
    sleeper = Sleeper(share)
    delay = Delay(sleeper.clock())
    begin, n = sleeper.ns, 1009
    now = begin
    for _ in range(n):
        now = delay.inject(cost_ns, now)
        assert now == sleeper.ns
    longest = int((WORTH_A_SLEEP_NS + cost_ns) * (1 + share))
    assert sleeper.ns - begin == delay.injected_ns
    assert abs(delay.injected_ns - n * cost_ns) <= longest
    assert sleeper.sleeps > 100


def test_a_pause_of_the_process_pays_for_little() -> None:
    """As by Ctrl-Z in a sleep: later steps have their delays."""
    hand, cost_ns, pause_ns = HandClock(), 1_000_000, 3_600_000_000_000

    def sleep_until(deadline_ns: int) -> None:
        hand.ns = deadline_ns + pause_ns

    delay = Delay(Clock(lambda: hand.ns, sleep_until))
    now = delay.inject(cost_ns, hand.ns)
    assert now == 1 + cost_ns + pause_ns
    assert delay.injected_ns == cost_ns + MOST_CREDIT_NS
    pause_ns = 0
    free = MOST_CREDIT_NS // cost_ns
    for _ in range(free):
        assert delay.inject(cost_ns, now) == now
    for count in range(1, 4):
        now = delay.inject(cost_ns, now)
        assert now == hand.ns
        assert delay.injected_ns == (1 + free + count) * cost_ns
