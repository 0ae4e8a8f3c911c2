"""What all pages share: values of settings, bars to scale, tables of classes, files to save."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from prunus.report.page import (
    Bar,
    about_classes,
    as_json,
    class_table,
    confusions,
    drawn_bars,
    points,
    render_page,
    setting_text,
)
from prunus.run.qualities import ClassSide, ClassTable
from prunus.studies.folder import as_csv
from tests.report.runs import Page

NASTY = '<script>alert("x")</script>&\'<b>'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((), "–"),
        (True, "yes"),
        (("a", "b", "c", "d", "e", "f"), "a, b, c, d and 2 more"),
        (0.020, "0.02"),
        (math.sqrt, "sqrt"),
        ({"ridge": 0.5}, "ridge 0.5"),
    ],
)
def test_values_of_settings(value: Any, text: str) -> None:
    assert setting_text(value) == text


def test_bars_share_a_scale_with_zero() -> None:
    up, down, broken = drawn_bars(
        [
            Bar("a", [(0.0, 3.0, "kept"), (1.0, 2.0, "spread")], ""),
            Bar("b", [(0.0, -1.0, "cut")], ""),
            Bar("c", [(0.0, math.inf, "x")], ""),
        ]
    )
    # 64% of the width are 4 units, and zero is one of them from the left.
    assert up.bars == [(16.0, 48.0, "kept"), (32.0, 16.0, "spread")] and up.end == 64
    assert down.bars == [(0.0, 16.0, "cut")] and down.end == 16
    assert broken.bars == [(16.0, 48.0, "x")]
    assert drawn_bars([Bar("d", [(0.0, 0.0, "kept")], "")])[0].bars == [(0.0, 0.3, "kept")]  # still visible


def classes(before: Any, after: Any, complete: bool = True) -> ClassTable:
    values = ((0.9, 0.8, None), (0.9, 0.5, None))
    sides = [ClassSide(v, c, complete) for v, c in zip(values, (before, after), strict=True)]
    return ClassTable("test", "accuracy", "images", ("cat", "<dog>", "eel"), (10, 1000, 0), *sides)


def test_classes_the_worst_first_without_those_that_do_not_occur() -> None:
    table = class_table([("", classes((), ()))])
    texts = [[cell.text for cell in row] for row in table.rows]
    assert texts == [
        ["<dog>", "1,000", "80.0%", "50.0%", "−30.00 points"],
        ["cat", "10", "90.0%", "90.0%", "0.00 points"],
    ]
    assert about_classes(classes((), ())).endswith(" first. Left out because they do not occur: 1.")


def test_confusions_as_a_matrix_or_as_pairs() -> None:
    assert confusions(classes(None, None)) is None  # several labels do not exclude each other
    assert confusions(classes((), ())).text == "No class is taken for another."  # type: ignore[union-attr]
    matrix = confusions(classes(((0, 1, 1),), ((0, 1, 4), (1, 0, 2))))
    assert matrix is not None and matrix.names == ["cat", "<dog>"]
    assert matrix.matrix == [
        [("right", "", "cat: recognised", 0), ("more", "4", "cat taken for <dog>: 4 after, 1 before", 70)],
        [("more", "2", "<dog> taken for cat: 2 after, 0 before", 35), ("right", "", "<dog>: recognised", 0)],
    ]
    pairs = confusions(classes(((0, 1, 1),), ((1, 0, 1200), (0, 1, 4)), complete=False))
    assert pairs is not None and pairs.table is not None and not pairs.matrix
    texts = [[cell.text for cell in row] for row in pairs.table.rows]
    assert texts == [["<dog>", "cat", "–", "1,200"], ["cat", "<dog>", "1", "4"]]


def test_nothing_in_a_file_can_end_the_script() -> None:
    files = {"a.json": as_json({"name": NASTY, "value": float("nan")}), "b.csv": as_csv(("x",), [(None,), ("a,b",)])}
    page = render_page("base.html", title=NASTY, files=files)
    assert page.count("</script>") == 2 and "<b>" not in page
    assert NASTY in Page(page).text
    inside = re.search(r'id="downloads">(.*?)</script>', page)
    assert inside
    saved = json.loads(inside[1])
    assert json.loads(saved["a.json"]) == {"name": NASTY, "value": None} and saved["b.csv"] == 'x\n""\n"a,b"\n'


def test_points() -> None:
    assert [points(x) for x in (-0.00836, 0.01, -0.00001)] == ["−0.84 points", "+1.00 points", "0.00 points"]
