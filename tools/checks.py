#!/usr/bin/env python3
"""Runs jobs of the project's checks in lanes side by side, goes on after one that fails, and names all that failed.

    tools/checks.py            all jobs, as .ci/run does
    tools/checks.py JOB...     some, by their names or those of their lanes: `tests`, `machines`, ...
    tools/checks.py long       tests that are marked long, which no other job runs; benchmarks/long_tests.py makes
                               docs/long-tests.md of them

A job's output is shown as it ends, and its last line every few minutes until then. Jobs of one lane run one after
another, until another lane that is through takes over the last one that has not begun. A few tests that failed beside
other work are run twice more once nothing else runs; the end names them, whatever came of it. See docs/decisions/0173.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
# The same draws for whoever runs it: whether code may go in does not depend on luck. Those of `make test` are new each
# time.
PYTEST = (".venv/bin/python", "-m", "pytest", "--durations=15", "--hypothesis-seed=0")
# What is marked long holds in a larger size what shorter tests hold too: see docs/decisions/0188.
LONG, NOT_LONG = ("-m", "long"), ("-m", "not long")
QUICK, SLOW = ("-m", "not slow and not long"), ("-m", "slow and not long")
# By folder, so that tests/unit, whose files are all quick, comes last and no process waits long for the other.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# Training first, whose bits are compared: where time is short, slow tests that come last are left out.
FOLDERS = sorted(
    {f"tests/{file.relative_to(ROOT).parts[1]}" for file in (ROOT / "tests").glob("*/**/test_*.py")},
    key=lambda folder: (folder != "tests/torch", folder),
)
# In all jobs: two lanes share the cores, and idle threads of one process's operators would otherwise spin on the core
# that the other could use.
NO_SPINNING = {"OMP_WAIT_POLICY": "passive"}
# Kept by what the jobs start, hundreds of processes: without it each compiles all of Sentinel again, in an emulated
# machine for half a minute. What such a machine needs is made beforehand: it brings nothing back.
NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"
FOLDERS_OF_CODE = ("sentinel", "tests", "tools", "benchmarks", "examples")
BYTE_CODE = (".venv/bin/python", "-m", "compileall", "-q", "-j0", *FOLDERS_OF_CODE)
# A test may be skipped for what the kernel of this host does not have, not for what .ci/run installs. What needs two
# NUMA nodes is skipped on the host, and run in the emulated machines.
INSTALLED = (
    "torch,transformers,scikit-learn,pyarrow,valkey,redis-server,accelerate,pytorch-lightning,viztracer,compiler,"
    "static C++ runtime,cmake,native,browser,clang,libbpf,numa_vm:"
)

# One machine, and one process in it, for files that do not disturb one another: to boot one takes 13 s of a CPU, and to
# import torch there 64 s. What test_vm.py runs in machines of its own (test_vm_nodes.py, test_vm_witness.py) is not run
# again.
_KNOWN_MOVES = (
    "tests/contract/test_tiers.py",
    "tests/numa/test_calibrate_on_nodes.py",
    "tests/numa/test_engine_on_nodes.py",
    "tests/numa/test_ballast_on_nodes.py",
)
_PLANS = (
    "tests/numa/test_vm_page_ranges.py",
    *(
        f"tests/numa/test_{name}_on_nodes.py"
        for name in ("shapes", "changed_layers", "refined", "huge_pages", "samples")
    ),
)
# These take memory, nodes and system calls away, or import torch in a process of their own: each has a machine to
# itself.
_FAULTS = ("tests/numa/test_faults_on_nodes.py",)
_OFFLINE = ("tests/numa/test_offline_on_nodes.py",)
_PROOF = ("tests/numa/test_prove_on_nodes.py",)
_COMPARED = ("tests/numa/test_vm_compare.py",)
# Their long tests have a machine each, too.
LONG_ON_NODES = {
    "a proof": _PROOF,
    "a fork and a late failure": _FAULTS,
    "GPT-2 and a loader": ("tests/numa/test_samples_on_nodes.py",),
    "all placements": _COMPARED,
}
OWN_MACHINES = ("tests/numa/test_vm.py", "tests/numa/test_vm_calibrate.py", "tests/ebpf/test_other_kernels.py")
IN_MACHINES = (*_KNOWN_MOVES, *_PLANS, *_FAULTS, *_OFFLINE, *_PROOF, *_COMPARED)


# Builds in which the native library's own tests run each time: one without optimisation is a long job.
SANITIZERS = "ASAN+UBSAN TSAN"
# What tests/conftest.py writes before the name of each test that failed, and where something else failed a run.
FAILED_TEST = "failed test: "
OTHER_FAILURE = "failed by more than tests"
# A wrong byte is never bad luck: these compare bits with those of stock training, and what failed of them has failed.
NEVER_AGAIN = (
    "tests/native/test_frames.py",
    "tests/numa/test_huge_pages_on_nodes.py",
    "tests/property/test_frame_laws.py",
    "tests/torch/test_bit_identity.py",
    "tests/torch/test_copied_once.py",
    "tests/torch/test_lost_writes.py",
    "tests/torch/test_overlapped_steps.py",
    "tests/torch/test_passive.py::test_training_is_the_same_bit_for_bit",
    "tests/torch/test_registered_memory.py",
    "tests/torch/test_slices.py",
)
# What pytest-timeout says of a test that hung. It would hang again, and take as long as all the others.
HUNG = "Failed: Timeout (>"
# Seconds for one test where a processor is emulated, or memory short: see `timeout` in pyproject.toml.
LONGER = ("--timeout", "1800")
# Where more tests of a job failed, they have a cause in common.
MOST_AGAIN = 6
# What says why a job failed: pytest, CHECK of a native test, a sanitizer, ctest, a compiler, make.
TELLING = re.compile(
    r"^(FAILED|ERROR) |^E  +\w*(Error|Exception)\b"
    r"|: not so: |Sanitizer: |^\s+\d+ - \S+ \((?!Skipped)"
    r"|: error: |^make: \*\*\* "
)
# So many such lines of a job are told again at the end, where who sees a part of the output looks first.
MOST_TOLD, LONGEST_TOLD = 12, 200
# So often each test that failed is run alone.
TIMES_AGAIN = 2
# A test of this job that has not begun so long after all jobs began is left out, and named: a run that does not end
# says nothing at all. See docs/decisions/0224.
SLOW_TESTS = "slow tests"
SLOW_TESTS_BEGIN_WITHIN_S = 55 * 60.0
SLOW_TESTS_BEGIN_UNTIL = "SLOW_TESTS_BEGIN_UNTIL"
# Between two looks at jobs that have not ended. Whoever ends a run that takes too long knows then where it was.
LOOK_EVERY_S = 300.0


@dataclass
class Job:
    """`command` is run in the project's folder with `environment` on top of ours; `alone` and names of tests after it
    run these tests only, nothing where a job cannot."""

    name: str
    lane: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    alone: Sequence[str] = ()
    failed: bool = False
    took_s: float = 0.0
    output: str = ""

    def run(self, command: Sequence[str], look: Callable[[str], None] = print) -> subprocess.CompletedProcess[str]:
        """What `command` did and said, in this job's environment. `look` is told its last line now and then."""
        inherited = {name: value for name, value in os.environ.items() if name != NO_BYTE_CODE}
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**NO_SPINNING, **inherited, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            while (code := _ended_within(process, LOOK_EVERY_S)) is None:
                last = _all_of(said).rstrip().rpartition("\n")[2]
                look(f"-- {self.name}: goes on; so far its last line is: {last}")
            return subprocess.CompletedProcess(command, code, _all_of(said))

    def to_run_again(self) -> list[str]:
        """The tests that failed, if a job of so few, all of which may be run again, failed of nothing else."""
        if not (self.failed and self.alone):
            return []
        # tests/conftest.py writes them; what failed for another reason wrote none
        tests = list(dict.fromkeys(re.findall(rf"^{re.escape(FAILED_TEST)}(.+)$", self.output, re.MULTILINE)))
        few = len(tests) <= MOST_AGAIN and OTHER_FAILURE not in self.output and HUNG not in self.output
        return tests if few and not any(test.startswith(NEVER_AGAIN) for test in tests) else []


def _ended_within(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Its exit code, None if it runs on. Whatever ends the waiting ends the process."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    except BaseException:
        process.kill()
        raise


def _all_of(said: IO[bytes]) -> str:
    """What a process that shares the file has written. Its place in the file is the process's, and stays."""
    return os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0).decode(errors="replace")


def _on_two_nodes(
    name: str,
    files: Sequence[str],
    *shape: str,
    chosen: Sequence[str] = (*LONGER, *NOT_LONG, "-q"),
    lane: str = "machines",
) -> Job:
    options = ("--kernel", "6.12", "--memory", "1G,1G", "--timeout", "2400", *shape)
    inside = (*PYTEST, *chosen, "--no-skips", f"{INSTALLED},nodes,root")
    machine = ("tools/numa_vm/run", *options, "--", *inside)
    return Job(f"two real nodes, emulated: {name}", lane, (*machine, *files), alone=machine)


def jobs() -> list[Job]:
    """All but the long ones, in the order of their lanes, which take about as long as each other."""
    own = [f"--ignore={file}" for file in OWN_MACHINES]
    here = (*PYTEST, "--no-skips", INSTALLED)
    return [
        Job("lint and types", "host", ("make", "lint")),
        Job("demo", "host", (".ci/demo",)),
        Job("reference", "host", ("make", "docs")),
        Job("tests", "host", (*here, *QUICK, *SIDE_BY_SIDE, *own), alone=here),
        Job(SLOW_TESTS, "host", (*here, *SLOW, *SIDE_BY_SIDE, *own, *FOLDERS), alone=here),
        Job("without torch", "host", (".ci/without-torch",)),
        Job("source distribution", "host", (".ci/source-distribution",)),
        Job("native", "machines", ("make", "native-test", f"NATIVE_BUILDS={SANITIZERS}")),
        Job(
            "machines that tests boot",
            "machines",
            (*here, *NOT_LONG, *LONGER, *OWN_MACHINES),
            {"SENTINEL_NUMA_VM": "1"},
            alone=here,
        ),
        _on_two_nodes("plans", _PLANS),
        _on_two_nodes("known moves", _KNOWN_MOVES),
        _on_two_nodes("faults", _FAULTS),
        _on_two_nodes("a node that goes", _OFFLINE, "--removable"),
    ]


def long_jobs() -> list[Job]:
    """Tests that are marked long, one after the other: they take more memory and processes than others. Those that
    need two nodes then run in a machine that has them. And a third build of the native library's own tests."""
    chosen = (*LONGER, "--durations=0", "-rA", *LONG)
    others = [f"--ignore={file}" for files in LONG_ON_NODES.values() for file in files]
    command = (*PYTEST, *chosen, "--no-skips", INSTALLED, *others)
    return [
        Job("long tests", "long", command, {"SENTINEL_NUMA_VM": "1"}),
        Job("native tests without optimisation", "long", ("make", "native-test", "NATIVE_BUILDS=Debug")),
        *(_on_two_nodes(name, files, chosen=chosen, lane="long") for name, files in LONG_ON_NODES.items()),
    ]


class Lanes:
    """Runs the jobs of each lane in a thread of its own."""

    def __init__(self, chosen: Sequence[Job]) -> None:
        self._left = list(chosen)
        self._printing, self._choosing = threading.Lock(), threading.Lock()

    def run(self) -> None:
        """Returns once all have ended."""
        lanes = dict.fromkeys(job.lane for job in self._left)
        threads = [threading.Thread(target=self._run_lane, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _take(self, lane: str) -> Job | None:
        """The next to run, None if all have begun."""
        with self._choosing:
            if not self._left:
                return None
            own = [index for index, job in enumerate(self._left) if job.lane == lane]
            return self._left.pop(own[0] if own else -1)

    def _run_lane(self, lane: str) -> None:
        while (job := self._take(lane)) is not None:
            self._say(f"-- {job.name}: begins")
            began = time.monotonic()
            done = job.run(job.command, self._say)
            job.failed, job.took_s, job.output = done.returncode != 0, time.monotonic() - began, done.stdout
            verdict = f"FAILED, exit code {done.returncode}" if job.failed else "passed"
            self._say(f"\n== {job.name}\n{job.output.rstrip()}\n-- {job.name}: {verdict} after {job.took_s:.0f} s")

    def _say(self, text: str) -> None:
        with self._printing:
            print(text, flush=True)


def run_again(chosen: Sequence[Job]) -> list[str]:
    """Runs tests that failed beside other work again, each time in a new process and nothing else beside it. Those
    that passed each time, of jobs of which no other test failed; such a job has not failed."""
    passed: list[str] = []
    for job in chosen:
        tests = job.to_run_again()
        if not tests:
            continue
        job.environment.pop(SLOW_TESTS_BEGIN_UNTIL, None)  # each runs, however late it is
        print(f"\n== {job.name}: {len(tests)} failed, and run {TIMES_AGAIN} times again, alone", flush=True)
        began = time.monotonic()
        for _ in range(TIMES_AGAIN):
            done = job.run((*job.alone, *tests))
            print(done.stdout.rstrip(), flush=True)
            if done.returncode != 0:
                break
        else:
            job.failed = False
            passed += tests
        job.took_s += time.monotonic() - began
    return passed


def reasons(output: str) -> list[str]:
    """The lines of a failed job's output that say why it failed; its last ones where none does."""
    lines = [line.rstrip()[:LONGEST_TOLD] for line in output.rstrip().splitlines()]
    return list(dict.fromkeys(line for line in lines if TELLING.search(line)))[:MOST_TOLD] or lines[-3:]


def summary(outputs: Sequence[str]) -> str:
    """Of all runs of pytest in `outputs`, in pytest's own words: `3 failed, 5 passed`."""
    total: Counter[str] = Counter()
    for output in outputs:
        for line in output.splitlines():
            if re.search(r"\b(passed|failed|skipped|errors?)\b.* in [\d.]+s", line):
                for count, word in re.findall(r"(\d+) (failed|passed|skipped|errors?)\b", line):
                    total[word.rstrip("s") if word.startswith("error") else word] += int(count)
    return ", ".join(f"{total[word]} {word}" for word in ("failed", "passed", "skipped", "error") if total[word])


def main(words: Sequence[str]) -> int:
    """Runs the jobs named, or all but long ones; returns 1 if one failed."""
    known = [*jobs(), *long_jobs()]
    unknown = [word for word in words if word not in {job.name for job in known} | {job.lane for job in known}]
    if unknown:
        names = ", ".join(dict.fromkeys([*(job.lane for job in known), *(job.name for job in known)]))
        print(f"tools/checks.py: no job is named {unknown[0]}; there are: {names}", file=sys.stderr)
        return 2
    chosen = [job for job in known if job.name in words or job.lane in words] or jobs()
    if not words:
        for job in chosen:
            if job.name == SLOW_TESTS:
                job.environment[SLOW_TESTS_BEGIN_UNTIL] = str(time.time() + SLOW_TESTS_BEGIN_WITHIN_S)
    began = time.monotonic()
    subprocess.run(BYTE_CODE, cwd=ROOT, check=False)  # what does not compile is found by a job
    Lanes(chosen).run()
    again = run_again(chosen)
    print("\n== what took longest")
    for job in sorted(chosen, key=lambda job: -job.took_s):
        print(f"{job.took_s:6.0f} s  {job.name}")
    failed = [job for job in chosen if job.failed]
    print(f"\n== {len(failed)} of {len(chosen)} jobs failed")
    for job in failed:
        print(job.name, *reasons(job.output), sep="\n    ")
    if again:
        print(f"== {len(again)} failed beside other work and passed {TIMES_AGAIN} times alone: look into each")
        print("\n".join(again))
    told = summary([job.output for job in chosen])
    print(f"{told or 'no tests ran'} in {time.monotonic() - began:.2f}s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
