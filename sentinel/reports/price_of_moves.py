"""What moves take from compute on a machine, in sentences: as measured or declared, or counted as 0 for want of it."""

from __future__ import annotations

from sentinel.core.machine import Link, Machine
from sentinel.core.units import format_ns


def about_moves(machine: Machine) -> str:
    """What each byte and each migration takes from compute, by tier and direction, and where that is counted as 0."""
    parts = []
    if known := [link for link in machine.links if _is_known(link)]:
        told = "; ".join(_price(machine, link) for link in known)
        parts.append(f"Moves on {machine.name} take from compute: {told}.")
        parts += [f"Declared: {source}." for source in dict.fromkeys(link.declared_by for link in known) if source]
    if told := unpriced(machine):
        parts.append(told)
    return " ".join(parts)


def unpriced(machine: Machine) -> str:
    """Which moves are planned and predicted as if they took nothing from compute for want of a price; "" if none are.
    0 that was measured is a price. `Link.measured` does not tell: the rate alone may have been measured, in a run."""
    pairs = {max(link.source, link.target) for link in machine.links if not _is_known(link)}
    if not pairs:
        return ""
    slower = ", ".join(machine.tiers[index].name for index in sorted(pairs))
    return (
        f"The time that moves between {machine.fast.name} and {slower} take from compute on {machine.name} is counted"
        " as 0, since nobody measured it: plans that move, and the bound, come out too fast. `sentinel calibrate`"
        " measures it for memory of a host."
    )


def _is_known(link: Link) -> bool:
    return link.takes_from_compute or link.price_is_measured


def _price(machine: Machine, link: Link) -> str:
    names = [tier.name for tier in machine.tiers]
    source = "measured" if link.price_is_measured else "declared"
    return (
        f"from {names[link.source]} to {names[link.target]} {format_ns(1024 * link.lost_ns_per_kib)} a MiB and"
        f" {format_ns(link.lost_ns_per_move)} a migration ({source})"
    )
