"""What is refused, and what the message says."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import prunus as pr
from prunus.errors import DataError, PlanError, RunError, ScoreError
from tests.repairing.toys import READERS, half_of, pictures, seeded, traced

SOME = pictures(4)


def broken() -> Tensor:
    images = SOME.clone()
    images[1, 2, 3, 4] = float("nan")
    return images


REFUSALS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (
        pictures(4, side=9),
        {},
        DataError,
        r"traced with images of \[3, 8, 8\] \(float64\), got images of \[3, 9, 9\]",
    ),
    (SOME.float(), {}, DataError, "float32"),
    (broken(), {}, DataError, "NaN"),
    (SOME[:0], {}, DataError, "no images"),
    ([], {}, DataError, "no batch"),
    ([{"picture": SOME}], {}, DataError, "picture"),
    (["images"], {}, DataError, "str"),
    (None, {}, RunError, "'solve' needs images"),
    (SOME, {"how": "solv"}, RunError, "no repair called 'solv': did you mean solve"),
    (SOME, {"layers": "some"}, RunError, "layers must be one of changed, cut"),
    (SOME, {"ridge": 0.0}, RunError, "ridge must be above 0"),
    (SOME, {"ridge": float("nan")}, RunError, "ridge must be above 0"),
    (SOME, {"how": "bn", "ridge": 1.0}, RunError, "'bn' has no option 'ridge'; it has: memory"),
    (SOME, {"rigde": 1.0}, RunError, r"no option 'rigde' \(did you mean ridge\?\); it has: layers, ridge, positions"),
    (SOME, {"positions": 0}, RunError, "at least 1"),
    *((SOME, {"memory": m}, RunError, "memory must be a size such as 4G") for m in ("much", "-4G", "5M", "", 0)),
]


@pytest.fixture(scope="module")
def graph() -> pr.ChannelGraph:
    return traced(seeded(READERS["plain"]))


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_repair(graph: pr.ChannelGraph, number: int) -> None:
    images, options, error, complaint = REFUSALS[number]
    with pytest.raises(error, match=complaint):
        pr.repair(graph, half_of(graph, "0:out"), images, **options)


def test_plans_of_other_networks(graph: pr.ChannelGraph) -> None:
    other = traced(seeded(READERS["linear"]))
    with pytest.raises(PlanError, match="another network"):
        pr.repair(graph, half_of(other, "0:out"), SOME)


@pytest.mark.parametrize(
    "images, options, error, complaint",
    [
        (SOME, {"positions": 0}, ScoreError, "at least 1"),
        (pictures(4, side=9), {}, DataError, r"traced with images of \[3, 8, 8\]"),
    ],
)
def test_repair_each(
    graph: pr.ChannelGraph, images: Tensor, options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        pr.repair_each(graph, images, **options)
