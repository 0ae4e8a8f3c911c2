"""Plain text tables and numbers for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

MOST_ROWS = 10


def short_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], most: int = MOST_ROWS) -> str:
    """A title and an aligned table for `repr`; rows beyond `most` are only counted."""
    shown = [header, *rows[:most]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(header))]
    lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in shown]
    more = [f"  ... and {len(rows) - most} more"] if len(rows) > most else []
    return "\n".join([title, *(line.rstrip() for line in lines), *more])


def bytes_text(number: float) -> str:
    """196608 as 192.0 KiB."""
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} bytes"


def big_number(number: float) -> str:
    """11944576 as 11.94 M, as in the paper's tables."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if abs(number) >= unit:
            return f"{number / unit:.2f}{suffix}"
    return f"{number:g}"


def percent(fraction: float, digits: int = 1) -> str:
    """0.5018 as 50.2%."""
    return f"{100 * fraction:.{digits}f}%"


def signed(number: float, digits: int = 2) -> str:
    """-0.84 as −0.84 (with a minus sign), 0.84 as +0.84, zero without a sign."""
    text = f"{abs(number):.{digits}f}"
    return text if float(text) == 0 else f"{'+' if number > 0 else '−'}{text}"


def relative_change(was: float, now: float) -> str:
    """200 and 66 as −67.0%."""
    return f"{signed(100 * (now / was - 1), 1)}%" if was else "–"


def milliseconds(seconds: float) -> str:
    """0.0297 as 29.7 ms."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration(seconds: float) -> str:
    """75 as 1 min 15 s, 0.42 as 0.4 s, 5400 as 1 h 30 min."""
    if seconds < 59.95:  # which is written as 60.0
        return f"{seconds:.1f} s" if seconds >= 0.05 else "under 0.1 s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(number: int, thing: str) -> str:
    """1 round, 2 rounds."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def html_table(lead: str, rows: Sequence[Sequence[str]]) -> str:
    """A table for notebooks below `lead`, which is HTML; the first row has the titles."""
    cells = ("".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<p>{lead}</p><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


# -- LaTeX and markdown

# Characters that LaTeX reads as commands, or that its default font has elsewhere or not at all.
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"${sign}$" for sign in "<>|"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        '"': "''",
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "–": "--",
        "²": "$^2$",
        "→": r"$\rightarrow$",
    }
)


def latex_text(text: str) -> str:
    """Plain text as LaTeX: special characters are escaped."""
    return text.translate(_LATEX)


def latex_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    *,
    caption: str = "",
    label: str = "",
) -> str:
    r"""A table for a paper: booktabs lines, no vertical ones. The preamble needs \usepackage{booktabs}.

    Cells are plain text, and a row may be shorter. `numbers` are the positions of columns that are right-aligned.
    `label` is for \ref, such as tab:runs; neither it nor a caption is written if it is empty.
    """
    form = "".join("r" if place in numbers else "l" for place in range(len(titles)))

    def line(cells: Sequence[str]) -> str:
        padded = [*cells, *[""] * (len(titles) - len(cells))]
        return f"    {' & '.join(map(latex_text, padded))} \\\\"

    lines = [r"% preamble: \usepackage{booktabs}", r"\begin{table}", r"  \centering"]
    lines += [f"  \\caption{{{latex_text(caption)}}}"] if caption else []
    lines += [f"  \\label{{{label}}}"] if label else []
    lines += [f"  \\begin{{tabular}}{{{form}}}", r"    \toprule", line(titles), r"    \midrule", *map(line, rows)]
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
