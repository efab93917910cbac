"""Machines of more than two tiers, described, and a hypothesis strategy for them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from sentinel.core.machine import Link, Machine, TierKind, TierSpec
from sentinel.core.units import PAGE_BYTES
from tests.builders import GB, MIB, machine_type


def three_tiers(
    fast_bytes: int = 64 * MIB,
    middle_bytes: int = 64 * MIB,
    *,
    slow_bytes: int = 1 << 40,
    middle_bw: int = 30 * GB,
    slow_bw: int = 8 * GB,
    middle_link: int = 8 * GB,
    slow_link: int = 4 * GB,
    full_duplex: bool = True,
    flops_per_s: float | None = None,
    kind: TierKind = "described",
) -> Machine:
    """Tiers `fast`, `middle` and `slow` without latency, the last two of `kind`. Bandwidths in bytes per second, links
    alike both ways."""
    return machine_type(kind, (middle_link, middle_bw), (slow_link, slow_bw))(
        name="three",
        tiers=(
            TierSpec("fast", "described", fast_bytes, 0, 100 * GB, 100 * GB),
            TierSpec("middle", kind, middle_bytes, 0, middle_bw, middle_bw),
            TierSpec("slow", kind, slow_bytes, 0, slow_bw, slow_bw),
        ),
        links=(Link(1, 0, middle_link), Link(0, 1, middle_link), Link(2, 0, slow_link), Link(0, 2, slow_link)),
        full_duplex=full_duplex,
        flops_per_s=flops_per_s,
    )


def only(machine: Machine, slow: int) -> Machine:
    """The two-tier machine of the fast tier and one slower one, of that capacity."""
    links = (replace(machine.link(slow, 0), source=1), replace(machine.link(0, slow), target=1))
    return replace(machine, tiers=(machine.fast, machine.tiers[slow]), links=links)


@st.composite
def three_tier_machines(draw: st.DrawFn) -> Machine:
    """From useless to ample fast and middle tiers; slower tiers are slower to use, links no faster than they are."""
    speed = st.sampled_from([10**6, 10**8, 10**9, 10**10])
    middle_bw, slow_bw = draw(st.sampled_from([10**9, 10**10])), draw(st.sampled_from([10**8, 10**9]))
    return three_tiers(
        draw(st.integers(0, 400)) * PAGE_BYTES + draw(st.integers(0, PAGE_BYTES - 1)),
        draw(st.integers(0, 400)) * PAGE_BYTES + draw(st.integers(0, PAGE_BYTES - 1)),
        middle_bw=middle_bw,
        slow_bw=slow_bw,
        middle_link=min(draw(speed), middle_bw),
        slow_link=min(draw(speed), slow_bw),
        full_duplex=draw(st.booleans()),
        flops_per_s=draw(st.sampled_from([None, 1e11, 1e12])),
    )
