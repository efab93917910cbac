"""The data path of `end_profile` at 128 GiB and 1 TiB, and a migration among many tensors: `benchmarks/scale.py`.

The path: the tracker's runs of touched pages -> samples -> trace -> profile -> digest, as `end_profile` goes it, from
where the watch has ended: which chunks of 2 MiB keep small pages, what the tracker itself took, both logs merged into
tensors and events, what stock allocation would have shared; planning is `plan_time.py`'s. `parts_s` tells them apart.
Not in it: taking the logs from the library, which grow with operators and not with bytes.

The runs are made up: every page of the footprint is touched in five layers of 130, by
1,200 tensors that live across steps, at 4 KiB. *A tenth of the rows one-page runs* is read as: a tenth of all (page,
layer) pairs, 16.8 million of 168 million at 128 GiB, is a run by itself; the other nine tenths have lengths drawn from
those that a recorded step of a small GPT-2 has, neighbours being unlike in what was seen, as the tracker joins what is
alike.

Memory is told from outside: a process has the runs made by another one, in memory that both share, as the library
would hold them by then, and stops; its high-water mark is reset; it goes on. `extra_bytes`, from there to its peak,
counts the runs, which it had not touched, and all that the path takes beyond them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _bench
from sentinel import files
from sentinel.core.attribution import attribute
from sentinel.core.plan import Block, Plan, Slot
from sentinel.core.trace import PAGE_RUN_DTYPE, SEEN_READ, SEEN_WRITE, LayerId, Quality, Trace
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.session.binding import Addresses

if TYPE_CHECKING:
    from sentinel.profiler.merge import Step
    from sentinel.profiler.operators import OperatorLog

GIB = 1 << 30
SIZES = {"1GiB": (GIB, GIB, 30), "128GiB": (128 * GIB, 2 * GIB, 30), "1TiB": (1024 * GIB, 6 * GIB, 240)}
"""Footprint, most extra memory in bytes, most seconds."""
LAYERS, TENSORS, TIMES = 130, 1200, 5
ONE_PAGE_SHARE = 0.1
AMONG = (300, 3_000, 30_000, 100_000)
FIRST_PAGE = 1 << 30


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object: machine, versions, the lengths recorded, and what each size took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="128GiB,1TiB", help=f"of {', '.join(SIZES)} (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths-of", metavar="FILE", type=Path, help="an earlier result: lengths as recorded there")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        return _child(int(given.child[0]), json.loads(given.child[1]))
    lengths = json.loads(given.lengths_of.read_text())["run_lengths"] if given.lengths_of else recorded_lengths()
    found: dict[str, Any] = {}
    found["data_path"] = {
        size: [_data_path(*SIZES[size], lengths) for _ in range(given.rounds)] for size in given.sizes.split(",")
    }
    found["migration"] = [_migration_among(count) for count in AMONG]
    _bench.emit((__doc__ or "").splitlines()[0], {"run_lengths": lengths}, found)
    return None


def recorded_lengths() -> dict[str, int]:
    """Length in pages -> how many runs of it a recorded step of a GPT-2 of 4 layers has, those of one page left out."""
    told = _bench.child("benchmarks._run_lengths", [], {})
    return {str(length): count for length, count in told["lengths"].items() if int(length) > 1}


def _data_path(footprint: int, most_bytes: int, most_s: float, lengths: dict[str, int]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(footprint), json.dumps(lengths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        made = json.loads(child.stdout.readline())
        begin = _status(child.pid, "VmRSS")
        Path(f"/proc/{child.pid}/clear_refs").write_text("5")  # the high-water mark begins again
        child.stdin.write("go\n")
        child.stdin.flush()
        told = json.loads(child.stdout.readline())
        peak = _status(child.pid, "VmHWM")
        child.stdin.write("end\n")
    if child.returncode:
        raise SystemExit(f"the data path of {format_bytes(footprint)} ended with {child.returncode}")
    extra = peak - begin
    within = extra <= most_bytes and told["seconds"] <= most_s
    return {**made, **told, "peak_rss_bytes": peak, "extra_bytes": extra, "within_limits": within}


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1]) * 1024


def _child(footprint: int, lengths: dict[str, int]) -> None:
    from sentinel.profiler.malloc_layout import stock_sharing
    from sentinel.profiler.merge import merge
    from sentinel.profiler.pages import AddressRange, armed_tracker, make, native_touch
    from sentinel.profiler.record import _on_ring

    places = np.linspace(0, footprint // PAGE_BYTES, TENSORS + 1).astype(np.int64) + FIRST_PAGE
    step, allocations, log = make_logs(places)
    runs, touches = _made_elsewhere(places, lengths)
    print(json.dumps({"runs": len(runs), "runs_bytes": runs.nbytes, "touches": touches}), flush=True)
    sys.stdin.readline()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    # as ArmedTracker.stop
    native_touch.keep_small(armed_tracker._chunks_in_parts(runs))
    chunks_done = time.perf_counter()
    runs = armed_tracker._without(runs, AddressRange(PAGE_BYTES, 2 * PAGE_BYTES))
    spent = make("ebpf")._costs(runs)
    np.bitwise_and(runs["seen"], ~native_touch.IN_GRANULE, out=runs["seen"])
    stop_done = time.perf_counter()
    # as StepRecorder.finish
    tensors, events = merge(step, allocations, log, lambda address: address >= FIRST_PAGE * PAGE_BYTES)
    sharing = stock_sharing(step, allocations, tensors, events)
    merge_done = time.perf_counter()
    trace = Trace(
        layers=step.ring,
        layer_ns=np.full(LAYERS, 10**9, np.int64),
        tensors=tensors,
        ops=log.ops,
        events=events,
        quality=Quality("ebpf", "touched layers", overhead_ns=sum(spent.values()), granularity_bytes=PAGE_BYTES),
        sharing=sharing,
        pages=_on_ring(runs, LAYERS),
    )
    profile = attribute(trace)
    profile = files.with_origin(profile, trace=trace)
    end = time.perf_counter()
    parts = {
        "small_chunks": chunks_done - begin,
        "rest_of_stop": stop_done - chunks_done,
        "merge": merge_done - stop_done,
        "profile": end - merge_done,
    }
    cpu = time.process_time() - begin_cpu
    counted = int(profile.accesses["pages_touched"].sum())
    assert counted == touches, f"{counted} of {touches} touches are in the profile"
    told = {"seconds": end - begin, "cpu_seconds": cpu, "parts_s": parts, "extents": len(profile.extents)}
    print(json.dumps({**told, "tensors": len(tensors), "events": len(events)}), flush=True)
    sys.stdin.readline()


def _made_elsewhere(places: NDArray[np.int64], lengths: dict[str, int]) -> tuple[NDArray[Any], int]:
    """Runs, and how many pages they are, without the memory that making them took."""
    most = TIMES * int(places[-1] - places[0]) // 2
    shared = mmap.mmap(-1, most * PAGE_RUN_DTYPE.itemsize)
    told, tell = os.pipe()
    if not os.fork():
        runs = make_runs(places, lengths)
        np.frombuffer(shared, PAGE_RUN_DTYPE)[: len(runs)] = runs
        os.write(tell, json.dumps([len(runs), int(runs["npages"].sum())]).encode())
        os._exit(0)
    os.wait()
    count, touches = json.loads(os.read(told, 1 << 12))
    return np.frombuffer(shared, PAGE_RUN_DTYPE)[:count], touches


def touched_in(tensor: int) -> list[int]:
    """The layers that touch a tensor: twice forward, twice backward, and the last, which is the optimizer's."""
    middle = (LAYERS - 1) // 2
    at = tensor * (middle - 1) // TENSORS
    return [at, at + 1, LAYERS - 3 - at, LAYERS - 2 - at, LAYERS - 1]


def make_runs(places: NDArray[np.int64], lengths: dict[str, int]) -> NDArray[Any]:
    """Runs as a tracker tells them: by layer, then by page. `places`: (TENSORS + 1,) first pages."""
    random = np.random.default_rng(1)
    of_layer = [[tensor for tensor in range(TENSORS) if layer in touched_in(tensor)] for layer in range(LAYERS)]
    parts = [_runs_of(layer, places, np.array(of), lengths, random) for layer, of in enumerate(of_layer) if of]
    made = np.empty(sum(map(len, parts)), PAGE_RUN_DTYPE)
    at = 0
    while parts:
        part = parts.pop(0)
        made[at : at + len(part)] = part
        at += len(part)
    return made


def _runs_of(
    layer: int, places: NDArray[np.int64], tensors: NDArray[np.int64], lengths: dict[str, int], random: Any
) -> NDArray[Any]:
    npages = places[tensors + 1] - places[tensors]
    ends = npages.cumsum()
    cuts = np.union1d(_cuts(int(ends[-1]), lengths, random), np.concatenate([[0], ends]))
    start = cuts[:-1]
    of = np.searchsorted(ends, start, "right")
    rows = np.zeros(len(start), PAGE_RUN_DTYPE)
    rows["page"] = places[tensors[of]] + start - (ends - npages)[of]
    rows["npages"], rows["layer"] = np.diff(cuts), layer
    rows["seen"] = np.where(np.arange(len(start)) % 2, SEEN_READ, SEEN_READ | SEEN_WRITE)
    return rows


def _cuts(n_pages: int, lengths: dict[str, int], random: Any) -> NDArray[np.int64]:
    """Where runs end in a stretch of pages."""
    known = np.array([int(length) for length in lengths])
    chance = np.array(list(lengths.values()), float)
    chance /= chance.sum()
    mean = float((known * chance).sum())
    ones = ONE_PAGE_SHARE * mean / (1 - ONE_PAGE_SHARE + ONE_PAGE_SHARE * mean)  # of the runs
    found, reached = [], 0
    while reached < n_pages:
        count = int((n_pages - reached) / (ones + (1 - ones) * mean) * 1.05) + 100
        drawn = np.where(random.random(count) < ones, 1, random.choice(known, count, p=chance))
        ends = drawn.cumsum() + reached
        found.append(ends)
        reached = int(ends[-1])
    every = np.concatenate(found)
    return every[every < n_pages]


def make_logs(places: NDArray[np.int64]) -> tuple[Step, NDArray[Any], OperatorLog]:
    """What the recorder and the allocator have of a step whose operators read each tensor in each of its layers, and
    have a small tensor of their own meanwhile. `places` as above."""
    from sentinel.migration.memory import ALLOC, EVENT_DTYPE, FREE, SMALL
    from sentinel.profiler.merge import Known, Step
    from sentinel.profiler.operators import OPERATOR, OPERATOR_DTYPE, READ, OperatorLog

    nbytes = (np.diff(places) * PAGE_BYTES).tolist()
    addresses = (places[:-1] * PAGE_BYTES).tolist()
    known = tuple(Known(f"w{i}", "param", addresses[i], nbytes[i]) for i in range(TENSORS))
    allocations, operands, ticks = [], [], []
    seq, small = 1, 1 << 20
    for layer in range(LAYERS):
        used = [tensor for tensor in range(TENSORS) if layer in touched_in(tensor)]
        for ordinal, tensor in enumerate(used):
            allocations.append((seq + 1, small, 512, seq, layer, ordinal, SMALL, ALLOC, (0, 0, 0)))
            operands.append((seq + 2, addresses[tensor], nbytes[tensor], 0, nbytes[tensor], 0, READ, 0, 0))
            operands.append((seq + 2, 0, 0, seq, nbytes[tensor], 0, OPERATOR, 0, 0))
            allocations.append((seq + 3, small, 0, seq, layer, -1, 0, FREE, (0, 0, 0)))
            seq += 3
        seq += 1
        ticks.append(seq)
    step = Step(
        first_seq=0,
        last_seq=seq + 1,
        began_ns=0,
        tick_seqs=np.array(ticks, np.uint64),
        tick_ns=np.array(ticks, np.int64),
        first_layer=0,
        ring=tuple(LayerId(f"layer{i}", 0, "forward") for i in range(LAYERS)),
        before=known,
        after=known,
    )
    events = np.array(operands, OPERATOR_DTYPE)
    log = OperatorLog(events, ("aten::mm",), np.zeros(len(events), np.int64), 0)
    return step, np.array(allocations, EVENT_DTYPE), log


def _migration_among(count: int) -> dict[str, Any]:
    """What it takes to tell where a block is, among `count` persistent tensors of two pages."""
    at = range(0, count * 2 * PAGE_BYTES, 2 * PAGE_BYTES)
    slots = tuple(Slot(i, f"w{i}", None, offset, 2 * PAGE_BYTES) for i, offset in enumerate(at))
    blocks = tuple(Block(offset, 2 * PAGE_BYTES, 0, 1, 0, (i,), persistent=True) for i, offset in enumerate(at))
    plan = Plan("scale", (LayerId("all"),), ("fast", "slow"), (1 << 60, 1 << 60), (), slots, blocks, (), 0, 0)
    begin = time.perf_counter()
    mapped = Addresses(plan, (1 << 46, 1 << 38), {f"w{i}": (1 << 45) + offset for i, offset in enumerate(at)})
    taken_in = time.perf_counter() - begin
    asked = np.random.default_rng(1).integers(0, count, 10_000).tolist()
    times = [_timed(lambda: [mapped.ranges(block) for block in asked]) / len(asked) for _ in range(5)]
    return {"tensors": count, "ns_a_migration": [round(1e9 * each, 1) for each in times], "taken_in_s": taken_in}


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
