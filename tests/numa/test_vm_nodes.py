"""What Sentinel relies on of a kernel with two nodes, asked from the kernel itself: run in tools/numa_vm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.numa import vm_calls
from tests.numa.vm_calls import NODES, PAGE, Pages, mbind, move_pages
from tests.processes import until

pytestmark = [pytest.mark.needs("two nodes"), pytest.mark.usefixtures("no_balancing")]
N_PAGES = 211


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages(N_PAGES)
    yield made
    made.close()


def test_pages_are_born_on_the_node_of_the_cpu(pages: Pages) -> None:
    assert pages.nodes() == {0: N_PAGES}


def test_move_pages_moves_there_and_back_with_every_byte(pages: Pages) -> None:
    for node in (1, 0):
        before = vm_calls.counter("pgmigrate_success")
        assert set(move_pages(pages.addresses(), node)) == {node}
        assert pages.nodes() == {node: N_PAGES}
        assert vm_calls.counter("pgmigrate_success") - before == N_PAGES
        assert pages.touch()


def test_a_page_that_was_never_touched_is_nowhere(pages: Pages) -> None:
    beyond = pages.address + N_PAGES * PAGE
    (status,) = move_pages([beyond], None)
    assert status < 0


def test_mbind_moves_and_binds(pages: Pages) -> None:
    mbind(pages.address, N_PAGES * PAGE, vm_calls.MPOL_BIND, [1], move=True)
    assert pages.nodes() == {1: N_PAGES}
    assert pages.touch()


def test_a_huge_page_moves_as_one_by_its_first_address() -> None:
    huge = Pages(2 * 512, huge=True)
    try:
        firsts = huge.addresses()[::512]
        assert set(move_pages(firsts, 1)) == {1}
        assert huge.nodes() == {1: 1024}
        assert huge.touch()
    finally:
        huge.close()


def test_the_firmware_says_that_node_1_is_slower() -> None:
    def read(node: int, word: str) -> int:
        return int((NODES / f"node{node}" / "access0" / "initiators" / word).read_text())

    assert (read(0, "read_latency"), read(1, "read_latency")) == (90, 250)
    assert read(0, "read_bandwidth") > read(1, "read_bandwidth")
    assert (NODES / "node0" / "cpulist").read_text().strip() == "0"
    assert (NODES / "node1" / "cpulist").read_text().strip() == ""


def test_the_kernels_balancing_undoes_a_demotion_unless_there_is_a_policy() -> None:
    """The reason why each arena has one memory policy."""
    if not vm_calls.has_debugfs():
        pytest.skip("needs debugfs: run as root")
    free, held = Pages(N_PAGES), Pages(N_PAGES)
    mbind(held.address, N_PAGES * PAGE, vm_calls.MPOL_PREFERRED_MANY, [0, 1])
    with vm_calls.eager_balancing():
        for pages in (free, held):
            move_pages(pages.addresses(), 1)
            assert pages.nodes() == {1: N_PAGES}

        def undone() -> bool:
            assert held.touch()
            return free.touched_nodes()[0] >= N_PAGES * 0.9

        until(undone, 0)
        assert held.nodes() == {1: N_PAGES}
    free.close()
    held.close()


def test_pages_that_balancing_has_an_eye_on_are_found_if_they_have_a_policy() -> None:
    """Linux 6.1 neither moves nor finds a huge page that waits for its next access, and 6.12 does both."""
    if not vm_calls.has_debugfs():
        pytest.skip("needs debugfs: run as root")
    free, held = Pages(2 * 512, huge=True), Pages(2 * 512, huge=True)
    mbind(held.address, 2 * 512 * PAGE, vm_calls.MPOL_PREFERRED_MANY, [0, 1])
    hinted = vm_calls.counter("numa_huge_pte_updates")
    with vm_calls.eager_balancing():

        def hinted_at() -> bool:
            assert held.nodes() == {0: 1024}
            return vm_calls.counter("numa_huge_pte_updates") >= hinted + 4

        until(hinted_at, 0)
        assert set(move_pages(held.addresses()[::512], 1)) == {1}
        assert held.nodes() == {1: 1024}
    free.close()
    held.close()
