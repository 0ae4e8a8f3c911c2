"""Numbers, durations and tables for people."""

from __future__ import annotations

import pytest

from prunus.util import text


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
