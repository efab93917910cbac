"""Training under Sentinel gives the same losses and parameters, bit for bit, whatever the loop does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.core.units import parse_bytes  # noqa: E402
from sentinel.tiers.file_tier import FileTier  # noqa: E402
from tests.torch.bit_identity_cases import CASES  # noqa: E402

STEPS = 10
BEFORE = -1
"""For `profile_at`: before the model is built."""
LEAST_BYTES = 1024
"""Of tensors that live in frames here: the cases' weights take 256 KiB, their activations 64."""
QUICK = ("plain",)
"""Cases of `make test`, beside all of them with pages watched; the others take as long again."""
FEW = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
FIRST = ("plain", "unknown_optimizer", "exception_in_step")
"""Cases whose first step is profiled, in which the optimizer makes its state; of the others that is long."""


@pytest.fixture(autouse=True)
def _stock_allocation_afterwards() -> Iterator[None]:
    yield
    if sentinel.active():
        sentinel.stop()


def _train(
    name: str, *, profile_at: int | None, stop_at: int = STEPS, push_bytes: int = 0, **asked: Any
) -> tuple[Any, ...]:
    """Losses, final parameters and whatever else the case compares, of STEPS steps. `push_bytes`: of a tensor that is
    read after each step of the session and those after it, so that what else is in memory has to leave."""
    torch.manual_seed(11)
    if profile_at == BEFORE:
        sentinel.start_profile(**asked)
    job = CASES[name]()
    handles = []
    if profile_at is not None:
        handles = [sentinel.annotate(list(job.models), list(job.optimizers))]
    losses = []
    other = None
    for i in range(STEPS):
        if i == profile_at:
            sentinel.start_profile(**asked)
        if i == max(profile_at or 0, 0):
            other = torch.ones(push_bytes // 4)
        losses.append(job.step(i))
        if other is not None:
            other.sum()
        if i == profile_at:
            sentinel.end_profile()
        if profile_at is not None and i == stop_at:
            sentinel.stop()
    if profile_at is not None and stop_at >= STEPS:
        sentinel.stop()
    for handle in handles:
        handle.remove()
    parameters = [p.detach().clone() for model in job.models for p in model.parameters()]
    return losses, parameters, job.extra


@functools.cache
def _stock(name: str) -> Any:
    """What stock training of a case comes to, trained once for all that is compared with it."""
    return _train(name, profile_at=None)


def _assert_same(stock: tuple[Any, ...], ours: tuple[Any, ...]) -> None:
    assert stock[0] == ours[0], "losses differ"
    for a, b in zip(stock[1], ours[1], strict=True):
        assert torch.equal(a, b), "parameters differ"
    for a, b in zip(stock[2], ours[2], strict=True):
        assert (a == b).all() if hasattr(a, "all") else a == b


@pytest.mark.parametrize(
    ("name", "profile_at"),
    [pytest.param(name, 0, marks=pytest.mark.slow if name in FIRST else pytest.mark.long) for name in CASES]
    + [pytest.param(name, 2, marks=() if name in QUICK else pytest.mark.slow) for name in CASES],
)
def test_training_is_bit_identical_at_a_fifth_of_fast_memory(name: str, profile_at: int) -> None:
    stock = _stock(name)
    ours = _train(name, profile_at=profile_at, fast="20%", slow="emulated:cxl-asic-x8", tracker="ops")
    _assert_same(stock, ours)


@pytest.mark.parametrize("name", CASES)
def test_training_is_bit_identical_with_pages_watched(name: str) -> None:
    """By the most exact tracker that this host allows."""
    stock = _stock(name)
    ours = _train(name, profile_at=1, fast="20%", slow="emulated:cxl-asic-x8", tracker="auto")
    _assert_same(stock, ours)


@pytest.mark.parametrize("name", FEW)
def test_training_goes_on_bit_identically_after_stop(name: str) -> None:
    stock = _stock(name)
    ours = _train(name, profile_at=1, stop_at=5, fast="50%", slow="emulated:cxl-asic-x8", tracker="ops")
    _assert_same(stock, ours)


MODES = [
    pytest.param("4MiB", BEFORE, STEPS, id="before the model is built"),
    pytest.param("2MiB", 4, 6, id="from step 4 to step 6", marks=pytest.mark.long),
]


@pytest.mark.needs("torch", "compiler", "native")
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize(("fast", "profile_at", "stop_at"), MODES)
def test_training_on_a_file_is_bit_identical(
    name: str, fast: str, profile_at: int, stop_at: int, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the steps after `stop()`, whose tensors are partly away."""
    monkeypatch.setattr(FileTier, "least_bytes", LEAST_BYTES)
    stock = _stock(name)
    asked = {"fast": fast, "slow": f"file:{scratch}=64MiB", "push_bytes": parse_bytes(fast)}
    ours = _train(name, profile_at=profile_at, stop_at=stop_at, **asked)
    _assert_same(stock, ours)
    told = sentinel.report().setup.storage
    assert told is not None
    assert told.read_bytes > 0
    assert told.written_bytes > 0
    assert (told.failed, told.refused) == (0, 0)


def test_the_comparison_can_fail() -> None:
    """Negative control: another seed trains to other bits."""
    stock = _train("plain", profile_at=None)
    torch.manual_seed(12)
    job = CASES["plain"]()
    assert stock[0] != [job.step(i) for i in range(STEPS)]
