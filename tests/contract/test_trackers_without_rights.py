"""Without root: what is allowed works, what is not says so and how to get it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("root")  # to give its rights up

_PROGRAM = """
import ctypes, json, os, sys
from sentinel.core.errors import CapabilityError
from sentinel.profiler.pages import TRACKERS, native_touch, choose, make
from tests.without_rights import read_beforehand
read_beforehand()
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is this user's again
told = {}
owned = native_touch.map_range(64 * 4096)
first = owned.start // 4096
for name in TRACKERS:
    tracker = make(name)
    try:
        tracker.start([owned])
    except CapabilityError as error:
        told[name] = {"refused": str(error), "remedy": error.remedy}
        continue
    for layer in range(11):
        tracker.mark(layer)
        if layer < 7:
            ctypes.memset(owned.start + 5 * 4096, layer, 1)
            ctypes.string_at(owned.start + 9 * 4096, 1)
    samples = tracker.stop()
    told[name] = {
        "pages": sorted((samples.pages["page"] - first).tolist()), "blind_to": samples.quality.blind_to,
        "granularity": samples.quality.granularity_bytes, "overhead": samples.quality.overhead_ns,
    }
native_touch.unmap_range(owned)
tracker, reasons = choose("auto")
print(json.dumps({"told": told, "auto": tracker and tracker.name, "reasons": reasons}))
"""


def _sysctl(name: str) -> int:
    path = Path("/proc/sys") / name
    return int(path.read_text()) if path.exists() else -1


def test_a_plain_user_is_told_what_works_and_what_not() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    told = answer["told"]
    touched = [5] * 7 + [9] * 7
    assert "not permitted" in told["ebpf"]["refused"]
    assert "CAP_BPF" in told["ebpf"]["remedy"]
    assert told["pagemap"]["pages"] == touched
    assert told["pagemap"]["overhead"] > 0
    if _sysctl("vm/unprivileged_userfaultfd") == 0 and not os.access("/dev/userfaultfd", os.R_OK, effective_ids=True):
        assert "vm.unprivileged_userfaultfd" in told["uffd"]["remedy"]
    if 0 <= _sysctl("kernel/perf_event_paranoid") <= 2:
        assert told["perf"]["pages"] == touched
        if _sysctl("kernel/perf_event_paranoid") == 2:
            assert "accesses by system calls" in told["perf"]["blind_to"]
        assert answer["auto"] == "perf"
    assert answer["reasons"][0].startswith("ebpf: ")
