"""Where a tensor is cut: known densities, and nothing to find."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.core.page_ranges import LEAST_PAGES, MOST_RANGES, cut_pages


def touches(densities, *, layers=1, seed=0):
    """(page, layer) of runs of (pages, density), each page touched at random; the same in each layer."""
    chance = np.repeat([share for _, share in densities], [pages for pages, _ in densities])
    page = np.flatnonzero(np.random.default_rng(seed).random(len(chance)) < chance)
    return np.tile(page, layers), np.repeat(np.arange(layers), len(page)), len(chance)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_even_touches_are_not_cut(share, layers):
    """Of 100 tensors that chance touched evenly at most one is cut, however many layers see the same touches."""
    found = [cut_pages(*touches([(1250, share)], layers=layers, seed=seed)) for seed in range(100)]
    assert sum(len(cuts) > 2 for cuts in found) <= 1


def in_sixteens(runs, seed):
    """Touches of a tracker that sees 16 pages at a time: whole runs of 16, each touched at random."""
    page, _, pages = touches([(count // 16, share) for count, share in runs], seed=seed)
    page = (page[:, None] * 16 + np.arange(16)).ravel()
    return page, page * 0, pages * 16


def test_pages_that_are_seen_together_are_one_observation():
    even = [in_sixteens([(20_000, 0.3)], seed) for seed in range(40)]
    assert sum(len(cut_pages(*seen, together=16)) > 2 for seen in even) <= 1
    assert sum(len(cut_pages(*seen)) > 2 for seen in even) > 30, "taken for single pages, chance looks like structure"
    cuts = cut_pages(*in_sixteens([(3200, 1.0), (16_000, 0.1)], 0), together=16)
    assert len(cuts) == 3
    assert cuts[1] == 3200


def test_cuts_are_where_the_density_changes():
    page, layer, pages = touches([(320, 1.0), (640, 0.4), (3000, 0.02)], layers=2)
    cuts = cut_pages(page, layer, pages)
    assert len(cuts) == 4
    assert (np.abs(cuts - [0, 320, 960, 3960]) <= 2 * LEAST_PAGES).all()
    assert cuts[1] == 320, "all of a page touched is told from some of it to the bin"


def test_layers_that_touch_other_parts_are_told_apart():
    """Both halves are as hot: which layer uses which is what a plan must know."""
    page = np.arange(2048)
    cuts = cut_pages(page, page // 1024 * 5, 2048)
    assert cuts.tolist() == [0, 1024, 2048]


def test_a_hot_run_in_the_middle_is_found():
    page, layer, pages = touches([(1000, 0.01), (160, 0.95), (4000, 0.01)])
    cuts = cut_pages(page, layer, pages).tolist()
    assert cuts[0] == 0
    assert cuts[-1] == pages
    assert len(cuts) == 4
    assert abs(cuts[1] - 1000) <= LEAST_PAGES
    assert abs(cuts[2] - 1160) <= LEAST_PAGES


def test_ranges_are_few_and_no_smaller_than_the_least():
    page, layer, pages = touches([(64, i % 2) for i in range(100)])
    cuts = cut_pages(page, layer, pages)
    assert len(cuts) == MOST_RANGES + 1
    assert (np.diff(cuts) >= LEAST_PAGES).all()


def test_a_tensor_of_a_terabyte_is_cut_in_coarser_bins():
    pages = 1 << 28
    hot = np.arange(0, 1 << 20, 3)
    cuts = cut_pages(hot, np.zeros(len(hot), int), pages)
    assert len(cuts) == 3
    assert cuts[1] == 1 << 20


def test_small_tensors_and_their_last_pages():
    assert cut_pages(np.array([0]), np.array([0]), 5).tolist() == [0, 5]
    page = np.arange(64)
    assert cut_pages(page, page * 0, 64 + LEAST_PAGES + 3).tolist() == [0, 64, 64 + LEAST_PAGES + 3]


def bits(touched, pages):
    """n·H(k/n)."""
    share = np.clip(touched / pages, 1e-300, 1 - 1e-16)
    return -(touched * np.log2(share) + (pages - touched) * np.log2(1 - share))


def shortest(page, n_pages):
    """Bits of the shortest description of one layer, by dynamic programming over all cuts."""
    bins = n_pages // LEAST_PAGES
    ends = np.append(np.arange(bins) * LEAST_PAGES, n_pages)
    upto = np.searchsorted(page, ends)
    price = np.log2(bins) + 0.5 * np.log2(n_pages)
    best = np.full(bins + 1, np.inf)
    best[0] = -price
    for stop in range(1, bins + 1):
        best[stop] = (best[:stop] + price + bits(upto[stop] - upto[:stop], ends[stop] - ends[:stop])).min()
    return best[bins]


@pytest.mark.parametrize("seed", range(12))
def test_the_description_is_within_one_per_cent_of_the_shortest(seed):
    random = np.random.default_rng(seed)
    runs = list(zip((random.integers(3, 40, 8) * LEAST_PAGES).tolist(), (random.random(8) ** 2).tolist(), strict=True))
    page, layer, pages = touches(runs, seed=seed)
    cuts = cut_pages(page, layer, pages)
    bins = pages // LEAST_PAGES
    price = np.log2(bins) + 0.5 * np.log2(pages)
    found = bits(np.diff(np.searchsorted(page, cuts)), np.diff(cuts)).sum() + price * (len(cuts) - 2)
    least = shortest(page, pages)
    assert least <= found * (1 + 1e-9)
    assert found <= 1.01 * least
