"""The rate limit: how fast migrations may go, each way, as the user says.

Plans count on links that are no faster, emulated links are none either, and on nodes the movers pause between their
calls.
"""

from __future__ import annotations

import re
from dataclasses import replace

from sentinel.core.errors import UsageError
from sentinel.core.machine import Machine
from sentinel.core.units import MOST_BYTES

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]+)/s\s*")

LEAST_BYTES_PER_S = 10**6


def parse_rate(text: str) -> int:
    """Bytes per second in `"500MB/s"`, `"1.5GiB/s"`. Raises UsageError for anything else, below 1 MB/s, at which a
    call of a mover would take seconds in which it can't be ended, and above 2^60."""
    match = _RATE.fullmatch(text)
    amount = float(match.group(1)) * _UNITS.get(match.group(2), 0) if match else 0.0
    if match and 0 < amount < LEAST_BYTES_PER_S:
        raise UsageError(f"rate limit {text!r} is less than 1MB/s", "give more, or a plan that moves nothing")
    if not LEAST_BYTES_PER_S <= amount <= MOST_BYTES:
        raise UsageError(f"rate limit {text!r} is not a rate", f'write it as "500MB/s"; units: {", ".join(_UNITS)}')
    return int(amount)


def limited(machine: Machine, bytes_per_s: int) -> Machine:
    """`machine` with links no faster than that; 0: no limit."""
    if not bytes_per_s:
        return machine
    rates = (min(bytes_per_s, link.bandwidth_bytes_per_s) for link in machine.links)
    pairs = zip(machine.links, rates, strict=True)
    return replace(machine, links=tuple(replace(link, bandwidth_bytes_per_s=rate) for link, rate in pairs))
