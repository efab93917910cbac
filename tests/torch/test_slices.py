"""Elementwise operators whose operands exceed the memory run slice by slice, with the bits of one piece."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.runtime import RUNTIME  # noqa: E402
from sentinel.session.passive import PassiveSession  # noqa: E402
from sentinel.system.disks import disk_of  # noqa: E402
from sentinel.tiers.file_tier import FramedCounters  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler", "native")

Tensor = Any
ELEMENTS = 2_500_017  # 10 MB, of 16 MiB for all; nothing is whole vectors


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """From the call on tensors live in 16 MiB."""
    place = tmp_path if not disk_of(tmp_path).in_memory else Path(__file__).parent
    if disk_of(place).in_memory:
        pytest.skip("needs a disk: a checkout or TMPDIR that is not in memory")
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield lambda: sentinel.start_profile(fast="16MiB", slow=f"file:{made}=256MiB")


@pytest.fixture(params=[1, 2, 3, 9])  # with 9, each has fewer grains than there are threads
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def told() -> FramedCounters:
    session = RUNTIME.sink
    assert isinstance(session, PassiveSession)
    assert session._framed is not None
    return session._framed.counters()


def values(seed: int, dtype: Any = torch.float32, elements: int = ELEMENTS) -> Tensor:
    """Of all magnitudes, and at each hundredth place what is special."""
    made = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    made *= 10 ** made.flip(0).mul(5)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-39, 3e38])
    made[seed::101] = special.repeat(len(made[seed::101]) // 8 + 1)[: len(made[seed::101])]
    return made.to(dtype)


def same_bits(found: Tensor, expected: Tensor) -> bool:
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[expected.element_size()]
    return torch.equal(found.view(kind), expected.view(kind))


IN_PLACE: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "abs_": lambda a, b, c: a.abs_(),
    "add_": lambda a, b, c: a.add_(b, alpha=0.3),
    "add_ a number": lambda a, b, c: a.add_(1e-8),
    "add_.Scalar": lambda a, b, c: torch._foreach_add_([a], 0.7),
    "addcdiv_": lambda a, b, c: a.addcdiv_(b, c, value=-0.07),
    "addcmul_": lambda a, b, c: a.addcmul_(b, c, value=0.001),
    "addcmul_ with itself": lambda a, b, c: a.addcmul_(b, b, value=0.001),
    "copy_": lambda a, b, c: a.copy_(b),
    "div_": lambda a, b, c: a.div_(b),
    "div_.Scalar": lambda a, b, c: torch._foreach_div_([a], [0.7]),
    "fill_": lambda a, b, c: a.fill_(0.3),
    "lerp_": lambda a, b, c: a.lerp_(b, 0.1),
    "lerp_ from the end": lambda a, b, c: a.lerp_(b, 0.9),
    "maximum.out": lambda a, b, c: torch.maximum(a, b, out=a),
    "minimum.out": lambda a, b, c: torch.minimum(b, c, out=a),
    "mul_": lambda a, b, c: a.mul_(b),
    "mul_ by a number": lambda a, b, c: a.mul_(0.999),
    "mul_ by itself": lambda a, b, c: a.mul_(a),
    "mul_ by a double": lambda a, b, c: a.mul_(torch.tensor(1 / 3, dtype=torch.float64)),
    "mul_.Scalar": lambda a, b, c: torch._foreach_mul_([a], 0.7),
    "neg_": lambda a, b, c: a.neg_(),
    "sign_": lambda a, b, c: a.sign_(),
    "sqrt_": lambda a, b, c: a.sqrt_(),
    "sub_": lambda a, b, c: a.sub_(b, alpha=0.3),
    "sub_.Scalar": lambda a, b, c: torch._foreach_sub_([a], 0.7),
    "zero_": lambda a, b, c: a.zero_(),
}
NEW: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "abs": lambda a, b, c: a.abs(),
    "add": lambda a, b, c: a.add(b, alpha=0.3),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=-0.07),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.001),
    "div": lambda a, b, c: a / 0.3,
    "lerp": lambda a, b, c: torch.lerp(a, b, 0.1),
    "maximum": lambda a, b, c: torch.maximum(a, b),
    "minimum": lambda a, b, c: torch.minimum(a, b),
    "mul": lambda a, b, c: a * b,
    "neg": lambda a, b, c: -a,
    "rsub": lambda a, b, c: b - a,
    "sign": lambda a, b, c: a.sign(),
    "sqrt": lambda a, b, c: a.sqrt(),
}


def test_in_place_each_bit_is_as_in_one_piece(begin: Callable[[], None], threads: int) -> None:
    given = [values(seed) for seed in (1, 2, 3)]
    expected = {}
    for name, call in IN_PLACE.items():
        changed = given[0].clone()
        call(changed, *given[1:])
        expected[name] = changed
    begin()
    a, b, c = (tensor.clone() for tensor in given)
    before = told()
    for name, call in IN_PLACE.items():
        a.copy_(given[0])
        call(a, b, c)
        assert same_bits(a, expected[name]), name
        after = told()
        assert (after.sliced - before.sliced, after.too_large) == (2, 0), name  # the copy, too
        before = after


def test_new_tensors_have_the_bits_of_one_piece(begin: Callable[[], None], threads: int) -> None:
    given = [values(seed) for seed in (1, 2, 3)]
    expected = {name: call(*given) for name, call in NEW.items()}
    begin()
    a, b, c = (tensor.clone() for tensor in given)
    for name, call in NEW.items():
        before = told()
        found = call(a, b, c)
        after = told()
        assert (after.sliced - before.sliced, after.too_large) == (1, 0), name
        assert same_bits(found, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_types_have_the_bits_of_one_piece(begin: Callable[[], None], dtype: Any) -> None:
    elements = 10_000_000 // torch.empty((), dtype=dtype).element_size() + 9
    given = [values(seed, dtype, elements) for seed in (1, 2, 3)]
    calls = [IN_PLACE[name] for name in ("lerp_", "addcmul_", "addcdiv_", "sqrt_", "add_", "mul_ by a number")]
    expected = [given[0].clone() for _ in calls]
    for call, changed in zip(calls, expected, strict=True):
        call(changed, *given[1:])
    begin()
    a, b, c = (tensor.clone() for tensor in given)
    for call, changed in zip(calls, expected, strict=True):
        a.copy_(given[0])
        before = told().sliced
        call(a, b, c)
        assert told().sliced == before + 1
        assert same_bits(a, changed)
    assert told().too_large == 0


def test_what_is_not_alike_runs_in_one_piece(begin: Callable[[], None]) -> None:
    """Each is as PyTorch has it, refusals too."""
    begin()
    whole = values(1, elements=2048 * 1024).view(2048, 1024)
    other = values(2, elements=2048 * 1024).view(2048, 1024)
    before = told().sliced
    columns = whole.t().add(other.view(1024, 2048))
    rows = whole.mul(other[0])
    promoted = whole.add(other.double())
    with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
        whole.view(-1)[1:].add_(whole.view(-1)[:-1])
    with pytest.raises(RuntimeError, match=r"size of tensor|same as|shape"):
        torch.empty(()).add_(whole)
    assert told().sliced == before
    assert same_bits(columns[7], whole[:, 7] + other.view(1024, 2048)[7])
    assert same_bits(rows[9], whole[9] * other[0])
    assert torch.equal(promoted[5].nan_to_num(), (whole[5] + other[5].double()).nan_to_num())


def test_a_number_out_of_what_is_written_is_refused_before_anything_changes(begin: Callable[[], None]) -> None:
    begin()
    a, b = torch.full((ELEMENTS,), 2.0), torch.full((ELEMENTS,), 3.0)
    for refused in (lambda: a.mul_(a[-1]), lambda: torch.mul(b, a[-1], out=a)):
        with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
            refused()
    assert a.eq(2).all()


def test_what_autograd_runs_before_a_kernel_does_not_take_its_slices(begin: Callable[[], None]) -> None:
    """For the gradient of the second, a copy of the first is made within the operator."""
    begin()
    x, y = torch.nn.Parameter(torch.full((ELEMENTS,), 2.0)).clone(), torch.nn.Parameter(torch.full((ELEMENTS,), 3.0))
    before = told()
    x.mul_(y)
    after = told()
    assert (after.sliced - before.sliced, after.too_large) == (2, 0)
    assert x.eq(6).all()


def test_new_tensors_have_the_strides_of_one_piece(begin: Callable[[], None]) -> None:
    shape = (64, 1, 200, 200)
    expected = (torch.ones(shape).to(memory_format=torch.channels_last) * 0.5).stride()
    begin()
    given = torch.ones(shape).to(memory_format=torch.channels_last)
    assert given.is_contiguous()
    assert (given * 0.5).stride() == expected


def test_views_of_one_storage_that_do_not_touch_are_alike(begin: Callable[[], None]) -> None:
    begin()
    length = 1_500_017
    both = torch.ones(2 * length)
    before = told().sliced
    both[:length].add_(both[length:], alpha=2)
    assert told().sliced == before + 1
    assert both[:length].eq(3).all()
    assert both[length:].eq(1).all()
    half = length // 2
    with pytest.raises(RuntimeError, match="unsupported operation: some elements"):
        both[:length].add_(both[half : half + length])
    assert both[:length].eq(3).all()


def test_autograd_sees_one_operator(begin: Callable[[], None]) -> None:
    begin()
    parameter = torch.nn.Parameter(torch.full((ELEMENTS,), 3.0))
    factor = torch.full((ELEMENTS,), 2.0)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        parameter.mul_(2)
    product = parameter * factor
    assert product.grad_fn is not None
    assert product.grad_fn.name() == "MulBackward0"
    (product * product).sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.eq(24.0).all()
    version = parameter._version
    with torch.no_grad():
        assert parameter.addcmul_(factor, factor) is parameter
    assert parameter._version == version + 1
    assert parameter.eq(7.0).all()
    assert told().sliced >= 3
    assert told().too_large == 0


def test_an_optimizer_whose_tensors_exceed_the_memory_has_the_same_bits(begin: Callable[[], None]) -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(20_000, 128), torch.nn.Linear(128, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
        for step in range(3):
            model(torch.arange(step, 20_000, 50)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        state = [value for each in optimizer.state.values() for value in each.values()]
        return [tensor.detach() for tensor in (*model.parameters(), *state)]

    expected = train()
    begin()
    found = train()
    assert all(map(torch.equal, found, expected))
    assert told().too_large == 0
    assert told().sliced >= 3 * 8
    text = " ".join(sentinel.report().text().split())
    assert f"in slices {told().sliced:,} operators" in text


def test_copies_are_sliced_and_what_gives_a_shape_is_not_read(begin: Callable[[], None]) -> None:
    begin()
    tensor = torch.full((ELEMENTS,), 2.0)
    copy = tensor.clone()
    assert copy.eq(2).all()
    others = [torch.ones(ELEMENTS) for _ in range(2)]
    before = told().frames.read_bytes
    zeros = torch.empty_like(others[0]), torch.zeros_like(tensor), torch.zeros_like(copy)
    assert told().frames.read_bytes - before < 1 << 22
    assert not zeros[1].any()
    assert told().too_large == 0


def test_python_s_dispatcher_comes_through(begin: Callable[[], None]) -> None:
    begin()
    tensor = torch.ones(ELEMENTS)
    with torch._C._EnablePythonDispatcher():
        assert tensor.add_(1).eq(2).all()
        assert tensor.sqrt().gt(1.4).all()
        assert torch.ones(3, device="meta").add_(1).shape == (3,)


STEPS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, fused=True, momentum=0.9, nesterov=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01, fused=True),
}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_fused_steps_are_sliced_with_the_same_bits(begin: Callable[[], None], name: str, threads: int) -> None:
    made = [values(seed).nan_to_num(1.0, 2.0, -2.0).clamp(-1e3, 1e3) for seed in (1, 2, 3)]

    def train() -> list[Tensor]:
        parameter = torch.nn.Parameter(made[0].clone())
        optimizer = STEPS[name]([parameter])
        for gradient in made[1:]:
            parameter.grad = gradient.clone()
            optimizer.step()
        return [parameter.detach(), *(value for value in optimizer.state[parameter].values() if value.dim())]

    expected = train()
    begin()
    found = train()
    assert all(map(same_bits, found, expected))
    assert told().too_large == 0
