"""Bars of the page that fit any width: one of several parts, and ranked ones of tensors that a click marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sentinel.reports.html.svg import breakable, escape, tag


class Part(NamedTuple):
    """A stretch of a bar. `style`: its class, `name`: its word in the legend."""

    style: str
    name: str
    value: float


class Ranked(NamedTuple):
    """A bar of one colour. `key`: what a click on it marks; `remark`: in small print below its name."""

    key: str
    name: str
    value: float
    shown: str
    remark: str = ""


def part_bars(
    bars: Sequence[tuple[str, str, Sequence[Part]]], most: float, title: str, show: Callable[[float], str]
) -> str:
    """(name, shown total, parts) each; `most`: the value of a bar of full width."""
    used = {part.style: part.name for _, _, parts in bars for part in parts if part.value > 0}
    swatches = "".join(f'<li><i class="part {style}"></i>{escape(name)}</li>' for style, name in used.items())
    rows = []
    for name, total, parts in bars:
        stretches = "".join(
            f'<i class="part {part.style}" style="width:{100 * part.value / (most or 1):.2f}%"'
            f' data-t="{escape(f"{part.name}: {show(part.value)}")}"></i>'
            for part in parts
            if part.value > 0
        )
        rows.append(
            f'<li><span class="barname">{escape(name)}</span><span class="bar">{stretches}</span>'
            f'<span class="barvalue">{escape(total)}</span></li>'
        )
    return f'<ul class="legend">{swatches}</ul><ul class="bars" aria-label="{escape(title)}">{"".join(rows)}</ul>'


def ranked_bars(bars: Sequence[Ranked], style: str, title: str) -> str:
    """The longest first; a click or Enter on one marks its tensors wherever they are shown."""
    most = max((bar.value for bar in bars), default=0.0) or 1.0
    rows = []
    for bar in bars:
        small = tag("small", escape(bar.remark)) if bar.remark else ""
        rows.append(
            f'<li data-k="{bar.key}"><button type="button" class="pick">{breakable(bar.name)}</button>{small}'
            f'<span class="bar"><i class="part {style}" style="width:{100 * bar.value / most:.2f}%"></i></span>'
            f'<span class="barvalue">{escape(bar.shown)}</span></li>'
        )
    return f'<ol class="bars ranked" aria-label="{escape(title)}">{"".join(rows)}</ol>'
