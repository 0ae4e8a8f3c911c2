"""Image trees and ILSVRC-2012's layouts, decoded in worker processes; corrupt images are named and counted."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from prunus.errors import DataError
from prunus.zoo import data
from prunus.zoo.folders import image_files
from prunus.zoo.images import FileImages, Part, crop_box, decode
from prunus.zoo.loader import FileLoader
from tests.zoo.formats import random_images, write_picture

WNIDS = ("n01440764", "n01443537", "n02086240")


def picture(seed: int, side: int = 40) -> np.ndarray:
    return random_images(1, seed, (side, side, 3))[0]


def tree(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    for name, count in counts.items():
        for number in range(count):
            seed += 1
            write_picture(root / name / f"{number}.png", picture(seed))
    return root


def stems(found: data.ImageData, part: Part) -> list[tuple[str, int]]:
    images = found.parts[part]
    assert isinstance(images, FileImages)
    names = ["/".join(Path(path).parts[-2:]) for path in images.paths]
    return list(zip(names, images.labels.tolist(), strict=True))


def test_one_tree_gives_a_fixed_stratified_fifth_as_test(tmp_path: Path) -> None:
    tree(tmp_path, {"rose": 10, "apple": 5, "yew": 5})
    (tmp_path / "rose" / "notes.txt").write_text("not an image")
    found = data.load(f"folder:{tmp_path}", holdout="none", size=32)
    assert found.classes == ("apple", "rose", "yew")
    assert found.shape == (3, 32, 32)
    assert sorted(label for _, label in stems(found, "test")) == [0, 1, 1, 2]
    assert len(stems(found, "train")) == 16
    assert not set(stems(found, "train")) & set(stems(found, "test"))
    assert stems(found, "test") == stems(data.load(f"folder:{tmp_path}", seed=9), "test")


def test_trees_for_training_and_testing(tmp_path: Path) -> None:
    tree(tmp_path / "train", {"a": 3, "b": 3})
    tree(tmp_path / "val", {"b": 2})
    found = data.load(f"folder:{tmp_path}", holdout="none")
    assert stems(found, "test") == [("b/0.png", 1), ("b/1.png", 1)]
    tree(tmp_path / "val", {"c": 1})
    with pytest.raises(DataError, match="these folders are not classes of the training images: c"):
        data.load(f"folder:{tmp_path}")


def test_folders_that_are_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path / 'no'}: this folder of images does not exist"):
        data.load(f"folder:{tmp_path / 'no'}")
    with pytest.raises(DataError, match="expected one folder per class, found no folders"):
        data.load(f"folder:{tmp_path}")
    tree(tmp_path, {"a": 2})
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / 'b'}: has no images"):
        data.load(f"folder:{tmp_path}")
    with pytest.raises(DataError, match=f"{tmp_path}: expected a folder val of ILSVRC-2012"):
        data.load(f"imagenet:{tmp_path}")


def test_imagenet_by_wnid(tmp_path: Path) -> None:
    tree(tmp_path / "train", dict.fromkeys(WNIDS, 4))
    tree(tmp_path / "val", {WNIDS[2]: 1, WNIDS[0]: 1})
    found = data.load(f"imagenet:{tmp_path}", holdout="train:0.25")
    assert found.classes == WNIDS
    assert [label for _, label in stems(found, "test")] == [0, 2]
    assert [label for _, label in stems(found, "holdout")] == [0, 1, 2]


FLAT = ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000003.JPEG")
TRUTHS = {
    "val.txt": f"{FLAT[2]} {WNIDS[0]}\n{FLAT[0]} {WNIDS[2]}\n{FLAT[1]} {WNIDS[0]}\n",
    "val_map.txt": f"{FLAT[0]} 2\n{FLAT[1]} 0\n{FLAT[2]} 0\n",
    "imagenet_2012_validation_synset_labels.txt": f"{WNIDS[2]}\n{WNIDS[0]}\n{WNIDS[0]}\n",
    "LOC_val_solution.csv": "ImageId,PredictionString\n"
    f"{FLAT[1][:-5]},{WNIDS[0]} 1 2 3 4 \n{FLAT[0][:-5]},{WNIDS[2]} 1 2 3 4 {WNIDS[2]} 5 6 7 8 \n"
    f"{FLAT[2][:-5]},{WNIDS[0]} 1 2 3 4 \n",
    "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": "1\n3\n3\n",
}


def flat_imagenet(root: Path, truth: str, with_train: bool = True) -> Path:
    if with_train:
        tree(root / "train", dict.fromkeys(WNIDS, 2))
    for number, name in enumerate(FLAT):
        write_picture(root / "val" / name, picture(number))
    path = root / truth
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TRUTHS[truth])
    if "devkit" in truth:  # numbers from 1, in an order that is not that of the wnids
        synsets = np.array([(1, WNIDS[2]), (2, WNIDS[1]), (3, WNIDS[0])], dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")])
        savemat(str(path.parent / "meta.mat"), {"synsets": synsets})
    return root


@pytest.mark.parametrize("truth", TRUTHS)
def test_a_flat_validation_folder_with_its_true_classes(tmp_path: Path, truth: str) -> None:
    found = data.load(f"imagenet:{flat_imagenet(tmp_path, truth)}", holdout="none")
    assert found.classes == WNIDS
    assert [label for _, label in stems(found, "test")] == [2, 0, 0]


def test_a_validation_folder_alone_can_be_divided_for_decisions(tmp_path: Path) -> None:
    root = flat_imagenet(tmp_path, "val.txt", with_train=False)
    (root / "classes.txt").write_text("".join(f"{wnid} something\n" for wnid in WNIDS))
    found = data.load(f"imagenet:{root}", holdout="test:0.34")
    assert found.classes == WNIDS
    assert (found.count("train"), found.count("holdout"), found.count("test")) == (0, 1, 2)
    with pytest.raises(DataError, match=r"has no train images"):
        found.loader("train")


@pytest.mark.parametrize(
    ("truth", "content", "said"),
    [
        ("val.txt", f"{FLAT[0]} n99999999\n{FLAT[1]} {WNIDS[0]}\n{FLAT[2]} {WNIDS[0]}\n", "do not have: n99999999"),
        ("val.txt", f"{FLAT[0]} {WNIDS[0]}\n", f"has no label for the image {FLAT[1]}"),
        ("val.txt", f"{WNIDS[0]}\n", "has 1 lines for 3 images"),
        ("val.txt", f"{FLAT[0]} {WNIDS[0]}\nx y z\n", "line 2 should be `file class`, got 'x y z'"),
        ("val_map.txt", f"{FLAT[0]} 3\n{FLAT[1]} 0\n{FLAT[2]} 0\n", r"labels must lie in 0\.\.2; 1 do not"),
    ],
)
def test_bad_ground_truth(tmp_path: Path, truth: str, content: str, said: str) -> None:
    flat_imagenet(tmp_path, truth)
    (tmp_path / truth).write_text(content)
    with pytest.raises(DataError, match=f"{tmp_path / truth}: .*{said}"):
        data.load(f"imagenet:{tmp_path}")


def test_no_ground_truth_at_all(tmp_path: Path) -> None:
    flat_imagenet(tmp_path, "val.txt")
    (tmp_path / "val.txt").unlink()
    with pytest.raises(DataError, match=r"a flat validation folder needs a file with its labels .*meta\.mat"):
        data.load(f"imagenet:{tmp_path}")


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
        assert left >= 0
        assert top >= 0
        assert left + width <= 200
        assert top + height <= 100
        assert 0.70 < width / height < 1.42  # 3/4 to 4/3, and what rounding adds
        areas.append(width * height / 20000)
    assert min(areas) < 0.12
    assert max(areas) <= 0.67  # 4/3 of the height squared is the largest that fits
    assert crop_box((1000, 10), rng)[2:] == (13, 10)  # nothing fits: the largest central crop of an allowed shape


@pytest.mark.parametrize("augment", [False, True])
def test_workers_change_nothing(tmp_path: Path, augment: bool) -> None:
    found = data.load(f"folder:{tree(tmp_path, {'a': 9, 'b': 8})}", size=16, holdout="none")
    state = torch.get_rng_state()
    runs = []
    for workers in (0, 2):
        loader = replace(found, workers=workers).loader("train", 4, augment=augment, shuffle=True, seed=2)
        loader.set_epoch(1)
        runs.append([*loader, *loader.iterate(2)])
    assert len(runs[0]) == 6  # 14 images in 4 batches, and the last two again
    for (images, labels), (other, numbers) in zip(*runs, strict=True):
        assert torch.equal(images, other)
        assert torch.equal(labels, numbers)
    assert torch.equal(runs[0][2][0], runs[0][4][0])
    assert torch.equal(state, torch.get_rng_state())


def test_files_are_augmented_alike_however_many_processes_share_a_batch(tmp_path: Path) -> None:
    found = data.load(f"folder:{tree(tmp_path, {'a': 8, 'b': 8})}", size=16, holdout="none")
    one, *two = (
        list(found.loader("train", size, augment=True, shuffle=True, rank=rank, world=world))
        for size, rank, world in ((4, 0, 1), (2, 0, 2), (2, 1, 2))
    )
    for number, (images, labels) in enumerate(one):
        for rank in (0, 1):
            assert torch.equal(images[rank::2], two[rank][number][0]) and torch.equal(
                labels[rank::2], two[rank][number][1]
            )


def spoil(root: Path, names: list[str]) -> None:
    for name in names:
        whole = (root / name).read_bytes()
        (root / name).write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_left_out_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    tree(tmp_path / "train", {"a": 6, "b": 6})
    found = data.load(f"folder:{tmp_path}", size=16, holdout="none", max_corrupt=2)
    whole = torch.cat([images for images, _ in found.loader("train", 5, augment=True)])
    spoil(tmp_path / "train", ["a/2.png"])
    (tmp_path / "train" / "b" / "0.png").write_text("no picture at all")
    loader = replace(found, workers=workers).loader("train", 5, augment=True)
    assert isinstance(loader, FileLoader)
    with caplog.at_level(logging.WARNING):
        batches = list(loader)
        list(loader)
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert set(loader.corrupt) == {str(tmp_path / "train/a/2.png"), str(tmp_path / "train/b/0.png")}
    assert len(caplog.records) == 1  # one line, once, not once an epoch
    assert str(tmp_path / "train/a/2.png") in caplog.text
    kept = [position for position in range(12) if position not in (2, 6)]
    assert torch.equal(torch.cat([images for images, _ in batches]), whole[kept])  # the others' crops do not move


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_corrupt_images_are_an_error(tmp_path: Path, workers: int) -> None:
    tree(tmp_path / "train", {"a": 6, "b": 6})
    spoil(tmp_path / "train", ["a/0.png", "a/1.png", "b/4.png"])
    found = data.load(f"folder:{tmp_path}", size=16, holdout="none", max_corrupt=2)
    with pytest.raises(DataError, match=f"3 images cannot be decoded, and at most 2 .*{tmp_path / 'train/a/0.png'}"):
        list(replace(found, workers=workers).loader("train", 5))


def test_a_quarter_of_few_images_is_too_much(tmp_path: Path) -> None:
    """3 of 12: fewer than 20, and far more than one in 20."""
    tree(tmp_path / "train", {"a": 6, "b": 6})
    spoil(tmp_path / "train", ["a/0.png", "a/1.png", "b/4.png"])
    with pytest.raises(DataError, match="cannot be decoded, and at most 1 of 12 may be skipped"):
        list(data.load(f"folder:{tmp_path}", size=16, holdout="none").loader("train", 5))


def test_images_are_found_below_their_folder_in_one_order(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "deep/c.jpeg", ".hidden.png", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert image_files(tmp_path) == ["a.png", "b.JPG", "deep/c.jpeg"]
