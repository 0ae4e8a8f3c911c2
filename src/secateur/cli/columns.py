"""Tables as plain text with aligned columns. They are never truncated: a narrow terminal wraps the lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence

GAP = "  "


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """The table as text: titles, then rows. Columns whose title is in `numbers` are right-aligned."""
    table = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(titles))]
    lines = []
    for line in table:
        cells = [
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)
