"""Tables as plain text with aligned columns. They are never truncated."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence

GAP = "  "


def columns(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = (), width: int | None = None
) -> str:
    """The table as text: titles, then rows. Columns whose title is in `numbers` are right-aligned.

    width: cells of several words continue on the next line where the table would be wider.
    """
    table = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(titles))]
    if width is not None:
        _narrow(widths, table, width)
    lines = []
    for row in table:
        for cells in _wrapped(row, widths):
            aligned = [
                cell.rjust(size) if title in numbers else cell.ljust(size)
                for cell, size, title in zip(cells, widths, titles, strict=True)
            ]
            lines.append(GAP.join(aligned).rstrip())
    return "\n".join(lines)


def blocks(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str], width: int) -> str:
    """A table with many columns as several tables, one below the other. Each begins with the first column."""
    parts: list[list[int]] = [[]]

    def table(which: Sequence[int]) -> str:
        return columns([titles[i] for i in which], [[row[i] for i in which] for row in rows], numbers)

    for column in range(1, len(titles)):
        if parts[-1] and max(map(len, table([0, *parts[-1], column]).splitlines())) > width:
            parts.append([])
        parts[-1].append(column)
    return "\n\n".join(table([0, *part]) for part in parts)


def _narrow(widths: list[int], table: Sequence[Sequence[str]], width: int) -> None:
    """Make the widest columns narrower until the table fits, but no column narrower than its longest word."""
    least = [max((len(word) for line in table for word in line[i].split()), default=0) for i in range(len(widths))]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        can = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not can:
            return
        widths[max(can, key=lambda i: widths[i])] -= 1


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    """The lines of a row."""
    cells = [
        textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False) if len(cell) > size else [cell]
        for cell, size in zip(row, widths, strict=True)
    ]
    for number in range(max(len(cell) for cell in cells)):
        yield [cell[number] if number < len(cell) else "" for cell in cells]
