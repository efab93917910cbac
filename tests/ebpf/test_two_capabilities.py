"""CAP_BPF and CAP_PERFMON are all that tracker `ebpf` needs: no root, no tracefs, next to no locked memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("root")  # to give all other rights up

_PERFMON, _BPF = 38, 39
_PROGRAM = """
import ctypes, json, os, resource, struct, sys
from sentinel.core.errors import CapabilityError
from sentinel.profiler.pages import native_touch, make
from tests.without_rights import read_beforehand
read_beforehand()
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
mask = sum(1 << int(number) for number in sys.argv[1:])
low, high = mask & 0xFFFFFFFF, mask >> 32
header, data = struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", low, low, 0, high, high, 0)
assert libc.syscall(126, header, data) == 0, ctypes.get_errno()  # capset
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is this user's again
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
told = {"uid": os.getuid(), "capabilities": int(status["CapEff"], 16)}
owned = native_touch.map_range(1009 * 4096)
tracker = make("ebpf")
try:
    tracker.start([owned])
    for layer in range(11):
        tracker.mark(layer)
        if layer < 7:
            ctypes.memset(owned.start + 5 * 4096, layer, 1)
            os.preadv(os.open("/dev/zero", os.O_RDONLY), [(ctypes.c_char * 8).from_address(owned.start + 9 * 4096)], 0)
    samples = tracker.stop()
    pages = (samples.pages["page"] - owned.start // 4096).tolist()
    told |= {"pages": sorted(pages), "writes": int(samples.pages["writes"].sum()), "lost": samples.quality.lost}
except CapabilityError as error:
    told |= {"refused": str(error)}
print(json.dumps(told))
"""


def _told(*capabilities: int) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _PROGRAM, *map(str, capabilities)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (answer["uid"], answer["capabilities"]) == (65534, sum(1 << number for number in capabilities))
    return answer


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86-64: the number of capset there")
def test_two_capabilities_are_enough() -> None:
    answer = _told(_BPF, _PERFMON)
    assert answer.get("pages") == [5] * 7 + [9] * 7, answer
    assert (answer["writes"], answer["lost"]) == (14, 0)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs x86-64: the number of capset there")
@pytest.mark.parametrize("only", [_BPF, _PERFMON])
def test_one_of_them_is_not(only: int) -> None:
    answer = _told(only)
    assert "not permitted" in answer["refused"]
    assert "CAP_BPF and CAP_PERFMON" in answer["refused"]
