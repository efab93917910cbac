"""`sentinel run` under limits of every kind: one sentence, and the script trains to its end."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentinel.files import load
from tests.memory_groups import MemoryGroup, memory_group

pytestmark = [pytest.mark.needs("torch", "compiler"), pytest.mark.slow]

TRAIN = """
import ctypes, os, resource, sys
import torch
if "LOCKED" in os.environ and ctypes.CDLL(None).mlockall(2):  # MCL_FUTURE
    sys.exit("mlockall was refused")
for name, soft in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    kind = getattr(resource, name)
    resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
torch.ones(1).sqrt()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
sys.exit(3)
"""
OWN_CODE = 3
MACHINE = ("--fast", "50%", "--slow", "emulated:cxl-asic-x8")
OWN_CODE_BYTES = 32 << 20  # what Sentinel itself takes before it can look; 8 to 16 MiB were seen
SAID = "sentinel: nothing is placed, training goes on: "
CANNOT = 77  # of the program below
NO_LOCKED_MEMORY = (sys.executable, str(Path(__file__).parent / "programs" / "no_locked_memory.py"))
SMALL_DISK = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none "$0" && exec "$@"')
FILLING = (
    'mount -t tmpfs -o size=4m none "$0" && head -c $(((4096 - $1) << 10)) /dev/zero >"$0/ballast" || exit 77;'
    ' left=$2; shift 2; "$@"; code=$?; rm "$0/ballast"; cp -a "$0/." "$left"; exit $code'
)
FILLED_DISK = ("unshare", "--mount", "sh", "-c", FILLING)
"""Then: the disk's folder, how many KiB of it are free, and a folder that gets what is left on it."""


READ: set[bool] = set()
"""True once a run has read all that one with Sentinel reads: it placed tensors, and wrote its report."""


def run(
    tmp_path: Path, *limits: object, env: dict[str, str] | None = None, within: Sequence[str] = (), auto: bool = True
) -> list[str]:
    """What was said on stderr by a run that trained to its end: the script's own exit code, and the losses of a stock
    run. `within`: a command that runs it."""
    ours = ("-m", "sentinel", "run", "--report", "-", *MACHINE) if auto else ()
    done = trained(tmp_path, *ours, limits=limits, env=env, within=within)
    assert done.stdout == stock_losses(), done.stderr
    assert done.returncode == OWN_CODE, done.stderr
    assert "Traceback" not in done.stderr
    if "Sentinel migration report" in done.stderr:
        READ.add(auto)
    return done.stderr.splitlines()


def trained(
    tmp_path: Path,
    *ours: str,
    limits: Sequence[object] = (),
    env: dict[str, str] | None = None,
    within: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """The script's process, which `ours` runs."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [*within, sys.executable, *ours, str(script), *map(str, limits)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, timeout=600
    )


@functools.cache
def stock_losses() -> str:
    """What the script prints without Sentinel, and without a limit."""
    with tempfile.TemporaryDirectory() as folder:
        done = trained(Path(folder))
    assert done.returncode == OWN_CODE, done.stderr
    assert done.stdout.count("0x") == 8
    return done.stdout


def refusals(said: Sequence[str]) -> list[str]:
    """The sentences that say why nothing is placed."""
    return [line.removeprefix(SAID) for line in said if line.startswith(SAID)]


@pytest.mark.parametrize(
    ("limit", "value", "why", "within"),
    [
        ("RLIMIT_FSIZE", 1 << 22, "File too large", ()),
        ("RLIMIT_NOFILE", 8, "Too many open files", ()),  # no tracker's program can be opened
        # That of page tables needs one. A tracker that a limit refuses: RLIMIT_FSIZE and RLIMIT_MEMLOCK.
        pytest.param("RLIMIT_NOFILE", 12, "Too many open files", (), marks=pytest.mark.long),
        ("RLIMIT_AS", 6 << 30, "The limit on address space (ulimit -v) leaves", ()),
        pytest.param(
            "RLIMIT_MEMLOCK",
            0,
            "Tracker not taken: perf: counting page faults by perf_event_open: Operation not permitted; set"
            " kernel.perf_event_paranoid to 2 or less, raise ulimit -n and ulimit -l",
            NO_LOCKED_MEMORY,
            marks=pytest.mark.needs("root"),
        ),
    ],
)
def test_a_limit_costs_a_tracker_or_the_placement_and_never_the_run(
    tmp_path: Path, limit: str, value: int, why: str, within: tuple[str, ...]
) -> None:
    if within and subprocess.run([*within, "true"], check=False, timeout=600).returncode == CANNOT:
        pytest.skip("needs the right to give rights up, and kernel.perf_event_paranoid of 0 or more")
    from sentinel.profiler.pages.trackers import obstacle

    if (limit, value) == ("RLIMIT_NOFILE", 12) and obstacle("ebpf") and obstacle("perf"):
        pytest.skip("needs a tracker that opens several files: ebpf or perf")
    said = run(tmp_path, limit, value, within=within)
    refused = refusals(said)
    assert refused or (limit, value) != ("RLIMIT_NOFILE", 8)
    assert not refused or limit != "RLIMIT_FSIZE"  # a tracker that works on its own few pages, and not on the arena
    if refused:
        assert len(refused) == 1
        assert why in refused[0]
    else:  # it was placed, by a lesser tracker or in less room, and the report says why
        report = " ".join(" ".join(said).partition("Sentinel migration report")[2].split())
        assert why in report
        assert "Tracker not taken: " in report or limit == "RLIMIT_AS"


@pytest.mark.needs("root")
def test_a_script_that_locks_its_memory_is_left_alone(tmp_path: Path) -> None:
    """The kernel would fill the arenas, and a memfd as long as their reservation."""
    (refused,) = refusals(run(tmp_path, env={"LOCKED": "1"}))
    assert "the process locks all memory that it maps (mlockall with MCL_FUTURE)" in refused
    assert "leave MCL_FUTURE out" in refused


COPIES = """#!/bin/sh
[ "$1" = --version ] && echo "c++ (copies) 1.0" && exit
while [ "$1" != -o ]; do shift; done
case "$2" in *.so) exec cp "{built}" "$2" ;; *) : >"$2" ;; esac
"""
"""A compiler that has compiled before: tests/native/test_compiler.py has one that does."""


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    from sentinel.profiler import torch_shim  # needs torch

    (tmp_path / "cache").write_text("a file, and so no folder can be made in it")
    (copies := tmp_path / "c++").write_text(COPIES.format(built=torch_shim.path()))
    copies.chmod(0o700)
    said = run(tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(copies)})
    placed_without_a_cache(said, "Not a directory")


@pytest.mark.long  # another errno than the test above
def test_a_full_cache_is_one_sentence(tmp_path: Path) -> None:
    (cache := tmp_path / "cache").mkdir()
    within = (*SMALL_DISK, str(cache))
    if (
        not shutil.which("unshare")
        or subprocess.run([*within, "true"], check=False, capture_output=True, timeout=600).returncode
    ):
        pytest.skip("needs a disk of its own: run as root, where mounting is allowed")
    placed_without_a_cache(run(tmp_path, env={"XDG_CACHE_HOME": str(cache)}, within=within), "No space left on device")


@pytest.mark.long  # where a file may grow no further: test_run_verb.py; a disk that is full: tests/unit/test_files.py
@pytest.mark.parametrize("free_kib", [0, 4, 4096])
def test_a_full_disk_costs_a_sentence_for_the_profile_and_one_for_the_plan(tmp_path: Path, free_kib: int) -> None:
    """Both are written as they are made, and again at the end. Of what finds room only in part nothing is left; where
    there is room for all, all is there."""
    for folder in (disk := tmp_path / "disk", left := tmp_path / "left"):
        folder.mkdir()
    within = (*FILLED_DISK, str(disk), str(free_kib), str(left))
    if (
        not shutil.which("unshare")
        or subprocess.run([*within, "true"], check=False, capture_output=True, timeout=60).returncode
    ):
        pytest.skip("needs a disk of its own: run as root, where mounting is allowed")
    files = {"profile.safetensors": "--save-profile", "plan.json": "--save-plan"}
    kept = [word for name, option in files.items() for word in (option, str(disk / name))]
    done = trained(tmp_path, "-m", "sentinel", "run", "--report", "-", *MACHINE, *kept, within=within)
    assert (done.returncode, done.stdout) == (OWN_CODE, stock_losses()), done.stderr
    assert "Traceback" not in done.stderr
    there = {path.name for path in left.iterdir()}
    for name in files:
        told = [line for line in done.stderr.splitlines() if name in line and line.startswith("sentinel: ")]
        if name in there:
            load(left / name)  # it is whole
            assert told == []
        else:
            (sentence,) = told
            assert "cannot be written: No space left on device" in sentence
    assert there <= set(files)
    assert ("profile.safetensors" in there) == (free_kib == 4096)
    assert free_kib or not there
    assert free_kib < 4096 or there == set(files)
    assert "Sentinel migration report [EMULATED]" in done.stderr


def placed_without_a_cache(said: Sequence[str], why: str) -> None:
    """One sentence says that it was compiled for this process alone, and `why`; the plan was applied."""
    (told,) = [line for line in said if "for this process alone" in line]
    assert why in told
    assert not refusals(said)
    assert any("Sentinel migration report" in line for line in said)


def test_no_compiler_is_one_sentence(tmp_path: Path) -> None:
    """Nor what another process compiled: the cache is new."""
    (nothing := tmp_path / "nothing").mkdir()
    said = run(tmp_path, env={"PATH": str(nothing), "CXX": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    (refused,) = refusals(said)
    assert "no C++ compiler was found" in refused
    assert "apt-get install g++" in refused


def test_a_planner_that_fails_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sentinel.planner.make_plan as p\n"
        "from sentinel.core.errors import PlanError\n"
        "def plan(*a, **k): raise PlanError('there is no plan')\n"
        "p.plan = plan\n"
    )
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd()))))
    said = run(tmp_path, env={"PYTHONPATH": path})
    assert refusals(said) == ["there is no plan"]


def joining(group: MemoryGroup) -> tuple[str, ...]:
    """A command that runs another one in the group."""
    return ("bash", "-c", f'echo $$ >"{group.folder}/cgroup.procs"; exec "$@"', "bash")


@functools.cache
def stock_peak_bytes() -> int:
    """What training takes at its peak without Sentinel. What a run of either kind reads of files is in the page cache
    before, on the account of whoever read it first: else this peak would have it, and room for it be left to Sentinel.
    """
    with tempfile.TemporaryDirectory() as folder, memory_group() as group:
        if True not in READ:
            run(Path(folder))
        run(Path(folder), within=joining(group), auto=False)
        return int(group.peak.read_text())


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=pytest.mark.long) for share in (0.0, 1.0))])
def test_a_container_that_is_nearly_full_never_ends_the_run(tmp_path: Path, share: float) -> None:
    """`share` of the room that a session asks for, beyond what training takes at its peak without Sentinel. Beyond its
    limit the kernel ends the process."""
    from sentinel.session.auto import LEAST_ROOM_BYTES  # needs torch

    room = OWN_CODE_BYTES + round(share * LEAST_ROOM_BYTES)
    with memory_group() as group:
        group.limit.write_text(str(stock_peak_bytes() + room))
        said = run(tmp_path, within=joining(group))
    refused = refusals(said)
    if not share:
        assert len(refused) == 1
        assert "give the container more memory" in refused[0]
    else:
        assert len(refused) <= 1
