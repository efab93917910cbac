"""The step of an optimizer in slices is the step of the optimizer, bit for bit, with its hooks and closures."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import weakref

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from sentinel.profiler import annotate as annotating
from sentinel.profiler.annotate import annotate
from sentinel.profiler.slices import SLICES, SlicedStep, sliceable, slices
from sentinel.runtime import RUNTIME
from tests.torch.ticking import Notes, noted

SHAPES = [(7, 5), (5,), (64, 3), (1,), (3, 3, 2), (), (129,), (2, 2)]

VARIANTS = [
    (SGD, {}),
    (SGD, {"momentum": 0.9}),
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (SGD, {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    (SGD, {"momentum": 0.9, "foreach": True}),
    (SGD, {"momentum": 0.9, "fused": True}),
    *[
        (kind, {"weight_decay": 0.01, **options})
        for kind in (Adam, AdamW)
        for options in (
            {},
            {"foreach": False},
            {"foreach": True},
            {"fused": True},
            {"amsgrad": True},
            {"amsgrad": True, "foreach": True},
            {"amsgrad": True, "fused": True},
            {"maximize": True},
            {"maximize": True, "fused": True},
            {"lr": torch.tensor(1e-2)},
        )
    ],
    (RMSprop, {}),
    (RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    (RMSprop, {"foreach": True, "momentum": 0.9}),
    (RMSprop, {"maximize": True}),
    (Adagrad, {"lr_decay": 0.1}),
    (Adagrad, {"foreach": True}),
    (Adagrad, {"fused": True}),
    (Adagrad, {"maximize": True, "initial_accumulator_value": 0.1}),
]


def parameters(seed=11):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def groups(params):
    return [{"params": params[:3], "lr": 1e-2}, {"params": params[3:5]}, {"params": params[5:]}]


def train(optimizer, params, *, steps=5, missing=(), sparse=()):
    generator = torch.Generator().manual_seed(5)
    for step in range(steps):
        for index, p in enumerate(params):
            gradient = torch.randn(p.shape, generator=generator)
            p.grad = None if (step, index) in missing else gradient.to_sparse() if index in sparse else gradient
        optimizer.step()


def flat_state(optimizer, params):
    return {(index, key): value for index, p in enumerate(params) for key, value in optimizer.state.get(p, {}).items()}


def assert_same(optimizer, params, stock, stock_params):
    assert all(torch.equal(a, b) for a, b in zip(params, stock_params, strict=True))
    ours, theirs = flat_state(optimizer, params), flat_state(stock, stock_params)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key]
    shape = [[{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for o in (optimizer, stock)]
    assert str(shape[0]) == str(shape[1])


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=lambda v: v.__name__ if isinstance(v, type) else str(v))
def test_slices_are_bit_identical(kind, options):
    params, stock_params = parameters(), parameters()
    optimizer, stock = kind(groups(params), **options), kind(groups(stock_params), **options)
    # torch's own fused SGD with momentum can't start a parameter later than the others
    missing = set() if kind is SGD and options.get("fused") else {(0, 1), (2, 1), (2, 6)}
    train(stock, stock_params, missing=missing)
    with annotate(nn.Identity(), optimizer), noted() as notes:
        train(optimizer, params, missing=missing)
    assert len(notes.seen) == 5 * len(slices(optimizer)) > 5
    assert_same(optimizer, params, stock, stock_params)


@pytest.mark.parametrize("kind", [SGD, Adagrad])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_gradients(kind):
    params, stock_params = parameters(), parameters()
    optimizer, stock = kind(params, lr=0.1), kind(stock_params, lr=0.1)
    train(stock, stock_params, sparse={0, 2})
    with annotate(nn.Identity(), optimizer), noted():
        train(optimizer, params, sparse={0, 2})
    assert_same(optimizer, params, stock, stock_params)


def test_what_the_whole_step_refuses_the_sliced_one_refuses_too():
    params = parameters()
    optimizer = Adam(params, capturable=True)  # not on this device
    before = [list(g["params"]) for g in optimizer.param_groups]
    with annotate(nn.Identity(), optimizer), noted(), pytest.raises(AssertionError, match="capturable"):
        train(optimizer, params)
    assert [g["params"] for g in optimizer.param_groups] == before


class TestSlices:
    def test_cover_all_parameters_once_in_order(self):
        params = parameters()
        optimizer = SGD(groups(params), lr=0.1)
        covered = [
            p
            for parts in slices(optimizer)
            for group, start, stop in parts
            for p in optimizer.param_groups[group]["params"][start:stop]
        ]
        assert [id(p) for p in covered] == [id(p) for p in params]

    def test_equal_parameters_give_equal_slices(self):
        optimizer = SGD([nn.Parameter(torch.zeros(16)) for _ in range(SLICES * 3)], lr=0.1)
        assert [sum(b - a for _, a, b in parts) for parts in slices(optimizer)] == [3] * SLICES

    def test_a_large_parameter_is_a_slice_by_itself(self):
        large = nn.Parameter(torch.zeros(1000))
        optimizer = SGD([large, *[nn.Parameter(torch.zeros(1)) for _ in range(10)]], lr=0.1)
        assert [sum(b - a for _, a, b in parts) for parts in slices(optimizer)] == [1, 10]

    def test_no_bytes_at_all(self):
        optimizer = SGD([nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(0))], lr=0.1)
        assert sum(b - a for parts in slices(optimizer) for _, a, b in parts) == 2


class TestHooksAndWrappers:
    def test_step_hooks_run_once_and_see_whole_groups(self):
        params = parameters()
        optimizer = SGD(groups(params), lr=0.1)
        seen = []

        def note(o, *_):
            seen.append([len(g["params"]) for g in o.param_groups])

        optimizer.register_step_post_hook(note)
        optimizer.register_step_pre_hook(note)
        with annotate(nn.Identity(), optimizer), noted():
            optimizer.register_step_pre_hook(note)
            optimizer.register_step_post_hook(note)
            train(optimizer, params, steps=2)
        assert seen == [[3, 2, 3]] * 8

    def test_a_pre_hook_that_comes_later_still_changes_the_gradients(self):
        params, stock_params = parameters(), parameters()
        optimizer, stock = SGD(params, lr=0.1), SGD(stock_params, lr=0.1)

        def clip(o, *_):
            nn.utils.clip_grad_norm_([p for g in o.param_groups for p in g["params"]], 0.01)

        with annotate(nn.Identity(), optimizer), noted():
            for o in (optimizer, stock):
                o.register_step_pre_hook(clip)
            train(optimizer, params)
        train(stock, stock_params)
        assert_same(optimizer, params, stock, stock_params)

    @pytest.mark.parametrize("by_name", [False, True])
    def test_a_closure_runs_once_and_its_loss_is_returned(self, by_name):
        params = parameters()
        optimizer = Adam(params)
        calls = []

        def closure():
            assert torch.is_grad_enabled()
            assert [len(g["params"]) for g in optimizer.param_groups] == [len(SHAPES)]
            calls.append(1)
            optimizer.zero_grad()
            loss = sum((p.square().sum() for p in params), torch.zeros(()))
            loss.backward()
            return loss

        with annotate(nn.Identity(), optimizer), noted() as notes:
            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert len(calls) == 1
        assert isinstance(loss, torch.Tensor)
        assert loss > 0
        assert len(notes.seen) == len(slices(optimizer))
        assert notes.boundaries == [len(notes.seen)]

    @pytest.mark.parametrize("scheduler_first", [False, True])
    def test_learning_rate_schedules(self, scheduler_first):
        def run(annotated):
            params = parameters()
            optimizer = SGD(params, lr=0.1)
            annotation = None
            if annotated and not scheduler_first:
                annotation = annotate(nn.Identity(), optimizer)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            if annotated and scheduler_first:
                annotation = annotate(nn.Identity(), optimizer)
            ticked = 0
            with noted() as notes:
                for _ in range(3):
                    train(optimizer, params, steps=1)
                    scheduler.step()  # warns, an error here, if it finds the step replaced or not called
                ticked = len(notes.seen)
            if annotation:
                annotation.remove()
            train(optimizer, params, steps=1)
            return params, ticked, optimizer

        ours, ticked, optimizer = run(True)
        theirs, none, _ = run(False)
        assert none == 0
        assert ticked == 3 * len(slices(optimizer))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    @pytest.mark.parametrize("fused", [False, True])
    def test_a_gradient_scaler_steps_and_skips(self, fused):
        params = parameters()
        optimizer = AdamW(params, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        stock_params = parameters()
        stock = AdamW(stock_params, fused=fused)
        stock_scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def run(optimizer, scaler, params, bad):
            optimizer.zero_grad()
            loss = sum((p.square().sum() for p in params), torch.zeros(()))
            scaler.scale(loss * (float("inf") if bad else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()

        with annotate(nn.Identity(), optimizer), noted():
            for bad in (False, True, False):
                run(optimizer, scaler, params, bad)
        for bad in (False, True, False):
            run(stock, stock_scaler, stock_params, bad)
        assert_same(optimizer, params, stock, stock_params)

    def test_without_a_session_the_step_is_the_optimizers_own(self):
        params = parameters()
        optimizer = SGD(params, lr=0.1)
        seen = []
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(len(o._optimizer_step_pre_hooks)))
        with annotate(nn.Identity(), optimizer):
            train(optimizer, params, steps=1)
        assert seen == [1]

    def test_remove_gives_the_step_back(self):
        optimizer = SGD(parameters(), lr=0.1)
        annotation = annotate(nn.Identity(), optimizer)
        assert "step" in vars(optimizer)
        annotation.remove()
        assert "step" not in vars(optimizer)

    def test_groups_are_whole_and_may_be_saved_at_each_tick(self):
        params = parameters()
        optimizer = AdamW(groups(params))
        for p in params:
            p.grad = torch.ones_like(p)
        sliced = SlicedStep(optimizer, "optimizer")
        before = [list(group["params"]) for group in optimizer.param_groups]
        seen = []

        class Saving(Notes):
            def tick(self, *_):
                seen.append([len(group["params"]) for group in optimizer.param_groups])
                optimizer.state_dict()

        RUNTIME.sink = Saving()
        try:
            optimizer.step()
        finally:
            RUNTIME.sink = None
            sliced.remove()
        assert len(seen) > 3
        assert all(each == [len(group) for group in before] for each in seen)

    def test_a_compiled_step_is_the_whole_one(self):
        def trained(sink):
            torch._dynamo.reset()
            params = parameters()
            optimizer = Adam(params, lr=0.1)
            sliced = SlicedStep(optimizer, "optimizer")
            graphs = []

            def counted(graph, _inputs):
                graphs.append(graph)
                return graph

            step = torch.compile(lambda: optimizer.step(), backend=counted)
            for number in range(4):
                if number == 2:
                    RUNTIME.sink = sink
                for index, p in enumerate(params):
                    p.grad = torch.full_like(p, 0.1 * index + number)
                step()
            RUNTIME.sink = None
            sliced.remove()
            return params, len(graphs)

        plain, graphs = trained(None)
        notes = Notes()
        found, same = trained(notes)
        assert all(map(torch.equal, plain, found))
        assert same <= graphs + 1  # that there is a session by now may cost one graph more

    def test_an_exception_restores_the_groups_and_passes_on(self):
        params = parameters()
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer = SGD(groups(params), lr=0.1, momentum=0.9)
        optimizer.param_groups[1]["weight_decay"] = "not a number"
        with annotate(nn.Identity(), optimizer), noted() as notes, pytest.raises(TypeError):
            optimizer.step()
        assert [len(g["params"]) for g in optimizer.param_groups] == [3, 2, 3]
        assert 0 < len(notes.seen) < len(slices(optimizer))
        assert notes.boundaries == []
        assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 0

    def test_copies_and_checkpoints(self):
        params = parameters()
        optimizer = AdamW(params)
        with annotate(nn.Identity(), optimizer), noted() as notes:
            train(optimizer, params, steps=1)
            notes.take()
            copied = copy.deepcopy(optimizer)
            copied.step()
            torch.save(optimizer, io.BytesIO())
            AdamW(parameters()).load_state_dict(optimizer.state_dict())
            assert notes.seen == []

    def test_the_optimizer_dies_by_reference_count(self):
        optimizer = AdamW(parameters())
        annotate(nn.Identity(), optimizer)
        gc.collect()
        gc.disable()
        try:
            reference = weakref.ref(optimizer)
            del optimizer
            assert reference() is None
        finally:
            gc.enable()


class TestOtherOptimizers:
    def test_tick_once_and_a_note_says_what_that_costs(self):
        params = parameters()
        optimizer = torch.optim.LBFGS(params)
        with annotate(nn.Identity(), optimizer), noted() as notes:
            optimizer.step(lambda: torch.zeros(()))
            assert notes.seen == [("optimizer", "optimizer")]
            assert notes.boundaries == [1]
            (note,) = annotating.notes()
            assert "LBFGS" in note
            assert "one layer" in note
        assert annotating.notes() == []

    def test_a_subclass_with_its_own_step_is_not_sliced(self):
        class Own(SGD):
            def step(self, closure=None):
                return super().step(closure)

        class Renamed(AdamW):
            pass

        assert not sliceable(Own(parameters(), lr=0.1))
        assert sliceable(Renamed(parameters()))
        assert not sliceable(Adam(parameters(), differentiable=True))

    def test_a_second_optimizer_has_its_ordinal(self):
        params = parameters()
        one, two = SGD(params[:4], lr=0.1), SGD(params[4:], lr=0.1)
        with annotate(nn.Identity(), [one, two]), noted() as notes:
            one.step()
            two.step()
        assert {name for name, _ in notes.seen} == {"optimizer", "1:optimizer"}


def test_whatever_optimizers_torch_has_none_but_the_known_are_sliced():
    known = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad"}
    found = set()
    for name in torch.optim.__all__ if hasattr(torch.optim, "__all__") else dir(torch.optim):
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matrices = [nn.Parameter(torch.zeros(2, 2))]
                if sliceable(kind(matrices)):  # type: ignore[call-arg]
                    found.add(name)
    assert found == known


def test_a_sliced_step_is_removed_under_a_scheduler_that_wrapped_it():
    params = parameters()
    optimizer = SGD(params, lr=0.1)
    step = SlicedStep(optimizer, "optimizer")
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step.remove()
    with noted() as notes:
        train(optimizer, params, steps=1)
    assert notes.seen == []
