"""The loop of a script that knows nothing of Sentinel is found, whatever it does within a step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch import nn

from sentinel.profiler.annotate import annotated
from sentinel.profiler.auto import AutoLoop
from tests.torch.ticking import noted


class Watch:
    """What an AutoLoop did, in order."""

    def __init__(self):
        self.calls = []
        self.loop = AutoLoop(self._start, lambda: self.calls.append("end"))

    def _start(self, models, optimizers):
        self.calls.append(("start", len(models), len(optimizers)))

    def close(self):
        self.loop.remove()
        if self.loop._annotation:
            self.loop._annotation.remove()


@pytest.fixture
def watch():
    made = Watch()
    yield made
    made.close()
    assert annotated() == ([], [])
    assert not modules._global_forward_pre_hooks
    assert not modules._global_forward_hooks
    assert not optimizers._global_optimizer_post_hooks


def mlp():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def test_the_third_step_is_profiled(watch):
    model, loss = mlp(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    happened = []
    with noted() as notes:
        for _ in range(6):
            optimizer.zero_grad()
            loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
            optimizer.step()
            happened.append((list(watch.calls), len(notes.take())))
    assert [calls for calls, _ in happened] == [[], [], *[[("start", 1, 1)]], *[[("start", 1, 1), "end"]] * 3]
    ticks = {count for _, count in happened[2:]}
    assert happened[0][1] == happened[1][1] == 0
    assert len(ticks) == 1
    assert ticks.pop() > 6
    assert watch.loop.ended
    assert watch.loop.found == ((model,), (optimizer,))


def test_accumulation_validation_and_several_models(watch):
    generator, critic = mlp(), mlp()
    first = torch.optim.SGD(critic.parameters(), lr=0.1)
    second = torch.optim.SGD(generator.parameters(), lr=0.1)
    for _ in range(4):
        for _ in range(3):  # micro-steps
            critic(generator(torch.ones(2, 4)).detach()).sum().backward()
        first.step()
        critic(generator(torch.ones(2, 4))).sum().backward()
        second.step()
        with torch.no_grad():
            generator(torch.ones(2, 4))
    assert watch.calls == [("start", 2, 2), "end"]


def test_inference_and_losses_are_no_loop(watch):
    model = mlp()
    with torch.no_grad():
        for _ in range(5):
            model(torch.ones(2, 4))
    nn.MSELoss()(torch.ones(2), torch.zeros(2))
    assert watch.calls == []
    assert watch.loop.found == ((), ())


def test_a_forward_that_fails_does_not_hide_the_next(watch):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert watch.calls == [("start", 1, 1), "end"]
