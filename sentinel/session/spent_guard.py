"""SpentGuard: who reads or writes parameters between backward and step, when they have taken their updates already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch

from sentinel.core.errors import SentinelError
from sentinel.profiler import operators
from sentinel.runtime import RUNTIME


class SpentGuard:
    """From the end of a backward pass until the last optimizer steps whose parameters took updates in it, operators are
    recorded, few as they are, unless others are recording; those of this thread only."""

    def __init__(self) -> None:
        self._asked_in = -1  # the backward pass
        self._spent: dict[int, int] = {}  # address of a parameter -> the first event after its update
        self._touched: dict[int, str] = {}  # address of a spent parameter -> who came first, in the order of events

    def after_backward(self) -> None:
        """Called within a backward pass: it begins when that ends."""
        task = torch._C._current_graph_task_id()
        if task != self._asked_in:
            self._asked_in = task
            torch.autograd.Variable._execution_engine.queue_callback(self._begin)

    def spent(self, parameter: torch.Tensor) -> None:
        """It has taken its update. That may be recorded: a backward pass ends within another one where checkpoints are
        reentrant, and that of one model before that of the next."""
        address = _address(parameter)
        self._touched.pop(address, None)
        self._spent[address] = operators.events_so_far() if self._runs() else 0

    def _begin(self) -> None:
        self._asked_in = -1
        with contextlib.suppress(SentinelError):  # it is a second look: nothing of it may break a backward pass
            if not operators.recording():
                operators.start(self)
                self._spent = dict.fromkeys(self._spent, 0)

    def touched(self, parameters: Sequence[torch.Tensor]) -> str:
        """Who has read or written one of `parameters` after its update: "aten::norm reads a parameter"; "" where nobody
        has, or where that could not be recorded. It ends, unless other parameters are still to be stepped."""
        addresses = set(map(_address, parameters))  # two may be views of one storage
        for address in addresses:
            self._spent.setdefault(address, 0)  # an update that was interrupted
        ran = self.pause()
        found = next((who for address, who in self._touched.items() if address in addresses), "")
        self.drop(parameters)
        if ran and self._spent:
            self._begin()
        return found

    def drop(self, parameters: Sequence[torch.Tensor]) -> None:
        """They are no longer looked after: their optimizer has stepped, or will not. With the last of them it ends."""
        for address in map(_address, parameters):
            self._spent.pop(address, None)
            self._touched.pop(address, None)
        if not self._spent:
            self.end()

    def pause(self) -> bool:
        """Let others record, until the next backward pass. Whether it was under way."""
        if not self._runs():
            return False
        operators.stop(self)
        try:
            log = operators.log()
        except (SentinelError, MemoryError):  # as above
            operators.forget()
            return False
        kinds, where = log.events["kind"], log.events["address"]
        looked_at = (kinds == operators.READ) | (kinds == operators.WRITE)
        looked_at &= np.isin(where, np.array(list(self._spent), np.uint64))
        for event in np.flatnonzero(looked_at).tolist():
            address = int(where[event])
            if event >= self._spent[address] and address not in self._touched:
                verb = "writes" if kinds[event] == operators.WRITE else "reads"
                self._touched[address] = f"{log.ops[int(log.events['op'][event])]} {verb} a parameter"
        return True

    def end(self) -> None:
        """Nothing is recorded for it any more. May be called again."""
        self._spent, self._touched = {}, {}
        if self._runs():
            operators.stop(self)
            operators.forget()

    def _runs(self) -> bool:
        return RUNTIME.recorder is self and operators.recording()


def _address(parameter: torch.Tensor) -> int:
    return parameter.untyped_storage().data_ptr()
