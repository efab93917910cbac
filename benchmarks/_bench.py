"""What benchmarks share: processes that take turns, medians of paired ratios, and JSON that says where it ran."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sentinel.system import host_load, process_tree

PACKAGES = ("numpy", "sentinel-hm", "torch", "transformers")
ROOT = Path(__file__).resolve().parents[1]
THREADS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY")
"""How operators' threads wait for each other changes what a step takes, and what a copy beside it does."""
THP = Path("/sys/kernel/mm/transparent_hugepage")
_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""


def machine() -> dict[str, Any]:
    """The host, as far as it bears on times: None where it does not tell."""
    cpu = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": cpu[0] if cpu else None,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory[0].split()[1]) * 1024 if memory else None,
        "kernel": platform.release(),
        "nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "huge_pages": {name: _chosen(THP / name) for name in ("enabled", "defrag", "shmem_enabled")},
        "load_before": os.getloadavg()[0],
        "threads": {name: os.environ.get(name) for name in THREADS},
    }


def commit() -> str:
    """The commit that ran, and whether it was changed since; "unknown" outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    except OSError:  # there is no git
        return "unknown"
    return done.stdout.strip() or "unknown"


def versions() -> dict[str, str | None]:
    """Versions of what was measured; None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "libc": " ".join(platform.libc_ver())}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def child(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object that `module` prints as its last line, run in a fresh process."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class Ended(SystemExit):
    """A training process is no more, or never began to train: why."""


class Stepper:
    """A process that trains a model and does one thing at a time, and what it took as seen from outside. While it
    computes the others of its round wait for their turn, so all meet the same speed of the host. Raises Ended where it
    does not begin, as with less memory than Sentinel accepts, or is no more."""

    def __init__(self, options: Sequence[str], threads: int, environment: Mapping[str, str] | None = None) -> None:
        of_threads = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._stepper", "--threads", str(threads), *options],
            cwd=ROOT,
            env={**os.environ, **of_threads, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if why := self._answer().get("refused"):
            self.close()
            raise Ended(why)

    def do(self, word: str) -> dict[str, Any]:
        """The child's answer, and `outside_ns`, the time until it came."""
        assert self._process.stdin is not None
        began = time.perf_counter_ns()
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        return answer | {"outside_ns": time.perf_counter_ns() - began}

    def close(self) -> None:
        """The process ends, however far it came."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
            raise Ended(f"a training process ended early, {how}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def taking_turns(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of `names` in each round: each starts as often as the others, so drift favours none."""
    return [[names[(start + i) % len(names)] for i in range(len(names))] for start in range(rounds)]


def paired(rounds: Sequence[Mapping[str, float]], name: str, rival: str) -> dict[str, Any]:
    """`name` over `rival`, round by round: the ratios, their median and their range."""
    ratios = [values[name] / values[rival] for values in rounds]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "rounds": ratios}


def told(claim: str, settings: Mapping[str, Any], results: Any) -> dict[str, Any]:
    """What a benchmark says of itself: its claim, when, where and as which commit it ran, how it was set, and what it
    found."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    where = {"when": when, "commit": commit(), "machine": machine(), "versions": versions()}
    return {"claim": claim, **where, **settings, "results": results}


def emit(claim: str, settings: Mapping[str, Any], results: Any) -> None:
    """Print everything as one JSON object."""
    print(json.dumps(told(claim, settings, results), indent=2))


def tree_s(pid: int) -> float:
    """Seconds of processors that a process and all below it have had, and those that they have waited for."""
    return process_tree.ticks(pid, process_tree.processes()) / os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """What processes below this one leave behind becomes this one's: else nobody here could wait for it, and what it
    took would count as others'."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_tree(process: subprocess.Popen[Any]) -> None:
    """Kills a process and, after `adopt_orphans`, what it has started, and waits for all of them."""
    below = process_tree.tree(process.pid, process_tree.processes())[1:]
    process.kill()
    process.wait()
    while True:
        found = process_tree.processes()
        orphans = [pid for pid in below if pid in found and found[pid].parent == os.getpid()]
        if not orphans:
            return
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def others_share() -> Callable[[], float]:
    """A call that tells what share of the processors others, the hypervisor included, have had since now: not this
    process, nor what it has started, as far as that runs or was waited for. Whoever calls exits where nobody tells."""
    before = host_load.spent(os.getpid())

    def told() -> float:
        share = host_load.others_share(before, host_load.spent(os.getpid()))
        if share is None:
            raise SystemExit("/proc/stat does not tell what others had of the processors: times cannot be judged here")
        return round(share, 3)

    return told


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()  # a name that the kernel cut may end within a letter
    except OSError:
        return []


def _chosen(path: Path) -> str | None:
    """The bracketed word of a sysfs choice."""
    try:
        text = path.read_text()
    except OSError:
        return None
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else text.strip()
