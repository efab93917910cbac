"""Claim: a model trains under a cap on its whole process, bit-identically and near the least time that this may take.

First stock PyTorch trains alone in a memory cgroup that counts: caps are shares of its peak. For each cap, processes
train the same model:

- stock: PyTorch with all the memory it wants; tuned: the same with a malloc that keeps its memory
- file: Sentinel with `cap=`, in a cgroup whose limit is the cap; overlap: with `overlap_optimizer=True` too; passive:
  nothing is read ahead
- swap: stock in a cgroup of that limit, with a swap file beside Sentinel's file, which belongs to the whole host while
  this runs; as root, on a host without other swap

They take turns of two steps, the first left out: in it a process may profit from what it moved while others ran. A step
is seen from outside. The first four steps, in which memory and optimizer state are born and a step is recorded, are not
counted. Before and after, the disk is measured by transfers of the file tier: each direction alone, and both at once.

Beside each row is the window bound of its recorded step (decision 184) at those rates, for operators that compute as
fast as in the row `tuned`, and as in `stock`; and, as means over all steps of the turns that count, what a
step moved, and moved in vain.

Goals: benchmarks/_cap_goals.py; the page lists them. Exit 1 where one is missed. With --into, what is measured of a cap
is kept beside FILE.json until all are: the same command goes on there.

    python -m benchmarks.cap --directory /data/scratch --into docs/cap.json                  # as root; 25 to 45 minutes
    python -m benchmarks.cap --directory /data/scratch --model resnet50 --into docs/cap-resnet50.json   # vgg16, lstm
    python -m benchmarks.cap --directory . --shape 6 512 2 128 --caps 0.8 --rounds 1 --disk-bytes 256MiB     # a minute
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _bench, _cap_figures, _cap_goals
from benchmarks._cap_figures import FILE, OURS, OVERLAP, PASSIVE, ROWS, STOCK, SWAP, TUNED
from benchmarks._disk_traffic import Traffic, faster
from benchmarks._memory_group import MemoryGroup, memory_group, swap_file
from sentinel.core.units import parse_bytes

BORN = 2  # turns
TURN = 2  # steps, of which the last is counted
CAPS = (0.61, 0.41, 0.30)
MODEL_ROWS, MODEL_CAPS = (STOCK, TUNED, FILE), {"resnet50": (0.35,), "vgg16": (0.35,), "lstm": (0.61,)}
BATCH = {"resnet50": 32, "vgg16": 32, "lstm": 320}
"""Samples: stock is to take at least 4 GB of the first two. ResNet-50 takes 1.64 GB with 8, and 0.14 with each more."""
_SETTINGS = ("caps", "rows", "shape", "vocabulary", "model", "batch", "rounds", "threads", "disk_bytes", "swap_bytes")


def say(what: str) -> None:
    """On stderr, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def peak_of_stock(options: argparse.Namespace) -> dict[str, Any]:
    """What it takes alone, by its cgroup, and by its own resident pages, libraries that others use among them."""
    with memory_group() as group:
        stepper = _bench.Stepper([*_job(options), *group.words], options.threads)
        try:
            told = [stepper.do("step") for _ in range(BORN * TURN)][-1]
            return {"peak_bytes": group.peak_bytes, "peak_rss_bytes": told["peak_rss_bytes"]}
        finally:
            stepper.close()


def measured(share: float, peak_bytes: int, options: argparse.Namespace) -> dict[str, Any]:
    """All rows under a cap of this share of stock's peak, turn by turn, and the disk before and after."""
    cap_bytes = int(share * peak_bytes) >> 20 << 20
    found: dict[str, Any] = {"share": share, "cap_bytes": cap_bytes}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        groups = {name: stack.enter_context(memory_group()) for name in options.rows}
        if SWAP in groups and (why := stack.enter_context(swap_file(Path(options.directory), options.swap_bytes))):
            found["no_swap"] = why
            del groups[SWAP]
        processes = {name: _words(name, cap_bytes, folder, options) + each.words for name, each in groups.items()}
        for name in (*OURS, SWAP):
            if name in groups:
                groups[name].limit(cap_bytes)
        disks = [disk(options)]
        others, began = _bench.others_share(), time.monotonic()
        told, found["lost"] = _trained(processes, groups, options, f"{share:.0%}")
        found["others_share"], spent = others(), time.monotonic() - began
        disks.append(disk(options))
        found |= {"disks": disks, "disk": faster(*disks), "took_s": spent}
        found["memory"] = {
            name: {"peak_bytes": each.peak_bytes, "mean_bytes": each.mean_bytes, "limit_met": each.limit_met}
            for name, each in groups.items()
        }
        paths = {name: path for name in told if (path := _record(folder, name)).exists()}
        records = {name: _cap_figures.record_of(np.load(path)) for name, path in paths.items()}
    say(f"{share:.0%}: looking for bounds")
    return found | _cap_figures.summed_up(told, records, found["disk"], TURN) | {"processes": told}


def disk(options: argparse.Namespace) -> dict[str, float]:
    """What it does now."""
    traffic = Traffic(options.directory)
    try:
        return traffic.rates(options.disk_bytes)
    finally:
        traffic.close()


def _trained(
    processes: Mapping[str, Sequence[str]], groups: Mapping[str, MemoryGroup], options: argparse.Namespace, cap: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Of each process that trained to the end: losses, ns and major faults of counted steps, and counts of its storage
    as these began and at the end. Of the others why not."""
    steppers: dict[str, _bench.Stepper] = {}
    lost: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {
        name: {"ns": [], "losses": [], "major_faults": [], "pool_bytes": [], "born": None, "storage": None}
        for name in processes
    }

    @contextlib.contextmanager
    def or_lost(name: str) -> Iterator[None]:
        try:
            yield
        except _bench.Ended as ended:
            lost[name] = str(ended)
            say(f"{cap}, {name}: {ended}")
            if name in steppers:
                steppers.pop(name).close()

    try:
        for name, words in processes.items():
            with or_lost(name):
                steppers[name] = _bench.Stepper(words, options.threads)
        for turn, order in enumerate(_bench.taking_turns(list(processes), BORN + options.rounds)):
            say(f"{cap}: turn {turn + 1} of {BORN + options.rounds}{'' if turn >= BORN else ', not counted'}")
            for name in order:
                if name in steppers:
                    with or_lost(name):
                        _take_turn(steppers[name], found[name], groups[name], counts=turn >= BORN)
                        if turn >= BORN - 1:
                            _note_storage(steppers[name], found[name])
        for name in list(steppers):
            with or_lost(name):
                if name in OURS:
                    steppers[name].do("record")
    finally:
        for stepper in steppers.values():
            stepper.close()
    return {name: each for name, each in found.items() if name not in lost}, lost


def _take_turn(stepper: _bench.Stepper, found: dict[str, Any], group: MemoryGroup, *, counts: bool) -> None:
    for last in range(1, TURN + 1):
        counted = counts and last == TURN
        with group.sampled() if counted else contextlib.nullcontext():
            told = stepper.do("step")
        found["losses"].append(told["loss"])
        if counted:
            found["ns"].append(told["outside_ns"])
            found["major_faults"].append(told["major_faults"])


def _note_storage(stepper: _bench.Stepper, found: dict[str, Any]) -> None:
    """What was moved until now, and how many bytes of frames there are: under a cap, fewer as the process grows."""
    found["storage"] = stepper.do("storage")["storage"]
    if found["storage"] is not None:
        found["born"] = found["born"] or found["storage"]
        found["pool_bytes"].append(found["storage"]["pool_bytes"])


def _words(name: str, cap_bytes: int, folder: Path, options: argparse.Namespace) -> list[str]:
    """What makes a process of _stepper.py a row."""
    ours = ["--cap", str(cap_bytes), "--file", options.directory, "--record", str(_record(folder, name))]
    beside = {TUNED: ["--tuned"], OVERLAP: ["--overlap"], PASSIVE: ["--passive"]}
    return [*_job(options), *(ours if name in OURS else []), *beside.get(name, [])]


def _record(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def _job(options: argparse.Namespace) -> list[str]:
    if options.model is None:
        return ["--shape", *map(str, options.shape), "--vocabulary", str(options.vocabulary)]
    return ["--model", options.model, "--rows", str(options.batch)]


class Kept:
    """What is measured already, beside the file that all goes into, so that the same command goes on there. Raises
    SystemExit where that is of other settings, or of another commit."""

    def __init__(self, into: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = None if into is None else into.with_suffix(".part.json")
        self._settings = dict(settings) | {"commit": _bench.commit()}
        self.found: dict[str, Any] = {"stock": None, "results": []}
        if self._path is not None and self._path.exists():
            kept = json.loads(self._path.read_text())
            if kept["settings"] != json.loads(json.dumps(self._settings)):
                raise SystemExit(f"{self._path} is of other settings or another commit: use these, or remove it")
            self.found = kept["found"]
            done = ", ".join(f"{each['share']:.0%}" for each in self.found["results"])
            say(f"goes on after {done or 'stock'}")

    def keep(self) -> None:
        """All that is found so far."""
        if self._path is not None:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps({"settings": self._settings, "found": self.found}))
            new.replace(self._path)

    def drop(self) -> None:
        """It is all where it belongs."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def main() -> int:
    """See the module's docstring."""
    options = _parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the host's swap is given back
    settings = {name: getattr(options, name) for name in _SETTINGS}
    kept = Kept(options.into, settings)
    if kept.found["stock"] is None:
        say("stock alone")
        kept.found["stock"] = peak_of_stock(options)
        kept.keep()
    peak = kept.found["stock"]["peak_bytes"]
    say(f"stock takes {peak / 2**20:,.0f} MiB at its peak")
    done = [each["share"] for each in kept.found["results"]]
    for share in options.caps:
        if share not in done:
            kept.found["results"].append(measured(share, peak, options))
            kept.keep()
    told = settings | {"turn": TURN, "born": BORN, "stock": kept.found["stock"]}
    judged = _cap_goals.goals(told | {"results": kept.found["results"]})
    told |= {"goals": [each._asdict() for each in judged]}
    told = _bench.told((__doc__ or "").splitlines()[0], told, kept.found["results"])
    if options.into is None:
        print(json.dumps(told, indent=1))
    else:
        options.into.write_text(json.dumps(told, indent=1) + "\n")
        kept.drop()
    for sentence in (missed := _cap_goals.missed(judged)):
        say(f"missed: {sentence}")
    return 1 if missed else 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", required=True, help="on a disk: of Sentinel's file, and of the swap file")
    parser.add_argument(
        "--caps", nargs="+", type=float, help=f"shares of stock's peak; {CAPS}, of other models {MODEL_CAPS}"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="all; of other models stock, tuned and file")
    parser.add_argument("--shape", type=int, nargs=4, default=[12, 768, 2, 256], help="LAYERS WIDTH ROWS COLUMNS")
    parser.add_argument("--vocabulary", type=int, default=8192, help="of that GPT-2")
    parser.add_argument("--model", choices=sorted(BATCH), help="instead")
    parser.add_argument("--batch", type=int, help=f"samples in a batch of that model; {BATCH}")
    parser.add_argument("--rounds", type=int, default=3, help="turns that count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disk-bytes", type=parse_bytes, default=2 << 30, help="each way, to measure the disk")
    parser.add_argument("--swap-bytes", type=parse_bytes, default=8 << 30)
    parser.add_argument("--into", type=Path, metavar="FILE.json", help="write it here, and keep there what is measured")
    options = parser.parse_args()
    options.caps = list(options.caps or MODEL_CAPS.get(options.model, CAPS))
    options.rows = [name for name in ROWS if name in (options.rows or (ROWS if options.model is None else MODEL_ROWS))]
    if wrong := [share for share in options.caps if share <= 0]:
        parser.error(f"--caps {wrong[0]}: expected a share above 0, as 0.41")
    if STOCK not in options.rows:
        parser.error("--rows: stock is what others are compared with")
    if options.model is not None and options.batch is None:
        options.batch = BATCH[options.model]
    return options


if __name__ == "__main__":
    sys.exit(main())
