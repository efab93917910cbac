"""Cases of training from a file beside which somebody else holds, reads and writes what lives there."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import sentinel
from sentinel.runtime import RUNTIME
from sentinel.session.passive import PassiveSession
from sentinel.tiers.frames import FRAME_BYTES
from tests.processes import LONGEST_S
from tests.torch.passive_parts import STEPS, digest, loss_of, mlp, nothing, steps_of, train

ROWS = 128
"""Of a weight, that are written at a time: 512 KiB."""


class Written:
    """What a writer has done: `faults`: its system calls that were refused with EFAULT; `retries`: those of them that
    were tried until the bytes were there."""

    def __init__(self) -> None:
        self.writes = self.faults = self.retries = 0

    def counted(self) -> dict[str, int]:
        return dict(vars(self))


def store(target: np.ndarray, values: np.ndarray, told: Written) -> None:
    """By plain stores."""
    target[...] = values
    told.writes += 1


class FromFile:
    """Writes what it reads from a file into an array, by the system call of `readinto`."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def __call__(self, target: np.ndarray, values: np.ndarray, told: Written) -> None:
        os.pwrite(self._file.fileno(), values.tobytes(), 0)
        into = memoryview(target).cast("B")
        done = refused = 0
        while done < len(into):
            self._file.seek(done)
            try:
                done += self._file.readinto(into[done:])
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                told.faults += 1
                refused += 1
            else:
                told.retries += refused
                refused = 0
        told.writes += 1


Write = Callable[[np.ndarray, np.ndarray, Written], None]


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """`work` in a thread of its own; what it raises is raised as it ends."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(LONGEST_S)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def wait(event: threading.Event) -> None:
    assert event.wait(LONGEST_S)


def written_ahead_by_a_thread(write: Write) -> dict:
    """In each step a thread writes random rows of each weight, one layer after the other; each layer's forward pass
    waits for its own, so that the thread writes later ones while earlier ones compute. Beside them it writes an array
    that nobody else uses."""
    model, inputs, target = mlp()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    weights = [layer.weight.detach().numpy() for layer in layers]
    own = torch.zeros(2, 1024, 1024)
    expected = np.zeros((2, 1024, 1024), np.float32)
    begun = [threading.Event() for _ in range(STEPS)]
    written = [[threading.Event() for _ in layers] for _ in range(STEPS)]
    told = Written()
    step = -1

    def work() -> None:
        draw = np.random.default_rng(5)
        for number in range(STEPS):
            wait(begun[number])
            for weight, event in zip(weights, written[number], strict=True):
                values = draw.standard_normal((ROWS, 1024), np.float32) * 0.03
                first = int(draw.integers(0, 1024 - ROWS))
                write(weight[first : first + ROWS], values, told)
                event.set()
            for each in range(2):
                first = int(draw.integers(0, 1024 - ROWS))
                values = draw.standard_normal((ROWS, 1024), np.float32)
                write(own.numpy()[each, first : first + ROWS], values, told)
                expected[each, first : first + ROWS] = values

    def waits(index: int) -> Callable[..., None]:
        return lambda *_: wait(written[step][index])

    def batches() -> Iterator[torch.Tensor]:
        nonlocal step
        for step, batch in enumerate(inputs):
            begun[step].set()
            yield batch

    hooks = [layer.register_forward_pre_hook(waits(index)) for index, layer in enumerate(layers)]
    try:
        with beside(work):
            found = steps_of(model, batches(), target, nothing)
    finally:
        for hook in hooks:
            hook.remove()
    return {**found, "own": bool((own.numpy() == expected).all()), "counted": told.counted()}


def written_by_stores() -> dict:
    return written_ahead_by_a_thread(store)


def written_by_readinto() -> dict:
    with tempfile.TemporaryFile(buffering=0) as file:
        return written_ahead_by_a_thread(FromFile(file))


def averaged_by_a_thread() -> dict:
    """A moving average of the weights, half of it by operators and half by numpy, is taken by another thread while the
    next step runs forward and backward; the optimizer waits for it."""
    model, inputs, target = mlp(6)
    parameters = [parameter.detach() for parameter in model.parameters()]
    averages = [parameter.clone() for parameter in parameters]
    begun = [threading.Event() for _ in range(STEPS)]
    ended = [threading.Event() for _ in range(STEPS)]

    def work() -> None:
        for step in range(STEPS):
            wait(begun[step])
            for index, (average, parameter) in enumerate(zip(averages, parameters, strict=True)):
                if index % 4 < 2:
                    average.lerp_(parameter, 0.1)
                else:
                    average.numpy()[...] = average.numpy() * np.float32(0.9) + parameter.numpy() * np.float32(0.1)
            ended[step].set()

    place = 0

    def batches() -> Iterator[torch.Tensor]:
        nonlocal place
        for place, batch in enumerate(inputs):
            begun[place].set()
            yield batch

    hook = register_optimizer_step_pre_hook(lambda *_: wait(ended[place]))
    try:
        with beside(work):
            found = steps_of(model, batches(), target, nothing)
    finally:
        hook.remove()
    return {**found, "averages": digest(averages)}


def trained_on_after_the_end() -> dict:
    """The session ends in the middle of the third step, with most of its tensors away."""
    counted = {"away": 0, "read_bytes": 0}

    def end(step: int, _model: nn.Module) -> None:
        if step != 2 or not sentinel.active():
            return
        session = RUNTIME.sink
        assert isinstance(session, PassiveSession)
        assert session._framed is not None
        told = session._framed.counters()
        counted.update(
            away=told.live_bytes - session._framed.facts.frames * FRAME_BYTES, read_bytes=told.frames.read_bytes
        )
        sentinel.stop()

    return {**train(mlp, end), "counted": counted}


def aliases_outlive_their_model() -> dict:
    """Arrays share the memory of weights, gradients and moments, are read and written in each step, and stay when their
    model is gone and another one trains."""
    first, inputs, target = mlp(4, 512)
    kept: list[np.ndarray] = []
    seen: list[Any] = []

    def hold(step: int, model: nn.Module) -> None:
        if step == 0:
            kept[:] = [parameter.detach().numpy() for parameter in model.parameters()]
        for index, array in enumerate(kept):
            seen.append(float(array.sum(dtype=np.float64)))
            if array.ndim == 2:
                array[(step + index) % 7 :: 50] *= np.float32(0.5)

    found = steps_of(first, iter(inputs), target, hold)
    others = list(kept)
    del first
    before = [float(array.sum(dtype=np.float64)) for array in others]
    second, inputs, target = mlp(4, 512)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step, batch in enumerate(inputs):
        loss = loss_of(second(batch), target)
        loss.backward()
        gradients = [parameter.grad.numpy() for parameter in second.parameters()]
        gradients[0][step::9] = 0.25
        optimizer.step()
        optimizer.zero_grad()
        seen += [float(gradient.sum(dtype=np.float64)) for gradient in gradients]
        others[step % len(others)][..., ::3] += np.float32(1)
        losses.append(loss.item())
    moments = [optimizer.state[parameter]["momentum_buffer"].numpy() for parameter in second.parameters()]
    return {
        **found,
        "seen": seen,
        "before": before,
        "aliases": digest(map(torch.from_numpy, others)),
        "second": [losses, digest(second.parameters()), digest(map(torch.from_numpy, moments))],
    }


CASES = (
    written_by_stores,
    written_by_readinto,
    averaged_by_a_thread,
    trained_on_after_the_end,
    aliases_outlive_their_model,
)
