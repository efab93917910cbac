"""Tensors over the layers, those that hurt and the largest: where each lives, where it is touched, and from where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sentinel.core.plan import Plan
from sentinel.core.profile import Profile
from sentinel.core.units import format_bytes
from sentinel.reports.html.layer_axis import Columns
from sentinel.reports.html.svg import WIDTH, Frame, escape, figure, legend, text
from sentinel.simulator.served import tier_shares

MAX_TENSORS = 40

_ROW = 13
_DEAD, _ALIVE, _TOUCHED, _FROM_SLOW = range(4)
_PAINT = {_ALIVE: 'class="alive"', _TOUCHED: 'class="touched"', _FROM_SLOW: 'fill="url(#hatch)"'}


def heat(
    profile: Profile,
    plan: Plan | None,
    columns: Columns,
    costs: NDArray[np.float64],
    keys: NDArray[np.int64],
) -> str:
    """One row a tensor, one column a layer. `costs`: (n,) what each loses in slower memory; `keys`: (n,) what a click
    on it marks."""
    largest = chosen(profile, costs)
    states = _states(profile, plan, largest)
    frame = Frame(268, 8, WIDTH - 268 - 12, len(largest) * _ROW, 1)
    n, body = profile.n_layers, columns.axis(frame)
    for row, tensor in enumerate(largest):
        y, name, nbytes = frame.top + row * _ROW, profile.names[tensor], int(profile.tensors["nbytes"][tensor])
        words = f"{name}\n{format_bytes(nbytes)}"
        body += f'<g data-k="{keys[tensor]}">'
        body += text(frame.left - 8, y + 10, _short(name), class_="tick", text_anchor="end", data_t=words)
        shown = columns.largest(states[row]).astype(int)
        for kind, paint in _PAINT.items():
            path = "".join(
                f"M{frame.x(columns.edges[a] / n):.1f} {y + 1:.0f}H{frame.x(columns.edges[b] / n):.1f}v{_ROW - 2}"
                f"H{frame.x(columns.edges[a] / n):.1f}z"
                for a, b in _runs(shown == kind)
            )
            if path:
                body += f'<path d="{path}" {paint} data-t="{escape(words)}"/>'
        body += "</g>"
    slow = int((states == _FROM_SLOW).sum())
    touched = slow + int((states == _TOUCHED).sum())
    told = f"; of their touches by layer slow memory serves {slow} of {touched}, as planned" if plan is not None else ""
    hurt = int((costs[largest] > 0).sum())
    first = f"Those that hurt most, and the largest: {len(largest)}" if hurt else f"The {len(largest)} largest"
    says = f"{first} of {len(profile.names)} tensors{told}."
    entries = [
        ('class="touched"', "touched, in fast memory" if plan else "touched"),
        ('class="alive"', "alive, not touched"),
    ]
    if plan is not None:
        entries.insert(1, ('fill="url(#hatch)"', "touched, in slow memory"))
    return figure("Tensors over layers", says, body, frame.bottom + 44, legend(entries))


def chosen(profile: Profile, costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The tensors that are drawn: up to half of them those that cost most, the rest the largest others."""
    costly = np.argsort(-costs, kind="stable")[: MAX_TENSORS // 2]
    costly = costly[costs[costly] > 0]
    largest = np.argsort(-profile.tensors["nbytes"], kind="stable")[:MAX_TENSORS]
    others = largest[~np.isin(largest, costly)][: MAX_TENSORS - len(costly)]
    found: NDArray[np.int64] = np.concatenate((costly, others))
    return found


def _states(profile: Profile, plan: Plan | None, which: NDArray[np.int64]) -> NDArray[np.int8]:
    """(tensors, layers) what each is in each layer; touched from slow as soon as slow memory serves a part."""
    n = profile.n_layers
    states = np.zeros((len(which), n), np.int8)
    row_of = {int(tensor): row for row, tensor in enumerate(which)}
    for row, tensor in enumerate(which):
        start, stop = int(profile.tensors["start"][tensor]), int(profile.tensors["stop"][tensor])
        states[row, np.arange(start, stop) % n] = _ALIVE
    accesses = profile.accesses
    touched = profile.extents["tensor"][accesses["extent"]]
    slow = tier_shares(plan, profile)[1:].sum(axis=0) if plan is not None else np.zeros(len(accesses))
    mine = np.flatnonzero(np.isin(touched, which))
    rows = np.array([row_of[tensor] for tensor in touched[mine].tolist()], np.int64)
    found = np.where(slow[mine] > 0, _FROM_SLOW, _TOUCHED).astype(np.int8)
    np.maximum.at(states.reshape(-1), rows * n + accesses["layer"][mine], found)
    return states


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[start, stop) of each stretch of true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:18]}…{name[-21:]}"
