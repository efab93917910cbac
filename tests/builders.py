"""Profiles, machines and plans of known content, and hypothesis strategies for them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from sentinel.core.extents import RANGE_DTYPE, cut_extents
from sentinel.core.machine import Link, Machine, TierKind, TierSpec
from sentinel.core.plan import Block, Migration, Plan, Segment, Slot
from sentinel.core.profile import ACCESS_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.trace import ROLES, LayerId, Quality, Role
from sentinel.core.units import PAGE_BYTES, page_ceil
from sentinel.files.codec import encode
from sentinel.files.digests import format_of
from sentinel.files.formats import Format

MIB = 1 << 20
GB = 1_000_000_000


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a built profile. `uses`: layer -> (read_bytes, written_bytes).

    A transient lives in layers [start, stop), `stop` unrolled. `dies_early`: it is freed before the next
    allocation, not at the end of its last layer (only for tensors of one layer).
    """

    name: str
    nbytes: int
    start: int = 0
    stop: int = 0
    uses: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    role: Role = "activation"
    persistent: bool = False
    managed: bool = True
    dies_early: bool = False


def param(name: str, nbytes: int, layers: Sequence[int], *, role: Role = "param", managed: bool = True) -> TensorSpec:
    """A persistent tensor read whole in each of `layers`."""
    return TensorSpec(
        name, nbytes, uses=dict.fromkeys(layers, (nbytes, 0)), role=role, persistent=True, managed=managed
    )


def act(name: str, nbytes: int, start: int, stop: int, reads: Sequence[int] = (), **more: bool) -> TensorSpec:
    """A transient, written whole in layer `start` and read whole in each of `reads` (layers modulo the step)."""
    uses = {start: (0, nbytes)}
    for layer in reads:
        uses[layer] = (nbytes, uses.get(layer, (0, 0))[1])
    return TensorSpec(name, nbytes, start, stop, uses, **more)


def make_profile(
    specs: Sequence[TensorSpec], n_layers: int, *, layer_ns: int | Sequence[int] = 1_000_000, flops: Sequence[int] = ()
) -> Profile:
    """A Profile of `specs`. An event is one allocation; tensors die as their last layer ends."""
    order = sorted((i for i, s in enumerate(specs) if not s.persistent), key=lambda i: (specs[i].start, i))
    born = {i: n for n, i in enumerate(order)}
    ends = [sum(1 for i in order if specs[i].start <= layer) for layer in range(n_layers)]
    n_events = max(len(order), 1)
    ordinals: dict[int, int] = {}
    rows = np.zeros(len(specs), TENSOR_DTYPE)
    for i in [i for i, s in enumerate(specs) if s.persistent] + order:
        s = specs[i]
        row = rows[i]
        row["role"], row["nbytes"], row["managed"] = ROLES.index(s.role), s.nbytes, s.managed
        if s.persistent:
            row["start"], row["stop"], row["persistent"] = 0, n_layers, True
            row["key_layer"] = row["key_ordinal"] = -1
            row["born_event"], row["died_event"] = 0, n_events
            continue
        row["start"], row["stop"] = s.start, s.stop
        row["key_layer"], row["key_ordinal"] = s.start, ordinals.setdefault(s.start, 0)
        ordinals[s.start] += 1
        last = s.stop - 1
        row["born_event"] = born[i]
        row["died_event"] = born[i] + 1 if s.dies_early else ends[last % n_layers] + last // n_layers * n_events
    accesses = [
        (i, layer, int(read > 0), int(written > 0), read, written, min(s.nbytes, max(read, written)), -1, -1)
        for i, s in enumerate(specs)
        for layer, (read, written) in sorted(s.uses.items())
    ]
    times = [layer_ns] * n_layers if isinstance(layer_ns, int) else list(layer_ns)
    return Profile(
        layers=tuple(LayerId(f"layer{k}") for k in range(n_layers)),
        layer_ns=np.array(times, np.int64),
        flops=np.array(flops if len(flops) else [-1] * n_layers, np.int64),
        names=tuple(s.name for s in specs),
        tensors=rows,
        accesses=np.array(accesses, ACCESS_DTYPE),
        n_events=n_events,
        quality=Quality("ops", "operator accesses"),
    )


def profile_of_version_2(
    whole: Profile, ranges: NDArray[Any]
) -> tuple[Format, dict[str, Any], dict[str, NDArray[Any]]]:
    """Format, header and columns of the file that version 2 wrote of whole tensors with page ranges beside them."""
    form = format_of(whole).of_version(2)
    tables = {name: getattr(whole, name, ranges) for name in form.tables}
    tables["accesses"] = whole.accesses.astype(form.tables["accesses"])
    columns = {name: tables[name] for name in ("layer_ns", "flops")}
    for name in ("tensors", "accesses", "ranges"):
        columns.update({f"{name}.{column}": tables[name][column] for column in tables[name].dtype.names or ()})
    return form, encode(whole, leave_out=("extents", *form.tables)), columns


class TimelessMachine(Machine):
    """A machine whose links may be faster than the memory at their ends: for tests of transfers that take no time."""

    def most_bytes_per_s(self, link: Link) -> int:
        """See Machine."""
        return link.bandwidth_bytes_per_s


def machine_type(kind: TierKind, *links: tuple[int, int]) -> type[Machine]:
    """Of a machine whose slower tiers are of `kind`, for `links` of (what one carries, what its memory does): one that
    has links without time only where its tiers are emulated, and such links are asked for."""
    return TimelessMachine if kind == "emulated" and any(rate > most for rate, most in links) else Machine


def make_machine(
    fast_bytes: int = 64 * MIB,
    *,
    slow_bytes: int = 1 << 40,
    promote: int = GB,
    demote: int = GB,
    fast_bw: int = 100 * GB,
    slow_bw: int = 10 * GB,
    slow_write_bw: int = 0,
    full_duplex: bool = True,
    addressable: bool = True,
    flops_per_s: float | None = None,
    slow_kind: TierKind = "described",
    lost_ns_per_kib: float = 0.0,
    lost_ns_per_move: float = 0.0,
) -> Machine:
    """Two tiers without latency, so that times are bytes over bandwidth. Bandwidths in bytes per second. What moves
    take from compute is alike both ways."""
    lost = {"lost_ns_per_kib": lost_ns_per_kib, "lost_ns_per_move": lost_ns_per_move}
    return machine_type(slow_kind, (promote, slow_bw), (demote, slow_write_bw or slow_bw))(
        name="built",
        tiers=(
            TierSpec("fast", "described", fast_bytes, 0, fast_bw, fast_bw),
            TierSpec("slow", slow_kind, slow_bytes, 0, slow_bw, slow_write_bw or slow_bw, addressable=addressable),
        ),
        links=(Link(1, 0, promote, **lost), Link(0, 1, demote, **lost)),
        flops_per_s=flops_per_s,
        full_duplex=full_duplex,
    )


def persistent_plan(
    profile: Profile,
    tiers: Sequence[int],
    moves: Sequence[tuple[int, int, int, int, int]] = (),
    *,
    fast_bytes: int = 64 * MIB,
) -> Plan:
    """A plan for a profile of persistent tensors only: one block each, tensor i born in `tiers[i]`.

    `moves`: (block, source, target, start, due), demotions before promotions in a layer.
    """
    offset, slots, blocks, segments = 0, [], [], []
    for i, name in enumerate(profile.names):
        nbytes = int(profile.tensors["nbytes"][i])
        room = page_ceil(nbytes)
        slots.append(Slot(i, name, None, offset, nbytes))
        blocks.append(Block(offset, room, 0, profile.n_layers, tiers[i], (i,), name, persistent=True))
        segments.append(Segment(offset, room, tiers[i]))
        offset += room
    return Plan(
        policy="built",
        layers=profile.layers,
        tier_names=("fast", "slow"),
        capacity_bytes=(fast_bytes, 1 << 40),
        segments=tuple(segments),
        slots=tuple(slots),
        blocks=tuple(blocks),
        migrations=tuple(
            Migration(b, s, t, blocks[b].nbytes, start, due, "prefetch" if t == 0 else "evict")
            for b, s, t, start, due in moves
        ),
        footprint_bytes=offset,
        fast_needed_bytes=0,
    )


@st.composite
def profiles(draw: st.DrawFn, max_layers: int = 8, max_tensors: int = 10) -> Profile:
    """Small profiles: persistent, short-lived and long-lived tensors, of less than a page to many pages."""
    n_layers = draw(st.integers(1, max_layers))
    layer = st.integers(0, n_layers - 1)
    nbytes = st.one_of(st.integers(1, 3 * PAGE_BYTES), st.integers(1, 64).map(lambda n: n * 16 * PAGE_BYTES + 1))
    specs = []
    for i in range(draw(st.integers(1, max_tensors))):
        size, kind = draw(nbytes), draw(st.sampled_from(["param", "short", "long"]))
        managed = draw(st.integers(0, 9)) > 0
        if kind == "param":
            used = draw(st.lists(layer, max_size=n_layers, unique=True))
            specs.append(param(f"p{i}", size, used, managed=managed))
            continue
        start = draw(layer)
        width = 1 if kind == "short" else draw(st.integers(1, n_layers))
        reads = draw(st.lists(st.integers(start, start + width - 1), max_size=3, unique=True))
        early = kind == "short" and draw(st.booleans())
        specs.append(
            act(f"a{i}", size, start, start + width, [k % n_layers for k in reads], managed=managed, dies_early=early)
        )
    times = draw(st.lists(st.integers(0, 2_000_000), min_size=n_layers, max_size=n_layers))
    flops = draw(st.lists(st.integers(0, 10**9), min_size=n_layers, max_size=n_layers))
    return make_profile(specs, n_layers, layer_ns=times, flops=flops)


@st.composite
def ranged_profiles(draw: st.DrawFn) -> Profile:
    """Any small profile, some of whose persistent tensors are cut, by ranges in some of their layers."""
    profile = draw(profiles())
    return cut_extents(profile, draw(ranges_of(profile)))


@st.composite
def ranges_of(draw: st.DrawFn, profile: Profile) -> NDArray[Any]:
    """Page ranges of some persistent tensors of a profile of whole ones, in some of their layers; RANGE_DTYPE."""
    rows = []
    for tensor in np.flatnonzero(profile.tensors["persistent"]).tolist():
        pages = -(-int(profile.tensors["nbytes"][tensor]) // PAGE_BYTES)
        cuts = sorted(draw(st.sets(st.integers(0, pages), min_size=2, max_size=5)) if pages > 1 else [])
        for layer in profile.accesses["layer"][profile.accesses["extent"] == tensor].tolist():
            for low, high in itertools.pairwise(cuts):
                touched = draw(st.integers(0, high - low))
                if touched:
                    rows.append((tensor, layer, low, high, touched, draw(st.integers(-1, touched))))
    return np.array(rows, RANGE_DTYPE)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Two-tier machines: links from useless to as fast as their memory, which take nothing from compute, some of it or
    more than there is; recorded or roofline layer times, half or full duplex."""
    speed = st.sampled_from([10**6, 10**8, 10**9, 10**10])
    slow = draw(st.sampled_from([10**8, 10**9, 10**10]))
    slow_write = draw(st.sampled_from([slow, slow // 3]))
    return make_machine(
        draw(st.integers(0, 600)) * PAGE_BYTES,
        promote=min(draw(speed), slow),
        demote=min(draw(speed), slow_write),
        fast_bw=10**11,
        slow_bw=slow,
        slow_write_bw=slow_write,
        full_duplex=draw(st.booleans()),
        flops_per_s=draw(st.sampled_from([None, 1e11, 1e12])),
        lost_ns_per_kib=draw(st.sampled_from([0.0, 0.0, 10.0, 300.0, 5000.0])),
        lost_ns_per_move=draw(st.sampled_from([0.0, 0.0, 1e3, 1e5])),
    )
