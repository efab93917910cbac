"""A program that trains, under a memory budget or on stock PyTorch, and prints what came of it.

python -m tests.torch.passive_cases CASE DIRECTORY
python -m tests.torch.passive_cases --stock CASE...
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sentinel
from sentinel.system import native
from sentinel.tiers.pool_cap import taken_bytes
from tests.torch import passive_holders
from tests.torch.passive_parts import STEPS, digest, gpt, loss_of, mlp, nothing, steps_of, train

BUDGET = {"mlp": "44MiB", "gpt": "96MiB"}
"""About a third of what each takes."""
ARRAY_BYTES = 400 << 20
"""More than all tensors take together."""


def plain_mlp() -> dict:
    return train(mlp, nothing)


def plain_gpt() -> dict:
    return train(gpt, nothing)


def operands_beyond_the_budget() -> dict:
    """All parameters, gradients and state are operands of one operator."""
    return train(mlp, nothing, foreach=True)


def fused_steps_beyond_the_budget() -> dict:
    return train(mlp, nothing, fused=True)


def saved_in_mid_step() -> dict:
    saved: list[str] = []

    def save(step: int, model: nn.Module) -> None:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        saved.append(digest(torch.load(file).values()))

    return {**train(mlp, save), "saved": saved}


def saved_and_loaded() -> dict:
    """Trained, saved, built again, loaded and trained on."""
    made = [mlp(), mlp()]
    found, file = [], io.BytesIO()
    for model, inputs, target in made:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if file.tell():
            file.seek(0)
            state = torch.load(file)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            del state
        for batch in inputs:
            loss = loss_of(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return {"losses": found, "parameters": digest(made[1][0].parameters())}


def written_through_numpy() -> dict:
    def write(step: int, model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.detach().numpy()[step::100] += 0.5

    return train(mlp, write)


def read_by_a_thread() -> dict:
    """Another thread sums parameters by numpy all the time, and by torch: nothing that it finds is not a number."""
    model, inputs, target = mlp()
    done, strange = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            for parameter in model.parameters():
                for found in (float(parameter.detach().numpy().sum()), float(parameter.detach().abs().sum())):
                    if not abs(found) < 1e9:
                        strange.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        return {**steps_of(model, iter(inputs), target, nothing), "strange": strange}
    finally:
        done.set()
        for thread in threads:
            thread.join()


def workers_fork() -> dict:
    """Two workers, forked again for each of five batches, read a data set that lives in frames."""
    model, inputs, target = mlp()
    data = TensorDataset(inputs.flatten(0, 1))

    def batches() -> Iterator[torch.Tensor]:
        for step in range(STEPS):
            loader = DataLoader(data, batch_size=len(target), num_workers=2, multiprocessing_context="fork")
            for number, (batch,) in enumerate(loader):
                if number == step:
                    yield batch

    return steps_of(model, batches(), target, nothing)


def a_child_trains() -> dict:
    """A forked child trains a copy on, as far as its parent; both are alike."""
    model, inputs, target = mlp()
    steps_of(model, iter(inputs[:1]), target, nothing)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        torch.set_num_threads(1)
        os.write(writer, json.dumps(steps_of(model, iter(inputs[1:2]), target, nothing)).encode())
        os._exit(0)
    torch.set_num_threads(1)
    ours = steps_of(model, iter(inputs[1:2]), target, nothing)
    assert os.waitpid(pid, 0)[1] == 0
    return {**ours, "child": json.loads(os.read(reader, 1 << 16))}


def an_array_grows() -> dict:
    """Within the third step an array takes all that tensors had under the cap; in the fourth it is gone."""
    held: list[Any] = []
    look = native.function("sn_framed_look", None)

    def between(step: int, model: nn.Module) -> None:
        if step == 2:
            held.append(np.ones(ARRAY_BYTES, np.uint8))
        if step == 3:
            held.clear()
        for _ in range(12 if step >= 3 else 1):  # the pool grows again after ten looks with room
            look()
            next(model.parameters()).detach().abs()

    return train(lambda: mlp(4, 512), between)


def whatever_comes(seed: int) -> dict:
    """Ten steps, of shapes that change now and then, with validation, forked children and weights that are written by
    hand in between, while a thread reads."""
    draw = random.Random(seed)
    model, inputs, target = mlp(6, 512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    done, strange = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            for parameter in model.parameters():
                if not abs(found := float(parameter.detach().numpy().sum())) < 1e9:
                    strange.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(10):
            rows = draw.choice((512, 512, 512, 384))
            loss = loss_of(model(inputs[step % STEPS][:rows]), target[:rows])
            loss.backward()
            optimizer.step()
            if draw.random() < 0.7:
                optimizer.zero_grad()
            losses.append(loss.item())
            if step % 4 == 3:
                with torch.no_grad():
                    losses.append(float(loss_of(model(inputs[0][:256]), target[:256])))
            if step % 3 == 2:
                losses.append(_sum_in_a_child(model))
            if draw.random() < 0.2:
                next(model.parameters()).detach().numpy()[:: draw.randrange(1, 50)] *= 0.5
    finally:
        done.set()
        reader.join()
    return {"losses": losses, "parameters": digest(model.parameters()), "strange": strange}


def _sum_in_a_child(model: nn.Module) -> float:
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, str(sum(float(each.detach().numpy().sum()) for each in model.parameters())).encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(writer)
    with os.fdopen(reader) as told:
        return float(told.read())


def whatever_comes_first() -> dict:
    return whatever_comes(1)


def whatever_comes_second() -> dict:
    return whatever_comes(2)


def whatever_comes_third() -> dict:
    return whatever_comes(3)


CASES = {
    each.__name__: each
    for each in (
        plain_mlp,
        plain_gpt,
        operands_beyond_the_budget,
        fused_steps_beyond_the_budget,
        saved_in_mid_step,
        saved_and_loaded,
        written_through_numpy,
        read_by_a_thread,
        workers_fork,
        a_child_trains,
        an_array_grows,
        whatever_comes_first,
        whatever_comes_second,
        whatever_comes_third,
        *passive_holders.CASES,
    )
}


def main(word: str, *words: str) -> None:
    if word == "--stock":
        for case in words:
            print_case(case)
    else:
        print_case(word, *words)


def print_case(case: str, folder: str | None = None) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(2)
    torch.ones(1).sqrt()  # MKL's first call by two threads at once may compute with 12 bits, without Sentinel too
    if case == "an_array_grows" and folder is not None:
        cap = (taken_bytes() + ARRAY_BYTES) * 8 // 7  # an eighth stays free
        sentinel.start_profile(cap=cap, slow=f"file:{folder}=2GiB")
    elif folder is not None:
        sentinel.start_profile(fast=BUDGET["gpt" if "gpt" in case else "mlp"], slow=f"file:{folder}=2GiB")
    told: dict[str, Any] = {"found": CASES[case]()}
    told["counted"] = told["found"].pop("counted", {})  # what need not be the same
    if folder is not None:
        report = sentinel.report()
        told["storage"] = report.setup.storage._asdict() if report.setup.storage else {}
        told["text"] = report.text()
        if sentinel.active():
            sentinel.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
