"""Ticks and scales of the charts."""

from __future__ import annotations

from prunus.report.svg import Scale, ticks


def test_ticks_are_round_numbers_within() -> None:
    assert ticks(0, 50) == [0, 10, 20, 30, 40, 50]
    assert ticks(0.93, 1.0, 4) == [0.94, 0.96, 0.98, 1.0]
    assert ticks(-3, 8, 4) == [0, 5]
    assert ticks(2, 2) == [2]


def test_a_scale_is_linear() -> None:
    assert [Scale(10, 20, 0, 100)(v) for v in (10, 15, 20)] == [0, 50, 100]
    assert [Scale(0, 1, 50, 10)(v) for v in (0, 0.25, 1)] == [50, 40, 10]
    assert Scale(3, 3, 5, 9)(3) == 5
