"""A profile of any size, shaped like a training step: weights, optimizer state, activations, gradients, workspaces."""

from __future__ import annotations

import numpy as np

from sentinel.core.profile import ACCESS_DTYPE, TENSOR_DTYPE, Profile
from sentinel.core.trace import ROLES, LayerId, Quality


def synthetic(n_tensors: int, n_layers: int, seed: int = 7) -> Profile:
    """40 % of the layers are forward, 40 % backward, 20 % optimizer; 70 % of the tensors are short-lived."""
    rng = np.random.default_rng(seed)
    forward = max(n_layers * 2 // 5, 1)
    optimizer = 2 * forward
    rows, uses = [], []
    for _ in range(n_tensors):
        kind = rng.choice(["short", "act", "grad", "param", "state"], p=[0.7, 0.12, 0.06, 0.06, 0.06])
        nbytes = int(np.exp(rng.normal(10 if kind == "short" else 13, 2.5))) + 1
        k = int(rng.integers(forward))
        back = min(2 * forward - 1 - k, n_layers - 1)
        last = min(optimizer + k * max(n_layers - optimizer, 1) // forward, n_layers - 1)
        if kind == "short":
            layer = int(rng.integers(n_layers))
            rows.append((ROLES.index("workspace"), nbytes, layer, layer + 1, False))
            uses.append({layer: (nbytes, nbytes)})
        elif kind == "act":
            rows.append((ROLES.index("activation"), nbytes, k, max(back, k) + 1, False))
            uses.append({k: (nbytes, nbytes), back: (nbytes, 0)})
        elif kind == "grad":
            rows.append((ROLES.index("grad"), nbytes, min(back, last), max(back, last) + 1, False))
            uses.append({back: (0, nbytes), last: (nbytes, 0)})
        elif kind == "param":
            rows.append((ROLES.index("param"), nbytes, 0, n_layers, True))
            uses.append({k: (nbytes, 0), back: (nbytes, 0), last: (nbytes, nbytes)})
        else:
            rows.append((ROLES.index("optimizer"), nbytes, 0, n_layers, True))
            uses.append({last: (nbytes, nbytes)})
    return _profile(rows, uses, n_layers, rng)


def _profile(
    rows: list[tuple[int, int, int, int, bool]],
    uses: list[dict[int, tuple[int, int]]],
    n_layers: int,
    rng: np.random.Generator,
) -> Profile:
    tensors = np.zeros(len(rows), TENSOR_DTYPE)
    for name, column in zip(("role", "nbytes", "start", "stop", "persistent"), zip(*rows, strict=True), strict=True):
        tensors[name] = column
    tensors["managed"] = True
    moving = np.flatnonzero(~tensors["persistent"])
    order = moving[np.argsort(tensors["start"][moving], kind="stable")]
    n_events = max(len(order), 1)
    births = np.bincount(tensors["start"][order], minlength=n_layers)
    ends = np.cumsum(births)
    tensors["died_event"] = n_events
    tensors["key_layer"] = tensors["key_ordinal"] = -1
    tensors["born_event"][order] = np.arange(len(order))
    tensors["key_layer"][order] = tensors["start"][order]
    tensors["key_ordinal"][order] = np.arange(len(order)) - (ends - births)[tensors["start"][order]]
    late = ends[tensors["stop"][order] - 1]
    short = tensors["stop"][order] - tensors["start"][order] == 1
    born = np.arange(len(order))
    tensors["died_event"][order] = np.where(short, np.minimum(born + rng.integers(1, 5, len(born)), late), late)
    accesses = [
        (i, layer, int(read > 0), int(written > 0), read, written, max(read, written), -1, -1)
        for i, by_layer in enumerate(uses)
        for layer, (read, written) in sorted(by_layer.items())
    ]
    table = np.array(accesses, ACCESS_DTYPE)
    traffic = np.bincount(table["layer"], table["read_bytes"] + table["written_bytes"], n_layers)
    times = np.rint(traffic / 50 + 1e5).astype(np.int64)  # ns: half of it waiting for 100 GB/s of memory
    return Profile(
        layers=tuple(LayerId(f"layer{k}") for k in range(n_layers)),
        layer_ns=times,
        flops=np.rint(times * 1500.0).astype(np.int64),
        names=tuple(f"t{i}" for i in range(len(rows))),
        tensors=tensors,
        accesses=table,
        n_events=n_events,
        quality=Quality("synthetic", "operator accesses"),
    )
