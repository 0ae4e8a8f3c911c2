"""Parts of a data set: disjoint, complete, stratified, seeded."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prunus.errors import DataError
from prunus.zoo import data
from prunus.zoo.images import MemoryImages, Part, divide, stratified
from prunus.zoo.names import parse_holdout


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=90), st.floats(0, 1), st.integers(0, 5))
def test_every_class_keeps_its_share_to_within_one_image(labels: list[int], share: float, seed: int) -> None:
    count = int(share * len(labels))
    taken = stratified(np.array(labels), count, seed)
    assert len(taken) == len(set(taken.tolist())) == count
    assert list(taken) == sorted(taken)
    got = Counter(labels[position] for position in taken)
    for label, size in Counter(labels).items():
        assert abs(got[label] - size * count / len(labels)) < 1


def test_the_seed_decides_and_nothing_else() -> None:
    labels = np.repeat(np.arange(10), 50)
    assert np.array_equal(stratified(labels, 100, 1), stratified(labels, 100, 1))
    assert not np.array_equal(stratified(labels, 100, 1), stratified(labels, 100, 2))
    taken, rest = divide(labels, 0.1, 3)
    assert sorted([*taken, *rest]) == list(range(500))
    assert np.bincount(labels[taken]).tolist() == [5] * 10


def rows(found: data.ImageData, part: Part) -> set[int]:
    images = found.parts[part]
    assert isinstance(images, MemoryImages)
    return set(images.rows.tolist())


def test_held_out_training_images() -> None:
    found = data.load("digits", holdout="train:0.1")
    parts = [rows(found, part) for part in ("train", "holdout", "test")]
    assert [len(part) for part in parts] == [1294, 144, 359]  # 1797 = 359 + 1438; 144 = round(143.8)
    assert len(set.union(*parts)) == 1797
    other = data.load("digits", holdout="train:0.1", seed=1)
    assert rows(other, "holdout") != parts[1]
    assert rows(other, "test") == parts[2]


def test_held_out_test_images_leave_the_training_set_whole() -> None:
    found = data.load("digits", holdout="test:0.5")
    train, holdout, test = (rows(found, part) for part in ("train", "holdout", "test"))
    assert (len(train), len(holdout), len(test)) == (1438, 180, 179)
    assert holdout | test == rows(data.load("digits"), "test")
    assert not holdout & test


def test_nothing_held_out() -> None:
    found = data.load("digits", holdout="none")
    assert {part: found.count(part) for part in ("train", "holdout", "test")} == {
        "train": 1438,
        "holdout": 0,
        "test": 359,
    }
    with pytest.raises(DataError, match=r"digits has no holdout images; it has train \(1438\), test \(359\)"):
        found.loader("holdout")


@pytest.mark.parametrize("text", ["train", "train:0", "train:1", "val:0.5", "test:1.5", "test:-0.5", "test:0.0", ""])
def test_bad_holdouts(text: str) -> None:
    with pytest.raises(DataError, match="holdout must be train:SHARE"):
        parse_holdout(text)


def test_a_holdout_of_no_image_at_all() -> None:
    with pytest.raises(DataError, match=r"test:0.0001 of 359 images are 0 held-out images"):
        data.load("digits", holdout="test:0.0001")
