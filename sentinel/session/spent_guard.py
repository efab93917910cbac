"""SpentGuard: who reads or writes parameters and their state between backward and step, when both have taken their
updates already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sentinel.core.errors import SentinelError
from sentinel.profiler import operators


class _Spent(NamedTuple):
    """`event`: the first after the update."""

    what: str
    event: int


class SpentGuard:
    """From the end of a backward pass until the last optimizer steps whose parameters took updates in it, operators are
    recorded, few as they are, unless others are recording; those of this thread only."""

    def __init__(self) -> None:
        self._asked_in = -1  # the backward pass
        self._spent: dict[int, _Spent] = {}  # by address
        self._addresses: dict[int, tuple[int, ...]] = {}  # of what belongs to a parameter, by its id
        self._touched: dict[int, str] = {}  # address of what is spent -> who came first, in the order of events

    @property
    def in_backward(self) -> bool:
        """Whether the backward pass that updated last has not come to its end, and may never."""
        return self._asked_in != -1

    def after_backward(self) -> None:
        """Called within a backward pass: it begins when that ends."""
        task = torch._C._current_graph_task_id()
        if task != self._asked_in:
            self._asked_in = task
            torch.autograd.Variable._execution_engine.queue_callback(self._begin)

    def spent(self, parameter: torch.Tensor, state: Sequence[torch.Tensor] = ()) -> None:
        """It has taken its update, and its `state` with it. That may be recorded: a backward pass ends within another
        one where checkpoints are reentrant, and that of one model before that of the next."""
        now = operators.events_so_far() if self._runs() else 0
        found = {_address(each): "optimizer state" for each in state}
        found[_address(parameter)] = "a parameter"
        self._addresses[id(parameter)] = tuple(found)
        for address, what in found.items():
            self._touched.pop(address, None)
            self._spent[address] = _Spent(what, now)

    def _begin(self) -> None:
        self._asked_in = -1
        with contextlib.suppress(SentinelError):  # it is a second look: nothing of it may break a backward pass
            if not operators.recording():
                operators.start(self)
                self._spent = {address: spent._replace(event=0) for address, spent in self._spent.items()}

    def touched(self, parameters: Sequence[torch.Tensor]) -> str:
        """Who has read or written one of `parameters`, or its state, after its update: "aten::norm reads a parameter".
        "" where nobody has, or where that could not be recorded. It ends, unless others are still to be stepped."""
        addresses = self._of(parameters)
        for address in addresses:
            self._spent.setdefault(address, _Spent("a parameter", 0))  # an update that was interrupted
        ran = self.pause()
        found = next((who for address, who in self._touched.items() if address in addresses), "")
        self.drop(parameters)
        if ran and self._spent:
            self._begin()
        return found

    def drop(self, parameters: Sequence[torch.Tensor]) -> None:
        """They are no longer looked after: their optimizer has stepped, or will not. With the last of them it ends."""
        for address in self._of(parameters):
            self._spent.pop(address, None)
            self._touched.pop(address, None)
        for parameter in parameters:
            self._addresses.pop(id(parameter), None)
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
            spent = self._spent[address]
            if event >= spent.event and address not in self._touched:
                verb = "writes" if kinds[event] == operators.WRITE else "reads"
                self._touched[address] = f"{log.ops[int(log.events['op'][event])]} {verb} {spent.what}"
        return True

    def end(self) -> None:
        """Nothing is recorded for it any more. May be called again."""
        self._spent, self._addresses, self._touched = {}, {}, {}
        if self._runs():
            operators.stop(self)
            operators.forget()

    def _of(self, parameters: Sequence[torch.Tensor]) -> set[int]:
        """Addresses as they were when these took their updates; two may be views of one storage."""
        return {at for each in parameters for at in self._addresses.get(id(each), (_address(each),))}

    def _runs(self) -> bool:
        return operators.is_for(self) and operators.recording()


def _address(parameter: torch.Tensor) -> int:
    return parameter.untyped_storage().data_ptr()
