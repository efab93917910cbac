"""The witness of migrations, against moves that are known; run in tools/numa_vm."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.core.errors import UsageError
from sentinel.migration.witness import MigrationWitness
from tests.numa import vm_calls
from tests.numa.vm_calls import PAGE, Pages, mbind, move_pages
from tests.processes import until
from tests.seen_pages import pages as seen_pages
from tests.seen_pages import pages_by_reason

pytestmark = [pytest.mark.needs("two nodes"), pytest.mark.needs("root"), pytest.mark.usefixtures("no_balancing")]
N_PAGES = 211


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages(N_PAGES)
    yield made
    made.close()


@pytest.fixture
def witness() -> Iterator[MigrationWitness]:
    made = MigrationWitness()
    yield made
    made.stop()


def _span(pages: Pages) -> tuple[int, int]:
    return pages.address, pages.n_pages * PAGE


def test_where_nothing_moves_nothing_is_seen(witness: MigrationWitness, pages: Pages) -> None:
    witness.start([_span(pages)])
    assert pages.touch()
    seen = witness.read()
    assert (len(seen.moves), seen.lost, seen.unmatched) == (0, 0, 0)


def test_each_page_is_seen_with_its_nodes_and_reason(witness: MigrationWitness, pages: Pages) -> None:
    witness.start([_span(pages)])
    move_pages(pages.addresses()[:197], 1)
    move_pages(pages.addresses()[:101], 0)
    seen = witness.read()
    assert pages_by_reason(seen) == {"syscall": 298}
    assert (seen_pages(seen, to_node=1), seen_pages(seen, to_node=0)) == (197, 101)
    assert seen_pages(seen, own=True) == 298
    away = seen.moves[seen.moves["to_node"] == 1]
    assert sorted(away["address"].tolist()) == pages.addresses()[:197]
    assert set(away["from_node"].tolist()) == {0}
    assert pages_by_reason(seen) == {"syscall": 298}
    assert (seen.lost, seen.unmatched) == (0, 0)
    assert len(witness.read().moves) == 0


def test_it_agrees_with_the_kernels_own_count(witness: MigrationWitness, pages: Pages) -> None:
    witness.start([_span(pages)])
    before = vm_calls.counter("pgmigrate_success")
    wide_before = witness.read().machine_wide.get("syscall", (0, 0))[0]
    move_pages(pages.addresses(), 1)
    seen = witness.read()
    assert seen.machine_wide["syscall"][0] - wide_before == N_PAGES
    assert vm_calls.counter("pgmigrate_success") - before == N_PAGES == seen_pages(seen)


def test_pages_outside_of_its_ranges_are_not_its_business(witness: MigrationWitness, pages: Pages) -> None:
    other = Pages(17)
    witness.start([(pages.address, 89 * PAGE)])
    move_pages(pages.addresses(), 1)
    move_pages(other.addresses(), 1)
    assert seen_pages(witness.read()) == 89
    other.close()


def test_mbind_is_another_reason(witness: MigrationWitness, pages: Pages) -> None:
    witness.start([_span(pages)])
    mbind(*_span(pages), vm_calls.MPOL_BIND, [1], move=True)
    assert pages_by_reason(witness.read()) == {"mempolicy_mbind": N_PAGES}


def test_a_huge_page_counts_its_pages(witness: MigrationWitness) -> None:
    huge = Pages(3 * 512, huge=True)
    witness.start([_span(huge)])
    move_pages(huge.addresses()[::512], 1)
    assert huge.nodes() == {1: 1536}
    seen = witness.read()
    assert sorted(seen.moves["n_pages"].tolist()) == [512] * 3
    assert (seen_pages(seen, to_node=1), seen.unmatched) == (1536, 0)
    huge.close()


def test_another_process_that_moves_our_pages_is_not_us(witness: MigrationWitness, pages: Pages) -> None:
    witness.start([_span(pages)])
    parent = os.getpid()
    child = os.fork()
    if not child:
        status = 1
        try:  # the child has our pages too: MOVE_ALL moves what several processes share
            status = int(vm_calls.migrate_process(parent, 0, 1) < 0)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen = witness.read()
    assert seen_pages(seen, own=False) == pages.nodes()[1] > 0
    assert seen_pages(seen, own=True) == 0


def test_numa_balancing_is_told_from_us(witness: MigrationWitness, pages: Pages) -> None:
    if not vm_calls.has_debugfs():
        pytest.skip("needs debugfs: run as root")
    move_pages(pages.addresses(), 1)
    witness.start([_span(pages)])
    with vm_calls.eager_balancing():
        until(lambda: pages.touched_nodes()[0] >= N_PAGES // 2, 0)
    seen = witness.read()
    back = pages.nodes()[0]
    assert back >= N_PAGES // 2
    assert pages_by_reason(seen) == {"numa_misplaced": back}
    assert seen_pages(seen, to_node=0) == back


def test_demotion_is_told_from_us_though_our_thread_asked(witness: MigrationWitness) -> None:
    """Reclaim without swap space has one way to empty node 0: the kernel demotes what it takes for cold."""
    reclaim = Path("/sys/fs/cgroup/memory.reclaim")
    if not reclaim.exists():
        pytest.skip("needs memory.reclaim: mount cgroup2 at /sys/fs/cgroup")
    if len(list(Path("/sys/devices/virtual/memory_tiering").glob("memory_tier*"))) < 2:
        pytest.skip("needs memory tiers: this kernel (6.1 does) has one for all, and demotes nothing")
    crowd = Pages(8_191)
    earlier = _demoted()
    witness.start([_span(crowd)])
    with vm_calls.setting("/sys/kernel/mm/numa/demotion_enabled", "true"):  # the kernel also demotes of its own accord
        before = _demoted()
        with contextlib.suppress(BlockingIOError):  # less could be reclaimed than asked for
            reclaim.write_text("400M")
        after = _demoted()
    seen = witness.read()  # nothing is demoted any more, until it is known where pages are
    later = _demoted()
    assert seen_pages(seen, reason="demotion", to_node=1) == crowd.nodes()[1] > 0
    assert pages_by_reason(seen).keys() == {"demotion"}
    assert after - before <= seen.machine_wide["demotion"][0] <= later - earlier
    assert (seen.lost, seen.unmatched) == (0, 0)
    assert crowd.touch()
    crowd.close()


def _demoted() -> int:
    return vm_calls.counter("pgdemote_kswapd") + vm_calls.counter("pgdemote_direct")


def test_a_full_log_says_what_it_lost(pages: Pages) -> None:
    witness = MigrationWitness(log_entries=64)
    witness.start([_span(pages)])
    move_pages(pages.addresses(), 1)
    seen = witness.read()
    assert seen.lost > 0
    assert len(seen.moves) <= 32
    witness.stop()


def test_it_cannot_be_read_before_it_starts_nor_started_twice(witness: MigrationWitness, pages: Pages) -> None:
    with pytest.raises(UsageError):
        witness.read()
    witness.start([_span(pages)])
    with pytest.raises(UsageError):
        witness.start([_span(pages)])
    witness.stop()
    witness.start([_span(pages)])
