"""Elements of inline SVG. Horizontal positions are in per cent of the width, vertical ones in pixels.

So a chart has no fixed width: on a phone the bars shrink, but the text does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LONGEST_NAME = 22  # number of letters that fit next to the bars on a phone


@dataclass(frozen=True)
class Scale:
    """Maps values in [low, high] linearly to positions in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.0)


def chart(body: Sequence[str], height: float, label: str, kind: str) -> str:
    """A complete chart; `label` describes it for screen readers."""
    inside = "\n".join(body)
    return (
        f'<svg class="chart {kind}" role="img" width="100%" height="{height:.0f}" aria-label="{escape(label)}">'
        f"\n{inside}\n</svg>"
    )


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """A bar with its tooltip."""
    return (
        f'<rect class="{kind}" x="{x:.2f}%" y="{y:.1f}" width="{max(width, 0):.2f}%" height="{max(height, 0):.1f}">'
        f"{_title(title)}</rect>"
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str, title: str = "") -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}">{_title(title)}</line>'


def dot(x: float, y: float, kind: str, title: str, radius: float = 5) -> str:
    """A point of a curve with its tooltip."""
    return f'<circle class="{kind}" cx="{x:.2f}%" cy="{y:.1f}" r="{radius:g}">{_title(title)}</circle>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Text at a position."""
    return f'<text class="{kind}" x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def name(y: float, words: str, kind: str = "", x: float = 0) -> str:
    """A name on the left. A narrow screen shows only the end of a long name."""
    if len(words) <= LONGEST_NAME:
        return text(x, y, words, f"name {kind}")
    return text(x, y, words, f"name wide {kind}") + text(x, y, "…" + words[1 - LONGEST_NAME :], f"name narrow {kind}")


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between low and high, 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""
