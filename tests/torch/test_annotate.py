"""What ticks, in which order, whatever the model does; and that nothing else changes."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sentinel
import sentinel.session  # as every session does: it tells what compiles
from sentinel.core.errors import UsageError
from sentinel.profiler import annotate as module_under_test
from sentinel.profiler.annotate import annotate, annotated
from sentinel.profiler.blocks import find_blocks
from sentinel.runtime import RUNTIME
from tests.torch.ticking import Notes, noted


@pytest.fixture(autouse=True)
def nothing_left_behind():
    yield
    gc.collect()
    assert RUNTIME.sink is None
    assert annotated() == ([], []), "a test left an annotation behind"


def forward(*names):
    return [(name, "forward") for name in names]


def backward(*names):
    return [(name, "backward") for name in names]


def mlp(depth=3):
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)) for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def names(root):
    return [name for name, _ in find_blocks(root)]


class TestBlocks:
    def test_children_of_the_outermost_list_and_what_is_beside_it(self):
        model = Residual()
        model.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))
        assert names(model) == ["stem", *(f"layers.{i}" for i in range(20)), "head"]

    def test_few_blocks_are_cut_further(self):
        assert names(Residual()) == ["stem", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head"]

    def test_sixteen_blocks_are_not_cut_further(self):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(16)))
        assert names(model) == [str(i) for i in range(16)]
        assert names(model[:15]) == [f"{i}.{j}" for i in range(15) for j in range(2)]

    def test_a_list_below_the_root(self):
        model = nn.Module()
        model.transformer = nn.Module()
        model.transformer.wte = nn.Embedding(3, 4)
        model.transformer.h = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        model.lm_head = nn.Linear(4, 3)
        assert names(model) == ["transformer.wte", "transformer.h.0", "transformer.h.1", "lm_head"]

    def test_a_dictionary_of_modules_cannot_be_called_but_its_children_can(self):
        model = nn.Module()
        model.parts = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        assert names(model) == ["parts.a", "parts.b"]

    def test_no_list_at_all(self):
        model = nn.Module()
        model.one, model.two = nn.Linear(2, 2), nn.Linear(2, 2)
        assert names(model) == ["one", "two"]
        assert names(nn.Linear(2, 2)) == [""]

    def test_a_module_in_two_places_is_one_block(self):
        shared = nn.Linear(2, 2)
        assert names(nn.Sequential(shared, nn.ReLU(), shared)) == ["0", "1"]


class TestTicks:
    def test_a_step_ticks_at_the_end_of_each_block_forward_and_backward(self):
        model = mlp()
        with annotate(model) as annotation, noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
        assert annotation.blocks == ("0", "1", "2")
        assert notes.seen == forward("0", "1", "2") + backward("loss", "2", "1", "0")

    def test_without_a_session_nothing_ticks(self):
        model = mlp()
        with annotate(model):
            model(torch.ones(2, 4)).sum().backward()
        with noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
        assert notes.seen == []

    def test_validation_does_not_tick(self):
        model = mlp()
        with annotate(model), noted() as notes:
            with torch.no_grad():
                model(torch.ones(2, 4))
            with torch.inference_mode():
                model(torch.ones(2, 4))
            assert notes.seen == []
            model.eval()(torch.ones(2, 4))
            assert len(notes.seen) == 3

    def test_blocks_called_one_by_one_tick_too(self):
        model = mlp()
        with annotate(model), noted() as notes:
            x = torch.ones(2, 4)
            for layer in model:
                x = layer(x)
            x.sum().backward()
        assert notes.seen == forward("0", "1", "2") + backward("loss", "2", "1", "0")

    def test_in_place_activations_and_skip_connections(self):
        model = Residual()
        with annotate(model), noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
        expected = ["stem", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head"]
        assert notes.seen == forward(*expected) + backward("loss", *reversed(expected))

    @pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass"])
    def test_outputs_of_any_shape(self, kind):
        @dataclasses.dataclass
        class Output:
            hidden: torch.Tensor
            note: str = ""

        class Wrapping(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, x):
                y = self.inner(x)
                return {"tuple": (None, y), "dict": {"hidden": y}, "dataclass": Output(y)}[kind]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Wrapping() for _ in range(2))

            def forward(self, x):
                for layer in self.layers:
                    y = layer(x)
                    x = y[1] if kind == "tuple" else y["hidden"] if kind == "dict" else y.hidden
                return x

        model = Model()
        with annotate(model), noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
        assert notes.seen == forward("layers.0", "layers.1") + backward("loss", "layers.1", "layers.0")

    def test_blocks_without_gradient_tick_forward_only(self):
        model = mlp()
        model[0].requires_grad_(False)
        with annotate(model), noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
        assert notes.seen == forward("0", "1", "2") + backward("loss", "2", "1")

    @pytest.mark.parametrize(
        ("reentrant", "expected"),
        [
            (False, ["loss", "2", "1", "0"]),
            (True, ["2", "1", "0", "0"]),  # the first layer: loss and recomputation of 2; the last: backward of 0
        ],
    )
    @pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
    def test_activation_checkpointing_ticks_forward_once(self, reentrant, expected):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(mlp(2) for _ in range(3))

            def forward(self, x):
                for layer in self.layers:
                    x = checkpoint(layer, x, use_reentrant=reentrant)
                return x

        model = Model()
        with annotate(model, blocks=list(model.layers)), noted() as notes:
            for _ in range(3):
                model(torch.ones(2, 4, requires_grad=True)).sum().backward()
                assert notes.take() == forward("layers.0", "layers.1", "layers.2") + backward(
                    *(name if name == "loss" else f"layers.{name}" for name in expected)
                )

    def test_a_checkpoint_over_several_blocks_ticks_within_its_recomputation(self):
        model = mlp(4)
        with annotate(model), noted() as notes:
            for _ in range(2):
                checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
                ticked = notes.take()
                assert ticked[:4] == forward("0", "1", "2", "3")
                assert ticked[4] == ("loss", "backward")
                assert ticked[-1] == ("0", "backward")
                assert {phase for _, phase in ticked[4:]} == {"backward"}

    def test_accumulation_ticks_each_micro_step(self):
        model = mlp()
        with annotate(model), noted() as notes:
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
        assert notes.seen == (forward("0", "1", "2") + backward("loss", "2", "1", "0")) * 3

    def test_a_retained_graph_ticks_at_each_backward(self):
        model = mlp()
        with annotate(model), noted() as notes:
            loss = model(torch.ones(2, 4)).sum()
            loss.backward(retain_graph=True)
            once = notes.take()[3:]
            loss.backward()
            assert notes.seen == once == backward("loss", "2", "1", "0")

    def test_exceptions_leave_no_tick_for_the_next_step(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, gradient):
                raise ValueError("on purpose")

        class Failing(nn.Module):
            def __init__(self):
                super().__init__()
                self.on = ""

            def forward(self, x):
                if self.on == "forward":
                    raise ValueError("on purpose")
                return Fails.apply(x) if self.on == "backward" else x * 1

        failing = Failing()
        model = nn.Sequential(nn.Linear(4, 4), failing, nn.Linear(4, 4))
        with annotate(model), noted() as notes:
            for place in ("forward", "backward"):
                failing.on = place
                with pytest.raises(ValueError, match="on purpose"):
                    model(torch.ones(2, 4)).sum().backward()
                failing.on = ""
                notes.take()
                with torch.no_grad():
                    model(torch.ones(2, 4))
                model(torch.ones(2, 4)).sum().backward()
                assert notes.take() == forward("0", "1", "2") + backward("loss", "2", "1", "0")

    def test_two_models_in_one_backward(self):
        one, two = mlp(1), mlp(1)
        with annotate([one, two]), noted() as notes:
            two(one(torch.ones(2, 4))).sum().backward()
        assert notes.seen == forward("0", "1:0") + backward("loss", "1:0", "0")


class TestAddingUp:
    def test_a_second_annotation_of_the_same_model_adds_nothing(self):
        model = mlp(2)
        with annotate(model), annotate(model) as second, noted() as notes:
            model(torch.ones(2, 4))
        assert second.blocks == ()
        assert notes.seen == forward("0", "1")

    def test_ordinals_are_given_by_order_and_given_back(self):
        one, two, three = mlp(1), mlp(1), mlp(1)
        first, second = annotate(one), annotate(two)
        assert (first.blocks, second.blocks) == (("0",), ("1:0",))
        assert annotated()[0] == [one, two]
        first.remove()
        with annotate(three) as third:
            assert third.blocks == ("0",)
        second.remove()

    def test_models_that_die_give_their_number_back(self):
        model = mlp(1)
        annotate(model)
        assert annotated()[0] == [model]
        del model
        gc.collect()
        assert annotated()[0] == []

    def test_what_is_no_model_is_refused(self):
        with pytest.raises(UsageError, match="model"):
            annotate(3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="optimizer"):
            annotate(mlp(), mlp())
        with pytest.raises(UsageError, match=r"'nothing' is not a module"):
            annotate(mlp(), blocks=["nothing"])
        with pytest.raises(UsageError, match="2 models"):
            annotate([mlp(), mlp()], blocks=["0"])

    def test_chosen_blocks(self):
        model = mlp(4)
        with annotate(model, blocks=["1", model[3]]), noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
        assert notes.seen == forward("1", "3") + backward("loss", "3", "1")


class TestNothingElseChanges:
    def test_gradients_are_the_same_bits(self):
        torch.manual_seed(3)
        model = Residual()
        x = torch.randn(5, 4)
        model(x).square().sum().backward()
        stock = [p.grad for p in model.parameters()]
        model.zero_grad()
        with annotate(model), noted():
            model(x).square().sum().backward()
        assert all(torch.equal(a, p.grad) for a, p in zip(stock, model.parameters(), strict=True))

    def test_remove_leaves_the_model_as_it_was(self):
        model = mlp()
        before = {name: dict(vars(m).items()) for name, m in model.named_modules()}
        annotate(model).remove()
        after = {name: dict(vars(m).items()) for name, m in model.named_modules()}
        assert before == after

    def test_copies_and_state_do_not_tick(self):
        model = mlp()
        with annotate(model), noted() as notes:
            keys = list(model.state_dict())
            copied = copy.deepcopy(model)
            copied(torch.ones(2, 4)).sum().backward()
            assert notes.seen == []
            model(torch.ones(2, 4))
            assert len(notes.seen) == 3
        assert keys == list(mlp().state_dict())

    def test_a_saved_model_loads_without_sentinel(self, tmp_path):
        model = mlp()
        with annotate(model):
            torch.save(model, tmp_path / "model.pt")
        program = (
            "import sys; sys.modules['sentinel'] = None\n"
            "import torch\n"
            f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
            "print(model(torch.ones(2, 4)).shape)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
        assert done.stdout.strip() == "torch.Size([2, 4])", done.stderr

    def test_outputs_with_hooks_are_saved_without_a_warning(self):
        model = mlp()
        with annotate(model), noted():
            torch.save(model(torch.ones(2, 4)), io.BytesIO())  # warnings are errors here

    def test_hooks_keep_no_activation_and_no_graph_alive(self):
        model = mlp()
        with annotate(model), noted():
            hidden = model[0](torch.ones(2, 4))
            node = weakref.ref(hidden)
            loss = model[2](model[1](hidden)).sum()
            loss.backward()
            del hidden, loss
            assert node() is None  # at once: by reference count, no collection

    def test_a_backward_through_nothing_annotated_does_not_tick(self):
        with annotate(mlp()), noted() as notes:
            nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
        assert notes.seen == []
        assert RUNTIME.under_way.grad_modes == []

    def test_another_thread_that_trains_ends_no_backward_here(self):
        model, other = mlp(), mlp()

        class OfThisThread(Notes):
            here = threading.get_ident()

            def tick(self, *given):
                if threading.get_ident() == self.here:
                    super().tick(*given)

        def train():
            other(torch.ones(2, 4)).sum().backward()

        def beside(_gradient):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(train).result()

        def told(hook):
            RUNTIME.sink = notes = OfThisThread()
            try:
                given = torch.ones(2, 4, requires_grad=True)
                given.register_hook(hook)  # runs as the last of this backward
                model(given).sum().backward()
            finally:
                RUNTIME.sink = None
            return notes.seen

        with annotate([model, other]):
            alone = told(lambda _: None)
            assert len(alone) > 4
            assert told(beside) == alone

    def test_add_layer_within_a_compiled_function_is_none(self):
        torch._dynamo.reset()

        def doubled(x):
            sentinel.add_layer("half")
            return x * 2

        compiled = torch.compile(doubled, backend="eager", fullgraph=True)
        with noted() as notes:
            assert compiled(torch.ones(3)).sum() == 6
            assert notes.seen == []

    def test_a_compiled_model_runs_and_its_blocks_do_not_tick(self):
        model = torch.compile(mlp(), backend="eager")
        with annotate(model), noted() as notes:
            model(torch.ones(2, 4)).sum().backward()
            assert notes.take() == backward("loss")

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_a_session_that_begins_or_ends_makes_no_graph_be_compiled_again(self, backend):
        from torch._dynamo.backends.registry import lookup_backend

        torch._dynamo.reset()
        graphs = []

        def counted(graph, inputs):
            graphs.append(graph)
            return lookup_backend(backend)(graph, inputs)

        inner = mlp()
        model = torch.compile(inner, backend=counted, fullgraph=True)
        with annotate(inner):
            model(torch.ones(2, 4)).sum().backward()
            with noted():
                model(torch.ones(2, 4)).sum().backward()
            model(torch.ones(2, 4)).sum().backward()
        assert len(graphs) == 1

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler asks
    def test_blocks_that_are_compiled_one_by_one_tick_as_ever(self):
        torch._dynamo.reset()
        inner = mlp()

        def told(model):
            with annotate(model), noted() as notes:
                loss = model(torch.ones(2, 4)).sum()
                loss.backward()
                return notes.take(), loss.item(), [p.grad.clone() for p in model.parameters()]

        plain, loss, gradients = told(inner)
        for parameter in inner.parameters():
            parameter.grad = None
        for name, block in list(inner.named_children()):
            setattr(inner, name, torch.compile(block, backend="aot_eager"))
        ticks, same, others = told(inner)
        assert ticks == plain
        assert len(ticks) > 3
        assert same == loss
        assert all(map(torch.equal, gradients, others))

    @pytest.mark.parametrize("annotated", ["inner", "wrapper"])
    def test_a_report_says_that_something_was_compiled(self, annotated, request):
        import torch._dynamo.utils as compiler

        torch._dynamo.reset()  # a graph that is kept would not count again
        compiler.counters.clear()
        request.addfinalizer(compiler.counters.clear)
        inner = mlp()
        wrapper = torch.compile(inner, backend="eager")
        with annotate(inner if annotated == "inner" else wrapper), noted():
            assert module_under_test.notes() == []
            wrapper(torch.ones(2, 4)).sum().backward()
            assert [note.split(":")[0] for note in module_under_test.notes()] == ["torch.compile was used"]


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_nothing_to_annotate_is_refused(nothing):
    with pytest.raises(UsageError, match="no model and no optimizer"):
        annotate(nothing)


def test_an_optimizer_that_is_only_watched_tells_of_its_steps_and_does_not_tick():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    owner = object()
    module_under_test.watch_steps(optimizer, owner)
    with noted() as notes:
        optimizer.step()
        assert (notes.seen, notes.boundaries) == ([], [0])
    optimizer.step()
    module_under_test.stop_watching(optimizer, object())  # somebody else's: ours stays
    assert len(optimizer._optimizer_step_post_hooks) == 1
    module_under_test.stop_watching(optimizer, owner)
    assert not optimizer._optimizer_step_post_hooks
