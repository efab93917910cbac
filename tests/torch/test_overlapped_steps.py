"""Updates in backward: the same bits, or none are made there; what comes too late for that raises."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

from torch import nn  # noqa: E402

import sentinel  # noqa: E402
from sentinel.core.errors import UsageError  # noqa: E402
from sentinel.profiler import operators  # noqa: E402
from sentinel.session.gradient_watch import GradientWatch  # noqa: E402
from sentinel.session.overlapped_optimizer import OverlappedOptimizer  # noqa: E402
from sentinel.session.overlapped_steps import MOST_OF_OTHERS, OverlappedSteps  # noqa: E402
from sentinel.session.spent_gradient import SpentGradient  # noqa: E402
from sentinel.session.spent_guard import SpentGuard  # noqa: E402
from sentinel.session.step_alone import changed_option, step_alone, steps_alone  # noqa: E402
from tests import warm  # noqa: E402
from tests.torch import overlap_cases as cases  # noqa: E402
from tests.torch.overlap_cases import network, overlapped, train, two_groups  # noqa: E402
from tests.torch.passive_cases import digest  # noqa: E402
from tests.torch.test_passive import run  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("torch", "compiler", "native")

OPTIMIZERS = {
    "adamw": two_groups(torch.optim.AdamW, lr=0.01),
    "adamw_fused": two_groups(torch.optim.AdamW, lr=0.01, fused=True),
    "adamw_foreach": two_groups(torch.optim.AdamW, lr=0.01, foreach=True),
    "adam_amsgrad": two_groups(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adam_lr_tensor": two_groups(torch.optim.Adam, lr=torch.tensor(0.01)),
    "sgd": two_groups(torch.optim.SGD, lr=0.1),
    "sgd_momentum": two_groups(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": two_groups(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "adagrad": two_groups(torch.optim.Adagrad, lr=0.1),
    "adadelta": two_groups(torch.optim.Adadelta, lr=1.0),
    "adamax": two_groups(torch.optim.Adamax, lr=0.01),
    "nadam": two_groups(torch.optim.NAdam, lr=0.01),
    "radam": two_groups(torch.optim.RAdam, lr=0.01),
    "asgd": two_groups(torch.optim.ASGD, lr=0.1),
    "rprop": two_groups(torch.optim.Rprop, lr=0.01),
}


READS_WITHOUT_AN_OPERATOR: dict[str, Callable[[Any], object]] = {
    "numpy": lambda grad: grad.numpy(),
    "asarray": np.asarray,
    "tolist": lambda grad: grad.tolist(),
    "dlpack": lambda grad: grad.__dlpack__(),
    "save": lambda grad: torch.save(grad, io.BytesIO()),
    "share_memory_": lambda grad: grad.share_memory_(),  # of a tensor without bytes torch's own is a crash
}


@pytest.mark.parametrize("name", sorted(READS_WITHOUT_AN_OPERATOR))
def test_what_reads_a_spent_gradient_without_an_operator_is_told_what_to_do(name: str) -> None:
    spent = SpentGradient(nn.Parameter(torch.zeros(8, 8)))
    with pytest.raises(UsageError, match=r"has used in backward.*train without"):
        READS_WITHOUT_AN_OPERATOR[name](spent)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_bits_are_the_same(name: str) -> None:
    stock = train(OPTIMIZERS[name])
    with overlapped() as steps:
        ours = train(OPTIMIZERS[name])
        told = steps.notes()
    assert ours == stock
    assert len(told) == 1
    assert "updates 4 parameters within backward" in told[0]
    assert not operators.recording()


def test_gradients_are_freed_in_backward_and_updates_are_made_there() -> None:
    with overlapped() as steps:
        model, tokens = network()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        for batch in tokens[:2]:
            cases.loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        loss = cases.loss_of(model, tokens[2])
        before = model.last.weight.tolist()
        loss.backward()
        assert type(model.last.weight.grad) is SpentGradient
        assert type(model.last.bias.grad) is torch.Tensor  # 64 bytes
        assert model.unused.weight.grad is None
        assert "overlap_optimizer" in repr(model.last.weight.grad)
        with pytest.raises(UsageError, match="aten::linalg_vector_norm"):
            torch.linalg.vector_norm(model.last.weight.grad)
        optimizer.step()
        assert model.last.weight.tolist() != before
        assert type(model.last.weight.grad) is SpentGradient
        optimizer.zero_grad()
        cleared: Any = model.last.weight.grad
        assert cleared is None
        assert "updates 4" in steps.notes()[0]


# ---- refused, and trained as without it ---------------------------------------------------------------------


def clipped(model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def clipped_in_a_hook(model: nn.Module, optimizer: Any, loss: Any, number: int) -> None:
    if number == 0:
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.01))
    loss.backward()
    optimizer.step()


def logged_after_the_step(model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    optimizer.step()
    float(model.last.weight.grad.norm())


def averaged_before_the_step(model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    model.last.weight.detach().mul(0.5)
    optimizer.step()


def accumulated(_model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    (loss / 2).backward(retain_graph=True)
    (loss / 2).backward()
    optimizer.step()


def zeroed_in_place(_model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def never_zeroed(model: nn.Module, optimizer: Any, loss: Any, number: int) -> None:
    loss.backward()
    optimizer.step()
    kept = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    for parameter, gradient in zip(model.parameters(), kept, strict=True):
        parameter.grad = gradient
    optimizer.zero_grad = lambda: None  # the loop's own


def by_a_closure(_model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    optimizer.step(lambda: loss.backward())


def scaled(_model: nn.Module, optimizer: Any, loss: Any, number: int) -> None:
    if number == 0:
        optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.scaler.scale(loss).backward()
    optimizer.scaler.step(optimizer)
    optimizer.scaler.update()


def rate_set_after_backward(_model: nn.Module, optimizer: Any, loss: Any, number: int) -> None:
    loss.backward()
    optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)
    optimizer.step()


def with_gradients_of_gradients(_model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward(create_graph=True)
    optimizer.step()


def looked_at_by_numpy(model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            np.isfinite(parameter.grad.detach().numpy()).all()
    optimizer.step()


def state_decayed_after_backward(_model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    decay(optimizer)
    optimizer.step()


def state_logged_after_backward(model: nn.Module, optimizer: Any, loss: Any, number: int) -> None:
    loss.backward()
    if number:
        float(optimizer.state[model.last.weight]["exp_avg"].norm())
    optimizer.step()


def state_loaded_after_backward(_model: nn.Module, optimizer: Any, loss: Any, _number: int) -> None:
    loss.backward()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()


def parameters_exchanged_after_backward(model: nn.Module, optimizer: Any, loss: Any, number: int) -> None:
    if number == 0:
        optimizer.others = [p.detach() * 0.5 for p in model.parameters()]
    loss.backward()
    exchange(model, optimizer.others)
    optimizer.step()


def decay(optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].mul_(0.5)


def exchange(model: nn.Module, others: list[Any]) -> None:
    for parameter, other in zip(model.parameters(), others, strict=True):
        parameter.data, other.data = other.data, parameter.data


REFUSED = {
    clipped: "linalg_vector_norm reads a gradient between backward and step",
    clipped_in_a_hook: "clamp_min_ reads a gradient between backward and step",
    logged_after_the_step: "linalg_vector_norm reads a gradient after the step",
    averaged_before_the_step: "mul reads a parameter between backward and step",
    accumulated: "more than one backward pass adds to a gradient before the step",
    zeroed_in_place: "zero_ writes a gradient after the step",
    never_zeroed: "add_ reads a gradient after the step",
    by_a_closure: "its gradients are computed within step(), by a closure",
    scaled: "_amp_foreach_non_finite_check_and_unscale_ reads a gradient between backward and step",
    rate_set_after_backward: "its option 'lr' is set between backward and step",
    with_gradients_of_gradients: "its gradients have gradients themselves",
    looked_at_by_numpy: "numpy has the bytes of a gradient between backward and step",
    state_decayed_after_backward: "mul_ reads optimizer state between backward and step",
    state_logged_after_backward: "linalg_vector_norm reads optimizer state between backward and step",
    state_loaded_after_backward: "reads optimizer state between backward and step",
    parameters_exchanged_after_backward: "a parameter is changed between backward and step",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("step", sorted(REFUSED, key=lambda step: step.__name__))
def test_what_touches_them_before_is_refused_by_name(
    step: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    stock = train(OPTIMIZERS["adamw"], step)
    with overlapped() as steps:
        ours = train(OPTIMIZERS["adamw"], step)
        (told,) = steps.notes()
    assert ours == stock
    assert "AdamW steps after backward, as without it" in told
    assert REFUSED[step] in told
    assert capfd.readouterr().err.count(REFUSED[step]) == 1
    assert not operators.recording()


def test_parameters_too_small_for_it_are_named_as_the_reason(folder: Path) -> None:
    """As those of a LoRA are. What was said was that no backward pass had been seen."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters())
    sentinel.start_profile(fast="64MiB", slow=f"file:{folder}", overlap_optimizer=True)
    for _ in range(4):
        model(torch.randn(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    told = sentinel.report().text()
    assert " ".join(told.split()).count("none of its parameters that train on the CPU takes 1.00 MiB or more") == 1
    sentinel.stop()


def test_an_optimizer_that_needs_all_at_once_is_refused_before_anything_changes(folder: Path) -> None:
    model, _ = network()
    with pytest.raises(UsageError, match=r"LBFGS: .* more than that parameter's own gradient"):
        sentinel.start_profile(
            model, torch.optim.LBFGS(model.parameters()), fast="64MiB", slow=f"file:{folder}", overlap_optimizer=True
        )
    assert not sentinel.active()


def test_one_that_is_found_later_is_left_as_it_is() -> None:
    def make(parameters: Any) -> Any:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=2)

    def step(model: nn.Module, optimizer: Any, _loss: Any, _number: int) -> None:
        tokens = network()[1][0]

        def closure() -> Any:
            optimizer.zero_grad()
            loss = cases.loss_of(model, tokens)
            loss.backward()
            return loss

        optimizer.step(closure)

    stock = train(make, step, steps=3)
    with overlapped() as steps:
        assert train(make, step, steps=3) == stock
        assert "LBFGS steps after backward" in steps.notes()[0]


def test_optimizers_that_share_a_parameter_are_left_as_they_are() -> None:
    def run() -> str:
        model, tokens = network()
        one, two = (torch.optim.SGD(model.parameters(), lr=0.1 * factor) for factor in (1, 2))
        for batch in tokens:
            cases.loss_of(model, batch).backward()
            one.step()
            two.step()
            one.zero_grad()
        return digest(model.parameters())

    stock = run()
    with overlapped() as steps:
        assert run() == stock
        assert all("another optimizer has some of its parameters too" in told for told in steps.notes())


def test_of_two_players_each_is_judged_by_itself() -> None:
    """The second one's backward reaches the first one's parameters too, whose gradients are thrown away."""

    def run() -> str:
        torch.manual_seed(4)
        critic, maker = nn.Linear(16, 16), nn.Linear(16, 16)
        players = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (critic, maker)]
        for number in range(9):
            noise = torch.randn(4, 16, generator=torch.Generator().manual_seed(number))
            for player, loss in zip(
                players, (lambda x: critic(maker(x).detach()), lambda x: -critic(maker(x))), strict=True
            ):
                player.zero_grad()
                loss(noise).square().mean().backward()
                player.step()
        return digest([*critic.parameters(), *maker.parameters()])

    stock = run()
    with overlapped() as steps:
        assert run() == stock
        first, second = steps.notes()
    assert "more than one backward pass" in first
    assert "updates 1 parameter within backward" in second


def test_of_two_models_trained_side_by_side_either_may_step_first() -> None:
    """The second one's forward and updates come after the first one's backward."""

    def run() -> str:
        torch.manual_seed(4)
        models = [nn.Linear(16, 16), nn.Linear(16, 16)]
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
        for number in range(9):
            batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(number))
            for model in models:
                model(batch).square().mean().backward()
            for optimizer in reversed(optimizers):
                optimizer.step()
                optimizer.zero_grad()
        return digest([parameter for model in models for parameter in model.parameters()])

    stock = run()
    with overlapped() as steps:
        assert run() == stock
        assert ["updates 1 parameter within backward" in told for told in steps.notes()] == [True, True]
    assert not operators.recording()


def test_a_backward_pass_within_another_one_is_not_its_end() -> None:
    """As reentrant checkpoints run it."""

    def run() -> str:
        torch.manual_seed(4)
        blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        optimizer = torch.optim.Adam(blocks.parameters(), lr=0.01)
        for number in range(5):
            found = torch.randn(4, 16, generator=torch.Generator().manual_seed(number)).requires_grad_()
            for block in blocks:
                found = torch.utils.checkpoint.checkpoint(block, found, use_reentrant=True)
            found.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return digest(blocks.parameters())

    stock = run()
    with overlapped() as steps:
        assert run() == stock
        assert "updates 3 parameters within backward" in steps.notes()[0]
    assert not operators.recording()


def test_parameters_that_nobody_trains_any_more_are_freed() -> None:
    with overlapped() as steps:
        model, tokens = network()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        for batch in tokens[:3]:
            cases.loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        weight = weakref.ref(model.last.weight)
        del model, optimizer
        gc.collect()
        assert weight() is None
        assert "updates 4 parameters within backward" in steps.notes()[0]


def test_parameters_whose_optimizer_was_refused_are_freed() -> None:
    """While the session goes on, and so another one may begin after it."""
    with overlapped() as steps:
        model, tokens = network()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        for number, batch in enumerate(tokens[:3]):
            clipped(model, optimizer, cases.loss_of(model, batch), number)
            optimizer.zero_grad()
        assert "linalg_vector_norm reads a gradient" in steps.notes()[0]
        weight = weakref.ref(model.last.weight)
        del model, optimizer
        gc.collect()
        assert weight() is None


def test_an_optimizer_that_steps_no_more_is_watched_no_longer() -> None:
    with overlapped() as steps:
        once, always = nn.Linear(16, 16), nn.Linear(16, 16)
        first, second = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (once, always))
        once(torch.ones(4, 16)).sum().backward()
        first.step()
        for number in range(MOST_OF_OTHERS + 2):
            assert operators.recording() or number >= MOST_OF_OTHERS
            always(torch.ones(4, 16)).sum().backward()
            second.step()
            second.zero_grad()
        told = steps.notes()
        assert "it did not step again before 32 steps of others" in told[0]
        assert "SGD updates 1 parameter within backward" in told[1]
        assert not operators.recording()


def test_a_step_of_one_optimizer_asks_nothing_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer for each parameter would make that a thousand times a thousand questions in each training step."""
    asked: list[OverlappedOptimizer] = []
    was = OverlappedOptimizer.gone.fget
    assert was is not None

    def gone(one: OverlappedOptimizer) -> object:
        asked.append(one)
        return was(one)

    monkeypatch.setattr(OverlappedOptimizer, "gone", property(gone))
    with overlapped():
        models = [nn.Linear(16, 16) for _ in range(8)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        for _ in range(3):
            for model, optimizer in zip(models, optimizers, strict=True):
                model(torch.ones(4, 16)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert not asked


def test_an_optimizer_that_is_gone_is_watched_no_longer() -> None:
    with overlapped() as steps:
        model, tokens = network()
        for kind, batches in (("sgd", tokens[:1]), ("adamw", tokens[1:4])):
            optimizer = OPTIMIZERS[kind](model.parameters())
            for batch in batches:
                cases.loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            del optimizer
            gc.collect()
        first, second = steps.notes()
        assert "no whole step of SGD was watched" in first
        assert "AdamW updates 4 parameters within backward" in second
        assert not operators.recording()


def test_optimizers_that_are_gone_leave_one_sentence_behind_and_no_hooks() -> None:
    with overlapped() as steps:
        model, tokens = network()
        for _ in range(4):
            optimizer = OPTIMIZERS["sgd"](model.parameters())
            for batch in tokens[:3]:
                cases.loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            told = steps.notes()
            del optimizer
            gc.collect()
        assert len(model.last.weight._post_accumulate_grad_hooks) == 1
        assert len(told) == 2
        assert told[0] == f"{told[1]} It was the same with 2 more optimizers."
        assert "updates 4 parameters within backward" in told[1]


# ---- what comes later ---------------------------------------------------------------------------------------


@pytest.fixture
def begun() -> Any:
    """Model, optimizer and the batches left, when updates are made in backward."""
    with overlapped() as steps:
        model, tokens = network()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        for batch in tokens[:3]:
            cases.loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert "within backward" in steps.notes()[0]
        yield steps, model, optimizer, tokens[3:]


def test_clipping_from_a_later_step_on_raises(begun: Any) -> None:
    _, model, _optimizer, tokens = begun
    cases.loss_of(model, tokens[0]).backward()
    with pytest.raises(UsageError, match="aten::linalg_vector_norm reads or writes a gradient"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_a_hook_that_clips_from_a_later_step_on_raises(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 1.0))
    cases.loss_of(model, tokens[0]).backward()
    with pytest.raises(UsageError, match="reads or writes a gradient"):
        optimizer.step()


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_second_backward_raises(begun: Any, zeroed: bool) -> None:
    _, model, optimizer, tokens = begun
    cases.loss_of(model, tokens[0]).backward()
    if zeroed:
        optimizer.zero_grad()
    with pytest.raises(UsageError, match="overlap_optimizer"):
        cases.loss_of(model, tokens[1]).backward()
    with pytest.raises(UsageError, match="AdamW"):
        optimizer.step()


def test_a_step_that_was_left_out_raises_until_a_state_is_loaded(begun: Any) -> None:
    _steps, model, optimizer, tokens = begun
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = continued(saved, tokens)
    cases.loss_of(model, tokens[0]).backward()
    with pytest.raises(UsageError, match=r"state_dict\(\) between backward and step"):
        optimizer.state_dict()
    optimizer.zero_grad()
    with pytest.raises(UsageError, match="a gradient was replaced or removed"):
        optimizer.step()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for batch in tokens:
        optimizer.zero_grad()
        cases.loss_of(model, batch).backward()
        optimizer.step()
    assert digest(model.parameters()) == expected


def continued(saved: Any, tokens: Any) -> str:
    """What stock PyTorch makes of what was saved."""
    model, _ = network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    for batch in tokens:
        optimizer.zero_grad()
        cases.loss_of(model, batch).backward()
        type(optimizer).step.__wrapped__(optimizer)  # without hooks
    return digest(model.parameters())


def test_a_state_with_other_rates_is_loaded_and_trained_on_with(begun: Any) -> None:
    _steps, model, optimizer, tokens = begun
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for group in saved[1]["param_groups"]:
        group["lr"] *= 0.5
    expected = continued(saved, tokens)
    optimizer.load_state_dict(saved[1])
    for batch in tokens:
        optimizer.zero_grad()
        cases.loss_of(model, batch).backward()
        assert type(model.last.weight.grad) is SpentGradient
        optimizer.step()
    assert digest(model.parameters()) == expected


def test_an_update_that_was_interrupted_raises_until_a_state_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with overlapped() as steps:
        model, tokens = network()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        for batch in tokens[:2]:
            cases.loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert "within backward" in steps.notes()[0]
        with monkeypatch.context() as patched:  # the first update ever
            patched.setattr("sentinel.session.overlapped_optimizer.step_alone", interrupted)
            with pytest.raises(KeyboardInterrupt):
                cases.loss_of(model, tokens[2]).backward()
        optimizer.zero_grad()
        with pytest.raises(UsageError, match="a gradient was replaced or removed"):
            optimizer.step()
        with pytest.raises(UsageError, match="adds to a gradient that has been used already"):
            cases.loss_of(model, tokens[2]).backward()


def test_a_rate_set_after_backward_raises(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    cases.loss_of(model, tokens[0]).backward()
    optimizer.param_groups[1]["lr"] = 0.5
    with pytest.raises(UsageError, match="'lr' was set between backward and step"):
        optimizer.step()


def test_parameters_read_between_backward_and_step_are_found(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    cases.loss_of(model, tokens[0]).backward()
    float(model.last.weight.detach().sum())
    with pytest.raises(UsageError, match="sum reads a parameter between backward and step"):
        optimizer.step()
    assert not operators.recording()


def halve(optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["exp_avg"] = torch.from_numpy(state["exp_avg"].numpy() * np.float32(0.5))


LATE = {
    "decayed": (decay, "mul_ reads optimizer state between backward and step"),
    "cleared": (
        lambda optimizer: optimizer.state.clear(),
        "the state 'step' of a parameter was changed between backward",
    ),
    "replaced": (
        lambda optimizer: [state.update(exp_avg=state["exp_avg"].numpy() * 0.5) for state in optimizer.state.values()],
        "the state 'exp_avg' of a parameter was changed between backward",
    ),
}


@pytest.mark.parametrize("what", sorted(LATE))
def test_state_that_is_changed_between_backward_and_step_raises(begun: Any, what: str) -> None:
    _, model, optimizer, tokens = begun
    change, told = LATE[what]
    cases.loss_of(model, tokens[0]).backward()
    change(optimizer)
    with pytest.raises(UsageError, match=told):
        optimizer.step()
    assert not operators.recording()


def test_parameters_exchanged_between_backward_and_step_raise(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    others = [p.detach() * 0.5 for p in model.parameters()]
    cases.loss_of(model, tokens[0]).backward()
    exchange(model, others)
    with pytest.raises(UsageError, match="a parameter was changed between backward and step"):
        optimizer.step()


def test_a_state_that_is_loaded_between_backward_and_step_raises_in_the_step(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = continued(saved, tokens[1:])
    cases.loss_of(model, tokens[0]).backward()
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    with pytest.raises(UsageError, match="would use gradients that were used in backward"):
        optimizer.step()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert model.last.weight.grad is None
    for batch in tokens[1:]:
        optimizer.zero_grad()
        cases.loss_of(model, batch).backward()
        optimizer.step()
    assert digest(model.parameters()) == expected


def test_a_step_that_is_given_up_for_what_was_saved_is_as_in_stock(begun: Any) -> None:
    """As where a loss is no number."""
    _, model, optimizer, tokens = begun
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = continued(saved, tokens[1:])
    cases.loss_of(model, tokens[0]).backward()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for batch in tokens[1:]:
        optimizer.zero_grad()
        cases.loss_of(model, batch).backward()
        optimizer.step()
    assert digest(model.parameters()) == expected


def test_a_closure_from_a_later_step_on_is_left_to_the_step(begun: Any) -> None:
    _steps, model, optimizer, tokens = begun
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = continued(saved, tokens)
    for batch in tokens:
        optimizer.zero_grad()
        optimizer.step(lambda batch=batch: cases.loss_of(model, batch).backward())
    assert digest(model.parameters()) == expected


def test_stopped_between_backward_and_step_no_update_is_made_twice(begun: Any) -> None:
    steps, model, optimizer, tokens = begun
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = continued(saved, tokens)
    cases.loss_of(model, tokens[0]).backward()
    steps.end()
    assert model.last.weight.grad is None
    optimizer.step()
    for batch in tokens[1:]:
        optimizer.zero_grad()
        cases.loss_of(model, batch).backward()
        optimizer.step()
    assert digest(model.parameters()) == expected
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not model.last.weight._post_accumulate_grad_hooks


def test_a_last_backward_that_no_step_follows_is_told(begun: Any, capsys: pytest.CaptureFixture[str]) -> None:
    steps, model, _optimizer, tokens = begun
    cases.loss_of(model, tokens[0]).backward()
    steps.end()
    said = "the session ends between backward and step() of AdamW: the updates of 4 parameters are made already"
    assert f"overlap_optimizer: {said}" in " ".join(capsys.readouterr().err.split())


def test_a_parameter_that_joins_later_is_left_to_the_step(begun: Any) -> None:
    _steps, model, optimizer, tokens = begun
    joined = nn.Parameter(torch.ones(16, 16))
    optimizer.add_param_group({"params": [joined]})
    (cases.loss_of(model, tokens[0]) + joined.sum()).backward()
    assert type(joined.grad) is torch.Tensor
    optimizer.step()
    assert not torch.equal(joined.detach(), torch.ones(16, 16))


def test_models_and_optimizers_are_copied_and_saved_as_before(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    cases.loss_of(model, tokens[0]).backward()
    optimizer.step()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert digest(other.parameters()) == digest(model.parameters())
        cases.loss_of(other, tokens[1]).backward()
        assert type(other.last.weight.grad) is torch.Tensor
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    twin = copy.deepcopy(optimizer)
    assert not twin._optimizer_step_pre_hooks


def test_hooks_of_the_user_run_once_a_step_and_see_whole_groups(begun: Any) -> None:
    _, model, optimizer, tokens = begun
    calls: list[tuple[str, int]] = []
    optimizer.register_step_pre_hook(lambda o, *_: calls.append(("pre", len(o.param_groups[0]["params"]))))
    optimizer.register_step_post_hook(lambda o, *_: calls.append(("post", len(o.param_groups[0]["params"]))))
    for batch in tokens[:2]:
        cases.loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [name for name, _ in calls] == ["pre", "post"] * 2
    assert len({count for _, count in calls}) == 1


# ---- the parts ---------------------------------------------------------------------------------------------


def test_one_parameter_steps_alone_and_groups_stay_whole() -> None:
    own: Any = type("Own", (torch.optim.SGD,), {"step": lambda _self: None})
    one, two = (nn.Parameter(torch.ones(4)) for _ in range(2))
    optimizer = torch.optim.SGD([one, two], lr=0.5, momentum=0.9)
    one.grad, two.grad = torch.ones(4), torch.ones(4)
    step_alone(optimizer, optimizer.param_groups[0], one)
    assert (one.tolist(), two.tolist()) == ([0.5] * 4, [1.0] * 4)
    assert list(optimizer.state) == [one]
    assert optimizer.param_groups[0]["params"] == [one, two]
    assert steps_alone(optimizer)
    assert not steps_alone(own([one], lr=0.5))
    assert not steps_alone(torch.optim.SGD([one], lr=0.5, differentiable=True))
    assert changed_option({"lr": torch.tensor(1.0)}, {"lr": torch.tensor(1.0)}) == ""
    assert changed_option({"lr": torch.tensor(1.0), "eps": 1}, {"lr": torch.tensor(2.0), "eps": 1}) == "lr"
    assert changed_option({"lr": 1.0}, {"lr": 1.0, "eps": 1}) == "eps"


def test_a_gradient_that_is_freed_and_whose_memory_is_used_again_is_touched_by_nobody() -> None:
    memory, parameter = np.ones(300, np.float32), nn.Parameter(torch.ones(300))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for freed in (True, False):
        parameter.grad = torch.from_numpy(memory)
        watched = GradientWatch()
        watched.begin([parameter])
        if freed:
            parameter.grad = None
        torch.from_numpy(memory).mul_(2)
        parameter.grad = None
        parameter.sum().backward()
        with torch.no_grad():  # as within backward
            watched.gradient_complete(optimizer, parameter, {})
        watched.step_begins(optimizer, {id(parameter): {}})
        assert watched.end() == ("" if freed else "mul_ reads a gradient after the step")
    assert not operators.recording()


def test_a_watch_whose_begin_was_interrupted_lets_nothing_be_done_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    watched = GradientWatch()
    with monkeypatch.context() as patched:
        patched.setattr(GradientWatch, "_gradient", interrupted)
        with pytest.raises(KeyboardInterrupt):
            watched.begin([nn.Parameter(torch.ones(300))])
    assert operators.recording()
    assert watched.end() == "something interrupted its watch"
    assert not operators.recording()


def test_a_guard_runs_from_the_end_of_backward_to_the_step() -> None:
    guard, parameter = SpentGuard(), nn.Parameter(torch.ones(300))
    parameter.register_post_accumulate_grad_hook(lambda _: guard.after_backward())
    parameter.sum().backward()
    assert operators.recording()
    assert guard.touched([parameter]) == ""
    assert not operators.recording()
    parameter.sum().backward()
    parameter.detach().add_(1)
    assert guard.touched([parameter]) == "add_ reads a parameter"
    parameter.sum().backward()
    guard.end()
    assert guard.touched([parameter]) == ""


def test_a_guard_runs_until_the_last_optimizer_has_stepped() -> None:
    guard = SpentGuard()
    first, second = (nn.Parameter(torch.ones(300)) for _ in range(2))

    def updated(parameter: Any) -> None:
        guard.after_backward()
        guard.spent(parameter)

    for parameter in (first, second):
        parameter.register_post_accumulate_grad_hook(updated)
    for where in ("before", "after", "nowhere"):
        (first + second).sum().backward()
        for moment in ("before", "after"):
            if moment == where:
                second.detach().mul(2)
            if moment == "before":
                assert guard.touched([first]) == ""
                assert operators.recording()
        assert guard.touched([second]) == ("" if where == "nowhere" else "mul reads a parameter")
        assert not operators.recording()
    (first + second).sum().backward()
    assert guard.touched([first]) == ""
    guard.drop([second])
    assert not operators.recording()


def test_several_optimizers_train_to_the_same_bits_and_the_last_is_guarded_until_it_steps() -> None:
    def run(late: Callable[[Any], object] = lambda _: None) -> str:
        model, tokens = network()
        parts = [[*model.block.parameters()], [model.words.weight], [*model.last.parameters()]]
        optimizers = [torch.optim.AdamW(part, lr=0.01) for part in parts]
        for number, batch in enumerate(tokens):
            cases.loss_of(model, batch).backward()
            optimizers[0].step()
            if number == len(tokens) - 1:
                late(model)
            for optimizer in optimizers[1:]:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        return digest(model.parameters())

    stock = run()
    with overlapped() as steps:
        assert run() == stock
        assert ["within backward" in told for told in steps.notes()] == [True] * 3
        assert not operators.recording()
    with overlapped(), pytest.raises(UsageError, match="mul reads a parameter between backward"):
        run(lambda model: model.last.weight.detach().mul(2))


def test_an_optimizer_left_before_a_step_was_watched_says_so() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(300))], lr=0.1)
    found = OverlappedOptimizer(optimizer, 256, SpentGuard())
    found.watch()
    assert [found.watching] == [True]
    assert "no whole step of SGD was watched" in found.told
    found.leave()
    found.leave()
    assert [found.watching] == [False]
    assert not optimizer._optimizer_step_pre_hooks
    assert "no optimizer of torch.optim has stepped" in OverlappedSteps(256).notes()[0]


# ---- with a file -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_a_file_fewer_bytes_move_and_bits_are_the_same(folder: Path) -> None:
    stock = run("--stock", "plain_mlp")[0]["found"]
    apart, overlapping = (trained(folder, word) for word in ("apart", "overlap"))
    assert apart["found"] == overlapping["found"] == stock
    assert "AdamW updates 8 parameters within backward, which frees 32.00 MiB" in " ".join(overlapping["text"].split())
    assert "overlap_optimizer" not in apart["text"]
    before, after = apart["storage"], overlapping["storage"]
    moved = [told["read_bytes"] + told["written_bytes"] for told in (before, after)]
    assert moved[1] < 0.95 * moved[0]  # what is read ahead in vain differs from run to run
    assert after["failed"] == 0


def trained(folder: Path, word: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.torch.overlap_cases", str(folder), word]
    done = warm.run(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_needs_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"overlap_optimizer=True with slow='numa:1': it works only with a file"):
        sentinel.start_profile(fast="64MiB", slow="numa:1", overlap_optimizer=True)
    with pytest.raises(UsageError, match=r"overlap_optimizer=1\): a value of type int"):
        sentinel.start_profile(fast="64MiB", slow="file:auto", overlap_optimizer=1)  # type: ignore[arg-type]
    monkeypatch.setenv("SENTINEL_OVERLAP_OPTIMIZER", "perhaps")
    with pytest.raises(UsageError, match="SENTINEL_OVERLAP_OPTIMIZER='perhaps' is neither on nor off"):
        sentinel.start_profile(fast="64MiB")
    assert not sentinel.active()


def test_a_setting_turns_it_on_where_the_place_is_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_OVERLAP_OPTIMIZER", "1")
    sentinel.start_profile(fast="64MiB", slow=f"file:{folder}=256MiB")
    try:
        model = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        annotation = sentinel.annotate(model, optimizer)  # its steps run in slices
        for _ in range(3):
            model(torch.randn(4, 512)).square().mean().backward()
            optimizer.step()
            kept = model[0].weight.grad
            optimizer.zero_grad()
        assert type(kept) is SpentGradient
        annotation.remove()
        text = " ".join(sentinel.report().text().split())
        assert "SGD updates 1 parameter within backward, which frees 2.00 MiB of gradients there." in text
    finally:
        sentinel.stop()
    assert model[0].weight.grad is None
