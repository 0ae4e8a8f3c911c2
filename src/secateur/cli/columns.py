"""Tables as plain text with aligned columns. They are never truncated: a narrow terminal wraps the lines."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

GAP = "  "


def columns(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = (), width: int | None = None
) -> str:
    """The table as text: titles, then rows. Columns whose title is in `numbers` are right-aligned.

    width: the last column continues on lines of its own where it would be wider.
    """
    table = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(titles))]
    lines = []
    for line in table:
        cells = [
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ]
        lines += _wrapped(GAP.join(cells).rstrip(), sum(widths[:-1]) + len(GAP) * (len(widths) - 1), width)
    return "\n".join(lines)


def _wrapped(line: str, start: int, width: int | None) -> list[str]:
    """The line with its last column, which begins at `start`, wrapped to the width."""
    if width is None or len(line) <= width:
        return [line]
    return [
        (line[:start] if number == 0 else " " * start) + part
        for number, part in enumerate(textwrap.wrap(line[start:], max(20, width - start)))
    ]
