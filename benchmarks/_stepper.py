"""Child of first_steps.py, overhead.py and cap.py: trains a model and does one thing at a time, as its input says.

Each line of input is a word; each answer is a line of JSON with what it took. The words: `step`, one training step;
`start`, sentinel.start_profile(); `end`, sentinel.end_profile(); `forget-peak`, memory's peak counts from what is
resident now; `storage`, what was moved so far; `record`, the recorded step goes into the file that was named; `stop`
ends the process. Where Sentinel refuses to begin, the first answer says why, and is the only one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.reports import StorageFigures
    from sentinel.session.passive import PassiveSession

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def tune_malloc() -> None:
    """No block of its own mapping, nothing given back: what keeps glibc from faulting the same pages in each step.

    M_MMAP_MAX=0 and not a large M_MMAP_THRESHOLD, which glibc refuses beyond 32 MiB.
    """
    libc = ctypes.CDLL(None)
    for setting, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)):
        if libc.mallopt(setting, value) != 1:
            raise SystemExit(f"mallopt({setting}, {value}) was refused")


def peak_rss_bytes() -> int:
    """Most that was resident since the process began, or since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """The peak counts from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def spent(action: Callable[[], Any]) -> dict[str, Any]:
    """Wall time, processor time of all threads and page faults of `action`, and the loss where it returns one."""
    before, cpu, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time_ns(), time.perf_counter_ns()
    result = action()
    wall_ns, cpu_ns = time.perf_counter_ns() - began, time.process_time_ns() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults = {"faults": after.ru_minflt - before.ru_minflt, "major_faults": after.ru_majflt - before.ru_majflt}
    told = {"wall_ns": wall_ns, "cpu_ns": cpu_ns, **faults, "peak_rss_bytes": peak_rss_bytes()}
    return told | ({"loss": result} if isinstance(result, float) else {})


def _session() -> PassiveSession:
    from sentinel.runtime import RUNTIME
    from sentinel.session.passive import PassiveSession

    assert isinstance(RUNTIME.sink, PassiveSession)
    return RUNTIME.sink


def _figures() -> StorageFigures | None:
    """Without a bound, which may take seconds: whoever asks has a better one in mind."""
    return _session().report(bounded=False).setup.storage


def _save_record(path: Path) -> None:
    """Writes nothing where no step was recorded."""
    import numpy as np

    from sentinel.tiers.ahead import recorded_step

    if (uses := recorded_step()) is not None:
        np.savez(path, **vars(uses))


def main() -> None:
    """Parse, then do as told."""
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="one of benchmarks._models.JOBS")
    which.add_argument("--shape", type=int, nargs=4, help="a GPT-2 of LAYERS WIDTH ROWS COLUMNS")
    parser.add_argument("--rows", type=int, help="samples in a batch of that model")
    parser.add_argument("--vocabulary", type=int, default=50_257, help="tokens of that GPT-2")
    parser.add_argument("--sentinel", action="store_true", help="annotate the model, as one does for Sentinel")
    parser.add_argument("--tuned", action="store_true", help="malloc keeps what it got")
    parser.add_argument("--tracker", default="ebpf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", help="memory of tensors, with the rest in a file, from before the model is built")
    parser.add_argument("--cap", help="of the whole process, likewise")
    parser.add_argument("--file", help="directory of that file")
    parser.add_argument("--overlap", action="store_true", help="updates within backward, likewise")
    parser.add_argument("--passive", action="store_true", help="nothing is read ahead, likewise")
    parser.add_argument("--record", type=Path, help="where `record` writes the step that later ones are followed by")
    parser.add_argument("--cgroup", type=Path, help="folder of the cgroup that this process joins first")
    chosen = parser.parse_args()
    if chosen.cgroup is not None:
        (chosen.cgroup / "cgroup.procs").write_text(str(os.getpid()))
    if chosen.tuned:
        tune_malloc()
    import torch

    from benchmarks import _models, _profiled_step

    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    if chosen.file:
        import sentinel

        try:
            sentinel.start_profile(
                fast=chosen.budget, cap=chosen.cap, slow=f"file:{chosen.file}", overlap_optimizer=chosen.overlap
            )
        except sentinel.SentinelError as error:
            print(json.dumps({"refused": str(error)}), flush=True)
            return
        if chosen.passive:
            _session().read_nothing_ahead()
    if chosen.model:
        job = _models.JOBS[chosen.model](*([] if chosen.rows is None else [chosen.rows]))
        model, optimizer, step = job.model, job.optimizer, _models.training_step(job)
    else:
        model, optimizer, tokens = _profiled_step.gpt2(*chosen.shape, vocabulary=chosen.vocabulary)
        step = _profiled_step.training_step(model, optimizer, tokens)
    if chosen.sentinel:
        import sentinel

        sentinel.annotate(model, optimizer)

    def start() -> None:
        sentinel.start_profile(fast="100%", slow="emulated:cxl-asic-x8", tracker=chosen.tracker)

    def end() -> None:
        sentinel.end_profile()

    def stored() -> dict[str, Any]:
        return {"storage": figures._asdict() if chosen.file and (figures := _figures()) is not None else None}

    actions: dict[str, Callable[[], Any]] = {
        "step": step,
        "start": start,
        "end": end,
        "forget-peak": forget_peak,
        "record": lambda: _save_record(chosen.record),
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "stop":
            break
        print(json.dumps(stored() if word == "storage" else spent(actions[word])), flush=True)
    told = {"headline": dict(sentinel.report().headline) if chosen.sentinel else None}
    print(json.dumps(told | stored()), flush=True)


if __name__ == "__main__":
    main()
