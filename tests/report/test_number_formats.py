"""Formatted numbers, against text written by hand."""

from __future__ import annotations

import pytest

from prunus.report import text as formats


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (formats.big(11_944_576), "11.94 M"),
        (formats.big(4.09e9), "4.09 G"),
        (formats.big(640), "640"),
        (formats.percent(0.50152), "50.2%"),
        (formats.points(-0.00836), "−0.84 points"),
        (formats.points(0.01), "+1.00 points"),
        (formats.points(-0.00001), "0.00 points"),
        (formats.change(200, 66), "−67.0%"),
        (formats.change(0, 1), "–"),
        (formats.milliseconds(0.0297), "29.7 ms"),
        (formats.milliseconds(1.5), "1.5 s"),
        (formats.duration(0.01), "under 0.1 s"),
        (formats.duration(51.61), "51.6 s"),
        (formats.duration(75), "1 min 15 s"),
        (formats.duration(3 * 3600 + 120), "3 h 2 min"),
        (formats.count(1, "round"), "1 round"),
        (formats.count(1200, "image"), "1,200 images"),
    ],
)
def test_numbers(found: str, expected: str) -> None:
    assert found == expected
