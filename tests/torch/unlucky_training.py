"""Training that takes five times its memory, and what becomes of it where the host or the user interferes.

python -m tests.torch.unlucky_training CASE DIRECTORY LIBRARY
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sentinel
from tests.processes import LONGEST_S, until
from tests.unlucky import Calls, Unlucky, Way

LAYERS, WIDTH = 12, 512
BUDGET = "8MiB"
"""Parameters, gradients and momentum take 36 MiB, in tensors of 1 MiB."""

At = Callable[[int, nn.Module], object]


def before(wanted: int, call: Callable[[], object]) -> At:
    """For `train`: `call` before that step."""

    def at(step: int, model: nn.Module) -> None:
        if step == wanted:
            call()

    return at


def train(steps: int, at: At = lambda step, model: None) -> dict[str, Any]:
    """`at(step, model)` is called before each step."""
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0, momentum=0.9)
    inputs, losses = torch.randn(8, WIDTH), []
    for step in range(steps):
        at(step, model)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), optimizer.state[parameter]["momentum_buffer"]):
            found.update(tensor.clone().numpy().tobytes())
    return {"losses": losses, "bits": found.hexdigest()}


def begin(folder: Path | str, fast: str | int = BUDGET, **more: Any) -> None:
    sentinel.start_profile(fast=fast, slow=f"file:{folder}=128MiB", **more)


def read_by_operators(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.detach().sum()


def read_by_numpy(model: nn.Module) -> list[float]:
    return [float(parameter.detach().numpy().sum()) for parameter in model.parameters()]


def read_in_a_child(model: nn.Module) -> list[float]:
    """What a forked child finds; nothing where it could not tell."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            signal.alarm(int(LONGEST_S))  # a deadlock ends by this signal
            os.write(writer, json.dumps(read_by_numpy(model)).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as told:
        found = told.read()
    os.waitpid(pid, 0)
    return list(json.loads(found)) if found else []


LOOK = """
import json, os, sys
links = []
for name in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass  # the one of the listing itself
mapped = [line.split(maxsplit=5)[-1] for line in open("/proc/self/maps")]
print(json.dumps([each for each in links + mapped if "memfd:sentinel" in each or sys.argv[1] in each]))
"""
"""A program that prints what it has of a session: its memory, and its file in a directory."""


def plain(folder: str, _unlucky: Unlucky) -> None:
    """Nothing happens."""
    expected = train(5)
    begin(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    same = train(5) == expected
    told = sentinel.report().setup.storage
    print(json.dumps({"same": same, "written": told.written_bytes if told else 0}))


def killed(folder: str, unlucky: Unlucky) -> None:
    """As it writes."""
    begin(folder)
    train(5, before(2, lambda: unlucky.order(Way.SIGNAL, Calls.WRITES, signal.SIGKILL, after=3)))


def killed_without_a_nameless_file(folder: str, unlucky: Unlucky) -> None:
    """Before the name of its file is taken away."""
    unlucky.refuse_files_without_a_name()
    unlucky.order(Way.SIGNAL, Calls.UNLINKS, signal.SIGKILL)
    begin(folder)


def with_a_name(folder: str, unlucky: Unlucky) -> None:
    """On a file system that has no files without a name."""
    unlucky.refuse_files_without_a_name()
    plain(folder, unlucky)


def interrupted(folder: str, unlucky: Unlucky) -> None:
    """Ctrl-C as it writes; then it trains again."""
    expected = train(5)
    begin(folder)  # what is opened once in a process is open
    sentinel.stop()
    descriptors = len(os.listdir("/proc/self/fd"))
    begin(folder)
    came = False
    try:
        train(5, before(2, lambda: unlucky.order(Way.SIGNAL, Calls.WRITES, signal.SIGINT, after=3)))
    except KeyboardInterrupt:
        came = True
    sentinel.stop()
    gc.collect()
    left = len(os.listdir("/proc/self/fd")) - descriptors
    begin(folder)
    again = train(5)
    print(json.dumps({"came": came, "left": left, "same": again == expected}))


def replaced(folder: str, unlucky: Unlucky) -> None:
    """By another program, as another thread waits for a transfer."""

    def replace(step: int, model: nn.Module) -> None:
        if step == 2:
            unlucky.order(Way.HOLD)
            threading.Thread(target=read_by_operators, args=(model,), daemon=True).start()
            until(lambda: unlucky.told("held"))
            os.execv(sys.executable, [sys.executable, "-c", LOOK, folder])

    begin(folder)
    train(5, replace)


CASES = {
    each.__name__: each for each in (plain, killed, killed_without_a_nameless_file, with_a_name, interrupted, replaced)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]](sys.argv[2], Unlucky(Path(sys.argv[3])))
