"""The answer in a few sentences: how much fast memory is saved, what that costs, what to do next."""

from __future__ import annotations

from typing import Any

from sentinel.core.errors import SentinelError
from sentinel.core.units import format_bytes, format_ns
from sentinel.reports.caveats import busy, far_off
from sentinel.reports.outside_plan import compared
from sentinel.reports.setup import StorageFigures

TITLE = "In short"
ENOUGH = "`sentinel run --dry-run` says how much fast memory is enough"


def summary(h: dict[str, Any], storage: StorageFigures | None = None) -> list[tuple[str, str]]:
    """(what, sentence) for a headline, in the order of the questions that a reader has; what is unknown is left out."""
    rows = [
        ("memory", _memory(h) if storage is None else _memory_of_frames(storage)),
        ("speed", _speed(h) if storage is None else _speed_on_a_file(storage)),
        ("once", _once(h)),
        ("next", _next(h)),
        ("disk", _disk(storage)),
    ]
    return [(what, sentence) for what, sentence in rows if sentence]


def _memory(h: dict[str, Any]) -> str:
    told = compared(h)
    if told is None:
        return ""
    fast, whole, outside = told
    if fast >= whole:
        but = f"; {format_bytes(outside)} of them are outside of the plan" if outside else ""
        return f"{format_bytes(whole)} of tensors, all in fast memory{but}"
    but = f"; both include {format_bytes(outside)} outside of the plan, which no budget covers" if outside else ""
    return f"{format_bytes(fast)} of fast memory instead of {format_bytes(whole)}: {1 - fast / whole:.0%} less{but}"


def _speed(h: dict[str, Any]) -> str:
    applied, predicted, plain = h["step_ns_applied"], h["step_ns_predicted"], h["step_ns_plain"]
    step = applied if applied is not None else predicted
    if step is None:
        return ""
    told = f"a step takes {format_ns(step)}" if applied is not None else f"a step would take {format_ns(step)}"
    told += f" ({spread_in_words(h)})" if applied is not None and spread_in_words(h) else ""
    delays = ", injected delays included" if h["kind"] == "emulated" else ""
    if plain and busy(h):
        told += f"{delays}; the host was busy, so it is not compared with a stock step"
    elif plain and far_off(h) and not h["step_ns_plain_is_measured"]:
        told += f"{delays}; it cannot be compared with a stock step, whose estimate ({format_ns(plain)}) comes from"
        told += " steps that were much slower or faster (was the host busy?)"
    elif plain:
        how = "measured" if h["step_ns_plain_is_measured"] else "an estimate"
        told += f", {step / plain:.2f} times a stock step ({format_ns(plain)}, {how}){delays}"
    else:
        told += delays
    if h["fast_served_fraction"] is not None:
        told += f"; {h['fast_served_fraction']:.1%} of the bytes touched come from fast memory"
    return told


def spread_in_words(h: dict[str, Any]) -> str:
    """What eight of ten applied steps took; "" where that is not known."""
    low, high = h.get("step_ns_applied_p10"), h.get("step_ns_applied_p90")
    return f"p10 to p90: {format_ns(low)} to {format_ns(high)}" if low is not None and high is not None else ""


def _once(h: dict[str, Any]) -> str:
    if h["setup_ns"] is None or h["plan_ns"] is None:
        return ""
    return f"{format_ns(h['setup_ns'] + h['plan_ns'])} to set up and plan"


def _memory_of_frames(told: StorageFigures) -> str:
    if not told.tensor_peak_bytes:
        return ""
    least, there, wanted = told.least_pool_bytes, told.most_pool_bytes, told.tensor_peak_bytes
    if told.refused:
        beside = format_bytes(told.elsewhere_peak_bytes)
        return f"{format_bytes(there)} of memory for {format_bytes(wanted)} of tensors; others took up to {beside} more"
    if told.for_tensors_bytes >= wanted:
        return f"{format_bytes(wanted)} of tensors, all in memory"
    if there >= wanted:  # until a cap was lowered, or other memory grew
        return f"{format_bytes(least)} to {format_bytes(there)} of memory for {format_bytes(wanted)} of tensors"
    return f"{format_bytes(there)} of memory for {format_bytes(wanted)} of tensors: {1 - there / wanted:.0%} less"


def _speed_on_a_file(told: StorageFigures) -> str:
    if not told.step_ns:
        return ""
    least = f"; in this memory and from this disk at least {format_ns(told.bound_ns)}" if told.bound_ns else ""
    return f"a step takes {format_ns(told.step_ns)}{least}"


def _disk(told: StorageFigures | None) -> str:
    if told is None:
        return ""
    moved = f"{format_bytes(told.read_bytes)} read from the file and {format_bytes(told.written_bytes)} written to it"
    return f"{moved}; operators waited {format_ns(told.waited_ns)} for their operands"


def _next(h: dict[str, Any]) -> str:
    kind, slow = h["kind"], h["slow"] or ""
    enough = ENOUGH
    if kind == "simulated":  # of a saved profile, which `compare` needs
        enough = enough.replace("run --dry-run", "compare")
    if kind == "declared":
        here = slow if _names_presets(slow) else "PRESET"
        return f"`--slow emulated:{here}` runs it here, with injected delays; {enough}"
    if kind == "emulated":
        return f"on a host with a slower NUMA node or CXL memory, `--slow auto` moves pages for real; {enough}"
    if kind == "executed":
        return f"`sentinel compare --executed` also runs the kernel's own placements; {enough}"
    return f"`sentinel run --plan` applies a saved plan; {enough}" if kind == "simulated" else ""


def _names_presets(slow: str) -> bool:
    """Whether `emulated:` before it makes a word: the tiers of a machine in a file have names of their own."""
    from sentinel.tiers.choice import declared_words

    try:
        return declared_words(slow)[0] == "described"
    except SentinelError:
        return False
