"""From which threads a managed tensor can be reached: however a thread refers to it, and not where it does not."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.migration.other_threads import holders  # noqa: E402

pytestmark = pytest.mark.needs("compiler")

Wait = Callable[[], object]
"""What a thread calls to stay where it is until the question has been asked."""

A_MODULE = types.ModuleType("a_module")
OF_A_GLOBAL: list[Any] = []


class Holder:
    """Has the tensor as an attribute, or as one of its class."""

    of_the_class: Any = None

    def __init__(self, tensor: Any = None) -> None:
        self.tensor = tensor

    def method(self, wait: Wait) -> None:
        wait()


def asked_while(run: Callable[[Wait], object], managed: Callable[[int], bool], **limits: int) -> list[str]:
    """What `holders` answers of a thread named "other" in which `run` waits; some of the others run the tests."""
    ready, over = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        over.wait()

    thread = threading.Thread(target=run, args=(wait,), name="other", daemon=True)
    thread.start()
    del run
    try:
        while not ready.wait(timeout=1):
            assert thread.is_alive(), "the thread ended before it waited; its error is among the warnings"
        return [name for name in holders(managed, **limits) if name == "other"]
    finally:
        over.set()
        thread.join()


def in_a_local(tensor: Any) -> Callable[[Wait], object]:
    box = [tensor]

    def run(wait: Wait) -> None:
        mine = box.pop()
        wait()
        del mine

    return run


def in_a_callers_local(tensor: Any) -> Callable[[Wait], object]:
    box = [tensor]

    def run(wait: Wait) -> None:
        mine = box.pop()
        wait_for_others(wait)
        del mine

    return run


def wait_for_others(wait: Wait) -> None:
    wait()


def in_a_closure(tensor: Any) -> Callable[[Wait], object]:
    def run(wait: Wait) -> None:
        wait()
        tensor.add_(1)

    return run


def in_the_closure_of_a_function_that_it_has(tensor: Any) -> Callable[[Wait], object]:
    def later() -> None:
        tensor.add_(1)

    def run(wait: Wait, then: Callable[[], None] = later) -> None:
        wait()
        then()

    return run


def in_a_queue(tensor: Any) -> Callable[[Wait], object]:
    tensors: queue.Queue[Any] = queue.Queue()
    tensors.put(tensor)
    return lambda wait: (wait(), tensors.get())


def in_an_attribute(tensor: Any) -> Callable[[Wait], object]:
    return Holder(tensor).method


def in_a_class(tensor: Any) -> Callable[[Wait], object]:
    Holder.of_the_class = tensor

    def run(wait: Wait) -> None:
        wait()
        Holder.of_the_class.add_(1)

    return run


def in_a_global(tensor: Any) -> Callable[[Wait], object]:
    OF_A_GLOBAL.append(tensor)

    def run(wait: Wait) -> None:
        wait()
        OF_A_GLOBAL[0].add_(1)

    return run


def in_a_module(tensor: Any) -> Callable[[Wait], object]:
    A_MODULE.tensor = tensor  # type: ignore[attr-defined]

    def run(wait: Wait) -> None:
        wait()
        A_MODULE.tensor.add_(1)

    return run


def in_a_nested_container(tensor: Any) -> Callable[[Wait], object]:
    batches = {"batches": [({"x": tensor},)]}
    return lambda wait: (wait(), batches)


def in_a_partial(tensor: Any) -> Callable[[Wait], object]:
    return functools.partial(lambda _, wait: wait(), tensor)


def in_a_generator(tensor: Any) -> Callable[[Wait], object]:
    def batches(given: Any) -> Iterator[Any]:
        yield 0
        yield given

    begun = batches(tensor)
    next(begun)
    return lambda wait: (wait(), next(begun))


def in_a_weak_reference(tensor: Any) -> Callable[[Wait], object]:
    reference = weakref.ref(tensor)
    return lambda wait: (wait(), reference())


def in_a_view(tensor: Any) -> Callable[[Wait], object]:
    view = tensor[7:]
    return lambda wait: (wait(), view)


def in_a_module_of_torch(tensor: Any) -> Callable[[Wait], object]:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("held", tensor)
    return lambda wait: (wait(), model)


HOLDING = [
    in_a_local,
    in_a_callers_local,
    in_a_closure,
    in_the_closure_of_a_function_that_it_has,
    in_a_queue,
    in_an_attribute,
    in_a_class,
    in_a_global,
    in_a_module,
    in_a_nested_container,
    in_a_partial,
    in_a_generator,
    in_a_weak_reference,
    in_a_view,
    in_a_module_of_torch,
]


@pytest.fixture(autouse=True)
def _nothing_remains() -> Iterator[None]:
    yield
    Holder.of_the_class = None
    OF_A_GLOBAL.clear()
    A_MODULE.__dict__.pop("tensor", None)


@pytest.mark.parametrize("hold", HOLDING, ids=lambda hold: hold.__name__)
def test_a_thread_that_can_reach_the_tensor_is_named(hold: Callable[[Any], Callable[[Wait], object]]) -> None:
    tensor, another = torch.zeros(1000), torch.zeros(1000)
    assert asked_while(hold(tensor), lambda address: address == tensor.data_ptr()) == ["other"]
    assert asked_while(hold(tensor), lambda address: address == another.data_ptr()) == []


def test_a_thread_that_holds_nothing_is_not_named() -> None:
    tensor = torch.zeros(1000)
    assert asked_while(lambda wait: wait(), lambda address: address == tensor.data_ptr()) == []


def test_the_thread_that_asks_is_not_named() -> None:
    tensor = torch.zeros(1000)
    assert holders(lambda address: address == tensor.data_ptr()) == []


def test_a_thread_begun_after_a_session_is_not_named_for_our_hooks() -> None:
    """Each thread refers to the hook for its exceptions as it was when it began; ours leads to the last session."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    with sentinel.annotate(model, optimizer):
        sentinel.start_profile(model, optimizer, fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        sentinel.end_profile()
        sentinel.stop()
    assert asked_while(lambda wait: wait(), lambda address: True) == []
    assert asked_while(in_a_local(model.weight), lambda address: address == model.weight.data_ptr()) == ["other"]


def test_a_thread_that_refers_to_more_than_can_be_looked_at_counts_as_a_holder() -> None:
    many = [[n] for n in range(1009)]
    run: Callable[[Wait], object] = lambda wait: (wait(), many)  # noqa: E731
    assert asked_while(run, lambda address: False) == []
    assert asked_while(run, lambda address: False, most=500) == ["other"]


@pytest.mark.parametrize(
    ("begin", "event"), [(sys.settrace, "line"), (sys.setprofile, "c_call")], ids=["tracer", "profiler"]
)
def test_variables_stay_while_a_tracer_of_their_thread_looks_at_them(begin: Callable[[Any], None], event: str) -> None:
    """Until Python 3.11 variables are taken from a dict once a tracer returns: what is cleared there is unbound."""
    found: list[object] = []

    def traced() -> None:
        mine = [7]
        found.append(mine)  # the tracer waits here
        found.append(len(mine))

    at = traced.__code__.co_firstlineno + 2

    def run(wait: Wait) -> None:
        def look(frame: types.FrameType, happens: str, _: object) -> object:
            if frame.f_code is traced.__code__ and (happens, frame.f_lineno) == (event, at):
                wait()
            return look

        begin(look)
        try:
            traced()
        except UnboundLocalError as error:
            found.append(error)
        finally:
            begin(None)

    asked_while(run, lambda address: False)
    assert found == [[7], 1]
