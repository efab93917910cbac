"""Selection by last loss: who is drawn, what stays in memory, and that plans of selected epochs can be carried out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import UsageError
from sentinel.samples import (
    DIRECT,
    ArenaPages,
    Importance,
    OfOthers,
    Order,
    Room,
    narrowed,
    select,
    simulate,
    stage_selected,
)
from tests.sample_layouts import Reader, even, layout_of, layouts, permutation

N = 4096


def losses_of(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=n).astype(np.float16)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"beta": -1}, r"Importance\(beta=-1\) has no meaning"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"warm_up": 1.5}, "warm_up=1.5"),
        ({"reuse_factor": True}, "reuse_factor=True"),
        ({"unbiased": True, "substitute": True}, "a substitute was not drawn"),
    ],
)
def test_options_without_a_meaning_are_refused(options, says) -> None:
    with pytest.raises(UsageError, match=says):
        Importance(**options)


def test_epochs_that_select() -> None:
    assert [epoch for epoch in range(10) if Importance().selects(epoch)] == [4, 5, 7, 8]
    assert [epoch for epoch in range(6) if Importance(warm_up=2, reuse_factor=0).selects(epoch)] == [2, 3, 4, 5]


def test_samples_are_drawn_by_the_rank_of_their_last_loss() -> None:
    layout, losses, order = even(64, 64), losses_of(N), permutation(N, 1)
    chosen = select(layout, Importance(beta=1, unbiased=True), 4, 9, order, losses)
    again = select(layout, Importance(beta=1, unbiased=True), 4, 9, order, losses)
    other = select(layout, Importance(beta=1, unbiased=True), 4, 10, order, losses)
    assert np.array_equal(chosen.samples, again.samples)
    assert not np.array_equal(chosen.samples[:100], other.samples[:100])
    assert np.array_equal(chosen.samples, order[np.isin(order, chosen.samples)])  # in torch's order
    assert len(chosen.samples) == pytest.approx(N / 2, rel=0.06)  # 1 / (1 + beta)
    quarter = np.argsort(losses)[: N // 4]
    assert np.isin(quarter, chosen.samples).mean() == pytest.approx(1 / 8, abs=0.05)
    assert chosen.weights.sum() == pytest.approx(N, rel=0.2)  # unbiased: stands for all samples
    rank = np.argsort(np.argsort(losses, kind="stable"))
    distinct = np.unique(losses, return_counts=True)
    lonely = np.isin(losses[chosen.samples], distinct[0][distinct[1] == 1])
    assert np.allclose(chosen.weights[lonely], N / (rank[chosen.samples[lonely]] + 1))


def test_all_are_delivered_in_other_epochs_and_where_no_loss_is_known() -> None:
    layout, order = even(4, 4), permutation(16, 0)
    for epoch, losses in ((0, losses_of(16)), (6, losses_of(16)), (4, np.full(16, np.nan, np.float16))):
        whole = select(layout, Importance(), epoch, 0, order, losses)
        assert np.array_equal(whole.samples, order)
        assert not whole.substituted.any()


def test_a_sample_whose_loss_is_not_known_is_the_most_important() -> None:
    losses = losses_of(N)
    losses[7] = np.nan
    for seed in range(20):
        assert 7 in select(even(64, 64), Importance(beta=50), 4, seed, permutation(N, seed), losses).samples


def test_substitutes_come_from_neighbouring_samples_and_are_counted() -> None:
    layout, losses, order = even(64, 64), losses_of(N), permutation(N, 1)
    drawn = select(layout, Importance(), 4, 9, order, losses)
    replaced = select(layout, Importance(substitute=True), 4, 9, order, losses)
    unlike = drawn.samples != replaced.samples
    assert np.array_equal(unlike, replaced.substituted)
    assert unlike.mean() == pytest.approx(0.3, abs=0.01)
    assert losses[drawn.samples[unlike]].max() <= losses[drawn.samples[~unlike]].min()
    assert np.median(np.abs(np.diff(replaced.samples[unlike]))) == 1


def carried_out(layout, room, epochs: int, losses_at, importance, world: int = 1, others_at=lambda _: None) -> list:
    """Stagings of so many epochs of rank 0, each carried out by a reader."""
    reader, before, found, following = Reader(ArenaPages(room.n_pages)), None, [], None
    orders = [permutation(layout.n_samples, seed) for seed in range(epochs + 1)]
    for epoch, (now, after) in enumerate(pairwise(orders)):
        losses = losses_at(epoch)
        chosen = select(layout, importance, epoch, epoch, now, losses).samples
        order = Order(world=world).of_rank(chosen)
        if before is not None and following is not None:
            before = narrowed(before, following, order)
        following = after if world == 1 and not importance.substitute else None
        before = stage_selected(layout, room, order, losses, following, before, others_at(epoch))
        assert np.array_equal(before.order, order)
        reader.carry_out(layout, before)
        found.append(before)
    assert reader.peak_pages <= room.n_pages
    return found


@given(layouts(), st.integers(1, 3), st.booleans(), st.integers(0, 6), st.integers(0, 4))
def test_any_plan_can_be_carried_out(layout, world, substitute, spare, lead) -> None:
    largest = int(np.add.reduceat(layout.sample_nbytes, layout.first_sample[:-1]).max())
    room = Room(largest + spare * int(layout.sample_nbytes.mean()), 1, lead)
    importance = Importance(beta=1, warm_up=1, reuse_factor=3, substitute=substitute)
    carried_out(layout, room, 6, lambda epoch: losses_of(layout.n_samples, epoch), importance, world)


@given(st.lists(st.integers(1, 9), min_size=8, max_size=60), st.integers(0, 3), st.integers(10, 200))
def test_any_plan_of_samples_read_alone_can_be_carried_out(sizes, lead, nbytes) -> None:
    layout = layout_of([1] * len(sizes), sizes)
    importance = Importance(beta=1, warm_up=1, reuse_factor=3)
    carried_out(layout, Room(nbytes, 1, lead), 6, lambda epoch: losses_of(len(sizes), epoch), importance)


@given(st.lists(st.integers(1, 9), min_size=8, max_size=60), st.integers(0, 3), st.integers(10, 200), st.randoms())
def test_what_other_jobs_hold_is_neither_read_nor_kept(sizes, lead, nbytes, chance) -> None:
    layout, n = layout_of([1] * len(sizes), sizes), len(sizes)

    def others(epoch: int) -> OfOthers:
        held = np.array([chance.random() < 0.4 for _ in range(n)])
        found.append(OfOthers(held, held & np.array([chance.random() < 0.7 for _ in range(n)])))
        return found[epoch]

    found: list[OfOthers] = []
    importance = Importance(beta=1, warm_up=1, reuse_factor=3)
    stagings = carried_out(layout, Room(nbytes, 1, lead), 6, lambda epoch: losses_of(n, epoch), importance, 1, others)
    had: set[int] = set()
    for staging, seen in zip(stagings, found, strict=True):
        read = staging.order[staging.read_due]
        assert not seen.there[read].any()
        given_by_others = staging.order[staging.stay_at == DIRECT]
        assert set(given_by_others) == {each for each in staging.order if seen.there[each] and each not in had}
        kept = staging.stay_sample[staging.kept]
        assert not seen.held[list(set(kept.tolist()) - had)].any()
        had = set(kept.tolist())


def test_the_most_important_samples_stay_over_the_end_of_an_epoch() -> None:
    layout, losses = even(1000, 1), losses_of(1000)
    room = Room(201 * 10, 10)
    stagings = carried_out(layout, room, 9, lambda epoch: losses, Importance(beta=1, warm_up=1, reuse_factor=0))
    stays = stagings[-1].stay_sample[stagings[-1].kept]
    assert set(stays.tolist()) == set(np.argsort(losses, kind="stable")[-200:].tolist())
    feed = simulate(layout, stagings[-1])
    assert feed.hits / feed.samples == pytest.approx(1 - 0.8**2, abs=0.05)  # the closed form of caching the top 20 %


def test_memory_is_full_at_the_end_of_an_epoch_whose_losses_changed() -> None:
    """What leaves for another sample does so only if one comes: else an epoch hits less than with a memory that never
    changes."""
    layout = even(1000, 1)
    room, importance = Room(201 * 10, 10), Importance(beta=0)  # one page is for samples on their way
    stagings = carried_out(layout, room, 6, lambda epoch: losses_of(1000, epoch), importance)
    assert [simulate(layout, staging).hits for staging in stagings[1:]] == [200] * 5


def test_selected_epochs_keep_samples_for_the_next_one() -> None:
    layout = even(64, 16)
    importance = Importance(beta=1 / 3, warm_up=1, reuse_factor=0)
    stagings = carried_out(layout, Room(layout.nbytes // 5, 1), 5, lambda epoch: losses_of(1024, epoch), importance)
    reads = [simulate(layout, staging).source_reads for staging in stagings]
    assert max(reads[1:]) < 0.8 * reads[0]
