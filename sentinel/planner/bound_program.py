"""The linear program of the bound: its columns and rows. `lower_bound` says what they mean.

With several slower tiers, slow memory is taken to cost what its last tier costs, and every tier before it saves some of
that, layer by layer. What is used in a layer and alive all through it is somewhere, so a tier saves at most what the
best use of its bytes saves: a fractional knapsack. What is born or dies in the layer counts as if it were alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentinel.core.cost import lost_ns_per_byte, slow_extra_ns
from sentinel.core.machine import Machine
from sentinel.core.profile import Profile
from sentinel.core.ragged import positions
from sentinel.core.units import PAGE_BYTES
from sentinel.planner.relaxation import INSTANTS, alike, alive_at, instants
from sentinel.planner.workload import hash64

_DENSITY_STEP = 0.005
"""Tensors whose extra times a byte differ by less in each layer may be one group, which gets the smaller ones: a bound
may understate, never overstate."""

_NEGLIGIBLE = 2e-5
"""Tensors below this share of the budget cost the relaxation neither room nor time."""

MOST_GROUP_LAYERS = 1_000_000
"""Groups times the layers of their lives that a bound counts: its program has two columns for each of these, which take
a few hundred bytes: a few hundred MB at most."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Columns, one row a group; `use_*`: one row a (group, layer): extra ns if all of it is served by slow memory.

    `of`: group of each tensor, -1 for those left out.
    """

    nbytes: NDArray[np.float64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    persistent: NDArray[np.bool_]
    use_group: NDArray[np.int64]
    use_layer: NDArray[np.int64]
    use_ns: NDArray[np.float64]
    of: NDArray[np.int64]


def make_groups(profile: Profile, extra_ns: NDArray[np.float64], budget: int) -> Groups:
    """Managed tensors that matter, grouped by life, exact layers of use and extra time a byte in each.

    Short-lived tensors are grouped by the instants at which they are alive as well. Of more than `MOST_GROUP_LAYERS`
    the groups of the fewest bytes are left out: they cost neither room nor time then, and a bound stays one.
    """
    t, a = profile.tensors, profile.accesses
    n = len(t)
    nbytes = t["nbytes"].astype(np.float64)
    kept = t["managed"] & (nbytes >= max(budget, PAGE_BYTES) * _NEGLIGIBLE)
    density = extra_ns / nbytes[a["extent"]]
    grade = np.where(density > 0, np.rint(np.log(np.maximum(density, 1e-300)) / _DENSITY_STEP), 1 << 40).astype(
        np.int64
    )
    uses = np.zeros(n, np.uint64)
    np.add.at(uses, a["extent"], hash64(a["layer"].astype(np.uint64) * np.uint64(1 << 44) + grade.astype(np.uint64)))
    rows = np.flatnonzero(kept)
    life = (t["start"], t["stop"], t["persistent"], _alive_bits(profile), uses.view(np.int64))
    first, place = alike(*(key[rows] for key in life))
    head = rows[first]
    total = np.bincount(place, nbytes[rows], len(head)).astype(np.float64)
    largest = np.argsort(-total, kind="stable")
    width = (t["stop"] - t["start"])[head].astype(np.int64)
    counted = np.sort(largest[np.cumsum(width[largest]) <= MOST_GROUP_LAYERS])
    number = np.full(len(head), -1, np.int64)
    number[counted] = np.arange(len(counted))
    head, total = head[counted], total[counted]
    of = np.full(n, -1, np.int64)
    of[rows] = number[place]
    used = np.flatnonzero((of[a["extent"]] >= 0) & (density > 0))
    pair = of[a["extent"][used]] * profile.n_layers + a["layer"][used]
    key, where = np.unique(pair, return_inverse=True)
    least = np.full(len(key), np.inf)
    np.minimum.at(least, where, density[used])
    group = key // profile.n_layers
    return Groups(
        total,
        t["start"][head].astype(np.int64),
        t["stop"][head].astype(np.int64),
        t["persistent"][head].copy(),
        group,
        key % profile.n_layers,
        least * total[group],
        of,
    )


def _alive_bits(profile: Profile) -> NDArray[np.int64]:
    """(n,) bits of the instants of its first and its last layer at which each tensor is alive."""
    t = profile.tensors
    moments = instants(profile)
    out = np.zeros(len(t), np.int64)
    born, died = t["born_event"], t["died_event"]
    for place, layer in enumerate((t["start"], (t["stop"] - 1) % profile.n_layers)):
        for i in range(INSTANTS):
            alive = alive_at(moments[layer, i], born, died, profile.n_events)
            out |= alive.astype(np.int64) << (place * INSTANTS + i)
    out[t["persistent"]] = 0
    return out


class Program:
    """The rows and columns. Columns: T[k], without what moves take from compute, which is in the costs of p and of d; q
    of each group; y and p of it in each layer of its life. Units: GB, ms.

    Rows that speak of one group only are `local`; the others are those of time, room and links, and of middle tiers.
    `exchanges`: see `ExchangeProgram`.
    """

    exchanges = False

    def __init__(
        self,
        groups: Groups,
        profile: Profile,
        machine: Machine,
        compute: NDArray[np.float64],
        traffic: NDArray[np.float64],
    ) -> None:
        self.length = profile.n_layers
        self.groups = groups
        width = groups.stop - groups.start
        self.begin = self.length + len(width)
        self.first = self.begin + np.append(0, np.cumsum(width))  # y of group g in its life's j-th layer: first[g] + j
        self.n_y = int(width.sum())
        self.group_of = np.repeat(np.arange(len(width)), width)
        self.age = positions(width)
        self.layer_of = (groups.start[self.group_of] + self.age) % self.length
        self.gb = groups.nbytes / 1e9
        self._number_promotions()
        self.entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self.low: list[NDArray[np.float64]] = []
        self.high: list[NDArray[np.float64]] = []
        self.local: list[NDArray[np.bool_]] = []
        self.n_rows = 0
        self.most_saved_ms: list[NDArray[np.float64]] = []
        self._time_rows(machine, compute, traffic)
        self._room(profile, machine)
        self._moves(machine)

    def _number_promotions(self) -> None:
        """`promotion`: column of each p by its y, -1 in the last layer of a life, or where nothing can move."""
        g = self.groups
        last = self.age == (g.stop - g.start)[self.group_of] - 1
        moves = (~last | g.persistent[self.group_of]) & (self.length > 1)
        self.promotion = np.full(self.n_y, -1, np.int64)
        self.promotion[moves] = self.begin + self.n_y + np.arange(int(moves.sum()))
        self.n_columns = self.begin + self.n_y + int(moves.sum())

    def _rows(self, n: int, low: NDArray[np.float64], high: NDArray[np.float64], *, local: bool = False) -> int:
        first, self.n_rows = self.n_rows, self.n_rows + n
        self.local.append(np.full(n, local))
        self.low.append(np.broadcast_to(low, n))
        self.high.append(np.broadcast_to(high, n))
        return first

    def _put(self, row: NDArray[np.int64], column: NDArray[np.int64], value: NDArray[np.float64] | float) -> None:
        keep = np.broadcast_to(value, len(row)) != 0
        self.entries.append((row[keep], column[keep], np.broadcast_to(value, len(row))[keep]))

    def _time_rows(self, machine: Machine, compute: NDArray[np.float64], traffic: NDArray[np.float64]) -> None:
        """T[k] + Σ value · y ≥ what it takes with nothing in fast memory; T[k] ≥ compute is a column bound."""
        g = self.groups
        all_slow = np.bincount(g.use_layer, g.use_ns, self.length)
        base = traffic if machine.flops_per_s is not None else compute + traffic
        self.least_ms = np.maximum(compute, traffic) / 1e6
        self.time_row = first = self._rows(self.length, (base + all_slow) / 1e6, np.array(np.inf))
        layers = np.arange(self.length)
        self._put(first + layers, layers, 1.0)
        column = self.first[g.use_group] + (g.use_layer - g.start[g.use_group]) % self.length
        self._put(first + g.use_layer, column, g.use_ns / 1e6)
        self._put(first + g.use_layer, self.length + g.use_group, g.use_ns / 1e6)
        once = self._rows(len(g.use_group), np.array(-np.inf), np.array(1.0), local=True)
        for part in (column, self.length + g.use_group):
            self._put(once + np.arange(len(part)), part, 1.0)

    def middle_tier(
        self, profile: Profile, capacity_bytes: int, here_ns: NDArray[np.float64], behind_ns: NDArray[np.float64]
    ) -> None:
        """S[k], what the slower tiers up to one save in layer k against the tier behind it, of what is not fast."""
        g, length = self.groups, self.length
        here, behind = (saved_ns(profile, g, extra, g.use_ns) for extra in (here_ns, behind_ns))
        saved = np.maximum(here - behind, 0.0) / 1e6
        columns = self.n_columns + np.arange(length)
        self.n_columns += length
        self.most_saved_ms.append(most_saved_ns(profile, g, saved, capacity_bytes))
        self._put(self.time_row + np.arange(length), columns, 1.0)
        first = self._rows(length, np.array(-np.inf), np.bincount(g.use_layer, saved, length).astype(np.float64))
        self._put(first + np.arange(length), columns, 1.0)
        column = self.first[g.use_group] + (g.use_layer - g.start[g.use_group]) % length
        for part in (column, length + g.use_group):
            self._put(first + g.use_layer, part, saved)

    def _room(self, profile: Profile, machine: Machine) -> None:
        """At chosen instants of each layer, what is alive and in fast memory or on its way from or to it fits."""
        room = room_rows(profile, self.groups)
        self.room_row = first = self._rows(room.n_rows, np.array(-np.inf), np.array(machine.fast.capacity_bytes / 1e9))
        self.n_rooms = room.n_rows
        row, group, age = room.moving
        here = self.first[group] + age
        born = (age == 0) & ~self.groups.persistent[group] | (self.length == 1) | self.exchanges
        self._put(first + row[born], here[born], self.gb[group[born]])
        row, group, age, here = (column[~born] for column in (row, group, age, here))
        before = np.where(age == 0, here + self.length - 1, here - 1)  # round the ring
        self._put(first + row, before, self.gb[group])
        for y in (before, here):
            moves = self.promotion[y - self.begin] >= 0
            self._put(first + row[moves], self.promotion[y[moves] - self.begin], self.gb[group[moves]])
        row, group = room.staying
        self._put(first + row, self.length + group, self.gb[group])
        width = self.groups.stop - self.groups.start
        self.no_q = np.flatnonzero(self.groups.persistent)
        self.no_y = self.first[:-1][~self.groups.persistent & (width == 1)]

    def _moves(self, machine: Machine) -> None:
        """y[k+1] ≤ y[k] + p[k]; the links carry p and d = y[k] + p[k] - y[k+1]: the one in k, the other in k + 1, or
        in k too where they are exchanged. They carry on in the time that is lost to what moves."""
        g = self.groups
        moving = np.flatnonzero(self.promotion >= 0)
        p = self.promotion[moving]
        last = self.age[moving] == (g.stop - g.start)[self.group_of[moving]] - 1
        y = self.begin + moving
        after = np.where(last, self.first[self.group_of[moving]], y + 1)
        first = self._rows(len(moving), np.array(0.0), np.array(np.inf), local=True)
        rows = first + np.arange(len(moving))
        for column, sign in ((y, 1.0), (p, 1.0), (after, -1.0)):
            self._put(rows, column, sign)
        layer, gb = self.layer_of[moving], self.gb[self.group_of[moving]]
        tiers = [t for t in range(1, len(machine.tiers)) if machine.tiers[t].capacity_bytes >= PAGE_BYTES] or [1]
        up = 1e3 / max(machine.link(t, 0).bandwidth_bytes_per_s / 1e9 for t in tiers) * gb
        down = 1e3 / max(machine.link(0, t).bandwidth_bytes_per_s / 1e9 for t in tiers) * gb
        lost_up, lost_down = (each * 1e3 * gb for each in lost_ns_per_byte(machine)[:, tiers].min(axis=1))
        shared = not machine.full_duplex
        self.link_row = promote = self._rows(self.length, np.array(-np.inf), np.array(0.0))
        demote = promote if shared else self._rows(self.length, np.array(-np.inf), np.array(0.0))
        layers = np.arange(self.length)
        for link in {promote, demote}:
            self._put(link + layers, layers, -1.0)
        later = (layer + (not self.exchanges)) % self.length
        self._put(promote + layer, p, up - lost_up)
        self.moving_ms = np.bincount(p, lost_up, self.n_columns).astype(np.float64)
        for column, sign in ((y, 1.0), (p, 1.0), (after, -1.0)):
            self._put(demote + later, column, sign * (down - lost_down))
            np.add.at(self.moving_ms, column, sign * lost_down)
            if not shared:
                self._put(promote + later, column, -sign * lost_down)
        if not shared:
            self._put(demote + layer, p, -lost_up)

    def columns(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(cost, low, high) of every column."""
        cost, low, high = np.zeros(self.n_columns), np.zeros(self.n_columns), np.ones(self.n_columns)
        cost[: self.length] = 1.0
        cost[: len(self.moving_ms)] += self.moving_ms
        low[: self.length], high[: self.length] = self.least_ms, np.inf
        high[self.length + self.no_q] = high[self.no_y] = 0.0
        if self.most_saved_ms:
            saved = np.concatenate(self.most_saved_ms)
            high[-len(saved) :] = saved
        return cost, low, high

    def matrix(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """(row, column, value) of the entries, by row and column, those of one place added up."""
        row, column, value = (np.concatenate(parts) for parts in zip(*self.entries, strict=True))
        key, place = np.unique(row * self.n_columns + column, return_inverse=True)
        total = np.bincount(place, value, len(key)).astype(np.float64)
        return key // self.n_columns, key % self.n_columns, total

    def spread(self, priced: NDArray[np.float64]) -> NDArray[np.float64]:
        """(rows,) duals of all rows: `priced` tells those of time, room and links, in this order."""
        out = np.zeros(self.n_rows)
        rooms, links = self.length + self.n_rooms, len(priced) - self.length - self.n_rooms
        out[self.time_row : self.time_row + self.length] = priced[: self.length]
        out[self.room_row : self.room_row + self.n_rooms] = priced[self.length : rooms]
        out[self.link_row : self.link_row + links] = priced[rooms:]
        return out


class ExchangeProgram(Program):
    """Where pages change places within a layer: what moves holds room on one side only, from the layer on that it is
    promoted for to the one that serves it last, and is demoted in that one.

    Any solution of a Program is one here, of the same step: what it demotes in layer k is fast in k and leaves in it.
    """

    exchanges = True


@dataclass(frozen=True, eq=False)
class Room:
    """Rows of room, one an instant. Who holds some: (row, group, layers since the group's birth) of groups that may
    move, which hold it in every layer of their life, and (row, group) of what never moves, which shares it by events.
    """

    n_rows: int
    moving: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    staying: tuple[NDArray[np.int64], NDArray[np.int64]]


def room_rows(profile: Profile, groups: Groups) -> Room:
    """The room of every layer at its instants; layers without a birth have one. A group of one layer only stays."""
    length = profile.n_layers
    moments = instants(profile)
    rows = np.full(moments.shape, -1, np.int64)
    exists = moments >= 0
    exists[:, 0] = True
    rows[exists] = np.arange(int(exists.sum()))
    t = profile.tensors
    first = np.full(len(groups.nbytes), -1, np.int64)
    members = np.flatnonzero(groups.of >= 0)
    first[groups.of[members[::-1]]] = members[::-1]
    width = groups.stop - groups.start
    group = np.repeat(np.arange(len(width)), width)
    age = positions(width)
    layer = (groups.start[group] + age) % length
    born, died = t["born_event"][first[group]], t["died_event"][first[group]]
    edge = (age == 0) | (age == width[group] - 1)
    moves, stays = groups.persistent | (width > 1), ~groups.persistent
    moving, staying = [], []
    for i in range(INSTANTS):
        alive = alive_at(moments[layer, i], born, died, profile.n_events)
        here = exists[layer, i]
        held = here & moves[group]
        moving.append(np.stack([rows[layer, i][held], group[held], age[held]]))
        # away from the ends of its life a tensor is alive all through the layer
        held = here & stays[group] & (~edge | alive)
        staying.append(np.stack([rows[layer, i][held], group[held]]))
    a, b = np.concatenate(moving, axis=1), np.concatenate(staying, axis=1)
    return Room(int(exists.sum()), (a[0], a[1], a[2]), (b[0], b[1]))


def least_extra_ns(profile: Profile, machine: Machine) -> list[NDArray[np.float64]]:
    """By slower tier, (m,) the least extra time of each access in it or a tier behind it: never falls with the tier."""
    extra = [slow_extra_ns(profile, machine, tier) for tier in range(1, len(machine.tiers))]
    for tier in range(len(extra) - 2, -1, -1):
        extra[tier] = np.minimum(extra[tier], extra[tier + 1])
    return extra


def saved_ns(
    profile: Profile, groups: Groups, extra_ns: NDArray[np.float64], use_ns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(uses of `groups`,) `use_ns` less what a tier costs in which each access takes at least `extra_ns`."""
    a = profile.accesses
    group = groups.of[a["extent"]]
    rows = np.flatnonzero(group >= 0)
    key = groups.use_group * profile.n_layers + groups.use_layer
    mine = group[rows] * profile.n_layers + a["layer"][rows].astype(np.int64)
    place = np.searchsorted(key, mine)
    known = np.flatnonzero((place < len(key)) & (key[np.minimum(place, len(key) - 1)] == mine))
    density = np.full(len(key), np.inf)
    rows = rows[known]
    np.minimum.at(density, place[known], extra_ns[rows] / profile.tensors["nbytes"][a["extent"][rows]])
    return np.asarray(np.maximum(use_ns - density * groups.nbytes[groups.use_group], 0.0), np.float64)


def most_saved_ns(
    profile: Profile, groups: Groups, saved: NDArray[np.float64], capacity_bytes: int
) -> NDArray[np.float64]:
    """(L,) most that so many bytes can save in each layer, of what all uses there would save together."""
    group, layer, length = groups.use_group, groups.use_layer, profile.n_layers
    members = np.flatnonzero(groups.of >= 0)
    nbytes = profile.tensors["nbytes"][members]
    fitting = np.bincount(groups.of[members], np.minimum(nbytes, capacity_bytes), len(groups.nbytes))
    saved = saved * (fitting / groups.nbytes)[group]
    age = (layer - groups.start[group]) % length
    lives = groups.stop[group] - groups.start[group]
    turns = ~groups.persistent[group] & ((age == 0) | (age == lives - 1))
    out = np.bincount(layer[turns], saved[turns], length).astype(np.float64)
    rows = np.flatnonzero(~turns & (saved > 0))
    nbytes = np.maximum(fitting[group], 1.0)
    rows = rows[np.lexsort((-saved[rows] / nbytes[rows], layer[rows]))]
    first = np.searchsorted(layer[rows], layer[rows])
    before = np.cumsum(nbytes[rows]) - nbytes[rows]
    room = capacity_bytes - (before - before[first]) if len(rows) else before
    share = np.clip(room / nbytes[rows], 0.0, 1.0)
    return np.asarray(out + np.bincount(layer[rows], saved[rows] * share, length), np.float64)
