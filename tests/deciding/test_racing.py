"""The race on its own: units that flip images with known chances, no network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from prunus.deciding.racing import CHUNKS, SMALLEST_CHUNK, race

Table = npt.NDArray[np.float64]
IMAGES, UNITS, K = 2000, 54, 18


class Asked:
    """Answers from a table [units, images], and notes what was asked."""

    def __init__(self, table: Table) -> None:
        self.table, self.answers = table, 0
        self.calls: list[list[int]] = []

    def __call__(self, units: Sequence[int], images: npt.NDArray[np.int64]) -> Table:
        assert (np.diff(images) > 0).all()
        self.answers += len(units) * len(images)
        self.calls.append(list(units))
        return self.table[np.ix_(units, images)]

    @property
    def share(self) -> float:
        return self.answers / self.table.size


def drawn(seed: int, images: int = IMAGES, units: int = UNITS) -> tuple[Table, Table, Table]:
    """base [images], its margins and the units' table: as ResNet-56, most units flip only what is near the border, and
    a dozen do harm everywhere."""
    draw = np.random.default_rng(seed)
    margin = draw.gamma(2.0, 5.0, images)
    base = (draw.random(images) < 1 / (1 + np.exp(-0.7 * margin))).astype(float)
    reach = draw.uniform(0.4, 1.2, units)
    harm = np.where(np.arange(units) < 12, draw.uniform(0.05, 0.6, units), 0.0)
    chance = 0.45 * np.exp(-margin / reach[:, None]) + harm[:, None] * (base == 1)
    flipped = draw.random((units, images)) < np.minimum(chance, 1)
    mixed = draw.permutation(units)
    return base, margin, np.where(flipped, 1 - base, base)[mixed]


def run(
    base: Table, margin: Table, ask: Asked, k: int = K, *, tolerance: float = 5e-4, seed: int = 0
) -> tuple[Table, npt.NDArray[np.int64]]:
    order = np.argsort(margin, kind="stable")
    return race(base, order, ask, len(ask.table), k, confidence=0.95, tolerance=tolerance, seed=seed)


def best(values: Table, k: int = K) -> npt.NDArray[np.int64]:
    return np.argsort(-values, kind="stable")[:k]


def test_it_finds_units_as_good_as_the_best_and_looks_at_few_images() -> None:
    shortfall, shares = [], []
    for seed in range(20):
        base, margin, table = drawn(seed)
        ask = Asked(table)
        values, seen = run(base, margin, ask, seed=seed)
        exact = table.mean(axis=1)
        shortfall.append(exact[best(exact)].mean() - exact[best(values)].mean())
        shares.append(ask.share)
        assert sum(seen) == ask.answers and (values <= 1).all()
        assert np.abs(values - exact)[best(values)].max() < 0.005  # those found are near the truth
    assert sum(miss <= 5e-4 for miss in shortfall) >= 19  # at 95% confidence
    assert max(shortfall) <= 1e-3 and np.mean(shares) < 0.25


def test_hopeless_units_drop_out_at_once_and_do_not_come_back() -> None:
    base, margin, table = drawn(1)
    table[:5] = 1 - base  # always wrong where the network is right
    ask = Asked(table)
    values, seen = run(base, margin, ask, tolerance=0.0)
    first = max(SMALLEST_CHUNK, IMAGES // CHUNKS)
    assert list(seen[:5]) == [first] * 5
    assert set(best(values)).isdisjoint(range(5))
    assert all(set(later) <= set(earlier) for earlier, later in zip(ask.calls, ask.calls[1:], strict=False))
    assert all(not set(range(5)) & set(call) for call in ask.calls[1:])


def test_a_unit_that_lost_early_is_not_among_the_best_when_all_others_sink_later() -> None:
    """Units 2 and 3 are far behind on the first chunk and fine afterwards; 0 and 1 the other way round."""
    images = 1000
    base = np.ones(images)
    table = np.ones((4, images))
    table[2:, :50] = 0
    table[:2, 300:] = 0
    ask = Asked(table)
    values, seen = race(base, np.arange(images), ask, 4, 2, confidence=0.95, tolerance=0.0, seed=0)
    assert set(best(values, 2)) == {0, 1}  # what was decided stays decided: they were not looked at again
    assert seen[2] < images and values[2] <= values[:2].min()


def test_zero_tolerance_reads_on_until_the_best_are_certain_in_the_same_way_each_time() -> None:
    base, margin, table = drawn(5, images=400, units=12)
    ask, again, loose = Asked(table), Asked(table), Asked(table)
    values, seen = run(base, margin, ask, 4, tolerance=0.0)
    same = run(base, margin, again, 4, tolerance=0.0)
    assert (same[0] == values).all() and (same[1] == seen).all()
    run(base, margin, loose, 4, tolerance=0.01)
    assert ask.answers > loose.answers
    exact = table.mean(axis=1)
    assert exact[best(values, 4)].mean() == pytest.approx(exact[best(exact, 4)].mean(), abs=1e-12)


def test_few_images_are_all_read_and_as_many_winners_as_units_need_no_race() -> None:
    base, margin, table = drawn(2, images=SMALLEST_CHUNK - 1, units=7)
    ask = Asked(table)
    values, seen = run(base, margin, ask, 3)
    assert ask.share == 1 and set(seen.tolist()) == {SMALLEST_CHUNK - 1}
    assert values == pytest.approx(table.mean(axis=1), abs=1e-12)
    base, margin, table = drawn(2, units=6)
    ask = Asked(table)
    run(base, margin, ask, 6)
    assert len(ask.calls) == 1
