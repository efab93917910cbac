"""Training where the kernel itself counts and limits memory: what a cap promises holds, and no process is killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from benchmarks import cap_held  # noqa: E402
from tests.memory_groups import MemoryGroup, memory_group  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")
ROOT = Path(__file__).parents[2]
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}
CAP = 512 << 20
LIMIT = 640 << 20


@pytest.fixture(scope="module")
def imported() -> None:
    """What is imported in a group is in the page cache before, on another group's account: the room of a group has such
    pages as long as they are idle."""
    imports = "import torch, torch._dynamo, sentinel, tests.torch.unlucky_training"
    subprocess.run([sys.executable, "-c", imports], cwd=ROOT, env=HERE, check=True, timeout=600)


@pytest.fixture
def group(imported: None) -> Iterator[MemoryGroup]:
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        pytest.skip("needs a host without swap: what is swapped out is in no cgroup's peak")
    with memory_group() as made:
        yield made


def told(command: list[str]) -> dict[str, Any]:
    """What a process prints last, a line of JSON."""
    done = subprocess.run(command, cwd=ROOT, env=HERE, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("group")
def test_a_cap_holds_while_workers_are_forked(folder: Path) -> None:
    words = ["--cap", str(CAP), "--steps", "25", "--forks-every", "10", "--directory", str(folder)]
    found = told([sys.executable, "-m", "benchmarks.cap_held", *words])["results"]
    assert found["missed"] == []
    for name in ("counts", "enforces"):
        storage = found["processes"][name]["storage"]
        assert storage["tensor_peak_bytes"] > storage["least_pool_bytes"]
        assert storage["read_bytes"] > 0
        assert storage["fork_bytes"] > 0
    assert found["processes"]["counts"]["peak_bytes"] > CAP // 2  # it was there that memory was counted


def test_what_is_missed_is_said() -> None:
    fine = {"losses": [1.0], "parameters": "a", "limit_met": 0, "peak_bytes": CAP, "major_faults": 0}
    fine |= {"resident_over_promised": 1.0, "least_resident_over_promised": 0.995}
    found = {"stock": {"losses": [1.0], "parameters": "a"}, "counts": dict(fine), "enforces": dict(fine)}
    assert cap_held.judged(CAP, found) == []
    found["counts"] |= {"peak_bytes": CAP + 1, "resident_over_promised": 1.02}
    found["enforces"] |= {"limit_met": 3, "parameters": "b", "least_resident_over_promised": 0.9, "major_faults": 7}
    missed = " ".join(cap_held.judged(CAP, found))
    shares = "counts: frames take 1.020", "enforces: frames take 0.900", "enforces: 7 page faults waited"
    for words in ("parameters differ", "is above the cap", "met its limit 3 times", *shares):
        assert words in missed
    assert "counts: frames take 0.995" not in missed


@pytest.mark.long  # figures from steps that are given are in tests/unit/test_cap_figures.py
@pytest.mark.usefixtures("group")
def test_steps_under_a_cap_stand_beside_a_bound_and_a_cap_that_is_too_small_is_told(folder: Path) -> None:
    into = folder / "cap.json"
    words = ["--shape", "6", "512", "2", "128", "--caps", "0.9", "0.2", "--rows", "stock", "file", "passive"]
    words += ["--rounds", "1", "--disk-bytes", "128MiB", "--directory", str(folder), "--into", str(into)]
    command = [sys.executable, "-m", "benchmarks.cap", *words]
    done = subprocess.run(command, cwd=ROOT, env=HERE, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 1, done.stderr  # of a cap that is too small
    told = json.loads(into.read_text())
    fits, small = told["results"]
    assert fits["lost"] == {}
    assert fits["same_losses"]
    assert fits["cap_bytes"] < told["stock"]["peak_bytes"]
    for name in ("file", "passive"):
        assert fits["memory"][name]["limit_met"] == 0
        assert fits["memory"][name]["peak_bytes"] <= fits["cap_bytes"]
        assert fits["a_step"][name]["read_bytes"] > 0
        bound = fits["bound"][name]["stock"]
        assert bound["read_bytes"] > 0
        assert bound["bound_s"] >= fits["step_s"]["stock"] * 0.999
    storage = {name: fits["processes"][name]["storage"] for name in ("file", "passive")}
    assert storage["file"]["hit_bytes"] + storage["file"]["late_bytes"] > 0
    assert storage["passive"]["hit_bytes"] + storage["passive"]["late_bytes"] == 0
    assert set(small["lost"]) == {"file", "passive"}
    assert all("allow at least" in why for why in small["lost"].values())
    assert f"missed: 20%: file trains: {small['lost']['file']}" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["cap.json"]


LARGER = """
import hashlib, json, os, sys
from pathlib import Path

layers, folder, group, limit, used = (int(sys.argv[1]), *map(Path, sys.argv[2:]))
if group != Path("."):
    (group / "cgroup.procs").write_text(str(os.getpid()))
import torch, torch._dynamo  # what an optimizer imports as it steps first
from torch import nn
import sentinel

LAYER = 16 << 20  # parameters, gradients and the state of AdamW
free = 0
torch.set_num_threads(2)
torch.manual_seed(0)
if group != Path("."):
    free = int(limit.read_text()) - int(used.read_text())
    layers = -(-free * 3 // 2 // LAYER)
    sentinel.start_profile(slow=f"file:{folder}=4GiB")

def build():
    model = nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(1024, 1024), nn.GELU())])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

def train(model, optimizer):
    for _ in range(3):
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

losses, inputs = [], torch.randn(32, 1024)
model, optimizer = build()
train(model, optimizer)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "saved")
del model, optimizer
model, optimizer = build()
state = torch.load(folder / "saved")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
del state
train(model, optimizer)
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
storage = sentinel.report().setup.storage._asdict() if sentinel.active() else None
found = {"losses": losses, "parameters": digest.hexdigest()}
print(json.dumps({"found": found, "layers": layers, "free_bytes": free, "storage": storage}))
"""


@pytest.mark.slow
@pytest.mark.long  # "saved_and_loaded" of test_passive.py, in less memory than is free
def test_a_model_half_as_large_again_as_free_memory_is_built_trained_saved_and_loaded(
    folder: Path, group: MemoryGroup
) -> None:
    """Free memory is what the limit of a memory cgroup leaves, once PyTorch is imported."""
    group.limit.write_text(str(LIMIT))
    used = group.folder / ("memory.current" if group.limit.name == "memory.max" else "memory.usage_in_bytes")
    child = [sys.executable, "-c", LARGER]
    ours = told([*child, "0", str(folder), str(group.folder), str(group.limit), str(used)])
    assert ours["storage"]["tensor_peak_bytes"] >= 1.5 * ours["free_bytes"]
    assert ours["storage"]["most_pool_bytes"] < ours["free_bytes"]
    assert ours["storage"]["failed"] == ours["storage"]["refused"] == 0
    stock = told([*child, str(ours["layers"]), str(folder), ".", ".", "."])
    assert ours["found"] == stock["found"]


LOWERED = """
import json, os, sys
from pathlib import Path

folder, group, limit, used = map(Path, sys.argv[1:])
(group / "cgroup.procs").write_text(str(os.getpid()))
import torch, torch._dynamo  # what an optimizer imports as it steps first
import sentinel
from sentinel.system import native
from sentinel.tiers.pool_cap import pool_now
from tests.torch import unlucky_training

MIB = 1 << 20
unlucky_training.LAYERS = 40  # 120 MiB
stock = unlucky_training.train(6)
unlucky_training.begin(folder)  # what is made once is made, and what stock training has left is given back
sentinel.stop()
limit.write_text(str(int(used.read_text()) + (128 + 160) * MIB))  # what stays free, and more than all tensors take
sentinel.start_profile(slow=f"file:{folder}=1GiB")
read = []

def lower(step, model):
    read.append(sentinel.report().setup.storage.read_bytes)
    if step == 3:
        limit.write_text(str(int(used.read_text()) + 32 * MIB))  # less than has to stay free
    native.function("sn_framed_look", None)()

same = unlucky_training.train(6, lower) == stock
setup = sentinel.report().setup
print(json.dumps({"same": same, "read": read, "storage": setup.storage._asdict(), "notes": " ".join(setup.notes)}))
"""


@pytest.mark.slow
def test_a_limit_that_is_lowered_while_it_trains_is_kept(folder: Path, group: MemoryGroup) -> None:
    used = group.folder / ("memory.current" if group.limit.name == "memory.max" else "memory.usage_in_bytes")
    words = [str(each) for each in (folder, group.folder, group.limit, used)]
    found = told([sys.executable, "-c", LOWERED, *words])
    storage = found["storage"]
    assert found["same"]
    assert found["read"][:4] == [0] * 4
    assert storage["read_bytes"] > 0
    assert storage["most_pool_bytes"] >= storage["tensor_peak_bytes"] > storage["least_pool_bytes"]
    assert (storage["over_bytes"], storage["failed"], storage["refused"]) == (0, 0, 0)
    of_groups = "is the cap on (this process's memory cgroup|the memory cgroup that had least left at the start):"
    assert re.search(of_groups, found["notes"])
    assert not list(folder.iterdir())
