"""What moving takes from a job that computes on all processors: of each byte, while movers carry it, and of each
migration, which the training thread submits and looks after.

Both are time that a fixed piece of work takes longer. Processor time of movers would say less: it takes more from a
job whose threads wait for each other, and nothing from one that leaves a processor idle.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sentinel.calibrate.regions import Region
from sentinel.calibrate.results import MovingFigures, figure_of
from sentinel.core.errors import CapabilityError
from sentinel.core.machine import Link, Machine, TierKind, TierSpec
from sentinel.core.plan import Block, Migration, Plan, Segment, Slot
from sentinel.core.step_follower import Position
from sentinel.core.trace import LayerId
from sentinel.core.units import PAGE_BYTES, format_bytes
from sentinel.migration.engine import Engine
from sentinel.migration.job_memory import JobMemory
from sentinel.migration.mover import NativeMover
from sentinel.migration.mover_order import order_of
from sentinel.system import processor
from sentinel.tiers.tier import EMULATED, FAST, NODE, Job

Work = Callable[[], object]
"""A piece of work on all processors, always the same."""

PIECE_BYTES = 1 << 20
"""Of each transfer whose bytes are priced: that of a tensor of some size."""
LEAST_NS = 200_000_000
"""A round carries bytes there and back for so long, at least once: what differs by chance evens out."""
MOVES, TOGETHER, LAYERS = 64, 4, 24
"""Of the plan whose migrations are priced: blocks of a page that come and go, so many of them each way in a layer, as
in plans for networks; and layers of one piece of work. Alone in a layer a migration takes several times as long."""
_SLOW = 1
_UNLIMITED = 1 << 62


def work_on_all_processors() -> Work:
    """What layers of networks do: a product of matrices, and a pass over memory. By torch, in its threads, if it is
    installed and the processor is no software, else by numpy, the product only; less of it where it takes long."""
    made = _torch_work if importlib.util.find_spec("torch") and not processor.is_emulated() else _numpy_work
    work = made(384, 1 << 21)
    return work if min(_took_ns(work) for _ in range(3)) < _LONG_NS else made(32, 1 << 12)


_LONG_NS = 20_000_000
"""A piece of work that takes this long does not count moves of a few ms."""


def _torch_work(side: int, numbers: int) -> Work:
    import torch

    left, right, passed = torch.rand(side, side), torch.rand(side, side), torch.rand(numbers)
    return lambda: (left.mm(right), passed.mul_(0.999))


def _numpy_work(side: int, _numbers: int) -> Work:
    """The product only: numpy passes over memory in one thread, and a copy beside it would seem to take nothing."""
    random = np.random.default_rng(0)
    left, right = random.random((side, side)), random.random((side, side))
    return lambda: left @ right


def moving_figures(
    region: Region, rounds: int, work: Work, fast: int = -1, node: int | None = None
) -> tuple[MovingFigures, MovingFigures]:
    """Promotions and demotions of what is in `region`, there and back between the nodes `fast` and `node`, or where
    `node` is None by copies as on an emulated tier. Raises CapabilityError if bytes do not move."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with closing(NativeMover(_UNLIMITED)) as mover:
        mover.force(region.nbytes)
        for number in range(rounds + 1):
            carried, began = {False: _Carried(), True: _Carried()}, time.perf_counter_ns()
            while not carried[True].nbytes or time.perf_counter_ns() - began < LEAST_NS:
                for to_fast, so_far in carried.items():
                    to = fast if to_fast and node is not None else node
                    carried[to_fast] = so_far.and_more(_beside(mover, region, work, to_fast=to_fast, to=to))
            if number:  # in the first round memory is touched for the first time
                for to_fast, all_of_it in carried.items():
                    found[to_fast].append((all_of_it.bytes_per_s, all_of_it.lost_ns_per_kib))
    each = figure_of(lost_to_moves(region, rounds, work, fast, node))
    return tuple(  # type: ignore[return-value]
        MovingFigures(
            node, way, figure_of([rate for rate, _ in found[way]]), figure_of([x for _, x in found[way]]), each
        )
        for way in (True, False)
    )


def with_moving(machine: Machine, figures: Sequence[MovingFigures]) -> Machine:
    """`machine`, its links with what was found: those of nodes what moves take from compute, those of emulated tiers
    also a rate that this host reaches."""
    links = []
    for link in machine.links:
        slow = machine.tiers[max(link.source, link.target)]
        node = slow.node if slow.kind == "node" else None
        mine = [x for x in figures if x.node == node and x.to_fast == (link.target == FAST)]
        links.append(_with(link, mine[0], slow) if mine and slow.kind in ("node", "emulated") else link)
    return replace(machine, links=tuple(links))


def _with(link: Link, found: MovingFigures, slow: TierSpec) -> Link:
    copied = max(int(found.rate.median), 1) if slow.kind == "emulated" else link.bandwidth_bytes_per_s
    return replace(
        link,
        bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s, copied),
        measured=link.measured or (slow.kind == "emulated" and copied <= link.bandwidth_bytes_per_s),
        lost_ns_per_kib=round(found.lost_ns_per_kib.median, 1),
        lost_ns_per_move=round(found.lost_ns_per_move.median, 1),
        lost_measured=True,
    )


def as_copied_here(machine: Machine, *, nbytes: int = 128 << 20, rounds: int = 5) -> Machine:
    """`machine`, its emulated tiers as this host carries them out beside a job on all its processors: measured now."""
    with Region(nbytes, None, huge=False) as region:
        return with_moving(machine, moving_figures(region, rounds, work_on_all_processors()))


class _Carried(NamedTuple):
    """Bytes that moved, how long the mover took, and how much longer that made as many pieces of work as were done
    meanwhile: ns."""

    nbytes: int = 0
    took_ns: int = 0
    lost_ns: int = 0

    def and_more(self, other: _Carried) -> _Carried:
        return _Carried(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def bytes_per_s(self) -> float:
        return self.nbytes * 1e9 / max(self.took_ns, 1)

    @property
    def lost_ns_per_kib(self) -> float:
        return max(self.lost_ns, 0) * 1024 / self.nbytes


def _took_ns(work: Work, times: int = 1) -> int:
    began = time.perf_counter_ns()
    for _ in range(times):
        work()
    return time.perf_counter_ns() - began


def _beside(mover: NativeMover, region: Region, work: Work, *, to_fast: bool, to: int | None) -> _Carried:
    """Move all of `region` while the work is done again and again, then do as much work alone."""
    source, target = (_SLOW, FAST) if to_fast else (FAST, _SLOW)
    kind, node = (EMULATED, -1) if to is None else (NODE, to)
    orders = []
    for at in range(0, region.nbytes, PIECE_BYTES):
        nbytes = min(PIECE_BYTES, region.nbytes - at)
        held = tuple(nbytes if tier == source else 0 for tier in (FAST, _SLOW))
        spans = ((region.address + at, nbytes),)
        orders.append(order_of(Job(source, target, nbytes, held, kind=kind, node=node, spans=spans)))
    copied, done, all_ended = mover.copied().copied_bytes, 0, mover.ended() + len(orders)
    began = time.perf_counter_ns()
    mover.submit_all(orders)
    while mover.ended() < all_ended:
        work()
        done += 1
    spent = time.perf_counter_ns() - began
    alone = _took_ns(work, done)
    moved = mover.results()
    arrived = mover.copied().copied_bytes - copied if to is None else sum(each.moved_bytes for each in moved)
    if arrived < 0.9 * region.nbytes:
        raise CapabilityError(
            f"moving {format_bytes(region.nbytes)} beside compute",
            f"{format_bytes(arrived)} arrived",
            "free memory, or take a smaller --size",
        )
    took = max(each.stop_ns for each in moved) - min(each.start_ns for each in moved)
    return _Carried(arrived, took, spent - alone)


def lost_to_moves(region: Region, rounds: int, work: Work, fast: int = -1, node: int | None = None) -> list[float]:
    """ns of compute lost a migration, one of each round: steps of a plan whose migrations carry a page each, less steps
    of the same plan without them, by turns. Of `region` pages move to node `node` and back, or are copied where it is
    None; in the end all of them are on node `fast`."""
    with ExitStack() as stack:
        steps = []
        for moving in (False, True):
            plan, machine = _plan(fast, node, moving=moving)

            def ranges(block: int) -> list[tuple[int, int]]:
                return [(region.address + block * PAGE_BYTES, PAGE_BYTES)]

            # a migration that fails here costs a figure, no training run: nobody is warned
            engine = Engine(plan, machine, JobMemory(ranges=ranges, warn=lambda _warning: None))
            stack.callback(engine.restore)
            engine.start()
            steps.append(engine)
        found = []
        for _ in range(rounds + 1):
            still, moved = (_step_ns(engine, work) for engine in steps)
            found.append(max(moved - still, 0) / (2 * MOVES))
    return found[1:]  # in the first round all is called for the first time


def _step_ns(engine: Engine, work: Work) -> float:
    """The median of a few steps."""
    times = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for layer in (*range(1, LAYERS), 0):
            work()
            engine.begin_layer(Position(layer, None if layer else "whole"))
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times)


def _plan(fast: int, node: int | None, *, moving: bool) -> tuple[Plan, Machine]:
    """Blocks of a page, each promoted in one layer and demoted three layers later, if anything moves. In most layers
    TOGETHER are promoted and as many demoted."""
    blocks = [Block(i * PAGE_BYTES, PAGE_BYTES, 0, LAYERS, _SLOW, (i,), f"{i}", True) for i in range(MOVES)]
    ways = [(_SLOW, FAST, 1), (FAST, _SLOW, 4)]
    moves = [
        Migration(
            *(i, source, target, PAGE_BYTES, i // TOGETHER + after, i // TOGETHER + after + 2),
            "prefetch" if target == FAST else "evict",
        )
        for source, target, after in ways
        for i in range(MOVES if moving else 0)
    ]
    room, rate = 2 * MOVES * PAGE_BYTES, 10**10
    plan = Plan(
        policy="calibrate",
        layers=tuple(LayerId("layer", number) for number in range(LAYERS)),
        tier_names=("fast", "slow"),
        capacity_bytes=(room, room),
        segments=(Segment(0, MOVES * PAGE_BYTES, _SLOW),),
        slots=tuple(Slot(i, f"{i}", None, i * PAGE_BYTES, PAGE_BYTES) for i in range(MOVES)),
        blocks=tuple(blocks),
        migrations=tuple(moves),
        footprint_bytes=MOVES * PAGE_BYTES,
        fast_needed_bytes=0,
    )
    kind: TierKind = "emulated" if node is None else "node"
    here = None if node is None else fast
    tiers = TierSpec("fast", "node", room, 0, rate, rate, here), TierSpec("slow", kind, room, 0, rate, rate, node)
    return plan, Machine("calibrate", tiers, (Link(_SLOW, FAST, rate), Link(FAST, _SLOW, rate)))
