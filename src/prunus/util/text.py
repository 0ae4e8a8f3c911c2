"""Plain text tables and numbers for people."""

from __future__ import annotations

from collections.abc import Sequence

MOST_ROWS = 10


def short_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> str:
    """A title and an aligned table for `repr`; rows beyond `most` are only counted."""
    shown = [header, *rows[:most]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(header))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
    more = [f"  ... and {len(rows) - most} more"] if len(rows) > most else []
    return "\n".join([title, *(line.rstrip() for line in lines), *more])


def big_number(number: float) -> str:
    """1234567 -> 1.23 M, as in the paper's tables."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if number >= unit:
            return f"{number / unit:.2f}{suffix}"
    return str(number)
