"""Runtime: all that Sentinel keeps for the whole process, in one object, and what a forked child finds of it.

It imports nothing but words: what ticks must not wait for torch, nor for the packages whose objects are held here.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, ref

from sentinel.core.ending import end_all
from sentinel.runtime.by_identity import ByIdentity
from sentinel.runtime.ordinals import Ordinals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from sentinel.core.trace import Phase
    from sentinel.runtime.observing import Watch


class TickSink(Protocol):
    """What a session does with ticks. Called on the thread that trains, between operators."""

    def tick(self, name: str, phase: Phase, source: str) -> None:
        """A layer has ended, and this is its name. `source`: `add_layer` or `annotate`."""

    def step_boundary(self) -> None:
        """An optimizer has stepped: its last tick, if it has any, came just before."""


class Finder(Protocol):
    """Who makes the calls of a session in the script's place."""

    def script_annotates(self) -> None:
        """The script annotates its model itself."""

    def give_way(self) -> None:
        """The script begins a session itself: undo what was begun in its place."""

    def before_step(self, closure: object) -> None:
        """An annotated optimizer is about to step, with `closure` if it is not None: a step may begin with it."""


class Closable(Protocol):
    """What gives back what it has taken."""

    def close(self) -> None:
        """Does nothing where there is nothing to give back."""


class NotInherited(Protocol):
    """What only the process that made it may use, such as threads that a forked child does not have."""

    def forked(self) -> None:
        """This is a forked child: leave all of it to the parent."""


class MemoryBeside(Protocol):
    """Memory that this process holds beside its tensors. `node`: the NUMA node that was asked for; None: the kernel
    puts it where it likes, and it counts nowhere."""

    node: int | None

    @property
    def held_bytes(self) -> int:
        """How much it is now."""


class PausedByForks(Protocol):
    """Threads that share objects with a child."""

    def before_fork(self) -> None:
        """None of them runs when this returns."""

    def after_fork(self) -> None:
        """They may run, in the parent."""


class PassOfThread(threading.local):
    """What annotated models are doing on this thread.

    `grad_modes`: at the entry of each one whose forward is running. `active`, `within`, `recomputed`: of the backward
    that is running, whatever models it passes through; see profiler/backward.py.
    """

    def __init__(self) -> None:
        self.grad_modes: list[bool] = []
        self.active = False
        self.within = ""
        self.recomputed: object = None


def _is_not() -> bool:
    """Before torch is imported."""
    return False


class _Forking(threading.local):
    """Of the thread that forks: what it has paused."""

    def __init__(self) -> None:
        self.paused: list[PausedByForks] = []


class Runtime:
    """The process-wide state of Sentinel. There is one, RUNTIME; what is not in it, decision 106 lists.

    Sessions. `sink`: the running session, which takes ticks. `last`: the session that began last, running or not.
    `overrides`: arguments of `start_profile` by name, which win over the script's; `configured`: those that count where
    nobody gives any, None where environment and file are still to be asked. `begin`: makes what `start_profile`
    begins, instead of a Session. `finder`: who begins a session where the script does not. `placing`: the
    Placing that began the last session on a file. `shows_uncaught`: sys.excepthook ends sessions already;
    `ends_at_exit`: an exit function does.

    Observers. `watches`: one for each call of `observe`. Any thread adds and removes one by a single call of the list.

    One in a process. `memory`: the ManagedMemory that is torch's allocator. `recorder`: gives on whose behalf operators
    are recorded, or were last, if it is still alive: it may hold tensors. `trackers`: those that were begun and may
    have something to give back.

    Annotations. `models`, `optimizers`, `blocks`: those that tick; `blocks` with the names of their layers: one
    that two models share ticks once, by its first name. `under_way`: what they are doing on the thread that asks.
    `is_compiling`: whether torch.compile traces the caller.

    Pins. `kept`: what `keep_fast` and `keep_slow` were told, in order: where, and a pattern or a weak reference.

    `beside`: memory that comes off what a session may have of a node.

    `not_inherited`: what a forked child must leave to its parent. `paused_by_forks`: whose threads must hold no lock
    while a child is made that uses the same objects.
    """

    def __init__(self) -> None:
        self.sink: TickSink | None = None
        self.last: TickSink | None = None
        self.overrides: Mapping[str, Any] = {}
        self.configured: Mapping[str, Any] | None = None
        self.begin: Callable[..., Any] | None = None
        self.finder: Finder | None = None
        self.placing: object = None
        self.shows_uncaught = False
        self.ends_at_exit = False
        self.watches: list[Watch] = []
        self.memory: object = None
        self.recorder: Callable[[], object] | None = None
        self.trackers: set[Closable] = set()
        self.models: Ordinals[nn.Module] = Ordinals()
        self.optimizers: Ordinals[Optimizer] = Ordinals()
        self.blocks: ByIdentity[nn.Module, str] = ByIdentity()
        self.under_way = PassOfThread()
        self.is_compiling: Callable[[], bool] = _is_not
        self.kept: list[tuple[str, str | ref[Any]]] = []
        self.beside: WeakSet[MemoryBeside] = WeakSet()
        self.not_inherited: WeakSet[NotInherited] = WeakSet()
        self.paused_by_forks: WeakSet[PausedByForks] = WeakSet()
        self._forking = _Forking()

    def bytes_beside(self, node: int | None) -> int:
        """Bytes that are held beside tensors on a node, because they were asked for there; 0 of None."""
        return 0 if node is None else sum(held.held_bytes for held in self.beside if held.node == node)

    def before_fork(self) -> None:
        """No thread of `paused_by_forks` runs, nor begins to. Several threads may fork at once."""
        paused = self._forking.paused
        for each in list(self.paused_by_forks):
            each.before_fork()
            paused.append(each)  # not before: an interrupt ends this, and the fork comes all the same

    def after_fork(self) -> None:
        """In the parent: they go on."""
        paused, self._forking.paused = self._forking.paused, []
        end_all(*(each.after_fork for each in paused))

    def forked(self) -> None:
        """In a forked child, which trains on with stock allocation: the session, its memory, its movers and its logs
        are the parent's, and so is who looks on."""
        self.sink, self.memory, self.finder, self.placing, self.watches = None, None, None, None, []
        self.beside, self.paused_by_forks, self._forking = WeakSet(), WeakSet(), _Forking()
        for held in self.not_inherited:
            held.forked()


RUNTIME = Runtime()
os.register_at_fork(before=RUNTIME.before_fork, after_in_parent=RUNTIME.after_fork, after_in_child=RUNTIME.forked)
