"""Names and roles of what lives across steps: parameters, buffers, gradients, optimizer state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from sentinel.core.interrupts import is_interrupt
from sentinel.core.trace import Role
from sentinel.profiler import reducers
from sentinel.runtime.by_identity import ByIdentity
from sentinel.runtime.ordinals import prefix

Named = tuple[str, torch.Tensor, Role]
Address = Callable[[torch.Tensor], int]


class Numbers:
    """The numbers of parameters that only an optimizer knows. A parameter keeps its number, and no other gets it: a
    plan goes by names, whichever optimizers have gone since."""

    def __init__(self) -> None:
        self._given: ByIdentity[torch.Tensor, int] = ByIdentity()
        self._next = itertools.count()

    def of(self, param: torch.Tensor) -> int:
        """The number of `param`, the next one if it has none yet."""
        if (number := self._given.find(param)) is None:
            number = next(self._next)
            self._given.put(param, number)
        return number


def persistent_tensors(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer] = (),
    address: Address | None = None,
    numbers: Numbers | None = None,
) -> list[Named]:
    """(name, tensor, role) of each storage in host memory that models and optimizers hold now, each storage once.

    The first name of a storage counts; `aliases` has the others. Names from the second model on start with its
    ordinal. Parameters that only an optimizer knows are `param.0`, `param.1`, and so on: as `numbers` has them, where
    they keep their names. Of a tensor that several processes share (DTensor) this process's part; of
    DistributedDataParallel `bucket.0`, `bucket.1`, and so on, in which gradients lie side by side. `address`: of a
    tensor's storage, 0 for one that does not count; default: `storage_address`.
    """
    return [held[0] for held in _by_storage(models, optimizers, address, numbers)]


def aliases(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer] = (),
    address: Address | None = None,
    numbers: Numbers | None = None,
) -> dict[str, tuple[str, ...]]:
    """Further names of the storages that have several, by the name that counts."""
    names = [
        list(dict.fromkeys(name for name, _, _ in held)) for held in _by_storage(models, optimizers, address, numbers)
    ]
    return {first: tuple(others) for first, *others in names if others}


def _by_storage(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], address: Address | None, numbers: Numbers | None
) -> Collection[list[Named]]:
    """All that is held, each storage of host memory by itself, in the order of their first names."""
    found: dict[int, list[Named]] = {}
    for name, tensor, role in _all(models, optimizers, numbers):
        here = part_here(tensor)
        if where := (address or storage_address)(here):
            found.setdefault(where, []).append((name, here, role))
    return found.values()


def storage_address(tensor: torch.Tensor) -> int:
    """Address of the first byte of `tensor`'s storage, of a DTensor its part's; 0 if it has none in host memory."""
    tensor = part_here(tensor)
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return 0
    if is_lazy(tensor):  # it gets a shape, and memory, with the first forward
        return 0
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() if storage.nbytes() else 0
    except (RuntimeError, NotImplementedError) as error:  # of a subclass that only wraps other tensors
        if is_interrupt(error):
            raise
        return 0


def part_here(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a DTensor; any other tensor itself."""
    held = getattr(tensor, "_local_tensor", tensor)
    return held if isinstance(held, torch.Tensor) else tensor


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """Those of all its groups."""
    return (param for group in optimizer.param_groups for param in group["params"])


def parameters(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer] = (), numbers: Numbers | None = None
) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of all that models and optimizers hold, each once."""
    numbers = numbers or Numbers()
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for ordinal, model in enumerate(models):
        for name, param in model.named_parameters():
            found.setdefault(id(param), (prefix(ordinal) + name, param))
    for optimizer in optimizers:
        for param in parameters_of(optimizer):
            if id(param) not in found:
                found[id(param)] = (f"param.{numbers.of(param)}", param)
    return list(found.values())


def _all(models: Sequence[nn.Module], optimizers: Sequence[Optimizer], numbers: Numbers | None) -> Iterator[Named]:
    # The tensors themselves, no detached copies: who moves a storage must account for every reference to it.
    known = parameters(models, optimizers, numbers)
    for name, param in known:
        yield name, param, "param"
    for ordinal, model in enumerate(models):
        for name, tied in model.named_parameters(remove_duplicate=False):
            yield prefix(ordinal) + name, tied, "param"
        for name, buffer in model.named_buffers(remove_duplicate=False):
            yield prefix(ordinal) + name, buffer, "buffer"
    for ordinal, model in enumerate(models):  # before gradients, which may be views of them, and come and go
        wrapped = [bucket for wrapper in reducers.among(model.modules()) for bucket in reducers.buckets(wrapper)]
        for number, bucket in enumerate(wrapped):
            yield f"{prefix(ordinal)}bucket.{number}", bucket, "grad"
    names = {id(param): name for name, param in known}
    for optimizer in optimizers:
        for owner, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and id(owner) in names:
                    yield f"{names[id(owner)]}.{key}", value, "optimizer"
    for name, param in known:
        if param.grad is not None:
            yield f"{name}.grad", param.grad, "grad"
