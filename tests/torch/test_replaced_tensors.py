"""State that is loaded in mid-session is managed again from the next step on; what stays outside is listed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")

import sentinel  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.applying_plans import MOST_REPLACED, MOST_SINGLE  # noqa: E402
from sentinel.session.training_job import FIRST  # noqa: E402
from tests.torch.bit_identity_cases import ASKED, Job, job  # noqa: E402

pytestmark = pytest.mark.needs("torch", "compiler")


def load_own_state(work: Job) -> None:
    (optimizer,) = work.optimizers
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def managed_bytes(work: Job) -> int:
    session = current()
    assert session is not None
    tensors = [value for held in work.optimizers[0].state.values() for value in held.values()]
    return sum(t.numel() * t.element_size() for t in tensors if session.context.memory.contains(t.data_ptr()))


def applied(work: Job) -> list[float]:
    sentinel.start_profile(**ASKED)
    losses = [work.step(0)]
    sentinel.end_profile()
    return losses + [work.step(i) for i in range(1, 8)]


def outside() -> dict[str, int]:
    session = current()
    assert session is not None
    rows = session.report(bounded=False).tables["in_place"]
    return {name: nbytes for name, nbytes in zip(rows["tensor"], rows["nbytes"], strict=True) if nbytes >= 1024}


def test_loaded_state_is_managed_from_the_next_step_on_with_the_bits_of_stock() -> None:
    stock, work = job(), job()
    expected = [stock.step(i) for i in range(8)]
    load_own_state(stock)
    expected += [stock.step(i) for i in range(8, 14)]
    with sentinel.annotate(work.models, work.optimizers):
        losses = applied(work)
        before = managed_bytes(work)
        assert before
        load_own_state(work)
        assert not managed_bytes(work)
        losses += [work.step(i) for i in range(8, 14)]
        assert managed_bytes(work) == before
        session = current()
        assert session is not None
        state = [value for held in work.optimizers[0].state.values() for value in held.values()]
        now = {t.untyped_storage().data_ptr() for t in state if t.untyped_storage().nbytes() >= 4096}
        bucket = session.context.applying.current
        assert bucket.ranges is not None
        assert now
        for number, block in enumerate(bucket.plan.blocks):
            if block.persistent:  # what moves is what is there now
                now -= {at for at, _ in bucket.ranges(number)}
        assert not now
        assert not outside()
        assert any("the job had other tensors" in note for note in session.notes)
        assert sentinel.stop().steps["in_step"][-3:].all()
    assert losses == expected
    for mine, theirs in zip(work.models[0].parameters(), stock.models[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_state_that_cannot_move_is_listed_and_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays share its memory. Loads after that are not tried, until the tensors are adopted for another reason."""
    work = job()
    tries: list[Any] = []
    with sentinel.annotate(work.models, work.optimizers):
        applied(work)
        load_own_state(work)
        state = work.optimizers[0].state
        kept = [value.numpy() for held in state.values() for value in held.values()]
        session = current()
        assert session is not None
        adopt = session.context.job.adopt
        monkeypatch.setattr(session.context.job, "adopt", lambda memory: tries.append(adopt(memory)))
        for i in range(8, 12):
            work.step(i)
        listed = outside()
        assert sum(listed.values()) >= sum(array.nbytes for array in kept if array.nbytes >= 4096)
        assert len(tries) == 1
        sentinel.stop()
        assert outside() == listed


def test_loads_without_end_are_adopted_a_few_times() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        applied(work)
        for i in range(8, 8 + MOST_REPLACED + 3):
            load_own_state(work)
            work.step(i)
        assert not managed_bytes(work)
        assert outside()
        sentinel.stop()
        assert outside()


def test_a_model_whose_parameters_are_assigned_is_managed_though_no_optimizer_has_them() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        applied(work)
        (model,) = work.models
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        session = current()
        assert session is not None
        memory = session.context.memory
        large = [p for p in model.parameters() if p.untyped_storage().nbytes() >= 1024]
        assert large
        assert not any(memory.contains(p.data_ptr()) for p in large)
        work.step(8)
        assert all(memory.contains(p.data_ptr()) for p in large)
        assert not outside()
        sentinel.stop()


@pytest.mark.parametrize("shared", [False, True])
def test_a_single_parameter_that_gets_other_data_is_managed_within_a_few_steps(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shared`: an array has its memory, so it is tried once, and listed."""
    stock, work = job("tied_weights"), job("tied_weights")
    expected = [stock.step(i) for i in range(16)]
    tries: list[Any] = []
    with sentinel.annotate(work.models, work.optimizers):
        losses = applied(work)
        params = list(work.models[0].parameters())
        assert len(params) > 2 * FIRST
        (param,) = [each for each in params[FIRST:] if each.nbytes >= 4096][-1:]
        param.data = copy.deepcopy(param.data)
        array = param.detach().numpy() if shared else None
        session = current()
        assert session is not None
        memory, adopt = session.context.memory, session.context.job.adopt
        monkeypatch.setattr(session.context.job, "adopt", lambda memory: tries.append(adopt(memory)))
        assert not memory.contains(param.data_ptr())
        losses += [work.step(i) for i in range(8, 16)]
        assert memory.contains(param.data_ptr()) == (array is None)
        assert len(tries) == 1
        assert list(outside().values()) == ([param.nbytes] if shared else [])
        sentinel.stop()
    assert losses == expected


def test_a_parameter_that_gets_other_data_in_each_step_leaves_loads_their_turns() -> None:
    work = job()
    with sentinel.annotate(work.models, work.optimizers):
        applied(work)
        params = [each for each in work.models[0].parameters() if each.nbytes >= 4096]
        for i in range(8, 8 + MOST_REPLACED + MOST_SINGLE):
            params[-1].data = copy.deepcopy(params[-1].data)
            work.step(i)
        load_own_state(work)
        work.step(8 + MOST_REPLACED + MOST_SINGLE)
        session = current()
        assert session is not None
        state = [value for held in work.optimizers[0].state.values() for value in held.values()]
        large = [value for value in state if value.untyped_storage().nbytes() >= 4096]
        assert large
        assert all(session.context.memory.contains(value.data_ptr()) for value in large)
        sentinel.stop()
