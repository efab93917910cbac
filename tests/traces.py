"""Traces of known content, event by event, and a hypothesis strategy for any of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from sentinel.core.page_runs import PAGE_DTYPE
from sentinel.core.trace import (
    BORN,
    EVENT_DTYPE,
    FREED,
    OP,
    READ,
    ROLES,
    TICK,
    WRITE,
    LayerId,
    Quality,
    Role,
    TensorInfo,
    Trace,
)
from tests.page_rows import runs_of_pages

QUALITY = Quality(tracker="ops", counts="operator accesses")


class Tape:
    """Events in order. The recording begins in layer `first`; `tick` ends the present layer."""

    def __init__(self, n_layers: int, first: int = 0) -> None:
        self.n_layers, self.layer = n_layers, first
        self.tensors: list[TensorInfo] = []
        self.rows: list[tuple[int, int, int, int, int, int, int]] = []
        self.ordinals = [0] * n_layers
        self.pages: list[tuple[int, int, int, int]] = []

    def before(self, name: str, nbytes: int, role: Role = "param", address: int = 0, managed: bool = True) -> int:
        """A tensor that exists before the step."""
        self.tensors.append(TensorInfo(name, role, nbytes, address, managed=managed))
        return len(self.tensors) - 1

    def born(self, name: str, nbytes: int, role: Role = "workspace", address: int = 0, managed: bool = True) -> int:
        key = (self.layer, self.ordinals[self.layer])
        self.ordinals[self.layer] += 1
        self.tensors.append(TensorInfo(name, role, nbytes, address, key, managed=managed))
        self._event(BORN, len(self.tensors) - 1, nbytes)
        return len(self.tensors) - 1

    def freed(self, *tensors: int) -> None:
        for tensor in tensors:
            self._event(FREED, tensor, self.tensors[tensor].nbytes)

    def read(self, tensor: int, nbytes: int | None = None, offset: int = 0) -> None:
        self._event(READ, tensor, self.tensors[tensor].nbytes if nbytes is None else nbytes, offset)

    def write(self, tensor: int, nbytes: int | None = None, offset: int = 0) -> None:
        self._event(WRITE, tensor, self.tensors[tensor].nbytes if nbytes is None else nbytes, offset)

    def operator(self, flops: int) -> None:
        self._event(OP, -1, flops, op=0)

    def touch(self, page: int, reads: int = 1, writes: int = 0) -> None:
        self.pages.append((self.layer, page, reads, writes))

    def tick(self) -> None:
        self._event(TICK, -1, 0)
        self.layer = (self.layer + 1) % self.n_layers

    def _event(self, kind: int, tensor: int, nbytes: int, offset: int = 0, op: int = -1) -> None:
        self.rows.append((kind, self.layer, tensor, op, nbytes, offset, len(self.rows)))

    def trace(self, layer_ns: int = 1_000_000, quality: Quality = QUALITY) -> Trace:
        return Trace(
            layers=tuple(LayerId(f"block.{i}", 0, "forward") for i in range(self.n_layers)),
            layer_ns=np.full(self.n_layers, layer_ns, np.int64),
            tensors=tuple(self.tensors),
            ops=("mm",),
            events=np.array(self.rows, EVENT_DTYPE),
            quality=quality,
            pages=runs_of_pages(np.array(sorted(self.pages), PAGE_DTYPE)),
        )


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """Any step: tensors of before, births, deaths and accesses in any order that memory allows."""
    n_layers = draw(st.integers(1, 5))
    tape = Tape(n_layers, draw(st.integers(0, n_layers - 1)))
    sizes = st.sampled_from([1, 64, 4096, 4097, 100_000])
    roles = st.sampled_from(ROLES)
    alive = [
        tape.before(f"before.{i}", draw(sizes), draw(roles), 4096 * 64 * i, draw(st.booleans()))
        for i in range(draw(st.integers(0, 4)))
    ]
    for stretch in range(n_layers + 1):
        for _ in range(draw(st.integers(0, 6))):
            kind = draw(st.sampled_from(["born", "freed", "read", "write", "operator"]))
            if kind == "born":
                name = f"born.{len(tape.tensors)}"
                address = 4096 * 64 * len(tape.tensors)
                alive.append(tape.born(name, draw(sizes), draw(roles), address, draw(st.booleans())))
            elif kind == "operator":
                tape.operator(draw(st.integers(-1, 100)))
            elif alive:
                tensor = draw(st.sampled_from(alive))
                nbytes = tape.tensors[tensor].nbytes
                if kind == "freed":
                    alive.remove(tensor)
                    tape.freed(tensor)
                else:
                    offset = draw(st.integers(0, nbytes))
                    (tape.read if kind == "read" else tape.write)(tensor, draw(st.integers(0, nbytes - offset)), offset)
                    for page in draw(st.sets(st.integers(0, -(-nbytes // 4096)), max_size=3)):
                        row = (tape.layer, tape.tensors[tensor].address // 4096 + page)
                        if row not in {held[:2] for held in tape.pages}:
                            tape.touch(row[1], draw(st.integers(-1, 1)), draw(st.integers(-1, 1)))
        if stretch < n_layers:
            tape.tick()
    return tape


def stretches(tape: Tape) -> Iterator[tuple[int, tuple[int, int, int, int, int, int, int]]]:
    """(number of ticks before it, event) of each event of `tape`."""
    ticks = 0
    for row in tape.rows:
        yield ticks, row
        ticks += row[0] == TICK
