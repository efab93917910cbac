"""Claim: with the same fast memory, how many bytes a step cross the slow link under ours and under the kernel's
placements, and how many of the touched bytes fast memory serves (benchmarks/two_nodes_page.py).

Four examples train in the emulated two-node machine (tools/numa_vm, kernel 6.12), once per placement, with 20 % of the
footprint as fast memory. One rule of size for all, stated before any run: a footprint of LEAST to MOST bytes. They are
planned for a described machine, which is kept beside the results, and step times are simulated on it. The emulated
machine computes some hundred times slower than the host, so plans are made here, from a step profiled here with its
kernels, and applied there.

    python -m benchmarks.two_nodes --plans DIR --plan-only    plans for all, kept there: they hold times of this host
    python -m benchmarks.two_nodes --plans DIR                carries them out, and keeps each result as it ends
    python -m benchmarks.two_nodes --table                    takes over a whole set of results, and writes the page

What was cut short goes on where it was. Docs and README change with `--table` only, and only by all examples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _bench
from benchmarks.two_nodes_figures import EXAMPLES, LEAST, MACHINE, MOST, TIERING, WATCHED
from benchmarks.two_nodes_results import take_over
from sentinel import machines
from sentinel.core.profile import Profile
from sentinel.executed.placements import NAMES
from sentinel.files import load_machine, load_profile, save
from sentinel.files.disk import write_whole

INTO = _bench.ROOT / "build" / "two-nodes"
PLANNED_FOR = "cxl-m2"
FAST = "20%"
SIMULATED = ("sentinel", "best-static", "first-touch", "interleave", "weighted-interleave", "all-slow")
WARM_UP, MEASURED = 8, 5
"""The kernel's tiering learns while a job runs; the last step of the warm-up is audited, and those after it."""
BESIDES = 6
"""Steps beside the warm-up and those measured. One creates the optimizer's state, one is profiled or tried, one closes
the ring; a plan that takes over, or a step of another shape, may cost up to three more."""
AS_EMULATED = {"ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Environment in which convolutions take the kernels, and so the tensors, of the emulated processor, which has no AVX.
"""
RESERVE_KIB = 4096
"""Of the whole machine: else the watermarks of its small nodes lie further apart than the examples' budgets."""
_LOOK_EVERY_S = 0.5


class Job(NamedTuple):
    """One boot of the machine. `path`: of its result."""

    example: str
    path: Path
    placements: tuple[str, ...]
    warm_up: int
    measured: int
    plan: Path

    def settings(self) -> dict[str, Any]:
        """What its result has to be of."""
        plan = hashlib.sha256(self.plan.read_bytes()).hexdigest()
        told = {"placements": list(self.placements), "warm_up": self.warm_up, "measured": self.measured, "plan": plan}
        return {**told, "fast": FAST, "watched": WATCHED}

    def command(self, memory: str, timeout_s: float) -> list[str]:
        """Run in the machine: `sentinel compare --executed`, of the plan and the machine that lie in one folder."""
        folder, steps = self.plan.parent, self.warm_up + self.measured + BESIDES
        return [
            *("tools/numa_vm/run", "--memory", memory, "--timeout", f"{timeout_s:g}", "--share", str(folder), "--"),
            *("sh", "-c", f'echo {RESERVE_KIB} >/proc/sys/vm/min_free_kbytes && exec "$@"', "sh"),
            *(sys.executable, "-m", "sentinel", "compare", "--slow", "numa:1", "--fast", FAST, "--json"),
            *("--machine", str(folder / MACHINE), "--plan", str(self.plan), "--policies", ",".join(self.placements)),
            *("--warm-up", str(self.warm_up), "--measure", str(self.measured)),
            *("--executed", f"examples/{self.example}.py", "--scale", "small", "--steps", str(steps)),
        ]


def planned(example: str, plan: Path, machine: Path) -> dict[str, float]:
    """A plan for the machine in that file, from a step profiled on this host with the kernels that the emulated machine
    runs, whose tensors are others, and with the layer times of this host's own kernels. Returns what a step takes there
    by simulation: policy -> times a step with everything fast. Raises SystemExit for a footprint beyond the rule."""
    profile, here = plan.with_suffix(".safetensors"), plan.with_name(f"{plan.stem}-here.safetensors")
    for path, more in ((profile, AS_EMULATED), (here, {})):
        _run(
            *(sys.executable, "-m", "sentinel", "run", "--fast", FAST, "--slow", "emulated:cxl-asic-x8"),
            *("--machine", str(machine), "--save-profile", str(path), "--report", str(plan.with_suffix(".txt"))),
            *(f"examples/{example}.py", "--scale", "small", "--steps", "4"),
            **more,
        )
    save(with_times_of(load_profile(profile), load_profile(here)), profile)
    _run(
        *(sys.executable, "-m", "sentinel", "plan", str(profile), "--machine", str(machine), "--fast", FAST),
        *("-o", str(plan)),
    )
    nbytes = json.loads(plan.read_text())["plan"]["footprint_bytes"]
    if not LEAST <= nbytes <= MOST:
        raise SystemExit(f"{example}: its footprint of {nbytes:,} bytes is not within {LEAST:,} and {MOST:,}")
    told = json.loads(
        _run(
            *(sys.executable, "-m", "sentinel", "compare", str(profile), "--machine", str(machine), "--fast", FAST),
            *("--curve", FAST, "--policies", ",".join(SIMULATED), "--json"),
        )
    )
    return {cell["policy"]: 1 / cell["speed"] for cell in told["cells"] if cell["speed"]}


def with_times_of(profile: Profile, timed: Profile) -> Profile:
    """`profile` with the layer times of `timed`. Raises SystemExit where they are not of the same layers."""
    if profile.layers != timed.layers:
        raise SystemExit("a step has other layers with the kernels of the emulated machine: its times are of no use")
    return replace(
        profile,
        layer_ns=timed.layer_ns,
        step_ns_profiled=timed.step_ns_profiled,
        step_ns_plain=timed.step_ns_plain,
        step_ns_is_measured=timed.step_ns_is_measured,
    )


def jobs(chosen: argparse.Namespace) -> list[Job]:
    """All that is asked for: the first run of all examples, then the second, then tiering alone after more steps."""
    runs = [("" if run == 1 else f"-run{run}", chosen.placements, chosen.warm_up) for run in range(1, chosen.runs + 1)]
    runs += [(f"-after{steps}", (TIERING,), steps) for steps in chosen.tiering_after]
    return [
        Job(
            example,
            chosen.into / f"{example}{suffix}.json",
            placements,
            warm_up,
            chosen.measured,
            chosen.plans / f"{example}.json",
        )
        for suffix, placements, warm_up in runs
        for example in chosen.examples
    ]


def left(asked: Sequence[Job]) -> list[Job]:
    """Those without a result. Raises SystemExit for a result of other settings or of another plan."""
    missing = []
    for job in asked:
        if not job.path.exists():
            missing.append(job)
        elif (there := json.loads(job.path.read_text())["settings"]) != job.settings():
            raise SystemExit(
                f"{job.path} is of {there}, asked for are {job.settings()}: remove it, or give another --into"
            )
    return missing


def carry_out(waiting: list[Job], *, at_once: int, memory: str, timeout_s: float) -> list[str]:
    """Run them, so many machines at once, and write each result as it ends. Returns the names of those that failed."""
    running: dict[subprocess.Popen[bytes], Job] = {}
    failed = []
    waiting = list(waiting)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[_started(job, job.command(memory, timeout_s))] = job
            time.sleep(_LOOK_EVERY_S)
            for process in [process for process in running if process.poll() is not None]:
                job = running.pop(process)
                failed += [] if _kept(job, process.returncode) else [job.path.stem]
    finally:
        for process in running:
            process.terminate()  # tools/numa_vm/run ends its machine
        for process in running:
            process.wait()
    return failed


def _started(job: Job, command: Sequence[str]) -> subprocess.Popen[bytes]:
    _say(f"{job.path.stem}: {' '.join(command)}")
    with job.path.with_suffix(".out").open("wb") as out, job.path.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, cwd=_bench.ROOT, env=_environment(), stdout=out, stderr=log)


def _kept(job: Job, code: int) -> bool:
    """Whether there is a result, which is kept with what it is of."""
    out, log = job.path.with_suffix(".out"), job.path.with_suffix(".log")
    if code:
        _say(f"{job.path.stem} failed with exit code {code}; the end of {log}:")
        _say("\n".join(log.read_text(errors="replace").splitlines()[-10:]))
        return False
    found = json.loads(out.read_text())
    found |= {"when": time.strftime("%Y-%m-%d", time.gmtime()), "versions": _bench.versions()}
    found["where"] = {**found.get("where", {}), "machine": MACHINE}  # which lies beside it
    found |= {"settings": job.settings(), "simulated": json.loads(_times_of(job.plan).read_text())}
    shutil.copyfile(job.plan.parent / MACHINE, job.path.parent / MACHINE)
    write_whole(job.path, (json.dumps(found, indent=1) + "\n").encode())
    out.unlink()
    _say(f"{job.path.stem}: kept in {job.path}")
    return True


def _times_of(plan: Path) -> Path:
    return plan.with_name(f"{plan.stem}-times.json")


def _run(*command: str, **more: str) -> str:
    _say(" ".join([*(f"{name}={value}" for name, value in more.items()), *command]))
    environment = _environment() | more
    done = subprocess.run(command, cwd=_bench.ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if wrong := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"there is no placement {wrong[0]!r}; choose of {', '.join(NAMES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=EXAMPLES)
    parser.add_argument(
        "--placements", type=_names, default=NAMES, metavar="NAMES", help="comma-separated; default: all"
    )
    parser.add_argument(
        "--into", type=Path, default=INTO, metavar="DIR", help="keep results here (default %(default)s)"
    )
    parser.add_argument("--plans", type=Path, metavar="DIR", help="keep plans here, and take those that are there")
    parser.add_argument("--plan-only", action="store_true", help="carry nothing out")
    parser.add_argument("--runs", type=int, default=1, help="of each example (default %(default)s)")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, metavar="STEPS", help="default %(default)s")
    parser.add_argument(
        "--measured",
        type=int,
        default=MEASURED,
        metavar="STEPS",
        help="a run (default %(default)s)",
    )
    parser.add_argument(
        "--tiering-after",
        type=int,
        nargs="+",
        default=(),
        metavar="STEPS",
        help="the kernel's tiering also after these steps of warm-up, in runs of its own, such as 20 40 80",
    )
    parser.add_argument("--at-once", type=int, default=2, help="machines at once, one CPU each (default %(default)s)")
    parser.add_argument("--memory", default="1G,1G", help="of the two nodes (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds for each machine (default %(default)s)")
    parser.add_argument("--table", action="store_true", help="run nothing: docs and README by the results in --into")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Make plans that are missing, carry out what has no result, or write docs and README."""
    chosen = _parser().parse_args(arguments)
    if chosen.plans and chosen.plans.resolve() == chosen.into.resolve():
        raise SystemExit(
            f"--plans and --into are both {chosen.into}, and their files have the same names: give another"
        )
    if chosen.table:
        results = take_over(chosen.into)
        _bench.emit("bytes over the slow link, ours and the kernel's placements", {"fast": FAST}, results)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen.into, chosen.plans = chosen.into.resolve(), (chosen.plans or chosen.into / "plans").resolve()
    chosen.into.mkdir(parents=True, exist_ok=True)
    chosen.plans.mkdir(parents=True, exist_ok=True)
    described, machine = machines.load(PLANNED_FOR), chosen.plans / MACHINE
    if not machine.exists():
        save(described, machine)
    elif load_machine(machine) != described:
        raise SystemExit(f"the plans in {chosen.plans} are not for {described.name}: give another --plans")
    for example in chosen.examples:
        plan = chosen.plans / f"{example}.json"
        if not _times_of(plan).exists():
            _times_of(plan).write_text(json.dumps(planned(example, plan, machine)))
    if chosen.plan_only:
        return
    failed = carry_out(left(jobs(chosen)), at_once=chosen.at_once, memory=chosen.memory, timeout_s=chosen.timeout)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the same command runs these again, and keeps the others")
    _say(f"all that was asked for is in {chosen.into}; --table takes it over")


if __name__ == "__main__":
    main()
