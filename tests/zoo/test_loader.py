"""Batches: normalised right, in an order that can be taken up again anywhere, augmented as He et al. do it."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch

from prunus.errors import DataError
from prunus.zoo import data
from prunus.zoo.images import MemoryImages
from prunus.zoo.loader import pad_crop_mirror
from tests.zoo.formats import random_images, write_tree


def made(count: int = 60, classes: int = 4, mirror: bool = True) -> data.ImageData:
    """Images whose every pixel is unlike its neighbours; the label of image i is i % classes."""
    pixels = torch.from_numpy(random_images(count, 0, (3, 16, 16)))
    images = MemoryImages.whole(pixels, np.arange(count) % classes)
    names = tuple(str(number) for number in range(classes))
    return data.ImageData("made", names, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), (3, 16, 16), {"train": images}, mirror, 0)


def collected(loader: data.Loader, start: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(loader.iterate(start))


def equal(one: list[tuple[torch.Tensor, torch.Tensor]], other: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(one, other, strict=True)
    )


def test_batches_are_normalised_pixel_by_pixel() -> None:
    found = made()
    loader = found.loader("train", 25)
    raw = random_images(60, 0, (3, 16, 16)).astype(np.float64)
    expected = (raw / 255 - np.array([0.1, 0.2, 0.3]).reshape(3, 1, 1)) / np.array([0.5, 0.6, 0.7]).reshape(3, 1, 1)
    batches = collected(loader)
    assert [len(labels) for _, labels in batches] == [25, 25, 10]
    assert (len(loader), loader.num_images, loader.classes) == (3, 60, ("0", "1", "2", "3"))
    images = torch.cat([images for images, _ in batches])
    assert images.dtype == torch.float32
    assert np.abs(images.numpy() - expected).max() < 1e-6
    labels = torch.cat([labels for _, labels in batches])
    assert labels.dtype == torch.int64
    assert labels.tolist() == [number % 4 for number in range(60)]


@pytest.mark.parametrize("augment", [False, True])
def test_an_epoch_can_be_taken_up_again_at_any_batch_bit_for_bit(augment: bool) -> None:
    loader = made().loader("train", 16, shuffle=True, augment=augment, seed=5)
    loader.set_epoch(3)
    whole = collected(loader)
    fresh = made().loader("train", 16, shuffle=True, augment=augment, seed=5)
    fresh.set_epoch(3)
    for start in range(4):
        assert equal(collected(fresh, start), whole[start:])
    assert equal(list(loader), whole)


def test_seed_and_epoch_each_change_the_order_and_the_generators_are_left_alone() -> None:
    before = torch.get_rng_state()

    def order(seed: int, epoch: int) -> list[float]:
        loader = made().loader("train", 60, shuffle=True, augment=True, seed=seed)
        loader.set_epoch(epoch)
        begun = iter(loader)
        loader.set_epoch(5)  # counts for the next iteration only
        return torch.cat([labels for _, labels in begun]).tolist()

    orders = [order(0, 0), order(0, 1), order(1, 0)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] == order(0, 0) and orders[0] != orders[1] != orders[2] != orders[0]
    assert torch.equal(before, torch.get_rng_state())


def test_processes_share_the_images_for_measuring_each_exactly_once() -> None:
    found = made(61)
    alone = torch.cat([images for images, _ in found.loader("train", 61)])
    parts = [torch.cat([images for images, _ in found.loader("train", 8, rank=rank, world=3)]) for rank in range(3)]
    assert [len(part) for part in parts] == [21, 20, 20]
    for rank, part in enumerate(parts):
        assert torch.equal(part, alone[rank::3])


def merged(shares: list[list[tuple[torch.Tensor, torch.Tensor]]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of several processes as those of one: their images take turns."""
    batches = []
    for parts in zip_longest(*shares, fillvalue=()):
        turns = zip_longest(*(zip(*part, strict=True) for part in parts))
        pairs = [pair for turn in turns for pair in turn if pair is not None]
        batches.append(tuple(torch.stack(values) for values in zip(*pairs, strict=True)))
    return batches


@pytest.mark.parametrize(("shuffle", "world"), [(False, 2), (True, 3)])
def test_an_image_is_augmented_alike_however_many_processes_share_a_batch(shuffle: bool, world: int) -> None:
    one, *shares = (
        made(64 if world == 2 else 66).loader("train", size, rank=rank, world=of, augment=True, shuffle=shuffle, seed=5)
        for size, rank, of in ((12, 0, 1), *((12 // world, rank, world) for rank in range(world)))
    )
    for loader in (one, *shares):
        loader.set_epoch(2)
    assert equal(collected(one), merged([collected(loader) for loader in shares]))


def test_processes_get_equally_many_batches_for_training() -> None:
    found = made(62)
    loaders = [found.loader("train", 8, shuffle=True, rank=rank, world=3) for rank in range(3)]
    assert [loader.num_images for loader in loaders] == [20, 20, 20]
    seen = torch.cat([images for loader in loaders for images, _ in loader])
    assert len(torch.unique(seen.flatten(1), dim=0)) == 60
    mirrored = [collected(found.loader("train", 8, augment=True, rank=rank, world=3))[0][0] for rank in (0, 1)]
    assert not torch.equal(*mirrored)


@pytest.mark.parametrize(
    ("count", "size", "expected"), [(33, 16, [16, 16]), (34, 16, [16, 16, 2]), (1, 16, [1]), (3, 1, [1, 1, 1])]
)
def test_a_last_batch_of_one_is_left_out_of_training_only(count: int, size: int, expected: list[int]) -> None:
    loader = made(count).loader("train", size, shuffle=True)
    assert [len(labels) for _, labels in loader] == expected
    assert (len(loader), loader.num_images) == (len(expected), sum(expected))
    assert sum(len(labels) for _, labels in made(count).loader("train", size)) == count


def test_a_limit_takes_the_same_share_of_every_class() -> None:
    loader = made().loader("train", 7, limit=20)
    labels = torch.cat([labels for _, labels in loader])
    assert torch.bincount(labels).tolist() == [5, 5, 5, 5]
    assert loader.num_images == 20
    assert made().loader("train", 7, limit=1000).num_images == 60


@pytest.mark.parametrize(("side", "pad", "mirror", "draws"), [(8, 1, True, 600), (32, 4, False, 40)])
def test_augmented_images_are_crops_of_the_padded_one(side: int, pad: int, mirror: bool, draws: int) -> None:
    """An eighth of the side is padded; of 18 crops of a small image, all occur about equally often."""
    image = random_images(1, 4, (3, side, side))[0]
    repeated = torch.from_numpy(image).repeat(draws, 1, 1, 1)
    drawn = [each.tobytes() for each in pad_crop_mirror(repeated, np.random.default_rng(0), mirror=mirror).numpy()]
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    places = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    straight = [padded[:, top : top + side, left : left + side] for top, left in places]
    hits = [drawn.count(crop.tobytes()) for crop in straight]
    mirrored = [drawn.count(crop[:, :, ::-1].tobytes()) for crop in straight] if mirror else []
    assert sum(hits) + sum(mirrored) == draws
    if mirror:
        assert min(hits + mirrored) > 10 and abs(sum(mirrored) - 300) < 60  # 33 expected of each


def test_workers_and_processes_change_nothing(tmp_path: Path) -> None:
    found = data.load(f"folder:{write_tree(tmp_path, {'a': 9, 'b': 8})}", size=16, holdout="none")
    state = torch.get_rng_state()

    def loader(size: int = 4, workers: int = 0, rank: int = 0, world: int = 1) -> data.Loader:
        made = replace(found, workers=workers)
        return made.loader("train", size, augment=True, shuffle=True, seed=2, rank=rank, world=world)

    whole = list(loader())
    assert [len(labels) for _, labels in whole] == [4, 4, 4, 2]  # 14 images
    assert equal(list(loader(workers=2)), whole) and equal(collected(loader(workers=2), 2), whole[2:])
    assert equal(merged([list(loader(2, rank=rank, world=2)) for rank in (0, 1)])[:3], whole[:3])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_left_out_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    write_tree(tmp_path / "train", {"a": 6, "b": 6})
    found = data.load(f"folder:{tmp_path}", size=16, holdout="none", max_corrupt=2)
    whole = torch.cat([images for images, _ in found.loader("train", 5, augment=True)])
    half = (tmp_path / "train/a/2.png").read_bytes()[:100]
    (tmp_path / "train/a/2.png").write_bytes(half)
    (tmp_path / "train" / "b" / "0.png").write_text("no picture at all")
    loader = replace(found, workers=workers).loader("train", 5, augment=True)
    with caplog.at_level(logging.WARNING):
        batches = list(loader)
        list(loader)
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert set(loader.corrupt) == {str(tmp_path / "train/a/2.png"), str(tmp_path / "train/b/0.png")}
    assert len(caplog.records) == 1  # one line, once, not once an epoch
    assert str(tmp_path / "train/a/2.png") in caplog.text
    kept = [position for position in range(12) if position not in (2, 6)]
    assert torch.equal(torch.cat([images for images, _ in batches]), whole[kept])  # the others' crops do not move


def test_too_many_corrupt_images_are_an_error(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", {"a": 6, "b": 6})
    for name in ("a/0.png", "a/1.png", "b/4.png"):
        (tmp_path / "train" / name).write_bytes((tmp_path / "train" / name).read_bytes()[:100])
    found = data.load(f"folder:{tmp_path}", size=16, holdout="none")
    with pytest.raises(DataError, match=f"3 images cannot be decoded, and at most 2 .*{tmp_path / 'train/a/0.png'}"):
        list(replace(found, max_corrupt=2).loader("train", 5))
    with pytest.raises(DataError, match="cannot be decoded, and at most 1 of 12 may be skipped"):  # one in 20, or 1
        list(found.loader("train", 5))
