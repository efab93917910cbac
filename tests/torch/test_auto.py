"""The loop of a script that knows nothing of Sentinel is found, whatever it does within a step."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch import nn

import sentinel
from sentinel import session
from sentinel.profiler.slices import SlicedStep
from sentinel.profiler.step_period import PATIENCE, OptimizerStep, looked_at, period_of
from sentinel.runtime import RUNTIME
from sentinel.session import auto, set_overrides


class Watch:
    """A Follower; `calls` are those that it made, and at which optimizer step of the script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int]] = []
        self.stepped = 0
        self.models: Sequence[nn.Module] = ()
        self._session: Watch | None = None
        monkeypatch.setattr(session, "annotate", self._annotate)
        monkeypatch.setattr(session, "start_profile", lambda **_: self._call("start"))
        monkeypatch.setattr(session, "end_profile", lambda: self._call("end"))
        monkeypatch.setattr(session, "current", lambda: self._session)
        self.profiling = False
        monkeypatch.setattr(session, "is_profiling", lambda: self.profiling)
        monkeypatch.setattr(RUNTIME, "finder", None)
        self.follower = auto.Follower()

    def step(self, *turns: torch.optim.Optimizer) -> None:
        for optimizer in turns:
            optimizer.step()
            self.stepped += 1

    def _annotate(self, models: Sequence[nn.Module], _optimizers: object, **_: object) -> None:
        self.models = models
        self.calls.append(("annotate", self.stepped + 1))  # within that step

    def _call(self, name: str) -> None:
        self.calls.append((name, self.stepped))
        self.profiling = name == "start"
        self._session = self


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    made = Watch(monkeypatch)
    yield made
    made.follower.leave()
    assert not modules._global_forward_pre_hooks
    assert not modules._global_forward_hooks
    assert not optimizers._global_optimizer_post_hooks


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module) -> None:
    nn.functional.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward()


def gan(watch: Watch, turns: str, periods: int) -> None:
    """`turns`: who steps within one training step, as in "ddg"."""
    generator, critic = mlp(), mlp()
    by = {"d": sgd(critic), "g": sgd(generator)}
    for _ in range(periods):
        for turn in turns:
            for optimizer in by.values():
                optimizer.zero_grad()
            made = generator(torch.ones(2, 4))
            critic(made.detach() if turn == "d" else made).sum().backward()
            watch.step(by[turn])


def test_the_third_step_is_profiled(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    for _ in range(6):
        optimizer.zero_grad()
        train(model)
        watch.step(optimizer)
    assert watch.calls == [("annotate", 2), ("start", 2), ("end", 3)]
    assert watch.models == [model]
    assert watch.follower.done


@pytest.mark.parametrize("turns", ["dg", "ddg", "dddddg", "dgg", "ddgg"])
def test_several_steps_of_one_optimizer_to_one_of_another(watch: Watch, turns: str) -> None:
    gan(watch, turns, 5)
    length = len(turns)
    assert watch.calls == [("annotate", 2 * length), ("start", 2 * length), ("end", 3 * length)]
    assert len(watch.models) == 2


def test_a_warm_up_of_one_optimizer_is_no_step(watch: Watch) -> None:
    critic, generator = mlp(), mlp()
    by = {"d": sgd(critic), "g": sgd(generator)}
    for turn in "dddddddgdgdgdg":
        train(critic if turn == "d" else generator)
        watch.step(by[turn])
    # d g d g: known with the tenth optimizer step; the rhythm is kept from there on
    assert watch.calls == [("annotate", 10), ("start", 10), ("end", 12)]


def test_an_optimizer_that_is_frozen_and_has_not_stepped_yet_is_waited_for(watch: Watch) -> None:
    critic, generator = mlp(), mlp()
    by = {"d": sgd(critic), "g": sgd(generator)}
    gc.freeze()
    try:
        for turn in "dddddddgdgdgdg":
            train(critic if turn == "d" else generator)
            watch.step(by[turn])
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    assert watch.calls == [("annotate", 10), ("start", 10), ("end", 12)]


def test_accumulation_and_validation_lie_within_a_step(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    for _ in range(4):
        for _ in range(3):
            train(model)
        watch.step(optimizer)
        with torch.no_grad():
            model(torch.ones(2, 4))
    assert watch.calls == [("annotate", 2), ("start", 2), ("end", 3)]


@pytest.mark.parametrize("before", [0, 2])
def test_a_forward_within_a_step_begins_no_step(watch: Watch, before: int) -> None:
    """Lightning's loop: of `before` micro-batches and one more, the last runs as a closure of the optimizer's step."""
    model = mlp()
    optimizer = sgd(model)

    def closure() -> None:
        watch.calls.append(("closure", watch.stepped))
        train(model)

    annotated = SlicedStep(optimizer, "optimizer")
    for _ in range(5):
        for _ in range(before):
            train(model)
            watch.calls.append(("micro-batch", watch.stepped))
        optimizer.step(closure)
        watch.stepped += 1
    annotated.remove()
    seen = [call for call in watch.calls if call[0] != "micro-batch"]
    assert seen == [
        ("closure", 0),
        ("closure", 1),
        ("annotate", 2),
        ("start", 2),
        ("closure", 2),
        ("end", 3),
        ("closure", 3),
        ("closure", 4),
    ]
    if before:  # it is the first micro-batch that begins a step
        assert watch.calls.index(("start", 2)) < watch.calls.index(("micro-batch", 2))
        assert watch.calls.index(("end", 3)) < watch.calls.index(("micro-batch", 3))


@pytest.mark.needs("torch", "compiler")
def test_a_step_with_its_forward_in_a_closure_is_profiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: forward, backward and the optimizer's step are layers of one step, which every later one is."""
    monkeypatch.setattr(RUNTIME, "last", None)
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(256, 4)).square().mean()
        loss.backward()
        return loss

    set_overrides({"fast": "50%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"})
    follower = auto.Follower()
    try:
        for _ in range(10):
            optimizer.step(closure)
        assert follower.done
        running = session.current()
        assert running is not None
        assert len(running.context.follower.cycle.boundaries) == 1
        assert not [note for note in running.context.notes if "optimizer stepped" in note or "cut short" in note]
        assert len(sentinel.stop().steps) >= 5
    finally:
        set_overrides({})
        follower.leave()
        if sentinel.active():
            sentinel.stop()


def test_a_script_that_annotates_is_given_time_to_begin_itself(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    sentinel.annotate(model, optimizer)
    for _ in range(auto.WAIT + 3):
        train(model)
        watch.step(optimizer)
    script = ("annotate", 1)
    assert watch.calls == [script, ("start", auto.WAIT), ("end", auto.WAIT + 1)]


def test_inference_and_losses_are_no_loop(watch: Watch) -> None:
    model = mlp()
    with torch.no_grad():
        for _ in range(5):
            model(torch.ones(2, 4))
    nn.MSELoss()(torch.ones(2), torch.zeros(2))
    assert watch.calls == []


def test_a_model_that_trains_in_eval_mode_is_found_and_begins_the_step(watch: Watch) -> None:
    """As `from_pretrained` gives it. Its loss is a module in training mode, as all are that nobody tells otherwise."""
    model, loss = mlp().eval(), nn.MSELoss()
    optimizer = sgd(model)
    model.register_forward_pre_hook(lambda *_: watch.calls.append(("model", watch.stepped)))
    for _ in range(4):
        loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
        watch.step(optimizer)
    assert watch.models == [model]
    of_model = [("model", step) for step in range(4)]
    assert watch.calls == [*of_model[:2], ("annotate", 2), ("start", 2), of_model[2], ("end", 3), of_model[3]]


def test_a_validation_with_gradients_begins_no_step(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    for _ in range(5):
        model.eval()
        model(torch.ones(2, 4))
        watch.calls.append(("validated", watch.stepped))
        model.train()
        train(model)
        watch.step(optimizer)
    assert watch.models == [model]
    assert watch.calls.index(("start", 2)) == watch.calls.index(("validated", 2)) + 1


def test_a_frozen_model_in_eval_mode_is_no_trained_one(watch: Watch) -> None:
    frozen, model = mlp().eval().requires_grad_(False), mlp()
    optimizer = torch.optim.SGD([*frozen.parameters(), *model.parameters()], lr=0.1)
    for _ in range(4):
        nn.functional.mse_loss(model(frozen(torch.ones(2, 4))), torch.zeros(2, 4)).backward()
        watch.step(optimizer)
    assert watch.models == [model]
    assert watch.calls == [("annotate", 2), ("start", 2), ("end", 3)]


def test_a_forked_child_trains_as_if_nobody_watched(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    train(model)
    watch.step(optimizer)
    assert watch.follower in RUNTIME.not_inherited
    watch.follower.forked()
    for _ in range(6):
        train(model)
        watch.step(optimizer)
    assert watch.calls == []


def test_a_script_whose_steps_never_repeat_is_not_remembered_for_ever(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "period_of", lambda *_: 0)
    monkeypatch.setattr(auto, "KEPT", 4)
    monkeypatch.setattr(auto, "looked_at", lambda _: 1)
    model = mlp()
    optimizer = sgd(model)
    for _ in range(6):
        train(model)
        watch.step(optimizer)
    assert len(watch.follower._steps) == 4


def test_what_is_gone_is_not_kept_while_no_loop_is_found(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "period_of", lambda *_: 0)
    made: list[weakref.ref[Any]] = []
    for _ in range(3):
        model = mlp()
        optimizer = sgd(model)
        made += weakref.ref(model), weakref.ref(optimizer)
        train(model)
        watch.step(optimizer)
        del model, optimizer
        gc.collect()
    assert [each() for each in made] == [None] * 6
    assert len({step.optimizer for step in watch.follower._steps}) == 3, (
        "another one may get the identity of one before"
    )


def test_a_wrapper_that_is_made_in_each_step_is_annotated(watch: Watch) -> None:
    """Its blocks live on, and tick."""
    backbone, head = mlp(), mlp()
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    for _ in range(4):
        train(nn.Sequential(backbone, head))
        watch.step(optimizer)
    (wrapper,) = watch.models
    assert list(wrapper) == [backbone, head]  # type: ignore[call-overload]


def test_an_optimizer_that_is_gone_is_waited_for_no_longer(watch: Watch) -> None:
    model, other = mlp(), sgd(mlp())
    optimizer = sgd(model)
    for step in range(6):
        train(model)
        watch.step(optimizer)
        if step == 2:
            assert watch.calls == []
            del other
            gc.collect()
    assert watch.calls == [("annotate", 4), ("start", 4), ("end", 5)]


def test_a_forward_that_fails_does_not_hide_the_next(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    for _ in range(4):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
        train(model)
        watch.step(optimizer)
    assert watch.calls == [("annotate", 2), ("start", 2), ("end", 3)]


def in_a_thread(loop: Callable[[], None]) -> None:
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


def test_the_thread_that_trains_is_followed(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)

    def loop() -> None:
        for _ in range(6):
            train(model)
            watch.step(optimizer)

    train(mlp())  # a forward elsewhere, before
    in_a_thread(loop)
    assert watch.calls == [("annotate", 2), ("start", 2), ("end", 3)]
    assert watch.models == [model]


def test_of_two_threads_that_train_the_first_is_followed(watch: Watch) -> None:
    model, other = mlp(), mlp()
    optimizer, another = sgd(model), sgd(other)

    def meanwhile() -> None:
        train(other)
        another.step()

    for _ in range(PATIENCE + 2):
        train(model)
        watch.step(optimizer)
        in_a_thread(meanwhile)
    assert watch.calls == [("annotate", PATIENCE), ("start", PATIENCE), ("end", PATIENCE + 1)]
    assert watch.models == [model]


def test_a_compiled_model_is_compiled_as_it_would_be(watch: Watch) -> None:
    model = mlp()
    optimizer = sgd(model)
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=count, fullgraph=True)  # a hook that breaks the graph is an error
    for _ in range(6):
        train(compiled)
        watch.step(optimizer)
    assert watch.calls == [("annotate", 2), ("start", 2), ("end", 3)]
    assert {node.op for graph in graphs for node in graph.graph.nodes} <= {"placeholder", "call_function", "output"}
    assert graphs


def spelled(turns: str) -> list[OptimizerStep]:
    """One optimizer a letter; digits are the parameters that it trains, its letter without any."""
    found: list[OptimizerStep] = []
    for turn in turns.split() if " " in turns else turns:
        found.append(OptimizerStep(ord(turn[0]), frozenset(map(ord, turn[1:] or turn))))
    return found


@pytest.mark.parametrize(
    ("turns", "length"),
    [
        ("", 0),
        ("a", 0),
        ("aa", 1),
        ("dgdg", 2),
        ("ddgdd", 0),
        ("ddgddg", 3),
        ("dgddgd", 3),
        ("dddddgdddddg", 6),
        ("abcabc", 3),
        ("abcab", 0),
        ("a1 a2 a1 a2", 2),  # one optimizer, tasks that take turns
        ("a1 a2 a1", 0),
    ],
)
def test_periods(turns: str, length: int) -> None:
    assert period_of(spelled(turns)) == length


def test_a_training_step_of_a_thousand_optimizers_is_found(watch: Watch) -> None:
    """One for each parameter, which steps within backward. Only 64 optimizer steps were taken for one training step."""
    layers = [nn.Linear(2, 2, bias=False) for _ in range(1000)]
    model = nn.Sequential(*layers)
    turns = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    for layer in layers:
        layer.weight.grad = torch.zeros(2, 2)
    for _ in range(4):
        model(torch.ones(2))
        watch.step(*turns)
    assert watch.calls == [("annotate", 2000), ("start", 2000), ("end", 3000)]


def test_beyond_the_limit_nobody_looks_any_more(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "MOST", 4)
    model = mlp()
    turns = [sgd(model) for _ in range(3)]
    for _ in range(4):
        train(model)
        watch.step(*turns)
    assert watch.follower.done
    assert watch.calls == []
    assert not modules._global_forward_pre_hooks


class Turn(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __hash__(self) -> int:
        return int(self)

    def __eq__(self, other: object) -> bool:
        Turn.compared += 1
        return int(self) == other


def test_where_no_training_step_is_found_an_optimizer_step_costs_little() -> None:
    drawn = random.Random(5)
    turns = [Turn(drawn.randrange(1000)) for _ in range(looked_at(1000))]
    Turn.compared = 0
    assert period_of([OptimizerStep(turn, frozenset()) for turn in turns]) == 0
    assert Turn.compared < 4 * len(turns)


def test_parameters_that_nobody_trains_are_waited_for_but_not_for_ever() -> None:
    wanted = {ord("d"), ord("g")}
    assert period_of(spelled("ddd"), lambda: wanted) == 0
    assert period_of(spelled("ddgddg"), lambda: wanted) == 3
    assert period_of(spelled("d" * (PATIENCE - 1)), lambda: wanted) == 0
    assert period_of(spelled("d" * PATIENCE), lambda: wanted) == 1


def varying(optimizers: str) -> list[OptimizerStep]:
    """Steps of these optimizers, no two of which train the same parameters."""
    return [OptimizerStep(ord(optimizer), frozenset({number})) for number, optimizer in enumerate(optimizers)]


def test_where_no_two_steps_train_the_same_only_who_stepped_counts_in_the_end() -> None:
    assert period_of(varying("a" * (PATIENCE - 1))) == 0
    assert period_of(varying("a" * PATIENCE), lambda: {ord("x")}) == 1
    assert period_of(varying("ddg" * PATIENCE)) == 3
    assert period_of([*varying("d" * PATIENCE), *varying("g")]) == 0


@pytest.mark.needs("torch", "compiler")
def test_a_script_with_two_critic_steps_is_profiled_over_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: the ring that is learned has three optimizer steps."""
    monkeypatch.setattr(RUNTIME, "last", None)  # of another test: --auto leaves a script alone that began one itself
    torch.manual_seed(0)
    generator, critic = mlp(), mlp()
    by = {"d": sgd(critic), "g": sgd(generator)}
    set_overrides({"fast": "50%", "slow": "emulated:cxl-asic-x8", "tracker": "ops"})
    follower = auto.Follower()
    try:
        for turn in "ddg" * 6:
            for optimizer in by.values():
                optimizer.zero_grad()
            made = generator(torch.ones(256, 4))
            critic(made.detach() if turn == "d" else made).sum().backward()
            by[turn].step()
        assert follower.done
        running = session.current()
        assert running is not None
        assert len(running.context.follower.cycle.boundaries) == 3
        assert len(sentinel.stop().steps) >= 1
    finally:
        set_overrides({})
        follower.leave()
        if sentinel.active():
            sentinel.stop()


@pytest.mark.needs("torch", "compiler")
@pytest.mark.parametrize("annotates", [True, False])
def test_a_script_that_begins_late_has_its_own_session(monkeypatch: pytest.MonkeyPatch, annotates: bool) -> None:
    """What was begun in its place by then ends, and what it computes is what it would have been."""

    def trained(follow: bool) -> list[str]:
        torch.manual_seed(0)
        model = mlp()
        optimizer, losses = sgd(model), []
        for step in range(9):
            if step == 5 and follow:
                assert session.current() is not None
                assert session.current().applying
                if annotates:
                    sentinel.annotate(model, optimizer)
                sentinel.start_profile(model, optimizer, fast="60%")
                assert session.current().request.fast == "60%"
                sentinel.add_layer("a")
            loss = model(torch.randn(64, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if follow:
                sentinel.add_layer("b")
            losses.append(loss.item().hex())
            if step == 5 and follow:
                sentinel.end_profile()
        return losses

    plain = trained(follow=False)
    monkeypatch.setattr(RUNTIME, "last", None)
    monkeypatch.setattr(RUNTIME, "finder", None)
    set_overrides({"slow": "emulated:cxl-asic-x8", "tracker": "ops"})
    follower = auto.Follower()
    try:
        assert trained(follow=True) == plain
        assert follower.done
        assert not follower.failed
        assert bool(RUNTIME.models) == annotates
    finally:
        set_overrides({})
        follower.leave()
        if sentinel.active():
            sentinel.stop()
