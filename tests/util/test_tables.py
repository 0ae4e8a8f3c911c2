"""Tables as LaTeX and markdown."""

from __future__ import annotations

import re

from prunus.util.tables import latex_table, markdown_table


def test_a_table_by_hand() -> None:
    rows = [[r"a_1 {x} \n", "p < 0.001 ±0.2 −3 2×2 ~^|"], ["b"]]
    found = latex_table(["run", "top-1 (%)"], rows, [1], caption="Runs & more #1 $2", label="tab:runs")
    assert found.splitlines() == [
        r"% preamble: \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{Runs \& more \#1 \$2}",
        r"  \label{tab:runs}",
        r"  \begin{tabular}{lr}",
        r"    \toprule",
        r"    run & top-1 (\%) \\",
        r"    \midrule",
        r"    a\_1 \{x\} \textbackslash{}n & "
        r"p $<$ 0.001 $\pm$0.2 $-$3 2$\times$2 \textasciitilde{}\textasciicircum{}$|$ \\",
        r"    b &  \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


def test_any_text_leaves_the_table_whole() -> None:
    """Outside of commands, no character is left that LaTeX would read as one: every row has one & between its cells."""
    wild = "".join(map(chr, range(32, 127)))
    for line in latex_table([wild, wild], [[wild, wild]]).splitlines():
        if line.endswith("\\\\"):
            plain = re.sub(r"\$[^$]*\$", "", re.sub(r"\\(text\w+\{\}|[&%$#_{}])", "", line[:-2]))
            assert plain.count("&") == 1 and not set(plain) & set("%$#_{}~^\\<>|")


def test_markdown_by_hand() -> None:
    assert markdown_table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"
