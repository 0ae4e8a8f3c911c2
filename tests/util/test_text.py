"""Numbers, durations and tables for people."""

from __future__ import annotations

import re

import pytest

from prunus.util import text
from prunus.util.text import latex_table, markdown_table


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (text.big_number(11_944_576), "11.94 M"),
        (text.big_number(4_089_184_256), "4.09 G"),
        (text.big_number(1_000), "1.00 K"),
        (text.big_number(999), "999"),
        (text.big_number(-2_500_000), "-2.50 M"),
        (text.percent(0.5015), "50.1%"),
        (text.percent(0.5015, 2), "50.15%"),
        (text.signed(-0.84), "−0.84"),
        (text.signed(0.84), "+0.84"),
        (text.signed(-0.004), "0.00"),
        (text.relative_change(200, 66), "−67.0%"),
        (text.relative_change(50, 75), "+50.0%"),
        (text.relative_change(0, 66), "–"),
        (text.milliseconds(0.0297), "29.7 ms"),
        (text.milliseconds(1.25), "1.25 s"),
        (text.duration(0.01), "under 0.1 s"),
        (text.duration(0.42), "0.4 s"),
        (text.duration(75), "1 min 15 s"),
        (text.duration(59.96), "1 min 0 s"),
        (text.duration(119.7), "2 min 0 s"),
        (text.duration(5400), "1 h 30 min"),
        (text.count(1, "round"), "1 round"),
        (text.count(2000, "image"), "2,000 images"),
    ],
)
def test_numbers(written: str, expected: str) -> None:
    assert written == expected


def test_columns_are_aligned_and_long_tables_are_cut() -> None:
    rows = [("a", "1"), ("long name", "22"), ("b", "3")]
    assert text.short_table("Title", ("unit", "n"), rows, most=2).splitlines() == [
        "Title",
        "  unit       n",
        "  a          1",
        "  long name  22",
        "  ... and 1 more",
    ]


# -- LaTeX and markdown


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
