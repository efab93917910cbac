"""Each tracker tried on memory of its own: armed, known pages touched, and exactly those to be seen. And whether the
host lacks a compiler that is needed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass, replace

from sentinel.core.errors import CapabilityError, SentinelError
from sentinel.core.trace import Quality
from sentinel.core.units import PAGE_BYTES
from sentinel.profiler.pages import AUTO, TRACKERS, AddressRange, PageSamples, make, native_touch
from sentinel.system.capabilities import COMPILER, Capability, probe_all

PAGES = 61
READ, WRITTEN, BY_SYSTEM_CALL = (3, 5, 29), (7, 43), (53,)
"""Pages that a self-test touches, of PAGES, each in its own way; the last one is written by the kernel in a read()."""


@dataclass(frozen=True)
class SelfTest:
    """`why`: what was seen, or what prevented it. `sees`, `blind_to`: of its Quality, if it is available."""

    tracker: str
    available: bool
    why: str
    remedy: str = ""
    sees: tuple[str, ...] = ()
    blind_to: tuple[str, ...] = ()


def check_host() -> list[Capability]:
    """All capabilities, each tried now. A missing compiler counts as there where this installation brought what it
    would compile, and that loads with the torch at hand. Never raises; takes seconds where it has to import torch."""
    return [_without(each) if each.name == COMPILER and not each.available else each for each in probe_all()]


def _without(compiler: Capability) -> Capability:
    """A compiler that is not there: why none is needed, or why what was brought does not do."""
    if importlib.util.find_spec("torch") is None:
        return compiler
    try:
        from sentinel.profiler import torch_shim

        found = torch_shim.brought()
    except Exception as error:  # of a torch that does not load, whatever its reason
        return replace(compiler, why=f"{compiler.why}; {type(error).__name__}: {error}")
    if wrong := [f"{name}: {why}" for name, why in found.items() if why]:
        return replace(compiler, why=f"{compiler.why}; {'; '.join(wrong)}")
    why = f"{compiler.why}, and none is needed: {' and '.join(found)} came with this installation, and load"
    return replace(compiler, available=True, why=why)


def check_trackers() -> list[SelfTest]:
    """All of them, the most exact first. Takes seconds where torch is to be imported, and longer the first time of all,
    when the shim is compiled. Never raises."""
    return [*(_checked(name) for name in TRACKERS), _checked("ops")]


def automatic(selftests: list[SelfTest]) -> tuple[str | None, list[str]]:
    """What `tracker="auto"` takes, None if not even operators can be watched; and why not each of the others."""
    by_name = {selftest.tracker: selftest for selftest in selftests}
    order = (*AUTO, "ops")
    taken = next((name for name in order if by_name[name].available), None)
    reasons = []
    for name in (*TRACKERS, "ops"):
        selftest = by_name[name]
        if name == taken:
            continue
        if not selftest.available:
            reasons.append(f"{name}: {selftest.why}")
        elif name not in order:
            reasons.append(f"{name}: works, but takes several times longer; ask for it by name")
        else:
            reasons.append(f"{name}: works, but {taken} tells more")
    return taken, reasons


def _checked(name: str) -> SelfTest:
    try:
        return _operators() if name == "ops" else _pages(name)
    except CapabilityError as error:
        return SelfTest(name, False, f"{error.what}: {error.why}", error.remedy)
    except (SentinelError, OSError, ImportError) as error:
        return SelfTest(name, False, str(error), "see the capabilities that are missing; use another tracker")


def _pages(name: str) -> SelfTest:
    tracker, owned = make(name), native_touch.map_range(PAGES * PAGE_BYTES)
    try:
        tracker.start([owned])
        try:
            tracker.mark(0)
            _touch(owned)
            tracker.mark(-1)
        finally:
            samples = tracker.stop()
    finally:
        native_touch.unmap_range(owned)
    return _judged(name, samples, owned.start // PAGE_BYTES)


def _touch(owned: AddressRange) -> None:
    for page in READ:
        ctypes.string_at(owned.start + page * PAGE_BYTES, 8)
    for page in WRITTEN:
        ctypes.memset(owned.start + page * PAGE_BYTES, 1, 8)
    source, sink = os.pipe()
    try:
        os.write(sink, b"12345678")
        for page in BY_SYSTEM_CALL:
            os.readv(source, [memoryview((ctypes.c_char * 8).from_address(owned.start + page * PAGE_BYTES))])
    finally:
        os.close(source)
        os.close(sink)


def _judged(name: str, samples: PageSamples, first: int) -> SelfTest:
    quality, rows = samples.quality, samples.pages
    kernel = () if "accesses by system calls" in quality.blind_to else BY_SYSTEM_CALL
    expected = sorted((*READ, *WRITTEN, *kernel))
    found = sorted((rows["page"] - first).tolist())
    exact = quality.granularity_bytes == PAGE_BYTES
    if found != expected if exact else not set(expected) <= set(found):
        why = f"pages {expected} were touched, {found} were seen"
        return SelfTest(name, False, why, "report this with the kernel's version; use another tracker")
    if "writes" in quality.sees:
        written = sorted((rows["page"][rows["writes"] == 1] - first).tolist())
        if written != sorted((*WRITTEN, *kernel)):
            why = f"pages {sorted((*WRITTEN, *kernel))} were written, {written} were seen written"
            return SelfTest(name, False, why, "report this with the kernel's version; use another tracker")
    which = "exactly those" if exact else f"those and neighbours, {quality.granularity_bytes >> 10} KiB at a time,"
    return _seen(quality, f"{len(expected)} of {PAGES} pages were touched, {which} were seen")


def _operators() -> SelfTest:
    """One operator, which must be seen to read one tensor and write the other."""
    if importlib.util.find_spec("torch") is None:
        raise CapabilityError("watching operators", "torch is not installed", "in a checkout: pip install '.[torch]'")
    import torch

    from sentinel.profiler import operators
    from sentinel.profiler.record import BLIND_TO

    source, target = torch.ones(1009), torch.zeros(1009)
    operators.start()
    try:
        target.add_(source)
    finally:
        operators.stop()
    rows = operators.log().events
    found = {kind: set(rows["address"][rows["kind"] == kind].tolist()) for kind in (operators.READ, operators.WRITE)}
    if not {source.data_ptr(), target.data_ptr()} <= found[operators.READ] or found[operators.WRITE] != {
        target.data_ptr()
    }:
        why = "an operator that reads two tensors and writes one was not seen so"
        return SelfTest("ops", False, why, "report this with torch's version")
    return _seen(Quality("ops", "operator accesses", blind_to=BLIND_TO), "one operator was seen to read and write")


def _seen(quality: Quality, why: str) -> SelfTest:
    return SelfTest(quality.tracker, True, why, "", quality.sees, quality.blind_to)
