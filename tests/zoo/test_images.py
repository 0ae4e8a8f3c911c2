"""Samples and crops: stratified and seeded samples, random and central crops, resizing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prunus.zoo import data
from prunus.zoo.images import crop_box, decode, divide, stratified
from tests.zoo.formats import random_images, write_picture


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


def test_evaluation_takes_the_middle_of_the_resized_image(tmp_path: Path) -> None:
    # the shorter side is 256 already, so nothing is resized: the crop is exact
    pixels = random_images(1, 3, (256, 300, 3))[0]
    path = write_picture(tmp_path / "a.png", pixels)
    assert np.array_equal(decode(str(path), 224, None), pixels[16:240, 38:262].transpose(2, 0, 1))
    # one colour stays one colour, whatever the size and mode of the file
    Image.new("L", (37, 91), 77).save(tmp_path / "grey.png")
    assert np.array_equal(decode(str(tmp_path / "grey.png"), 32, None), np.full((3, 32, 32), 77, np.uint8))


def test_random_crops_have_the_allowed_areas_and_shapes() -> None:
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(500):
        left, top, width, height = crop_box((200, 100), rng)
        assert min(left, top) >= 0 and left + width <= 200 and top + height <= 100
        assert 0.70 < width / height < 1.42  # 3/4 to 4/3, and what rounding adds
        areas.append(width * height / 20000)
    assert min(areas) < 0.12 and max(areas) <= 0.67  # 4/3 of the height squared is the largest that fits
    assert crop_box((1000, 10), rng)[2:] == (13, 10)  # nothing fits: the largest central crop of an allowed shape


def test_resizing_is_bilinear() -> None:
    found = data.load("digits", size=32)
    assert found.shape == (1, 32, 32)
    image = next(iter(found.loader("test", 1)))[0][0, 0].numpy() * 0.3761 + 0.3053
    small = next(iter(data.load("digits").loader("test", 1)))[0][0, 0].numpy() * 0.3761 + 0.3053
    for row, column in ((0, 0), (5, 9), (13, 18), (31, 31), (16, 2)):
        y, x = (min(max((position + 0.5) / 4 - 0.5, 0), 7) for position in (row, column))
        top, left = min(int(y), 6), min(int(x), 6)
        corner = small[top : top + 2, left : left + 2]
        weights = np.outer([1 - (y - top), y - top], [1 - (x - left), x - left])
        assert image[row, column] == pytest.approx(float((corner * weights).sum()), abs=0.003)  # stored as whole 255ths
