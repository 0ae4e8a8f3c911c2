"""Images with boxes: YOLO's and COCO's layouts, letterboxes, and labels that cannot be used."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prunus.errors import DataError
from prunus.tasks.detection import scaled_back
from prunus.zoo.boxes import GREY, letterbox
from prunus.zoo.data import load
from tests.tasks.scenes import drawn, write_yolo

HOW: dict[str, Any] = {"labels": "boxes", "size": 32, "mean": (0.0,), "std": (1.0,)}


def labels_of(data: Any, part: str) -> list[dict[str, torch.Tensor]]:
    return [one for _, labels in data.loader(part, 4) for one in labels]


def check_scenes(found: list[dict[str, torch.Tensor]], seed: int) -> None:
    """The boxes are those that were drawn, in pixels."""
    for one, (_, rows) in zip(found, drawn(len(found), seed), strict=True):
        assert one["labels"].tolist() == [row[0] for row in rows]
        assert one["boxes"].numpy() == pytest.approx(np.array([row[1:] for row in rows]), abs=1e-3)
        assert one["frame"].tolist() == [1, 0, 0, 32, 32] and not one["crowd"].any()


@pytest.mark.parametrize("named", [True, False])
def test_yolo_in_parts(tmp_path: Path, named: bool) -> None:
    write_yolo(tmp_path, {"train": 6, "val": 3}, names=named)
    data = load(f"folder:{tmp_path}", holdout="none", **HOW)
    assert data.classes == (("square", "bar") if named else ("0", "1"))
    assert (data.count("train"), data.count("test"), data.shape) == (6, 3, (3, 32, 32))
    check_scenes(labels_of(data, "train"), seed=1)
    check_scenes(labels_of(data, "test"), seed=2)
    images, _ = next(iter(data.loader("train", 2)))
    assert torch.equal((images[0] * 255).round().byte().permute(1, 2, 0), torch.from_numpy(drawn(1, 1)[0][0]))


def test_yolo_by_its_yaml_and_without_parts(tmp_path: Path) -> None:
    write_yolo(tmp_path / "a", {"train": 2, "val": 1, "test": 3})
    data = load(f"folder:{tmp_path / 'a' / 'data.yaml'}", holdout="none", **HOW)
    assert (data.count("train"), data.count("test")) == (2, 3)
    write_yolo(tmp_path / "b", {"": 10}, names=False)
    (tmp_path / "b" / "classes.txt").write_text("square\nbar\n")
    data = load(f"folder:{tmp_path / 'b'}", holdout="train:0.25", **HOW)
    assert {part: data.count(part) for part in ("train", "holdout", "test")} == {"train": 6, "holdout": 2, "test": 2}  # type: ignore[arg-type]
    assert data.classes == ("square", "bar")


def test_yaml_with_lists_of_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in coco.yaml: text files that list images, and a test set whose labels are not public."""
    write_yolo(tmp_path, {"train": 4, "val": 3, "test": 2, "more": 5})
    for file in (tmp_path / "labels" / "test").iterdir():
        file.unlink()
    (tmp_path / "train.txt").write_text("./images/train/000.png\n\n./images/train/002.png\n")
    listed = "train: [train.txt, images/more]\nval: ../images/val\nnames: [square, bar]\n"
    for test in ("test: images/test\n", "test: gone\n"):
        (tmp_path / "data.yaml").write_text(listed + test)
        data = load(f"folder:{tmp_path}", holdout="none", **HOW)
        assert (data.count("train"), data.count("test")) == (7, 3)
    assert "there is no gone" in caplog.text and "val is the test set" in caplog.text
    first, second, *_ = labels_of(data, "train")
    scenes = drawn(4, 1)
    assert first["boxes"].numpy() == pytest.approx(np.array([row[1:] for row in scenes[0][1]]), abs=1e-3)
    assert second["boxes"].numpy() == pytest.approx(np.array([row[1:] for row in scenes[2][1]]), abs=1e-3)


def test_a_photograph_that_is_stored_on_its_side(tmp_path: Path) -> None:
    """EXIF says how to turn it. Boxes are those of the upright photograph unless their size says otherwise."""
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    path = tmp_path / "photograph.png"
    Image.fromarray(pixels).save(path, exif=exif)
    for declared, width, height in ((None, 4, 8), ((4, 8), 4, 8), ((8, 4), 8, 4)):
        square, labels = letterbox(str(path), np.array([[0, 0, 0, 1, 1, 0.0]]), 8, None, declared)
        left, top = (8 - width) // 2, (8 - height) // 2
        assert labels["boxes"].tolist() == [[left, top, left + width, top + height]]
        white = square[:, top : top + 2] if height == 8 else square[:, :, :2]
        assert (white == 255).sum() == 3 * 2 * 4


def write_coco(folder: Path, part: str, count: int, seed: int, where: str) -> dict[str, Any]:
    (folder / where).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for n, (pixels, rows) in enumerate(drawn(count, seed)):
        Image.fromarray(pixels).save(folder / where / f"{n}.png")
        images.append({"id": 100 + n, "file_name": f"{n}.png", "width": 32, "height": 32})
        for label, x1, y1, x2, y2 in rows:
            box = [x1, y1, x2 - x1, y2 - y1]
            annotations.append(
                {"id": len(annotations), "image_id": 100 + n, "category_id": [7, 90][label], "bbox": box}
            )
    categories = [{"id": 90, "name": "bar"}, {"id": 7, "name": "square"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def test_coco_as_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    for part, count, seed in (("train2017", 5, 1), ("val2017", 2, 2)):
        content = write_coco(tmp_path, part, count, seed, part)
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    data = load(f"folder:{tmp_path}", holdout="none", **HOW)
    assert data.classes == ("square", "bar")  # categories 7 and 90
    check_scenes(labels_of(data, "train"), seed=1)
    check_scenes(labels_of(data, "test"), seed=2)


def test_coco_in_one_file_with_a_crowd(tmp_path: Path) -> None:
    content = write_coco(tmp_path, "", 5, 1, "images")
    content["annotations"][0]["iscrowd"] = 1
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    for spec in (tmp_path, tmp_path / "annotations.json"):
        data = load(f"folder:{spec}", holdout="none", **HOW)
        assert (data.count("train"), data.count("test")) == (4, 1)
        every = [*labels_of(data, "train"), *labels_of(data, "test")]
        assert sum(int(one["crowd"].sum()) for one in every) == 1


def test_a_letterbox_keeps_the_ratio_of_the_sides(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[5:15, 10:20] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    rows = np.array([[1, 0.25, 0.25, 0.5, 0.75, 0]])  # the bright square
    image, labels = letterbox(str(tmp_path / "wide.png"), rows, 80, None)
    assert labels["frame"].tolist() == [2, 0, 20, 40, 20]
    assert labels["boxes"].tolist() == [[20, 30, 40, 50]] and labels["labels"].tolist() == [1]
    assert (image[:, :20] == GREY).all() and (image[:, 60:] == GREY).all()
    assert (image[:, 32:48, 22:38] == 200).all() and (image[:, 22:27, 50:] == 0).all()
    for seed in range(6):  # smaller, elsewhere, mirrored: the box is still around the bright pixels
        image, labels = letterbox(str(tmp_path / "wide.png"), rows, 80, np.random.default_rng(seed))
        bright = np.argwhere(image[0] > 160)
        want = [*bright.min(0)[::-1], *(bright.max(0)[::-1] + 1)]
        assert labels["boxes"][0].tolist() == pytest.approx(want, abs=1.5)


def test_the_size_of_the_letterbox_does_not_change_the_boxes_of_the_file(tmp_path: Path) -> None:
    write_yolo(tmp_path, {"train": 4})
    small, large = (
        labels_of(load(f"folder:{tmp_path}", holdout="none", **{**HOW, "size": size}), "train") for size in (32, 80)
    )
    for one, other in zip(small, large, strict=True):
        assert torch.allclose(one["boxes"] * 2.5, other["boxes"], atol=1e-3)
        assert other["frame"].tolist() == [2.5, 0, 0, 32, 32]
        assert torch.allclose(scaled_back(other["boxes"], other["frame"]), one["boxes"], atol=1e-3)


def test_images_without_labels_are_letterboxed_too(tmp_path: Path) -> None:
    for number in range(10):
        Image.fromarray(np.full((20, 40, 3), 10 * number, np.uint8)).save(tmp_path / f"{number}.png")
    data = load(f"folder:{tmp_path}", holdout="train:0.25", **HOW)
    assert not data.labelled and data.count("train") == 6
    for part in ("train", "holdout", "test"):
        for batch in data.loader(part, 4):  # type: ignore[arg-type]
            (images,) = batch
            bytes_ = (images * 255).round()
            assert (bytes_[:, :, :8] == GREY).all() and (bytes_[:, :, 24:] == GREY).all()
            assert (bytes_[:, :, 8:24].flatten(1).std(1) == 0).all()
    assert load(f"folder:{tmp_path}", size=32).loader("train", 6).images.boxes == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2 0.5 0.5 0.1 0.1", "001.txt, line 1: 2 is not a class; the classes are 0 to 1"),
        ("0.5 0.5 0.5 0.1 0.1", "0.5 is not a class"),
        ("0 0.5 0.5 0.1", "expected `class x y width height`"),
        ("0 a b c d", "expected numbers"),
        ("0 0.5 0.5 0 0.1", "the box is empty"),
        ("0 120 80 40 30", "outside its image"),  # in pixels
        ("0 nan 0.5 0.1 0.1", "expected `class"),
    ],
)
def test_yolo_labels_that_cannot_be_used(tmp_path: Path, line: str, said: str) -> None:
    write_yolo(tmp_path, {"train": 2, "val": 1})
    (tmp_path / "labels" / "train" / "001.txt").write_text(line)
    with pytest.raises(DataError, match=said):
        load(f"folder:{tmp_path}", **HOW)


def test_polygons_and_roundings_and_empty_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_yolo(tmp_path, {"train": 4, "val": 1})
    labels = tmp_path / "labels" / "train"
    (labels / "000.txt").write_text("1 0.1 0.2 0.5 0.3 0.3 0.8\n")
    (labels / "001.txt").write_text("0 0.95 0.5 0.102 0.1\n\n")
    (labels / "002.txt").write_text("")
    (labels / "003.txt").unlink()
    (tmp_path / "data.yaml").write_text("train: images/train\nval: images/val\nnames: {0: square, 1: bar, 2: disc}\n")
    with caplog.at_level(logging.WARNING):
        data = load(f"folder:{tmp_path}", holdout="none", **HOW)
    assert "1 of 4 images have no text file" in caplog.text
    assert "no training image has a box of disc" in caplog.text
    polygon, rounded, empty, missing = labels_of(data, "train")
    assert polygon["boxes"].tolist() == [pytest.approx([3.2, 6.4, 16, 25.6])]
    assert rounded["boxes"][0, 2] == 32
    assert empty["boxes"].shape == missing["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: images/train\n", "expected the keys train and names"),
        ("train: images/train\nnames: {1: a, 2: b}\n", "numbered 0 to 1"),
        ("train: pictures\nnames: [a, b]\n", "train: there is no pictures in"),
        ("train: {a: images/train}\nnames: [a, b]\n", "train must be a folder of images"),
        ("train: data.yaml\nnames: [a, b]\n", "or a text file that lists them; got data.yaml"),
        ("train: labels\nnames: [a, b]\n", "labels has no images"),
        ("train: labels/train/001.txt\nnames: [a, b]\n", "001.txt, line 1: there is no image"),
        ("train: images/train\nval: gone\nnames: [a, b]\n", "val: there is no gone"),
        ("train: images/train\nnames: []\n", "names must list the classes"),
        ("train: {", "cannot be read as YAML"),
    ],
)
def test_yaml_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    write_yolo(tmp_path, {"train": 2})
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(DataError, match=said):
        load(f"folder:{tmp_path}", **HOW)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("categories"), "images, annotations and categories"),
        (lambda c: c["annotations"][0].update(image_id=1), "there is no image 1"),
        (lambda c: c["annotations"][0].update(category_id=3), "there is no category 3"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3]), "bbox must be"),
        (lambda c: c["annotations"][0].update(bbox=[30, 2, 30, 4]), "outside its image"),
        (lambda c: c["images"][0].update(file_name="x.png"), "there is no image 'x.png'"),
        (lambda c: c["images"][0].update(width=0), "has no width and height"),
        (lambda c: [image.update(width=64) for image in c["images"]], "has 32 x 32 pixels, and its labels say 64 x 32"),
        (lambda c: c.update(annotations=[]), "has no boxes"),
        (lambda c: c.update(annotations=["x"]), "expected COCO's JSON"),
        (lambda c: c["images"][0].pop("file_name"), "expected COCO's JSON.*file_name"),
        (lambda c: c["annotations"][0].update(bbox=["a", 2, 3, 4]), "bbox must be"),
        (lambda c: c["images"][0].update(width="32"), "has no width and height"),
    ],
)
def test_coco_that_cannot_be_used(tmp_path: Path, change: Any, said: str) -> None:
    content = write_coco(tmp_path, "", 5, 1, "images")
    change(content)
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=said):
        list(load(f"folder:{tmp_path}", **HOW, holdout="none").loader("train"))


def test_folders_of_another_kind(tmp_path: Path) -> None:
    write_yolo(tmp_path / "yolo", {"train": 2})
    with pytest.raises(DataError, match=r"this is images with boxes.*take the task detection"):
        load(f"folder:{tmp_path / 'yolo'}")
    (tmp_path / "none" / "images").mkdir(parents=True)
    with pytest.raises(DataError, match="for detection, expected a YAML file"):
        load(f"folder:{tmp_path / 'none'}", **HOW)
    for file in (tmp_path / "yolo" / "labels" / "train").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="none of the 2 images has a box"):
        load(f"folder:{tmp_path / 'yolo'}", **HOW)
    with pytest.raises(DataError, match="mnist has one class per image; for detection"):
        load("mnist", labels="boxes")
