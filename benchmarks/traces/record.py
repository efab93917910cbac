"""One training step under fake tensors -> Profile: what is allocated, read, written and freed, in which layer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sentinel.core.profile import ACCESS_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.trace import ROLES, LayerId, Quality

OPTIMIZER_SLICES = 32
NOMINAL_FLOPS, NOMINAL_BYTES = 1.5e12, 100e9
"""Speed that `layer_ns` supposes; described machines compute their own times from FLOPs and bytes."""


@dataclass(frozen=True)
class Job:
    """A model to trace. `blocks`: the modules that are layers. `loss(model)` runs forward on inputs that it makes."""

    build: Callable[[], torch.nn.Module]
    loss: Callable[[torch.nn.Module], Iterator[torch.Tensor]]
    blocks: Callable[[torch.nn.Module], Sequence[torch.nn.Module]]
    adam: bool = True


@dataclass
class _Storage:
    """One storage while it is recorded."""

    name: str
    role: str
    nbytes: int
    layer: int
    event: int
    ordinal: int = -1
    persistent: bool = False
    died_layer: int = -1
    died_event: int = -1
    uses: dict[int, list[int]] = field(default_factory=dict)  # layer -> reads, writes, read bytes, written bytes


class Recorder(TorchDispatchMode):
    """Counts allocations and accesses of storages by layer. Layer k is the stretch that `tick` ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[str] = []
        self.flops = [0]
        self.events = 0
        self.storages: list[_Storage] = []
        self._of: dict[int, _Storage] = {}
        self._ordinals: dict[int, int] = {}
        self._phase = "activation"

    @property
    def layer(self) -> int:
        return len(self.layers)

    def tick(self, name: str) -> None:
        """End a layer."""
        self.layers.append(name)
        self.flops.append(0)

    @contextmanager
    def births_are(self, role: str) -> Iterator[None]:
        """Role of what is born meanwhile."""
        before, self._phase = self._phase, role
        yield
        self._phase = before

    def persistent(self, tensor: torch.Tensor, name: str, role: str) -> None:
        """Tell of a tensor that exists before the step. A tied one is told once."""
        storage = tensor.untyped_storage()
        if id(storage) not in self._of and storage.nbytes():
            self._add(storage, _Storage(name, role, storage.nbytes(), 0, 0, persistent=True))

    def _add(self, storage: Any, row: _Storage) -> _Storage:
        self._of[id(storage)] = row
        self.storages.append(row)
        weakref.finalize(storage, self._died, id(storage))
        return row

    def _died(self, key: int) -> None:
        row = self._of.pop(key, None)
        if row is not None:
            row.died_layer, row.died_event = self.layer, self.events

    def _born(self, storage: Any, op: str) -> _Storage:
        ordinal = self._ordinals.get(self.layer, 0)
        self._ordinals[self.layer] = ordinal + 1
        name = f"{op}@{self.layer}.{ordinal}"
        row = _Storage(name, self._phase, storage.nbytes(), self.layer, self.events, ordinal)
        self.events += 1
        return self._add(storage, row)

    def _touch(self, tensor: torch.Tensor, op: str, write: bool) -> None:
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return
        row = self._of.get(id(storage)) or self._born(storage, op)
        use = row.uses.setdefault(self.layer, [0, 0, 0, 0])
        spanned = min(tensor.numel() * tensor.element_size(), row.nbytes)
        use[1 if write else 0] += 1
        use[3 if write else 2] += spanned

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        op = str(func._overloadpacket).removeprefix("aten.")
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        written = _written(func, args, kwargs)
        fresh = [t for t in results if id(t.untyped_storage()) not in given]
        if not fresh and not written:
            return out  # a view, or something that touches no data
        for tensor in _tensors(args, kwargs):
            if not any(tensor is w for w in written) or _reads_what_it_writes(op):
                self._touch(tensor, op, write=False)
        for tensor in [*written, *fresh]:
            if op not in ("empty", "empty_like", "new_empty", "empty_strided"):
                self._touch(tensor, op, write=True)
            elif id(tensor.untyped_storage()) not in self._of and tensor.untyped_storage().nbytes():
                self._born(tensor.untyped_storage(), op)
        count = flop_registry.get(func._overloadpacket)
        elements = max((t.numel() for t in results), default=0)
        self.flops[-1] += int(count(*args, **kwargs, out_val=out)) if count else elements
        return out


def _tensors(args: Any, kwargs: Any) -> Iterable[torch.Tensor]:
    return [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors that the schema says are written in place."""
    found: list[torch.Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return found


def _reads_what_it_writes(op: str) -> bool:
    return op.endswith("_") and op not in ("zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_")


def record(job: Job) -> Profile:
    """The Profile of one step of a job, after its optimizer state exists."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = job.build()
        params = [p for p in model.parameters() if p.requires_grad]
        states = [[torch.zeros_like(p) for _ in range(2 if job.adam else 1)] for p in params]
        recorder = Recorder()
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            recorder.persistent(tensor, name, "param" if isinstance(tensor, torch.nn.Parameter) else "buffer")
        for (name, _), state in zip(model.named_parameters(), states, strict=False):
            for index, tensor in enumerate(state):
                recorder.persistent(tensor, f"{name}.{('exp_avg', 'exp_avg_sq')[index]}", "optimizer")
        _tick_at(model, job.blocks(model), recorder)
        with recorder:
            for loss in job.loss(model):
                recorder.tick("loss")
                with recorder.births_are("grad"):
                    loss.backward()
                recorder.tick("backward")
                del loss
            with torch.no_grad():
                _optimize(params, states, job.adam, recorder)
            for p in params:
                p.grad = None
            recorder.tick("end")
        return _profile(recorder)


def _tick_at(model: torch.nn.Module, blocks: Sequence[torch.nn.Module], recorder: Recorder) -> None:
    """A tick after each block's forward, and one as the gradient of its output arrives: its backward begins."""
    names = {id(module): name for name, module in model.named_modules()}

    def after(module: torch.nn.Module, _: Any, output: Any) -> None:
        name = names[id(module)]
        recorder.tick(f"{name}:forward")
        outputs = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        if outputs and torch.is_grad_enabled():
            seen: list[bool] = []

            def begins(_: torch.Tensor) -> None:
                if not seen:
                    seen.append(True)
                    recorder.tick(f"{name}:backward")

            outputs[0].register_hook(begins)

    for block in blocks:
        block.register_forward_hook(after)


def _optimize(
    params: Sequence[torch.Tensor], states: Sequence[Sequence[torch.Tensor]], adam: bool, recorder: Recorder
) -> None:
    """Adam or SGD with momentum, in slices of the parameter list by bytes."""
    total = sum(p.numel() for p in params)
    done, slices = 0, 1
    for p, state in zip(params, states, strict=True):
        if p.grad is not None:
            with recorder.births_are("workspace"):
                if adam:
                    first, second = state
                    first.mul_(0.9).add_(p.grad, alpha=0.1)
                    second.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                    p.addcdiv_(first, second.sqrt().add_(1e-8), value=-1e-3)
                else:
                    state[0].mul_(0.9).add_(p.grad)
                    p.add_(state[0], alpha=-0.1)
        done += p.numel()
        if done * OPTIMIZER_SLICES >= total * slices:
            recorder.tick(f"optimizer{slices}")
            slices = done * OPTIMIZER_SLICES // total + 1


def _profile(recorder: Recorder) -> Profile:
    """Deaths after the step's end become deaths at its end: then every gradient and activation is gone."""
    length, n_events = recorder.layer, max(recorder.events, 1)
    rows = [s for s in recorder.storages if s.persistent or s.uses]
    tensors = np.zeros(len(rows), TENSOR_DTYPE)
    accesses = []
    for index, s in enumerate(rows):
        row = tensors[index]
        row["role"], row["nbytes"], row["managed"] = ROLES.index(s.role), s.nbytes, True  # type: ignore[arg-type]
        if s.persistent:
            row["stop"], row["persistent"], row["key_layer"], row["key_ordinal"] = length, True, -1, -1
            row["died_event"] = n_events
        else:
            last = min(s.died_layer, length - 1) if s.died_layer >= 0 else length - 1
            row["start"], row["stop"] = s.layer, last + 1
            row["key_layer"], row["key_ordinal"] = s.layer, s.ordinal
            died = s.died_event if s.died_layer >= 0 else n_events
            row["born_event"], row["died_event"] = s.event, max(min(died, n_events), s.event + 1)
        for layer, (reads, writes, read, written) in sorted(s.uses.items()):
            touched = min(s.nbytes, max(read, written))
            accesses.append((index, layer, reads, writes, read, written, touched, -1, -1))
    flops = np.array(recorder.flops[:length], np.int64)
    table = np.array(accesses, ACCESS_DTYPE)
    traffic = np.bincount(table["layer"], table["read_bytes"] + table["written_bytes"], length)
    nominal = np.maximum(flops / NOMINAL_FLOPS, traffic / NOMINAL_BYTES) * 1e9
    ids: dict[str, int] = {}
    layers = []
    for name in recorder.layers:
        layers.append(LayerId(name, ids.get(name, 0)))
        ids[name] = ids.get(name, 0) + 1
    return Profile(
        layers=tuple(layers),
        layer_ns=np.rint(nominal).astype(np.int64),
        flops=flops,
        names=tuple(s.name for s in rows),
        tensors=tensors,
        accesses=table,
        n_events=n_events,
        quality=Quality("ops", "operator accesses", notes=("traced with fake tensors; layer times are nominal",)),
        live_peak_bytes=_live_peak(tensors, n_events),
        origin={"recorded_by": "benchmarks.traces"},
    )


def _live_peak(tensors: Any, n_events: int) -> int:
    delta = np.zeros(n_events + 1, np.int64)
    np.add.at(delta, tensors["born_event"], tensors["nbytes"])
    np.add.at(delta, np.minimum(tensors["died_event"], n_events), -tensors["nbytes"])
    return int(delta.cumsum().max())
