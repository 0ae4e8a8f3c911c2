"""Axes of a chart: a quality, or another value, against another quantity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secateur.measuring.quality_words import QualityWords
from secateur.report import svg

LABEL = 11.0  # per cent of the width of a phone that a number needs; closer numbers would overlap


@dataclass(frozen=True)
class Quantity:
    """What an axis shows: its name, unit sign, smallest range, and whether it has only whole numbers."""

    name: str
    sign: str = ""
    least: float = 0.0
    whole: bool = False


MACS = Quantity("MACs removed", "%", least=5.0)
EPOCHS = Quantity("epochs of retraining", whole=True)


@dataclass(frozen=True)
class Axes:
    """Quality, times its factor (vertical), against another quantity (horizontal)."""

    across: svg.Scale
    down: svg.Scale
    height: float
    counts: Quantity
    quality: QualityWords

    @classmethod
    def around(
        cls,
        values: Sequence[float],
        reached: Sequence[float],
        height: float,
        quality: QualityWords,
        counts: Quantity = MACS,
    ) -> Axes:
        """Axes that contain all values, with space for the numbers below and above the points."""
        low, high = min(values), max(values)
        whole = quality.factor if quality.unit == "%" else max(abs(low), abs(high)) or 1.0
        air = max(0.002 * whole, 0.12 * (high - low))
        # An accuracy is between 0 and 100; a user's own measure may be anything.
        bottom = max(0.0, low - 2 * air) if low >= 0 else low - 2 * air
        top = min(100.0, high + air) if high <= 100 and quality.unit == "%" else high + air
        down = svg.Scale(bottom, top, height - 54, 34)
        return cls(svg.Scale(0, max(counts.least, *reached), 16, 93), down, height, counts, quality)

    def at(self, gone: float, value: float) -> tuple[float, float]:
        """Position of a point: per cent of the width, pixels from the top."""
        return self.across(gone), self.down(value)

    def apart(self, gone: Sequence[float]) -> set[int]:
        """Points whose numbers do not overlap: the first, the last, and some in between."""
        last = len(gone) - 1
        found = [0, last]
        for i in range(1, last):
            if all(abs(self.across(gone[i]) - self.across(gone[j])) >= LABEL for j in found):
                found.append(i)
        return set(found)

    def grid(self) -> list[str]:
        """Grid lines, numbers and axis titles."""
        bottom = self.down.start
        body = []
        for value in svg.ticks(self.down.low, self.down.high, 4):
            body.append(svg.line(0, self.down(value), 100, self.down(value), "grid"))
            body.append(
                svg.text(0, self.down(value) - 4, f"{value:g}{'%' if self.quality.unit == '%' else ''}", "small")
            )
        for value in svg.ticks(0, self.across.high, 6):
            if self.counts.whole and value != int(value):
                continue
            body.append(svg.line(self.across(value), bottom, self.across(value), bottom + 5, "axis"))
            number = f"{value:g}{self.counts.sign}"
            body.append(svg.text(self.across(value), bottom + 18, number, "small", "middle"))
        body.append(svg.line(0, bottom, 100, bottom, "axis"))
        body.append(svg.text(53, bottom + 38, self.counts.name, "small", "middle"))
        body.append(svg.text(0, 12, self.quality.name, "small"))
        return body
