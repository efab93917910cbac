"""Annotated modules tick, and torch finds them as they are: it compiles and computes the same way."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from sentinel.profiler import module_hooks
from sentinel.profiler.annotate import annotate
from sentinel.profiler.blocks import named_blocks
from sentinel.runtime import RUNTIME
from sentinel.runtime.by_identity import ByIdentity
from tests.torch.ticking import noted

torch_jit_is_to_end = pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated:FutureWarning")
"""torch says so from 2.14 on, whoever calls it."""


def installed() -> int:
    """How many hooks of all modules there are."""
    return len(torch_module._global_forward_pre_hooks) + len(torch_module._global_forward_hooks)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    nn.Identity()(torch.ones(1))  # hooks whose modules died go with the next call
    assert not RUNTIME.models
    assert not RUNTIME.blocks
    assert not torch_module._has_any_global_hook()
    RUNTIME.under_way.grad_modes.clear()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def steps(model: nn.Module, x: torch.Tensor, count: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@torch_jit_is_to_end
def test_an_annotated_model_that_has_trained_is_compiled_by_torch_jit() -> None:
    model, x = mlp(), torch.ones(2, 4)
    with annotate(model), noted():
        steps(model, x)
        compiled = torch.jit.script(model)
    torch.jit.save(compiled, io.BytesIO())
    assert torch.equal(compiled(x), model(x))


@torch_jit_is_to_end
def test_a_model_that_torch_jit_has_compiled_ticks() -> None:
    plain, x = mlp(), torch.ones(2, 4)
    model = torch.jit.script(copy.deepcopy(plain))
    steps(plain, x)
    with annotate(model, blocks=[model]), noted() as notes:
        steps(model, x)
    assert notes.seen[:3] == [
        ("RecursiveScriptModule", "forward"),
        ("loss", "backward"),
        ("RecursiveScriptModule", "backward"),
    ]
    assert all(map(torch.equal, plain.parameters(), model.parameters()))


def test_an_annotated_transformer_takes_the_fast_path_and_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(4, 5, 16)
    twin, fast, taken = copy.deepcopy(model), torch._transformer_encoder_layer_fwd, []

    def counted(*given: Any) -> torch.Tensor:
        taken.append(1)
        return fast(*given)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)

    def trained_and_asked(one: nn.Module) -> tuple[torch.Tensor, int]:
        taken.clear()
        steps(one.train(), x)
        with torch.no_grad():
            return one.eval()(x), len(taken)

    plain, calls = trained_and_asked(twin)
    assert calls == 2
    with annotate([model, model.layers[0].linear1]), noted() as notes:
        ours, same = trained_and_asked(model)
    assert notes.seen
    assert same == calls
    assert torch.equal(ours, plain)


def test_a_model_has_no_entry_of_ours_while_it_is_annotated() -> None:
    model = mlp()
    before = pickle.dumps(model)
    with annotate(model), noted() as notes:
        model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
        assert len(notes.seen) == 7
        assert pickle.dumps(model) == before
        for module in model.modules():
            tables = [found for name, found in vars(module).items() if "hooks" in name]
            assert len(tables) > 4
            assert not any(tables)
            assert "forward" not in vars(module)


def test_hooks_are_installed_once_and_go_with_the_last_annotation() -> None:
    assert installed() == 0
    first, second = annotate(mlp()), annotate(model := mlp())
    assert installed() == 3
    first.remove()
    assert installed() == 3
    second.remove()
    second.remove()
    assert installed() == 0
    assert not torch_module._global_forward_hooks_always_called
    annotate(model)
    with noted() as notes:
        model(torch.ones(2, 4))
    assert len(notes.seen) == 3
    del model
    gc.collect()
    nn.Identity()(torch.ones(1))
    assert installed() == 0


def test_hooks_of_others_stay() -> None:
    class Equal:
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, *_: object) -> None: ...

    theirs = [
        torch_module.register_module_forward_pre_hook(Equal()),
        torch_module.register_module_forward_hook(Equal(), always_call=True),
    ]
    model = mlp()
    with annotate(model), noted() as notes:
        model(torch.ones(2, 4))
        assert len(notes.seen) == 3
    assert installed() == 2
    assert len(torch_module._global_forward_hooks_always_called) == 1
    for hook in theirs:
        hook.remove()


def test_modules_are_told_apart_by_identity() -> None:
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    one, other = Equal(4, 4), Equal(4, 4)
    held: ByIdentity[nn.Module, str] = ByIdentity()
    held.put(one, "one")
    assert (held.find(one), held.find(other)) == ("one", None)
    RUNTIME.blocks.put(one, "one", one)
    module_hooks.install()
    with noted() as notes:
        other(one(torch.ones(2, 4)))
    assert notes.seen == [("one", "forward")]
    module_hooks.remove_all_of(one)


def test_a_block_that_is_called_twice_and_shared_ticks_at_each_call_by_its_first_name() -> None:
    shared = nn.Linear(4, 4)
    one, other = nn.Sequential(shared, nn.ReLU(), shared), nn.Sequential(nn.ReLU(), shared)
    with annotate([one, other]) as annotation, noted() as notes:
        other(one(torch.ones(2, 4)))
    assert annotation.blocks == ("0", "1", "1:0")
    assert notes.seen == [(name, "forward") for name in ("0", "1", "0", "1:0", "0")]


def test_a_model_that_is_a_block_of_another_is_both() -> None:
    inner = mlp()
    outer = nn.Sequential(inner, nn.Linear(4, 2))
    chosen = [inner, outer[1]]
    assert len(named_blocks(outer, chosen)) == 2
    with annotate(outer, blocks=chosen), annotate(inner), noted() as notes:
        outer(torch.ones(2, 4))
        assert [name for name, _ in notes.seen] == ["1:0", "1:1", "1:2", "0", "1"]
        assert RUNTIME.under_way.grad_modes == []


def test_a_forward_that_fails_leaves_no_mode_and_no_tick_of_its_block() -> None:
    class Fails(nn.Module):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            raise ValueError("on purpose")

    model = nn.Sequential(nn.Linear(4, 4), Fails())
    with annotate(model), noted() as notes:
        with pytest.raises(ValueError, match="on purpose"), warnings.catch_warnings(action="error"):
            model(torch.ones(2, 4))
        assert notes.seen == [("0", "forward")]
        assert RUNTIME.under_way.grad_modes == []


@pytest.mark.parametrize(("owner", "call"), [(RUNTIME.blocks, "put"), (torch_module, "register_module_forward_hook")])
def test_an_interrupt_leaves_nothing_annotated(owner: object, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        annotate(mlp())
    assert not RUNTIME.models
    assert not RUNTIME.blocks
    assert installed() == 0


def test_a_second_removal_ends_one_that_an_interrupt_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    annotation = annotate(model)
    with monkeypatch.context() as patched:
        patched.setattr(RUNTIME.blocks, "remove_all_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            annotation.remove()
    assert model
    annotation.remove()
    assert installed() == 0


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
