"""`tiertrain`: our reading of TierTrain (Swaminathan et al., ISMM 2025), which moves saved tensors and nothing else.

What forward saves for backward leaves for slow memory as soon as the layer after its last use in forward begins, one
tensor after the other, and comes back so many layers ahead of its use in backward: the depth of a queue, which grows
while that shortens the step. Tensors leave whether fast memory is short or not: what it is to lower is the fast memory
held. Parameters, optimizer state, gradients and small tensors stay where they are born. Under a hard limit what finds
no room as it is born is born in slow memory.

Read from the abstract and from the published code (github.com/sathvikintel/TierTrain), which looks one layer ahead,
leaves out what has at most 0.0001 GiB, and moves by a process of its own. Here exact windows, the laws and the
movers are those of every other policy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.machine import Machine
from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.run import Run
from sentinel.core.trace import ROLES
from sentinel.planner.assemble import assemble
from sentinel.planner.decision import choose, decide
from sentinel.planner.episodes import Choice, Episodes, episodes_of, gaps
from sentinel.planner.fixed_placement import footprint_bytes
from sentinel.planner.pool import Reserve, reserve
from sentinel.planner.workload import Workload, make_workload
from sentinel.simulator import simulate_lawful

SMALLEST_BYTES = 107_375
"""A saved tensor of less stays: 0.0001 GiB, as in their code."""

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Depths of the queue of what comes back, in layers."""

_ENOUGH = 1e-3
"""The queue stops growing where a deeper one shortens the step by less than this share."""


class TierTrain:
    """Saved tensors are away between forward and backward; everything else stays."""

    name = "tiertrain"

    def plan(self, profile: Profile, machine: Machine) -> Plan:
        """The plan with the least depth that a deeper queue does not beat. It moves even where everything fits."""
        work = make_workload(profile, machine, footprint_bytes(profile))
        short = reserve(work, work.budget_bytes)
        away = saved_gaps(work)
        best = self._drawn(work, short, away, DEPTHS[0])
        for depth in DEPTHS[1:]:
            deeper = self._drawn(work, short, away, depth)
            if (deeper[1].step_ns or 0) >= (best[1].step_ns or 0) * (1 - _ENOUGH):
                break
            best = deeper
        plan, run = best
        return plan.told(predicted_step_ns=run.step_ns)

    def _drawn(self, work: Workload, short: Reserve, away: NDArray[np.bool_], depth: int) -> tuple[Plan, Run]:
        episodes = make_episodes(work, away, depth)
        order = np.lexsort((episodes.unit, episodes.begin % work.n_layers, ~work.units.persistent[episodes.unit]))
        granted = choose(work, episodes, work.budget_bytes - short.held_bytes, order)
        drawn = assemble(
            decide(work, episodes, granted, short),
            work.units,
            work.profile,
            work.machine,
            policy=self.name,
            footprint_bytes=work.footprint_bytes,
        )
        told = {**drawn.details, "depth": depth, "saved_tensors": int(away.sum())}
        return drawn.told(details=told), simulate_lawful(drawn, work.profile, work.machine)


def saved_gaps(work: Workload) -> NDArray[np.bool_]:
    """Per use, whether behind it comes the time in which a saved tensor waits for backward: of each transient tensor
    that forward makes the longest time between two uses. No tensor of one use, and none that is small, has one."""
    units = work.units
    _, by, has_gap = gaps(work)
    starts = _starts_ns(work)
    made_by_forward = np.isin(_role(work), [ROLES.index("activation"), ROLES.index("input")])
    saved = made_by_forward & ~units.persistent & (units.nbytes >= SMALLEST_BYTES)
    wait_ns = np.where(has_gap, starts[by] - starts[work.use_layer + 1], -1.0)
    rows = np.flatnonzero(has_gap & saved[work.use_unit] & (by - work.use_layer >= 3))
    order = rows[np.lexsort((rows, wait_ns[rows], work.use_unit[rows]))]
    longest = order[np.append(np.diff(work.use_unit[order]) != 0, True)] if len(order) else order
    out = np.zeros(len(by), bool)
    out[longest] = True
    return out


def make_episodes(work: Workload, away: NDArray[np.bool_], depth: int) -> Episodes:
    """The stays in fast memory if it serves all uses, and what waits for backward is `away`, back `depth` layers ahead.

    Who leaves first is written first, and is done when the link has had the time; a tensor that could not be gone and
    back in its time stays.
    """
    _, by, has_gap = gaps(work)
    after = work.use_layer + 1
    left = _left(work, away)
    arrive = np.maximum(by - depth, left)
    gone = away & has_gap & (arrive < by)
    everywhere = np.ones(len(by), bool)
    return episodes_of(work, Choice(everywhere, gone, after, left, arrive, np.maximum(by, arrive + 1)))


def _left(work: Workload, away: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Per use, the unrolled layer before which the demotion behind it is done, of those that are `away`, in turn."""
    after = work.use_layer + 1
    starts = _starts_ns(work)
    out = after + 1
    rows = np.flatnonzero(away)
    ns_a_byte = 1e9 / work.machine.link(0, 1).bandwidth_bytes_per_s
    clock = 0.0
    for row in rows[np.argsort(after[rows], kind="stable")].tolist():
        clock = max(clock, float(starts[after[row]])) + float(work.units.nbytes[work.use_unit[row]]) * ns_a_byte
        out[row] = max(int(np.searchsorted(starts, clock)), int(after[row]) + 1)
    return out


def _starts_ns(work: Workload) -> NDArray[np.float64]:
    """(3 L + 1,) when each unrolled layer begins, with everything in fast memory."""
    both = work.machine.flops_per_s is not None
    layer_ns = np.maximum(work.compute_ns, work.traffic_ns) if both else work.compute_ns + work.traffic_ns
    return np.append(0.0, np.cumsum(np.tile(layer_ns, 3)))


def _role(work: Workload) -> NDArray[np.int64]:
    """(units,) role of the first tensor of each."""
    units = work.units
    return work.profile.tensors["role"][units.tensors[units.first[:-1]]].astype(np.int64)
