"""Tables of text as LaTeX and markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

# Characters that LaTeX reads as commands, or that its default font has elsewhere or not at all.
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "²": "$^2$",
    "→": r"$\rightarrow$",
}


def latex_text(text: str) -> str:
    """Plain text as LaTeX: special characters are escaped."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int] = (),
    *,
    caption: str = "",
    label: str = "",
) -> str:
    r"""A table for a paper: booktabs lines, no vertical ones. The preamble needs \usepackage{booktabs}.

    Args:
        titles: Of the columns.
        rows: Cells as plain text; a row may be shorter.
        numbers: Positions of columns that are right-aligned.
        caption: Plain text; none if empty.
        label: For \ref, such as tab:runs; none if empty.
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
