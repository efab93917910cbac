"""The proof itself: host, calibration, predictions, then cell by cell what was predicted, within the minutes given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from sentinel.core.units import format_ns
from sentinel.proving import host_facts
from sentinel.proving.cell_process import CellFailed, CellProcesses
from sentinel.proving.cells import (
    CONTROL,
    KERNEL,
    OURS,
    WARM_UP,
    WATCHED,
    Cell,
    cells_in_order,
    policies,
    steps_of,
)
from sentinel.proving.left_as_it_was import put_back, settings_now
from sentinel.proving.orders import CalibrationOrder, KernelOrder, TrainingOrder, WatchOrder
from sentinel.proving.proof_folder import ProofFolder, digest_of, now
from sentinel.proving.workloads import Workload
from sentinel.tiers.frames import FRAME_BYTES

FAST = "20%"
"""One rule for all workloads: so much of what a step's plan needs is fast memory."""
FILE_SHARE, LEAST_FILE_FRAMES = 2, 16
"""With a file half of the footprint is memory, but at least 16 frames."""
_DOCTOR_S, _CALIBRATION_S, _WATCH_S = 40.0, 45.0, 25.0
_LEAST_LIMIT_S, _PATIENCE = 180.0, 10
"""A process is given up after 180 s, or 10 times what was expected."""


@dataclass(frozen=True)
class Asked:
    """What a proof is of. `slow`: the tier to which plans are applied, None for none. `file`: `file:DIR`, or None.
    `kernel`: with the kernel's own placements, where slow memory is a node."""

    workloads: tuple[Workload, ...]
    slow: str | None
    file: str | None
    quick: bool
    kernel: bool = True

    @property
    def on_nodes(self) -> bool:
        """Whether slow memory is a NUMA node, which the kernel's own placements use too."""
        return self.slow is not None and self.slow.startswith("numa:")

    @property
    def compares(self) -> bool:
        """Whether the kernel's own placements are run, for which settings of the kernel are changed."""
        return self.on_nodes and self.kernel

    def cells(self) -> list[Cell]:
        """In the order in which they run."""
        return cells_in_order(
            self.workloads,
            quick=self.quick,
            planned=self.slow is not None,
            nodes=self.compares,
            file=self.file is not None,
        )

    def settings(self) -> dict[str, Any]:
        """What a proof that is gone on with must have been asked for too."""
        return {
            "slow": self.slow,
            "file": self.file is not None,
            "quick": self.quick,
            "kernel": self.compares,
            "workloads": [workload.name for workload in self.workloads],
        }


def ahead_s(asked: Asked) -> float:
    """About so long it takes, on two slow cores, until the first cell begins."""
    return _DOCTOR_S + (_CALIBRATION_S if asked.slow else 0) + _WATCH_S * len(asked.workloads)


class OutOfTime(Exception):
    """The minutes are over."""


class Proof:
    """Carries out what is `asked` in `folder`, until `seconds` are over. `tell(sentence)`: for whoever waits."""

    def __init__(self, asked: Asked, folder: ProofFolder, seconds: float, tell: Callable[[str], None]) -> None:
        self._asked, self._folder, self._tell = asked, folder, tell
        self._until = time.monotonic() + seconds
        self.not_run: dict[str, str] = {}
        """Cell -> why it was not run."""
        self.put_back: list[str] = []
        """What was found changed, and put back."""
        self._before: dict[str, str] = {}
        imports = [name for workload in asked.workloads for name in workload.imports]
        self._processes = CellProcesses(["torch", "sentinel.proving.watched_step", *dict.fromkeys(imports)])
        host = host_facts.host()
        self._emulated = bool(host["emulated"])
        self._node_bytes = host_facts.fast_node_bytes(host)

    def run(self) -> None:
        """All of it. What is known stays in the folder, however this ends."""
        with self._left_as_it_was():
            try:
                self._examine()
                self._execute()
            except OutOfTime as over:
                self._tell(f"time is up: {over}")
            finally:
                for cell in self._asked.cells():
                    if not self._has(cell):
                        self.not_run.setdefault(cell.name, "there was no time for it")

    @contextmanager
    def _left_as_it_was(self) -> Iterator[None]:
        if not self._asked.compares:
            yield  # nothing is changed, and what others change meanwhile stays
            return
        before = self._folder.load("before")  # there if an earlier proof in this folder was killed
        if before is None:
            self._before = settings_now()
            self._folder.save("before", self._before)
        else:
            self._before = before
            self.put_back += put_back(before)
        try:
            yield
        finally:
            try:
                self.put_back += put_back(self._before)
            except KeyboardInterrupt:  # a second one must not leave the kernel changed
                self.put_back += put_back(self._before)
                raise
            if settings_now() == self._before:
                self._folder.remove("before")

    def _examine(self) -> None:
        """Host, doctor, calibration: once in a folder."""
        folder = self._folder
        if folder.load("host") is None:
            folder.save("host", host_facts.host())
        if folder.load("doctor") is None:
            self._tell("examining what this host allows")
            told = self._run("sentinel.proving.host_facts:allowed", None, "doctor", _DOCTOR_S)
            folder.save("doctor", told)
        if self._asked.slow is not None and folder.load("calibration") is None:
            self._tell("calibrating: keep the host idle from now on")
            order = CalibrationOrder(self._asked.slow, self._machine, self._asked.quick)
            told = self._run("sentinel.proving.watched_step:calibrated", order, "calibration", _CALIBRATION_S)
            folder.save("calibration", told)

    @property
    def _machine(self) -> str:
        return str(self._folder.work / "machine.json")

    def _predict(self, workload: Workload) -> bool:
        """Watch a step, plan, simulate, and write what is predicted before anything is run that judges it, once.
        Whether it could be done."""
        name = f"predictions/{workload.name}"
        if self._folder.load(name) is not None:
            return True
        slow = self._asked.slow
        said: dict[str, Any] = {"slow": slow or "emulated:cxl-asic-x8", "fast": FAST}
        if slow is not None:
            said["machine"] = self._machine
        order = WatchOrder(
            _training(workload, WATCHED.steps, WATCHED.judged, said),
            workload.name,
            str(self._folder.work / "plans"),
            FAST,
            policies(self._asked.quick) if slow else (),
        )
        self._tell(f"{workload.name}: profiling a step, planning and predicting")
        try:
            told = self._run("sentinel.proving.watched_step:watched", order, f"{workload.name}.watched", _WATCH_S)
        except CellFailed as error:
            self._tell(f"{workload.name}: nothing is predicted: {error}")
            for cell in self._asked.cells():
                if cell.workload is workload and cell.kind != "stock":
                    self.not_run[cell.name] = f"no step could be profiled: {error}"
            return False
        told = {**told, "number": self._folder.next_number(), "written": now()}
        self._folder.save(name, {**told, "digest": digest_of(told)})
        return True

    def _execute(self) -> None:
        cells = self._asked.cells()
        for number, cell in enumerate(cells, 1):
            if self._has(cell) or cell.name in self.not_run:
                continue
            expected_s = cell.expected_s(self._asked.quick, self._node_bytes, self._stock_step_s(cell.workload))
            left_s = self._until - time.monotonic()
            if left_s <= 0 or (expected_s > left_s and not self._emulated):
                self.not_run[cell.name] = f"about {expected_s:.0f} s, of which {max(left_s, 0):.0f} s were left"
                continue
            if not self._predict(cell.workload) and cell.kind != "stock":
                continue
            began = time.monotonic()
            said = self._carried_out(cell, expected_s)
            took = f"{time.monotonic() - began:.0f} s, {max(self._until - time.monotonic(), 0) / 60:.0f} min left"
            again = f", round {cell.round}" if cell.round > 1 else ""
            self._tell(f"[{number}/{len(cells)}] {cell.workload.name}, {cell.placement}{again}: {said} ({took})")

    def _carried_out(self, cell: Cell, expected_s: float) -> str:
        """Run one cell, keep what it told, and say it in a few words."""
        prediction = self._folder.load(f"predictions/{cell.workload.name}") or {}
        refused = prediction.get("of", {}).get(cell.placement, {}).get("refused")
        head = {
            "workload": cell.workload.name,
            "kind": cell.kind,
            "placement": cell.placement,
            "round": cell.round,
            "number": self._folder.next_number(),
            "began": now(),
            "prediction": prediction.get("digest"),
        }
        try:
            if refused:
                raise CellFailed(refused, refused=True)
            call, order = self._order(cell, prediction)
            told = self._run(call, order, cell.name, expected_s)
        except CellFailed as error:
            if self._asked.compares:
                self.put_back += put_back(self._before)  # before another run meets what a child has left
            if error.late and self._until - time.monotonic() < 1:
                self.not_run[cell.name] = "time was up before it ended"
                return "time was up"
            word = "refused" if error.refused else "failed"
            self._folder.save(f"cells/{cell.name}", {**head, "ended": now(), word: str(error)})
            return f"{word}: {error}"
        self._folder.save(f"cells/{cell.name}", {**head, "ended": now(), **told})
        return self._said(told)

    def _order(self, cell: Cell, prediction: dict[str, Any]) -> tuple[str, Any]:
        """What to call for a cell, and with what."""
        workload, asked = cell.workload, self._asked
        steps = steps_of(asked.quick)
        trained = "sentinel.proving.trained_cell:trained"
        if cell.kind == "stock":
            return trained, _training(workload, steps.steps, steps.judged, None)
        if cell.kind == "file":
            frames = max(prediction["footprint_bytes"] // FILE_SHARE // FRAME_BYTES, LEAST_FILE_FRAMES)
            said: dict[str, Any] = {"slow": str(asked.file), "fast": frames * FRAME_BYTES}
            return trained, _training(workload, steps.steps, steps.judged, said, stock=True)
        plan = OURS if cell.kind == "kernel" else cell.placement
        said = {"slow": str(asked.slow), "machine": self._machine}
        said["plan"] = str(self._folder.work / "plans" / f"{workload.name}.{plan}.json")
        if cell.kind == "policy":
            said["fast"] = prediction["of"][cell.placement]["budget_bytes"]  # whatever the script asks for
            return trained, _training(workload, steps.steps, steps.judged, said)
        warm_up = WARM_UP[asked.quick]
        order = KernelOrder(
            _training(workload, warm_up + 10, 2, {**said, "fast": FAST}),
            workload.name,
            str(self._folder.work / "cells"),
            (OURS, CONTROL, *KERNEL),
            warm_up,
        )
        return "sentinel.proving.kernel_cell:compared", order

    def _run(self, call: str, order: Any, name: str, expected_s: float) -> dict[str, Any]:
        """Raises CellFailed as `CellProcesses.run`, OutOfTime where no time is left to begin."""
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise OutOfTime(f"{name} was not begun")
        limit_s = left_s if self._emulated else min(max(_LEAST_LIMIT_S, _PATIENCE * expected_s), left_s)
        return self._processes.run(call, order, self._folder.log(name), limit_s)

    def _has(self, cell: Cell) -> bool:
        """Whether it was run to an end; what failed is run again by whoever goes on."""
        told = self._folder.load(f"cells/{cell.name}")
        return told is not None and "failed" not in told

    def _stock_step_s(self, workload: Workload) -> float | None:
        told = self._folder.load(f"cells/{workload.name}.stock.stock") or {}
        return median(told["steps_ns"]) / 1e9 if told.get("steps_ns") else None

    def _said(self, told: dict[str, Any]) -> str:
        if "placements" in told:
            return f"{told['placements']} placements compared"
        if self._emulated or not told.get("steps_ns"):
            return "done"
        return f"{format_ns(median(told['steps_ns']))} a step"


def _training(
    workload: Workload, steps: int, judged: int, said: dict[str, Any] | None, *, stock: bool = False
) -> TrainingOrder:
    """With `stock` the script begins no session itself, as without anything said."""
    words = ("--steps", str(steps), *(("--stock",) if stock or said is None else ()))
    return TrainingOrder(workload.script, words, steps, judged, said)
