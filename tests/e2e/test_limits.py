"""`sentinel run` under limits of every kind: one sentence, and the script trains to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.memory_groups import memory_group

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

TRAIN = """
import os, resource, sys
import torch
for name, soft in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    kind = getattr(resource, name)
    resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", step)
"""
MACHINE = ("--fast", "50%", "--slow", "emulated:cxl-asic-x8")
OWN_CODE_BYTES = 32 << 20  # what Sentinel itself takes before it can look; 8 to 16 MiB were seen
SAID = "sentinel: nothing is placed, training goes on: "


def run(
    tmp_path: Path, *limits: object, env: dict[str, str] | None = None, within: Sequence[str] = (), auto: bool = True
) -> list[str]:
    """What was said on stderr by a run that trained to its end, exit code 0. `within`: a command that runs it."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ours = ("-m", "sentinel", "run", "--report", "-", *MACHINE) if auto else ()
    command = [*within, sys.executable, *ours, str(script), *map(str, limits)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, timeout=600
    )
    assert done.stdout == "trained 7\n", done.stderr
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("limit", "value"),
    [("RLIMIT_FSIZE", 1 << 22), ("RLIMIT_NOFILE", 24), ("RLIMIT_MEMLOCK", 0), ("RLIMIT_AS", 6 << 30)],
)
def test_a_limit_costs_a_tracker_or_the_placement_and_never_the_run(tmp_path: Path, limit: str, value: int) -> None:
    said = run(tmp_path, limit, value)
    refused = [line for line in said if line.startswith(SAID)]
    assert len(refused) <= 1
    if not refused:  # it was placed, by a lesser tracker where the limit is in the way of one
        assert any("Sentinel migration report" in line for line in said)


def test_a_limit_on_files_leaves_operators_to_be_watched(tmp_path: Path) -> None:
    """A tracker that works on its own few pages, and fails on the whole arena."""
    said = "\n".join(run(tmp_path, "RLIMIT_FSIZE", 1 << 22))
    assert "File too large" in said
    assert "Sentinel migration report" in said


def test_a_planner_that_fails_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sentinel.planner as p\n"
        "from sentinel.core.errors import PlanError\n"
        "def plan(*a, **k): raise PlanError('there is no plan')\n"
        "p.plan = plan\n"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd()))))
    said = run(tmp_path, env={"PYTHONPATH": path})
    assert [line for line in said if line.startswith(SAID)] == [f"{SAID}there is no plan"]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_container_that_is_nearly_full_never_ends_the_run(tmp_path: Path, share: float) -> None:
    """`share` of the room that a session asks for, beyond what training takes at its peak without Sentinel. Beyond its
    limit the kernel ends the process."""
    from sentinel.session.auto import LEAST_ROOM_BYTES  # needs torch

    room = OWN_CODE_BYTES + round(share * LEAST_ROOM_BYTES)
    with memory_group() as group:
        within = ("bash", "-c", f'echo $$ >"{group.folder}/cgroup.procs"; exec "$@"', "bash")
        run(tmp_path, within=within, auto=False)
        group.limit.write_text(str(int(group.peak.read_text()) + room))
        said = run(tmp_path, within=within)
    refused = [line for line in said if line.startswith(SAID)]
    if not share:
        assert len(refused) == 1
        assert "give the container more memory" in refused[0]
    else:
        assert len(refused) <= 1
