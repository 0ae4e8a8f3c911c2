"""Numbers formatted for people."""

from __future__ import annotations

from secateur.measuring.quality_words import ACCURACY, QualityWords


def big(number: float) -> str:
    """11944576 as 11.94 M."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if abs(number) >= unit:
            return f"{number / unit:.2f}{suffix}"
    return f"{number:g}"


def percent(fraction: float, digits: int = 1) -> str:
    """0.5015 as 50.2%."""
    return f"{100 * fraction:.{digits}f}%"


def points(change: float, quality: QualityWords = ACCURACY) -> str:
    """-0.0084 as −0.84 points; of a quality that is not in per cent, in its own unit."""
    if quality.unit == "%":
        return f"{_sign(100 * change)} points"
    return quality.change(change).replace("-", "−")


def change(was: float, now: float) -> str:
    """Relative change: 200 and 66 as −67.0%."""
    return f"{_sign(100 * (now / was - 1), 1)}%" if was else "–"


def _sign(number: float, digits: int = 2) -> str:
    words = f"{abs(number):.{digits}f}"
    return words if float(words) == 0 else f"{'+' if number > 0 else '−'}{words}"


def milliseconds(seconds: float) -> str:
    """0.0297 as 29.7 ms."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration(seconds: float) -> str:
    """75 as 1 min 15 s."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "under 0.1 s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(number: int, thing: str) -> str:
    """1 round, 2 rounds."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
