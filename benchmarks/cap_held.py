"""Claim: a cap holds, by the kernel's own account, in 1,000 steps of training with workers forked every 50 steps.

Three processes train the same network with AdamW, each in a memory cgroup of its own: stock PyTorch in one without a
limit; Sentinel with `cap=` in one whose limit is twice the cap, which counts; and Sentinel without `cap=` in one whose
limit is the cap, which it finds by itself. Every 50 steps two workers are forked that read a data set in frames.

Goals, else it exits with 1: all losses and parameters are the same. Where the cgroup counts, its peak (page cache and
the memory of workers in it) is never above the cap. Where it enforces, the kernel never had to take memory back
(`memory.failcnt`; in version 2 `max` in `memory.events`). What the kernel says that the frames take is within 1% of
what was promised. No page fault waits for the disk in steps after the fourth that fork nobody. The host has no swap: it
is refused there.

    python -m benchmarks.cap_held --directory /data/scratch                        # as root; some minutes
    python -m benchmarks.cap_held --directory . --steps 120 --forks-every 40       # a minute
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _bench
from benchmarks._memory_group import memory_group
from sentinel.core.units import parse_bytes

WIDTH, ROWS, SAMPLES = 1024, 32, 4096
WITHIN = 0.01  # of what was promised
CALM = 4  # the first steps, after which a steady job meets nothing that was not foreseen


def train(options: argparse.Namespace) -> dict[str, Any]:
    """In the cgroup of `options.cgroup`: what it computed, and of frames what was promised and what they take."""
    (options.cgroup / "cgroup.procs").write_text(str(os.getpid()))
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import sentinel
    from sentinel.session.passive import PassiveSession

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.directory:
        sentinel.start_profile(cap=options.cap or None, slow=f"file:{options.directory}=2GiB")
    layers = [layer for _ in range(options.layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(SAMPLES, WIDTH))
    losses, unforeseen, shares = [], 0, []
    batch = next(iter(DataLoader(data, ROWS)))[0]
    for step in range(options.steps):
        forks = step % options.forks_every == options.forks_every - 1
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if forks:
            batches = iter(DataLoader(data, ROWS, shuffle=True, num_workers=2, multiprocessing_context="fork"))
            batch = next(batches)[0]
            del batches
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step >= CALM and not forks:
            unforeseen += resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
        if forks and options.directory:
            session = sentinel.runtime.RUNTIME.sink
            assert isinstance(session, PassiveSession)
            told = session.report(bounded=False).setup.storage
            assert told is not None
            shares.append(told.resident_bytes / told.pool_bytes)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    found: dict[str, Any] = {"losses": losses, "parameters": digest.hexdigest()}
    if options.directory:
        storage = sentinel.report().setup.storage
        assert storage is not None
        found |= {"storage": storage._asdict(), "major_faults": unforeseen}
        found |= {"resident_over_promised": max(shares), "least_resident_over_promised": min(shares)}
    return found


def in_group(options: argparse.Namespace, limit_bytes: int | None, words: list[str]) -> dict[str, Any]:
    """`train` in a process of its own, and what its cgroup has counted."""
    with memory_group() as group:
        if limit_bytes is not None:
            group.limit(limit_bytes)
        same = ("steps", "forks_every", "layers", "threads")
        told = [word for name in same for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
        child = [sys.executable, "-m", "benchmarks.cap_held", *group.words, *told, *words]
        done = subprocess.run(child, capture_output=True, text=True, check=False, timeout=options.timeout_s)
        counts = {"peak_bytes": group.peak_bytes, "limit_met": group.limit_met}
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode}, {counts}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]) | counts


def judged(cap_bytes: int, found: dict[str, dict[str, Any]]) -> list[str]:
    """What was missed of the goals, in words."""
    missed = []
    if len({(tuple(each["losses"]), each["parameters"]) for each in found.values()}) != 1:
        missed.append("losses or parameters differ")
    if (peak := found["counts"]["peak_bytes"]) > cap_bytes:
        missed.append(f"the peak of the cgroup that counts, {peak}, is above the cap, {cap_bytes}")
    if (times := found["enforces"]["limit_met"]) != 0:
        missed.append(f"the cgroup that enforces met its limit {times} times")
    for name in ("counts", "enforces"):
        for share in (found[name]["resident_over_promised"], found[name]["least_resident_over_promised"]):
            if abs(share - 1) > WITHIN:
                missed.append(f"{name}: frames take {share:.3f} of what was promised")
        if faults := found[name]["major_faults"]:
            missed.append(f"{name}: {faults} page faults waited for the disk in steps without a fork")
    return missed


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cap_held", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", help="of the file, on a disk")
    parser.add_argument("--cap", default="512MiB")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--forks-every", type=int, default=50)
    parser.add_argument("--layers", type=int, default=12, help="16 MiB each, with gradients and optimizer state")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="of each process")
    parser.add_argument("--cgroup", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cgroup is not None:
        print(json.dumps(train(options)))
        return 0
    if options.directory is None:
        parser.error("--directory is needed: on a disk")
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        raise SystemExit("this host swaps: memory that is swapped out is not in a cgroup's peak; swapoff first")
    cap_bytes = parse_bytes(options.cap)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        ours = ["--directory", folder]
        found = {
            "stock": in_group(options, None, []),
            "counts": in_group(options, 2 * cap_bytes, [*ours, "--cap", str(cap_bytes)]),
            "enforces": in_group(options, cap_bytes, [*ours, "--cap", ""]),
        }
    missed = judged(cap_bytes, found)
    for each in found.values():
        each["losses"] = [each["losses"][0], each["losses"][-1]]
    settings = {name: getattr(options, name) for name in ("cap", "steps", "forks_every", "layers", "threads")}
    _bench.emit((__doc__ or "").splitlines()[0], settings, {"missed": missed, "processes": found})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
