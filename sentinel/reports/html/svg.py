"""SVG and HTML elements as text. Everything that comes from outside passes `escape`."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.core.units import format_bytes, format_ns

WIDTH = 960
"""Of every picture, in its own units; the page scales it."""


def escape(text: object) -> str:
    """`text` safe as content and as attribute value; what cannot be printed becomes U+FFFD."""
    plain = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))
    return html.escape(plain, quote=True)


def tag(name: str, content: str = "", /, **attributes: object) -> str:
    """One element around `content`, which is markup already. `class_` means class, `_` means `-`."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{content}</{name}>"


def breakable(text: str) -> str:
    """`text` as markup, whose long names break after their dots and slashes before they break within a word."""
    return re.sub(r"(?<=[./_])(?=[^\W\d])", "<wbr>", escape(text))


def coded(sentence: str) -> str:
    """`sentence` as markup: what stands between back-quotes as code."""
    parts = escape(sentence).split("`")
    return "".join(tag("code", part) if number % 2 else part for number, part in enumerate(parts))


def _short(value: object) -> object:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def text(x: float, y: float, content: str, **attributes: object) -> str:
    """A line of text in a picture."""
    return tag("text", escape(content), x=x, y=y, **attributes)


def figure(title: str, description: str, body: str, height: float, legend: str = "", width: int = WIDTH) -> str:
    """A picture with its text alternative; it scrolls sideways where the page is narrow, unless its own `width` is."""
    small = "" if width == WIDTH else ' class="small"'
    picture = (
        f'<svg{small} viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{body}</svg>"
    )
    caption = tag("figcaption", escape(description))
    return tag(
        "figure",
        f'{legend}<div class="wide" tabindex="0" role="group" aria-label="{escape(title)}">{picture}</div>{caption}',
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(fill, word) as a row of swatches; `fill` is a CSS colour or one of the patterns of `PATTERNS`."""
    items = [
        '<li><svg width="14" height="14" aria-hidden="true">'
        f'<rect width="14" height="14" rx="2" {paint}/></svg>{escape(word)}</li>'
        for paint, word in entries
    ]
    return tag("ul", "".join(items), class_="legend")


PATTERNS = (
    '<svg width="0" height="0" aria-hidden="true" class="hidden"><defs>'
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="var(--slow)"/><line x1="1.5" y1="0" x2="1.5" y2="6" class="hatchline"/></pattern>'
    '<pattern id="cross" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" fill="var(--bad)"/><path d="M0 0L6 6M6 0L0 6" class="hatchline"/></pattern>'
    '<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<rect width="5" height="5" fill="var(--surface)"/>'
    '<circle cx="2.5" cy="2.5" r="1.2" fill="var(--muted)"/></pattern>'
    "</defs></svg>"
)


@dataclass(frozen=True)
class Frame:
    """Where the data of a picture lies: left, top, width, height in its units; the largest value of the y axis."""

    left: float
    top: float
    width: float
    height: float
    y_max: float

    def x(self, share: float) -> float:
        """Position of a share of the width."""
        return self.left + share * self.width

    def y(self, value: float) -> float:
        """Position of a value."""
        return self.top + self.height - value / self.y_max * self.height

    @property
    def bottom(self) -> float:
        """Position of the value 0."""
        return self.top + self.height


def byte_ticks(top: float) -> list[tuple[float, str]]:
    """Three to six round amounts of memory up to `top`, a power of two apart."""
    step = 2.0 ** math.ceil(math.log2(max(top, 1) / 6))
    return [(n * step, _round(format_bytes(n * step))) for n in range(int(top / step) + 1)]


def time_ticks(top: float) -> list[tuple[float, str]]:
    """Three to nine round times in ns up to `top`."""
    step = 10.0 ** math.floor(math.log10(max(top, 1) / 4))
    step *= next(m for m in (1, 2, 5, 10) if top / (step * m) <= 6)
    return [(n * step, _round(format_ns(n * step))) for n in range(int(top / step) + 1)]


def _round(printed: str) -> str:
    number, _, unit = printed.partition(" ")
    return f"{float(number):g} {unit}" if float(number) else "0"


def y_axis(frame: Frame, ticks: list[tuple[float, str]]) -> str:
    """Grid lines and their labels."""
    lines = []
    for value, label in ticks:
        y = frame.y(value)
        lines.append(tag("line", x1=frame.left, x2=frame.left + frame.width, y1=y, y2=y, class_="grid"))
        lines.append(text(frame.left - 8, y + 4, label, class_="tick", text_anchor="end"))
    return "".join(lines)
