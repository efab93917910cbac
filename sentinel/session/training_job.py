"""TrainingJob: the modules and optimizers that one session watches, and their tensors that outlive a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from sentinel.core.errors import CapabilityError, NativeError
from sentinel.core.machine import TierSpec
from sentinel.migration.adopt import SMALL_BYTES, adopt
from sentinel.migration.memory import ManagedMemory
from sentinel.profiler import annotate, hooks, names, reducers
from sentinel.runtime import RUNTIME
from sentinel.runtime.ordinals import Ordinals
from sentinel.system import numa


class TrainingJob:
    """What was given to the session, with all that is annotated from `add_annotated` on.

    What was given is kept. What is annotated may go: an optimizer when nobody else uses it, and with the last optimizer
    that trains it a model, for a wrapper that was found may have no other owner.

    `left_in_place`: (name, nbytes, reason) of the storages that `adopt` had to leave where they were.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._given: list[object] = [*models, *optimizers]
        self._models = [ref(model) for model in models]  # given, or annotated
        self._asked = [ref(optimizer) for optimizer in optimizers]
        self._trained_by: WeakKeyDictionary[Optimizer, list[nn.Module]] = WeakKeyDictionary()
        self.numbers = names.Numbers()
        self._found: Ordinals[Optimizer] = Ordinals()  # made later: the job may drop one, and its state is to go then
        self.left_in_place: list[tuple[str, int, str]] = []
        self._watched: WeakSet[Optimizer] = WeakSet()  # those that may have a hook of ours
        self._is_told = self._hears_new = False  # of each optimizer's steps; whether new ones may be its own
        self._heard: WeakSet[Optimizer] = WeakSet()  # that have stepped: whether they are the job's is known
        self._followed: WeakSet[nn.Module | Optimizer] = WeakSet()  # those whose tensors were in managed memory
        self._unmoved: frozenset[int] = frozenset()  # addresses of what `adopt` left in place
        self._turn = 0  # parameters are looked at in turn
        self._state_names: frozenset[str] = frozenset()
        self._buckets: list[int] = []  # where those of reducers begin

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were given or annotated, and after them those that were made later and are still used."""
        asked = (held() for held in self._asked)
        return [*(optimizer for optimizer in asked if optimizer is not None), *self._found.in_order()]

    @property
    def models(self) -> list[nn.Module]:
        """Those that were given or annotated, each in its place, by which its tensors are named: in that of one that is
        gone there is an empty one."""
        return [_EMPTY if (model := held()) is None else model for held in self._models]

    def add_annotated(self) -> None:
        """Add what is annotated, and hear the steps of the optimizers that are not. Called again, what is annotated
        since. No hook is taken away: torch may be going through the hooks of a step."""
        self._hears_new = False
        models, optimizers = annotate.annotated()
        for optimizer in _others(self.optimizers, optimizers):
            self._watch(optimizer)
        self._add(_others(models, self.models), _others(optimizers, self.optimizers))
        for optimizer in self.optimizers:
            self._trained_by[optimizer] = [model for model in self.models if _trains(optimizer, model.parameters())]

    def successors_came(self) -> bool:
        """Whether a model is gone, and one is annotated that the job does not have, as for the next fold."""
        return any(held() is None for held in self._models) and bool(_others(annotate.annotated()[0], self.models))

    def add_successors(self) -> None:
        """Models that are annotated take the places of those that are gone, whose layers they may have; with them come
        the annotated optimizers that train them."""
        models, optimizers = annotate.annotated()
        gone = sum(held() is None for held in self._models)
        came = _others(models, self.models)[:gone]
        params = [param for _, param in names.parameters(came)]
        self._add(came, [each for each in _others(optimizers, self.optimizers) if _trains(each, params)])

    def _add(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """A model gets the place of one that is gone, if there is one."""
        for model in models:
            free = next((place for place, held in enumerate(self._models) if held() is None), len(self._models))
            self._models[free : free + 1] = [ref(model)]
        self._asked += [ref(optimizer) for optimizer in optimizers]

    def watch_new_optimizers(self) -> None:
        """From now on an optimizer that was made later, and trains what the job trains, is one of its own."""
        if not self._is_told:
            register_optimizer_step_post_hook(hooks.Owned(self, self._after_any_step))
        self._is_told = self._hears_new = True

    def _watch(self, optimizer: Optimizer) -> None:
        if optimizer not in self._watched:
            self._watched.add(optimizer)
            annotate.watch_steps(optimizer, self)

    def _after_any_step(self, optimizer: Optimizer, *_: Any) -> None:
        if RUNTIME.sink is None or not self._hears_new:
            return
        if optimizer in self._heard:  # else a step of n optimizers looks at n² of them
            return
        own = any(optimizer is own for own in self.optimizers)
        if own or not _trains(optimizer, [param for _, param in names.parameters(self.models)]):
            self._heard.add(optimizer)
            return
        self._found.join(optimizer)
        if not any(optimizer is annotated for annotated in annotate.annotated()[1]):
            self._watch(optimizer)
            RUNTIME.sink.step_boundary()

    def held_bytes_of(self, fast: TierSpec) -> int:
        """What the job's tensors hold of the fast tier, if that is a node.

        The node does not count it as free, but plans may place it: the tensors move to managed memory.
        """
        return _bytes_on(fast.node, self._storages()) if fast.kind == "node" else 0

    def held_bytes(self) -> int:
        """What the tensors hold that are there now and outlive a step."""
        return sum(nbytes for _, nbytes in self._storages())

    def _storages(self) -> list[tuple[int, int]]:
        """Address and length of each."""
        held = names.persistent_tensors(*self.with_annotated(), numbers=self.numbers)
        storages = (tensor.untyped_storage() for _, tensor, _ in held)
        return sorted({(storage.data_ptr(), storage.nbytes()) for storage in storages})

    def persistent(self) -> list[names.Named]:
        """Parameters, buffers, gradients and optimizer state as they are now."""
        return names.persistent_tensors(self.models, self.optimizers, numbers=self.numbers)

    def addresses(self) -> dict[str, int]:
        """Where the storage of each persistent tensor begins."""
        return {name: tensor.untyped_storage().data_ptr() for name, tensor, _ in self.persistent()}

    def storage_bytes(self) -> dict[str, int]:
        """How long the storage of each persistent tensor is."""
        return {name: tensor.untyped_storage().nbytes() for name, tensor, _ in self.persistent()}

    def adopt(self, memory: ManagedMemory) -> None:
        """Move the persistent tensors into managed memory, where every reference to them is accounted for."""
        rows = adopt(memory, [(name, tensor) for name, tensor, _ in self.persistent()])
        self.left_in_place = [
            (row.name, row.nbytes, row.reason)
            for row in rows
            if not row.moved and row.nbytes and not memory.contains(row.address)
        ]
        self._unmoved = frozenset(row.address for row in rows if not row.moved)
        self._followed = WeakSet(each for each in self._holders() if not _are_elsewhere(each, memory))
        self._state_names = self._optimizer_state()
        self.buckets_were_rebuilt()

    def outside(self, memory: ManagedMemory) -> tuple[tuple[str, int, str], ...]:
        """As `left_in_place`, with what took the place of adopted tensors since, and is not managed."""
        listed = {name for name, _, _ in self.left_in_place}
        found = [
            (name, tensor.untyped_storage().nbytes(), REPLACED)
            for name, tensor, role in self.persistent()
            if role != "grad" and name not in listed and not memory.contains(names.storage_address(tensor))
        ]
        return (*self.left_in_place, *(row for row in found if row[1] >= SMALL_BYTES))

    def tensors_were_replaced(self, memory: ManagedMemory) -> bool:
        """Whether a model or an optimizer has other tensors than those that were adopted, and not from the replaced
        allocator: `load_state_dict` copies them past it. Asked after each step, so one of each kind is looked at."""
        return any(each in self._followed and _are_elsewhere(each, memory) for each in self._holders())

    def a_parameter_was_replaced(self, memory: ManagedMemory) -> bool:
        """As above, of the next few parameters of all optimizers in turn: `param.data = other` replaces one."""
        params = (param for each in self.optimizers for param in names.parameters_of(each))
        few = list(islice(params, self._turn, self._turn + FIRST))
        self._turn = self._turn + FIRST if few else 0
        return any(not memory.contains(at) and at not in self._unmoved for at in _large(few))

    def _holders(self) -> list[nn.Module | Optimizer]:
        return [*self.models, *self.optimizers]

    def state_was_born(self) -> bool:
        """Whether there is optimizer state now that there was not when the tensors were adopted."""
        return bool(self._optimizer_state() - self._state_names)

    def buckets_are_to_be_rebuilt(self) -> bool:
        """Whether a later step makes buckets again that DistributedDataParallel reduces gradients in."""
        return any(map(reducers.to_be_rebuilt, self._reducing()))

    def buckets_were_rebuilt(self) -> bool:
        """Whether those buckets are others than when this was asked last."""
        now = [bucket.data_ptr() for model in self._reducing() for bucket in reducers.buckets(model)]
        before, self._buckets = self._buckets, now
        return now != before

    def _reducing(self) -> list[DistributedDataParallel]:
        return [wrapper for model in self.models for wrapper in reducers.among(model.modules())]

    def close(self) -> None:
        """Let go of modules and optimizers. May be called again."""
        hooks.remove_all_of(self, torch_optimizer._global_optimizer_post_hooks)
        for optimizer in self._watched:
            annotate.stop_watching(optimizer, self)
        self._watched, self._is_told = WeakSet(), False
        self._given, self._models, self._asked, self._found = [], [], [], Ordinals()
        self._trained_by = WeakKeyDictionary()

    def with_annotated(self) -> tuple[list[nn.Module], list[Optimizer]]:
        """Models and optimizers, those that are annotated after those that were given."""
        models, optimizers = annotate.annotated()
        own = self.optimizers
        return [*self.models, *_others(models, self.models)], [*own, *_others(optimizers, own)]

    def _optimizer_state(self) -> frozenset[str]:
        return frozenset(name for name, _, role in self.persistent() if role == "optimizer")


_EMPTY = nn.Module()

REPLACED = "it came after tensors were moved into managed memory: loaded (as by load_state_dict), or without a slot"

FIRST = 16
"""Tensors of an optimizer among which one is looked for that is large enough to be managed."""


def _trains(optimizer: Optimizer, params: Iterable[torch.Tensor]) -> bool:
    """Whether it has one of `params`."""
    ours = set(map(id, params))
    return any(id(param) in ours for param in names.parameters_of(optimizer))


def _are_elsewhere(holder: nn.Module | Optimizer, memory: ManagedMemory) -> bool:
    """Whether the first parameter or the first state that is large enough to be managed is not."""
    kinds: list[Iterable[torch.Tensor]]
    if isinstance(holder, nn.Module):
        kinds = [(param for _, param in holder.named_parameters())]  # parameters() may give groups of them
    else:
        state = (value for held in holder.state.values() for value in held.values() if isinstance(value, torch.Tensor))
        kinds = [names.parameters_of(holder), state]
    return any(not memory.contains(at) for kind in kinds for at in islice(_large(kind), 1))


def _large(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    """Addresses of those of the first few that are managed by their size."""
    for tensor in islice(tensors, FIRST):
        at = names.storage_address(tensor)
        if at and names.part_here(tensor).untyped_storage().nbytes() >= SMALL_BYTES:
            yield at


T = TypeVar("T")


def _others(found: Sequence[T], known: Sequence[T]) -> list[T]:
    """Those of `found` that are not in `known`, as objects."""
    return [each for each in found if not any(each is other for other in known)]


def _bytes_on(node: int | None, ranges: list[tuple[int, int]]) -> int:
    """About how many bytes of `ranges` (address, nbytes) are on `node`; 0 where the kernel does not tell."""
    if node is None:
        return 0
    try:
        return numa.about_bytes_on(node, ranges)
    except (NativeError, CapabilityError):
        return 0
