"""Steps of two shapes on two real nodes: a plan for each, and an end that moves only what is away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytestmark = [
    pytest.mark.needs("two nodes", "root", "torch", "native"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_plan"),
]

pytest.importorskip("torch", reason="needs torch: pip install '.[torch]'")
import torch  # noqa: E402

import sentinel  # noqa: E402
from sentinel.core.run import REASONS  # noqa: E402
from sentinel.core.units import PAGE_BYTES  # noqa: E402
from sentinel.session import current  # noqa: E402
from sentinel.session.applying_plans import ApplyingPlans  # noqa: E402
from sentinel.session.whole_step import RecordingStep  # noqa: E402
from sentinel.system import numa  # noqa: E402
from tests.numa.training import WIDTH, Net  # noqa: E402
from tests.training import Trained, assert_same, train  # noqa: E402

ASKED = {"fast": "20%", "slow": "numa:1", "tracker": "ops"}


def of_rows(sizes: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All batches, made beforehand: what a loader allocates before the profiled step is not in its first layer."""
    generator = torch.Generator().manual_seed(1)
    rows = [(torch.randn(n, WIDTH, generator=generator), n) for n in sizes]
    return [(inputs, torch.randint(0, 10, (n,), generator=generator)) for inputs, n in rows]


def pages_on(node: int) -> int:
    """Of what lives from step to step."""
    session = current()
    assert session is not None
    bucket = session.context.applying.current
    assert bucket.ranges is not None
    lasting = [index for index, block in enumerate(bucket.plan.blocks) if block.persistent]
    spans = [span for index in lasting for span in bucket.ranges(index)]
    return sum(int((numa.residency(address, nbytes) == node).sum()) for address, nbytes in spans)


def test_two_shapes_that_take_turns_have_a_plan_each() -> None:
    sizes = [32, 32, *[32, 128] * 6]

    def trained(ours: dict[str, str] | None):  # type: ignore[no-untyped-def]
        torch.manual_seed(0)
        return train(Net(), of_rows(sizes), steps=len(sizes), ours=ours)

    run = assert_same(trained(None), trained(ASKED))
    assert not run.emulated
    session = current()
    assert session is not None
    applying = session.context.applying
    assert len(applying.buckets) == 2
    assert max(bucket.taken_over for bucket in applying.buckets) >= 2
    for bucket in applying.buckets:
        assert bucket.executed is not None
        assert bucket.executed.counters.overflow_bytes == 0
        assert bucket.executed.steps["in_step"].all()


def test_a_session_that_ends_while_it_rests_moves_what_is_away_and_nothing_else() -> None:
    """The larger shape came twice, and the next step was to be recorded for it: then the job ends."""
    sizes = [32] * 6 + [128, 32, 128, 32]
    away: list[int] = []

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with sentinel.annotate(model, optimizer):
        for step, (inputs, labels) in enumerate(of_rows(sizes)):
            if step == 1:
                sentinel.start_profile(**ASKED)  # type: ignore[arg-type]
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                sentinel.end_profile()
        session = current()
        assert session is not None
        assert isinstance(session.state, RecordingStep)
        before = session.context.applying.run()
        assert before is not None
        away.append(pages_on(1))
        run = sentinel.stop()
    assert away[0] > 0
    assert pages_on(1) == 0
    last = run.migrations[len(before.migrations) :]
    assert {REASONS[why] for why in last["reason"]} == {"restore"}
    assert int(last["moved_bytes"].sum()) == away[0] * 4096


def in_accounts(tier: int) -> int:
    """Pages of what lives from step to step that the engine takes to be in `tier`, with nothing under way."""
    session = current()
    assert session is not None
    engine = session.context.applying.current.engine
    assert engine is not None
    engine._block_mover.finish()
    return sum(engine._table.bytes_in[tier][block] for block in engine._residents.lasting) // PAGE_BYTES


def test_a_page_tracker_that_records_again_leaves_the_accounts_true() -> None:
    """It replaces all pages by others, born where the policy at the first address says: sent away or not."""
    sizes = [32] * 4 + [128, 32, 128, 128] + [128] * 4
    recorded_at, found = 7, []

    def look(step: int, _model: torch.nn.Module) -> None:
        session = current()
        if session is None:
            return
        if step == recorded_at:  # as where a page at the first address was sent away before anybody touched it
            numa.bind(session.context.memory.exclusive_extent()[0], PAGE_BYTES, 1)
        if step == recorded_at + 1:  # a step ends as the next one begins
            assert isinstance(session.state, RecordingStep)
        if step > recorded_at + 1:
            assert isinstance(session.state, ApplyingPlans)
            told = in_accounts(0), in_accounts(1)
            found.append((told, (pages_on(0), pages_on(1))))

    def trained(tracker: str | None) -> Trained:
        torch.manual_seed(0)
        asked = None if tracker is None else {**ASKED, "tracker": tracker}
        look_on = look if asked is not None else lambda *_: None
        return train(Net(), of_rows(sizes), steps=len(sizes), ours=asked, before_step=look_on)

    stock, ours = trained(None), trained("pagemap")
    assert stock.losses == ours.losses
    assert all(map(torch.equal, stock.parameters, ours.parameters))
    assert len(found) == len(sizes) - recorded_at - 2
    assert found[0][0][1] > 0
    assert [really for _, really in found] == [told for told, _ in found]
