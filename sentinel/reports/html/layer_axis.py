"""Pictures over the layers of a step: the axis they share, areas, lines, and what a pointer reads from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sentinel.core.trace import LayerId
from sentinel.reports.html.svg import Frame, escape, tag, text

MAX_COLUMNS = 480
"""A step of more layers is drawn with several layers a column, each showing its largest value."""

Floats = NDArray[np.float64]


class Columns:
    """The layers of a step, cut into the columns of a picture."""

    def __init__(self, layers: Sequence[LayerId]) -> None:
        self.layers = layers
        self.count = min(len(layers), MAX_COLUMNS)
        self.edges = np.linspace(0, len(layers), self.count + 1).astype(int)

    def largest(self, values: NDArray[np.generic]) -> Floats:
        """(..., layers) to (..., columns): the largest of each column."""
        return np.maximum.reduceat(np.asarray(values, np.float64), self.edges[:-1], axis=-1)

    def layers_of_most(self, values: NDArray[np.generic]) -> list[int]:
        """(columns,) the layer of each column in which `values` is largest."""
        return [start + int(values[start:stop].argmax()) for start, stop in pairwise(self.edges.tolist())]

    def label(self, column: int) -> str:
        """Which layers a column stands for."""
        first, stop = int(self.edges[column]), int(self.edges[column + 1])
        if stop - first == 1:
            return f"layer {first} · {self.layers[first]}"
        return f"layers {first}–{stop - 1} · {self.layers[first]} to {self.layers[stop - 1]}"

    def phases(self) -> list[tuple[str, int, int]]:
        """(phase, first layer, one past the last) of each run of layers of one phase."""
        found: list[tuple[str, int, int]] = []
        for index, layer in enumerate(self.layers):
            if found and found[-1][0] == layer.phase:
                found[-1] = (layer.phase, found[-1][1], index + 1)
            else:
                found.append((layer.phase, index, index + 1))
        return found

    def axis(self, frame: Frame) -> str:
        """Layer numbers below, and bands with the phases' names."""
        n = len(self.layers)
        parts = []
        for number, (phase, start, stop) in enumerate(self.phases()):
            x0, x1 = frame.x(start / n), frame.x(stop / n)
            if number % 2:
                parts.append(tag("rect", x=x0, y=frame.top, width=x1 - x0, height=frame.height, class_="band"))
            if phase and x1 - x0 > 7 * len(phase):
                parts.append(text((x0 + x1) / 2, frame.bottom + 32, phase, class_="tick", text_anchor="middle"))
        every = max(1, -(-n // 16))
        for layer in range(0, n, every):
            x = frame.x((layer + 0.5) / n)
            parts.append(text(x, frame.bottom + 16, str(layer), class_="tick", text_anchor="middle"))
        parts.append(text(frame.left - 8, frame.bottom + 16, "layer", class_="tick", text_anchor="end"))
        return "".join(parts)

    def steps(self, frame: Frame, low: Floats, high: Floats, **attributes: str) -> str:
        """The area between two values a column."""
        edges = [frame.x(edge / len(self.layers)) for edge in self.edges]
        up = "".join(f"L{edges[i]:.1f} {frame.y(v):.1f}H{edges[i + 1]:.1f}" for i, v in enumerate(high))
        down = "".join(
            f"L{edges[i + 1]:.1f} {frame.y(low[i]):.1f}H{edges[i]:.1f}" for i in range(self.count - 1, -1, -1)
        )
        return tag("path", d="M" + up[1:] + down + "Z", **attributes)

    def line(self, frame: Frame, values: Floats, **attributes: str) -> str:
        """A line that steps from column to column; it breaks where a value is not known."""
        edges = [frame.x(edge / len(self.layers)) for edge in self.edges]
        path, pen_up = "", True
        for i, value in enumerate(values):
            if np.isnan(value):
                pen_up = True
                continue
            path += f"{'M' if pen_up else 'L'}{edges[i]:.1f} {frame.y(value):.1f}H{edges[i + 1]:.1f}"
            pen_up = False
        return tag("path", d=path, fill="none", **attributes) if path else ""

    def readers(self, frame: Frame, say: Callable[[int], str]) -> str:
        """An invisible column each that tells the pointer what `say` says of it."""
        parts = []
        for i in range(self.count):
            x0, x1 = (frame.x(self.edges[k] / len(self.layers)) for k in (i, i + 1))
            words = escape(f"{self.label(i)}\n{say(i)}")
            parts.append(
                f'<rect x="{x0:.1f}" y="{frame.top:.0f}" width="{x1 - x0:.1f}" height="{frame.height:.0f}"'
                f' class="reader" data-t="{words}"/>'
            )
        return "".join(parts)
