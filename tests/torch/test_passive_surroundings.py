"""A session on a file beside what else a process has: mapped files of any name, and other threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from sentinel.system.disks import disk_of  # noqa: E402
from tests import warm  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")
ROOT = Path(__file__).parents[2]

HEAD = """
import mmap, sys, threading
import torch
import sentinel

folder = sys.argv[1]

def anonymous():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))

"""
STRANGE_NAME = (
    HEAD
    + """
name = folder.encode() + b"/caf\\xe9.bin"
open(name, "wb").write(bytes(4096))
with open(name, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sentinel.start_profile(fast="8MiB", slow=f"file:{folder}=64MiB")
kept = torch.ones(1 << 20)
assert "MiB" in sentinel.report().text()
sentinel.stop()
assert not sentinel.active()
"""
)
OTHER_THREAD = (
    HEAD
    + """
end = threading.Event()
threading.Thread(target=end.wait, daemon=True).start()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(32)])  # 128 MiB
optimizer = torch.optim.SGD(model.parameters(), 0.1)
before = anonymous()
sentinel.start_profile(model, optimizer, fast="32MiB", slow=f"file:{folder}=1GiB")
for _ in range(8):
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert anonymous() < before - (64 << 20), (before, anonymous())
sentinel.stop()
"""
)


@pytest.mark.parametrize("text", [STRANGE_NAME, OTHER_THREAD], ids=["strange_name", "other_thread"])
def test_it_goes_on_beside(tmp_path: Path, text: str) -> None:
    if disk_of(tmp_path).in_memory:
        pytest.skip("needs a disk: a TMPDIR that is not in memory")
    done = warm.run([sys.executable, "-c", text, str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
