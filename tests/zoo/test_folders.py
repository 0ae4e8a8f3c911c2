"""Folders of classes or without labels, ILSVRC-2012's layouts, masks and several labels: parts, labels and batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from prunus.errors import DataError
from prunus.zoo import data
from prunus.zoo.images import FileImages
from prunus.zoo.names import Part
from tests.zoo.formats import random_images, write_picture, write_tree

WNIDS = ("n01440764", "n01443537", "n02086240")


def stems(found: data.ImageData, part: Part) -> list[tuple[str, int]]:
    images = found.parts[part]
    assert isinstance(images, FileImages)
    names = ["/".join(Path(path).parts[-2:]) for path in images.paths]
    return list(zip(names, images.labels.tolist(), strict=True))


def test_one_tree_gives_a_fixed_stratified_fifth_as_test(tmp_path: Path) -> None:
    write_tree(tmp_path, {"rose": 10, "apple": 5, "yew": 5})
    found = data.load(f"folder:{tmp_path}", holdout="none", size=32)
    assert found.classes == ("apple", "rose", "yew")
    assert found.shape == (3, 32, 32)
    assert sorted(label for _, label in stems(found, "test")) == [0, 1, 1, 2]
    assert len(stems(found, "train")) == 16
    assert not set(stems(found, "train")) & set(stems(found, "test"))
    assert stems(found, "test") == stems(data.load(f"folder:{tmp_path}", seed=9), "test")
    write_tree(tmp_path / "parts" / "train", {"a": 3, "b": 3})
    write_tree(tmp_path / "parts" / "val", {"b": 2})
    found = data.load(f"folder:{tmp_path / 'parts'}", holdout="none")
    assert stems(found, "test") == [("b/0.png", 1), ("b/1.png", 1)]


def test_images_without_labels(tmp_path: Path) -> None:
    write_tree(tmp_path, {"photos": 18})
    write_picture(tmp_path / "photos" / "z.JPG", random_images(1, 1, (40, 40, 3))[0])
    write_picture(tmp_path / "photos" / "y.jpeg", random_images(1, 2, (40, 40, 3))[0])
    for other in (".hidden.png", "notes.txt"):
        (tmp_path / "photos" / other).write_text("not an image")
    for labels in ("classes", "masks", "several", None):
        found = data.load(f"folder:{tmp_path / 'photos'}", size=16, labels=labels)  # type: ignore[arg-type]
        assert (found.classes, found.labelled, found.shape) == ((), False, (3, 16, 16))
        assert {part: found.count(part) for part in found.parts} == {"train": 14, "test": 4, "holdout": 2}
        names = [name for part in found.parts for name, _ in stems(found, part)]
        assert len(set(names)) == 20
    batches = list(found.loader("train", 10, augment=True, shuffle=True))
    assert [[tuple(x.shape) for x in batch] for batch in batches] == [[(10, 3, 16, 16)], [(4, 3, 16, 16)]]
    assert [tuple(x.shape) for x in found.loader("train").images_at([0, 1])] == [(2, 3, 16, 16)]
    (tmp_path / "photos" / ".git").mkdir()  # hidden folders do not count
    assert not data.load(f"folder:{tmp_path / 'photos'}").labelled
    with pytest.raises(DataError, match=r"one folder is one class.* Without labels: folder:.*/photos$"):
        data.load(f"folder:{tmp_path}")


def test_images_without_labels_in_parts(tmp_path: Path) -> None:
    write_tree(tmp_path, {"train": 5, "val": 3})
    found = data.load(f"folder:{tmp_path}", holdout="train:0.2")
    assert {part: found.count(part) for part in found.parts} == {"train": 4, "test": 3, "holdout": 1}
    write_tree(tmp_path / "val", {"rose": 1})
    with pytest.raises(DataError, match="val: expected images and no folders, as in the folder train"):
        data.load(f"folder:{tmp_path}")


def test_imagenet_by_wnid(tmp_path: Path) -> None:
    write_tree(tmp_path / "train", dict.fromkeys(WNIDS, 4))
    write_tree(tmp_path / "val", {WNIDS[2]: 1, WNIDS[0]: 1})
    found = data.load(f"imagenet:{tmp_path}", holdout="train:0.25")
    assert found.classes == WNIDS
    assert [label for _, label in stems(found, "test")] == [0, 2]
    assert [label for _, label in stems(found, "holdout")] == [0, 1, 2]


FLAT = ("ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000003.JPEG")
TRUTHS = {
    "val.txt": f"{FLAT[2]} {WNIDS[0]}\n{FLAT[0]} {WNIDS[2]}\n{FLAT[1]} {WNIDS[0]}\n",
    "val_map.txt": f"{FLAT[0]} 2\n{FLAT[1]} 0\n{FLAT[2]} 0\n",
    "LOC_val_solution.csv": "ImageId,PredictionString\n"
    f"{FLAT[1][:-5]},{WNIDS[0]} 1 2 3 4 \n{FLAT[0][:-5]},{WNIDS[2]} 1 2 3 4 {WNIDS[2]} 5 6 7 8 \n"
    f"{FLAT[2][:-5]},{WNIDS[0]} 1 2 3 4 \n",
}


def flat_imagenet(root: Path, truth: str, with_train: bool = True) -> Path:
    if with_train:
        write_tree(root / "train", dict.fromkeys(WNIDS, 2))
    for number, name in enumerate(FLAT):
        write_picture(root / "val" / name, random_images(1, number, (40, 40, 3))[0])
    path = root / truth
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TRUTHS[truth])
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
        ("val_map.txt", f"{FLAT[0]} 3\n{FLAT[1]} 0\n{FLAT[2]} 0\n", r"labels must lie in 0\.\.2; 1 do not"),
    ],
)
def test_bad_ground_truth(tmp_path: Path, truth: str, content: str, said: str) -> None:
    flat_imagenet(tmp_path, truth)
    (tmp_path / truth).write_text(content)
    with pytest.raises(DataError, match=f"{tmp_path / truth}: .*{said}"):
        data.load(f"imagenet:{tmp_path}")


GREY = {"mean": (0.0,), "std": (1.0,)}


def several(root: Path, count: int, side: int = 8) -> Path:
    """Images whose left half is black and right half white, with classes 0 and 2 and one ignored pixel."""
    (root / "masks").mkdir(parents=True)
    mask = np.zeros((side, side), np.uint8)
    mask[:, side // 2 :] = 2
    mask[-1, 0] = 255
    for number in range(count):
        pixels = np.zeros((side, side, 3), np.uint8)
        pixels[:, side // 2 :] = 255
        pixels[0, 0] = number  # images differ
        write_picture(root / "images" / f"{number:02d}.png", pixels)
        Image.fromarray(mask).save(root / "masks" / f"{number:02d}.png")
    return root


def names(found: data.ImageData, part: Part) -> set[str]:
    images = found.parts[part]
    assert isinstance(images, FileImages)
    assert [Path(m).stem for m in images.masks] in ([], [Path(p).stem for p in images.paths])
    return {Path(path).name for path in images.paths}


def test_masks_come_with_their_images_in_three_parts(tmp_path: Path) -> None:
    found = data.load(f"folder:{several(tmp_path, 20)}", labels="masks", size=4, holdout="train:0.25", **GREY)
    assert found.classes == ("0", "1", "2") and found.shape == (3, 4, 4)
    parts = [names(found, part) for part in ("train", "holdout", "test")]
    assert [len(part) for part in parts] == [12, 4, 4] and len(set.union(*parts)) == 20
    images, masks = next(iter(found.loader("test", 4)))
    assert masks.dtype == torch.int64 and masks.shape == (4, 4, 4)
    assert torch.equal(masks, torch.tensor([0, 0, 2, 2]).expand(4, 4, 4))  # nearest: no class 1 between 0 and 2
    assert images[:, :, :, 0].max() < 0.3 and images[:, :, :, 3].min() > 0.7


def test_masks_are_cropped_and_mirrored_like_their_images(tmp_path: Path) -> None:
    found = data.load(f"folder:{several(tmp_path, 20)}", labels="masks", size=16, holdout="none", **GREY)
    images, masks = next(iter(found.loader("train", 16, augment=True, shuffle=True)))
    counted = masks != 255
    bright = images.mean(1) > 0.5
    assert ((masks == 2) == bright)[counted].float().mean() > 0.93  # the edge is resized in two ways
    assert (masks[:, 8, 0] == 2).any() and (masks[:, 8, 0] == 0).any()  # some are mirrored


@pytest.mark.parametrize("layout", ["{part}/{kind}", "{kind}/{part}"])
def test_masks_in_parts(tmp_path: Path, layout: str) -> None:
    several(tmp_path / "all", 4)
    for number, part in enumerate(("train", "train", "train", "val")):
        for kind in ("images", "masks"):
            folder = tmp_path / "parts" / layout.format(part=part, kind=kind)
            folder.mkdir(parents=True, exist_ok=True)
            (tmp_path / "all" / kind / f"{number:02d}.png").rename(folder / f"{number}.png")
    found = data.load(f"folder:{tmp_path / 'parts'}", labels="masks", holdout="none")
    assert names(found, "train") == {"0.png", "1.png", "2.png"} and names(found, "test") == {"3.png"}


def test_palettes_are_read_as_indices_and_classes_may_have_names(tmp_path: Path) -> None:
    several(tmp_path, 5)
    picture = Image.fromarray(np.array([[0, 1], [3, 255]], np.uint8)).resize((8, 8), Image.Resampling.NEAREST)
    picture.putpalette([255, 0, 0, 0, 255, 0] + [7] * 762)
    assert picture.mode == "P"
    picture.save(tmp_path / "masks" / "00.png")
    (tmp_path / "classes.txt").write_text("road\nthe sky\nhouse\ntree\n")
    found = data.load(f"folder:{tmp_path}", labels="masks", size=2, holdout="none")
    assert found.classes == ("road", "the sky", "house", "tree")
    everything = torch.cat([masks for part in ("train", "test") for _, masks in found.loader(part, 8)])  # type: ignore[arg-type]
    assert any(torch.equal(mask, torch.tensor([[0, 1], [3, 255]])) for mask in everything)
    for content, said in (
        (b"road\nstra\xdfe\n", "classes.txt: cannot be read as text in UTF-8"),
        (b"road\nsky\nroad\n", "at least 2 classes, one per line, all different"),
        (b"\n", "at least 2 classes"),
    ):
        (tmp_path / "classes.txt").write_bytes(content)
        with pytest.raises(DataError, match=said):
            data.load(f"folder:{tmp_path}", labels="masks", holdout="none")


def test_masks_that_cannot_be_used(tmp_path: Path) -> None:
    several(tmp_path, 5)
    mask = tmp_path / "masks" / "03.png"
    whole = mask.read_bytes()

    def refused(words: str, size: int = 8) -> None:
        with pytest.raises(DataError, match=words):
            found = data.load(f"folder:{tmp_path}", labels="masks", holdout="none", size=size)
            for part in ("train", "test"):
                list(found.loader(part, 8))  # type: ignore[arg-type]

    Image.new("RGB", (8, 8)).save(mask)
    refused("03.png: expected a mask with one class index per pixel .* got the mode RGB")
    Image.fromarray(np.full((8, 9), 2, np.uint8)).save(mask)
    refused("the mask has 9 x 8 pixels, and its image .* has 8 x 8")
    second = mask.with_suffix(".bmp")
    Image.new("L", (8, 8)).save(second)
    refused("03.bmp and 03.png are masks of the same image")
    second.unlink()
    (tmp_path / "classes.txt").write_text("a\nb\n")
    mask.write_bytes(whole)
    refused(r"there are 2 classes, 0 to 1, and only 255 is ignored; the mask has 2")
    (tmp_path / "classes.txt").unlink()
    mask.unlink()
    refused("1 of 5 images in .*images have no mask of the same name in .*masks: 03.png")
    for file in (tmp_path / "masks").iterdir():
        Image.fromarray(np.full((8, 8), 255, np.uint8)).save(file)
    mask.write_bytes((tmp_path / "masks" / "00.png").read_bytes())
    refused("the masks have one class only, 0 .* in a mask of two colours replace 255 by 1")
    with pytest.raises(DataError, match="this is images and masks, not one folder per class: take the task segm"):
        data.load(f"folder:{tmp_path}")
    (tmp_path / "images" / "more").mkdir()  # without folders, it is images without labels
    with pytest.raises(DataError, match="expected the folders images and masks"):
        data.load(f"folder:{tmp_path / 'images'}", labels="masks")


def test_wrong_masks_are_said_alike_by_workers(tmp_path: Path) -> None:
    several(tmp_path, 5)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    found = data.load(f"folder:{tmp_path}", labels="masks", holdout="none", size=8, workers=1)
    with pytest.raises(DataError, match=r"^\S+: there are 2 classes"):
        list(found.loader("train", 8))


def labelled(root: Path, lines: list[str], count: int = 4) -> Path:
    for number in range(count):
        write_picture(root / "images" / f"{number}.png", random_images(1, number, (9, 9, 3))[0])
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def test_several_labels_from_a_table(tmp_path: Path) -> None:
    lines = ['"file", "cat",dog', *(f'"{n}.png", "{n % 2}" ,{int(n < 5)}' for n in range(10))]  # spaces, quotes
    found = data.load(f"folder:{labelled(tmp_path, lines, 10)}", labels="several", size=8, holdout="train:0.25")
    assert found.classes == ("cat", "dog")
    parts = [names(found, part) for part in ("train", "holdout", "test")]
    assert [len(part) for part in parts] == [6, 2, 2] and len(set.union(*parts)) == 10
    for part in ("train", "holdout", "test"):
        images = found.parts[part]  # type: ignore[index]
        assert isinstance(images, FileImages)
        numbers = [int(Path(path).stem) for path in images.paths]
        _, labels = next(iter(found.loader(part, 16)))  # type: ignore[arg-type]
        assert labels.tolist() == [[n % 2, int(n < 5)] for n in numbers]
    by_file = data.load(f"folder:{tmp_path / 'labels.csv'}", labels=None, size=8)
    assert names(by_file, "test") == parts[2]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["file,a,b", "0.png,1,0", "1.png,1"], "line 3: expected a file and 2 values, got 1 values"),
        (["file,a,b", "0.png,1,0", "", "1.png,1,yes"], "line 4: b must be 0 or 1, got 'yes'"),
        (["file,a,b", "0.png,1,0", "9.png,1,0"], "line 3: there is no image '9.png' in"),
        (["file,a,b", "0.png,1,0", "0.png,1,0"], "line 3: 0.png is in line 2 already"),
        (["file,a", "images/0.png,1", "images/../images/0.png,1"], "line 3: .* is in line 2 already"),
        (["file,a,a", "0.png,1,0"], "line 1: expected a header with different names"),
        (["0.png,1,0", "1.png,1,0"], "line 1: the header is missing"),
        (["file", "0.png"], "line 1: expected a header"),
        (["file,a"], "lists no images"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        data.load(f"folder:{labelled(tmp_path, lines)}", labels="several")


def test_tables_of_training_and_test_images_share_nothing(tmp_path: Path) -> None:
    labelled(tmp_path / "train", ["file,a", "0.png,1", "1.png,0"])
    labelled(tmp_path / "test", ["file,a", "2.png,1"])
    found = data.load(f"folder:{tmp_path}", labels="several", holdout="none")
    assert names(found, "train") == {"0.png", "1.png"} and names(found, "test") == {"2.png"}
    (tmp_path / "test" / "labels.csv").write_text("file,a\n../train/images/1.png,0\n")
    with pytest.raises(DataError, match="1 images are listed for training too"):
        data.load(f"folder:{tmp_path}", labels="several")
    (tmp_path / "test" / "labels.csv").write_text("file,b\n2.png,0\n")
    with pytest.raises(DataError, match="has the labels b, and the training images a"):
        data.load(f"folder:{tmp_path}", labels="several")
    with pytest.raises(DataError, match="this is a CSV of labels, not one folder per class: take the task multilabel"):
        data.load(f"folder:{tmp_path}")
