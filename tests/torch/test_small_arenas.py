"""Arenas with too few addresses for the job: what finds no room is left where it is, and training goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

SCRIPT = """
import sys, torch, sentinel
from sentinel.migration import memory
torch.set_num_threads(1)
memory._arena_bytes = lambda: (int(sys.argv[1]), int(sys.argv[2]))

def trained(ours):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(7):
        if ours and step == 1:
            sentinel.annotate(model, optimizer)
            sentinel.start_profile(fast="30%", slow="emulated:cxl-asic-x8", tracker="ops")
        optimizer.zero_grad()
        model(torch.randn(2048, 512)).square().mean().backward()
        optimizer.step()
        if ours and step == 1:
            plan = sentinel.end_profile()
            print("planned", sum(slot.key is None for slot in plan.slots))
    return list(model.parameters())

pairs = list(zip(trained(False), trained(True)))
print("identical", all(torch.equal(*pair) for pair in pairs))
print("applied", len(sentinel.stop().steps) > 0)
report = sentinel.report()
print(report.text(), report.setup.in_place)
"""
MIB, AMPLE = 1 << 20, 1 << 36
PERSISTENT = 4 * 2 * 3  # weights and biases of four layers, and two moments of each
LEFT_OUT, NO_ROOM = "need more", "finds no room in managed memory"


@pytest.mark.parametrize(
    ("exclusive_bytes", "placement_bytes", "says"),
    [(AMPLE, AMPLE, ()), (6 * MIB, AMPLE, (NO_ROOM,)), (AMPLE, 8 * MIB, (LEFT_OUT,))],
)
def test_what_finds_no_room_is_told_and_training_goes_on(
    exclusive_bytes: int, placement_bytes: int, says: tuple[str, ...]
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(exclusive_bytes), str(placement_bytes)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "identical True\napplied True\n" in ended.stdout
    for sentence in (LEFT_OUT, NO_ROOM):
        assert (sentence in ended.stdout) == (sentence in says), ended.stdout
    planned = int(ended.stdout.split("planned ")[1].split()[0])
    assert (planned == PERSISTENT) == (NO_ROOM not in says)
