"""Images in folders: one folder per class, and ILSVRC-2012 in its usual layouts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from secateur.errors import DataError
from secateur.zoo.data.ground_truth import read_flat
from secateur.zoo.data.images import FileImages, ImageSet
from secateur.zoo.data.splits import IntArray, divide

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
DEFAULT_SIZE = 224
TEST_SHARE = 0.2  # if there is no folder of test images
TEST_SEED = 0
CLASS_LISTS = ("LOC_synset_mapping.txt", "synset_words.txt", "synsets.txt", "classes.txt")


def read_folder(path: Path, size: int | None) -> ImageSet:
    """PATH/train and PATH/test (or val), each with one folder per class; or PATH itself with one folder per class.

    In the second case a fixed, stratified fifth of the images is the test set.
    """
    _must_be_folder(path)
    if (path / "train").is_dir():
        tests = folder_of_tests(path)
        classes = class_names(path / "train")
        train = read_tree(path / "train", classes)
        test = read_tree(tests, classes) if tests else None
    else:
        classes = class_names(path)
        train, test = in_two_parts(read_tree(path, classes))
    return image_set(f"folder:{path}", classes, train, test, size)


def read_imagenet(path: Path, size: int | None) -> ImageSet:
    """PATH/train by wnid (optional), and PATH/val by wnid, or flat with a file that lists the labels."""
    _must_be_folder(path)
    val = path / "val"
    if not val.is_dir():
        raise DataError(f"{path}: expected a folder val of ILSVRC-2012 (and train, for training); there is none")
    has_train = (path / "train").is_dir()
    listed = _listed_classes(path)
    if any(child.is_dir() for child in val.iterdir()):
        classes = listed or class_names(path / "train" if has_train else val)
        test = read_tree(val, classes)
    else:
        names = image_files(val)
        known = listed or (class_names(path / "train") if has_train else None)
        classes, labels = read_flat(path, names, known)
        test = FileImages(tuple(str(val / name) for name in names), labels)
    train = read_tree(path / "train", classes) if has_train else None
    return image_set(f"imagenet:{path}", classes, train, test, size)


def class_names(tree: Path) -> tuple[str, ...]:
    """The sorted names of the folders; their positions are the labels."""
    names = sorted(child.name for child in tree.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not names:
        raise DataError(f"{tree}: expected one folder per class, found no folders")
    return tuple(names)


def read_tree(tree: Path, classes: tuple[str, ...]) -> FileImages:
    """The images in the folder of each class. Every folder must be a class, and none may be empty."""
    strangers = sorted(set(class_names(tree)) - set(classes))
    if strangers:
        raise DataError(f"{tree}: these folders are not classes of the training images: {', '.join(strangers[:8])}")
    paths: list[str] = []
    counts: list[int] = []
    for name in classes:
        below = [str(tree / name / file) for file in image_files(tree / name)] if (tree / name).is_dir() else []
        if not below and (tree / name).is_dir():
            raise DataError(f"{tree / name}: has no images ({' '.join(SUFFIXES)}); add some or remove the folder")
        paths += below
        counts.append(len(below))
    labels: IntArray = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    return FileImages(tuple(paths), labels)


def image_files(folder: Path) -> list[str]:
    """Sorted paths, relative to `folder`, of the images in it and its subfolders."""
    names: list[str] = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        prefix = "" if inside == "." else f"{inside}/"
        names += [prefix + file for file in files if file.lower().endswith(SUFFIXES) and not file.startswith(".")]
    return sorted(names)


def _listed_classes(path: Path) -> tuple[str, ...] | None:
    """The wnids in label order from a list next to the images, so that a subset of the classes keeps its labels."""
    for name in CLASS_LISTS:
        if (path / name).is_file():
            lines = (path / name).read_text(encoding="utf-8").splitlines()
            return tuple(line.split()[0] for line in lines if line.strip())
    return None


def folder_of_tests(path: Path) -> Path | None:
    """The folder of test images: test or val."""
    return next((path / name for name in ("test", "val") if (path / name).is_dir()), None)


def in_two_parts(images: FileImages) -> tuple[FileImages, FileImages]:
    """Training images, and a fixed, stratified fifth of all as test images."""
    taken, rest = divide(images.strata, TEST_SHARE, TEST_SEED)
    return images.take(rest), images.take(taken)


def image_set(
    name: str, classes: tuple[str, ...], train: FileImages | None, test: FileImages | None, size: int | None
) -> ImageSet:
    """A data set of files, with ImageNet's normalisation and size unless told otherwise."""
    side = size or DEFAULT_SIZE
    return ImageSet(name, classes, train, test, (3, side, side), MEAN, STD, mirror=True)


def _must_be_folder(path: Path) -> None:
    if not path.is_dir():
        raise DataError(f"{path}: this folder of images does not exist")
