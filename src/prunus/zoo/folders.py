"""Images in folders: one folder per class, no labels, ILSVRC-2012 in its usual layouts, masks, or several labels.

Every reader returns what is known of the data set (its classes and shape), and its training and test images. Where a
folder is not divided, a fixed, stratified fifth of its images is the test set.
"""

from __future__ import annotations

import csv
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from PIL import Image

from prunus.errors import DataError
from prunus.util.progress import shown, steps
from prunus.zoo.images import IGNORED, FileImages, IntArray, checked_labels, read_mask, split_off_test
from prunus.zoo.names import DATA_SETS, DataSet

logger = logging.getLogger(__name__)

FolderData = tuple[DataSet, FileImages | None, FileImages | None]  # what is known, training and test images
Found = TypeVar("Found")
Parts = dict[str, Found]  # of train and test; or of "" alone, of which a fixed fifth becomes the test images
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
CLASSES = "classes.txt"  # names of the classes, one per line
TESTS = ("test", "val")  # folders of test images


def image_files(folder: Path) -> list[str]:
    """Sorted paths, relative to `folder`, of the images in it and its subfolders."""
    names: list[str] = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        prefix = "" if inside == "." else f"{inside}/"
        names += [prefix + file for file in files if file.lower().endswith(SUFFIXES) and not file.startswith(".")]
    return sorted(names)


def files_of(paths: Sequence[str], labels: IntArray | None = None, masks: tuple[str, ...] = ()) -> FileImages:
    """Images in files, with the labels 0 if there are none."""
    return FileImages(tuple(paths), np.zeros(len(paths), dtype=np.int64) if labels is None else labels, masks)


def opened(kind: str, path: Path, classes: tuple[str, ...], size: int | None, parts: Parts[FileImages]) -> FolderData:
    """What is known of a folder or imagenet, with ImageNet's normalisation; its training and its test images."""
    known = DATA_SETS[kind]
    shape = known.shape if size is None else (3, size, size)
    train, test = split_off_test(parts[""]) if "" in parts else (parts.get("train"), parts.get("test"))
    return replace(known, name=f"{kind}:{path}", classes=classes, shape=shape), train, test


def in_parts(find: Callable[[str], Found | None]) -> Parts[Found]:
    """Part -> what there is of it: train and test (or val), if there is a train; otherwise "" alone."""
    if (train := find("train")) is None:
        whole = find("")
        return {} if whole is None else {"": whole}
    test = next((found for part in TESTS if (found := find(part)) is not None), None)
    return {"train": train} if test is None else {"train": train, "test": test}


def folders_of(path: Path) -> Parts[Path]:
    """PATH/train and PATH/test (or val), or PATH."""
    return in_parts(lambda part: folder if (folder := path / part).is_dir() else None)


def training_folder(path: Path) -> Path:
    """PATH/train, or PATH where images are not divided into parts."""
    return next(iter(folders_of(path).values()), path)


def has_beside(path: Path, kind: str) -> bool:
    """Whether there are folders `images` and `kind` beside each other, in parts or not."""
    return any((top / "images").is_dir() and (top / kind).is_dir() for top in (path / "train", path))


def beside(path: Path, kind: str) -> Parts[tuple[Path, Path]]:
    """Folders of images and of `kind`: train/images and train/masks, or images/train and masks/train."""

    def folders(part: str) -> tuple[Path, Path] | None:
        places = (path / part / "images", path / part / kind), (path / "images" / part, path / kind / part)
        return next((place for place in places if place[0].is_dir()), None if part else places[0])

    return in_parts(folders)


def check_same(what: str, path: Path, test: Sequence[str], train: Sequence[str]) -> None:
    """DataError unless test images have the classes of the training images."""
    if test != train:
        mine, others = (", ".join(names[:8]) for names in (test, train))
        raise DataError(f"{path}: has the {what} {mine}, and the training images {others}")


def listed_classes(path: Path) -> tuple[str, ...] | None:
    """The names in classes.txt of a folder; None without it."""
    listing = path / CLASSES
    return tuple(map(str.strip, filter(str.strip, lines_of(listing)))) if listing.is_file() else None


def lines_of(path: Path) -> list[str]:
    """The lines of a text file; DataError if it is none."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text in UTF-8: {error}") from error


# One folder per class.


def read_classes(path: Path, size: int | None) -> FolderData:
    """PATH/train and PATH/test (or val), each with one folder per class; or PATH itself with one folder per class."""
    if not path.is_dir():
        raise DataError(f"{path}: is a file, and not a CSV of labels")
    top = training_folder(path)
    classes = _class_names(top)
    parts = {part: _read_tree(folder, classes) for part, folder in folders_of(path).items()}
    if len(classes) == 1:
        only = top / classes[0]
        raise DataError(f"{path}: one folder is one class, and classes are told apart. Without labels: folder:{only}")
    return opened("folder", path, classes, size, parts)


def _folders_in(tree: Path) -> list[str]:
    return sorted(child.name for child in tree.iterdir() if child.is_dir() and not child.name.startswith("."))


def _class_names(tree: Path) -> tuple[str, ...]:
    """The sorted names of the folders; their positions are the labels."""
    if not (names := _folders_in(tree)):
        raise DataError(f"{tree}: expected one folder per class, or images without labels; found neither")
    return tuple(names)


def _read_tree(tree: Path, classes: tuple[str, ...]) -> FileImages:
    """The images in the folder of each class. Every folder must be a class, and none may be empty."""
    if strangers := sorted(set(_class_names(tree)) - set(classes)):
        raise DataError(f"{tree}: these folders are not classes of the training images: {', '.join(strangers[:8])}")
    paths: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(tree / name for name in classes):
        if folder.is_dir():
            if not (names := image_files(folder)):
                raise DataError(f"{folder}: has no images ({' '.join(SUFFIXES)}); add some or remove the folder")
            paths += [str(folder / name) for name in names]
            labels += [label] * len(names)
    return files_of(paths, np.array(labels, dtype=np.int64))


# Images alone.


def has_no_labels(path: Path) -> bool:
    """Whether a folder holds images and no folders, in parts or not."""
    if has_beside(path, MASKS) or has_table(path):
        return False
    top = training_folder(path)
    return top.is_dir() and not _folders_in(top) and bool(image_files(top))


def read_unlabelled(path: Path, size: int | None) -> FolderData:
    """PATH with images; or PATH/train and PATH/test (or val), each with images. There are no classes."""
    parts = {}
    for part, folder in folders_of(path).items():
        names = image_files(folder)
        if not names or _folders_in(folder):
            raise DataError(f"{folder}: expected images and no folders, as in the folder train beside it")
        parts[part] = files_of([str(folder / name) for name in names])
    return opened("folder", path, (), size, parts)


# ILSVRC-2012. Its validation folder may be flat; then a file lists the labels.

CLASS_LISTS = ("LOC_synset_mapping.txt", "synset_words.txt", "synsets.txt", CLASSES)
LISTS = ("LOC_val_solution.csv", "val.txt", "val_map.txt")  # Kaggle's has `ImageId,wnid box`; others `file class`


def read_imagenet(path: Path, size: int | None) -> FolderData:
    """PATH/train by wnid (optional), and PATH/val by wnid, or flat with a file that lists the labels."""
    tree, val = path / "train", path / "val"
    if not val.is_dir():
        raise DataError(f"{path}: expected a folder val of ILSVRC-2012 (and train, for training); there is none")
    classes = None
    # A list of the wnids in label order wins, so that a subset of the classes keeps its labels.
    if listing := next((path / name for name in CLASS_LISTS if (path / name).is_file()), None):
        classes = tuple(line.split()[0] for line in lines_of(listing) if line.strip())
    elif tree.is_dir():
        classes = _class_names(tree)
    if any(child.is_dir() for child in val.iterdir()):
        classes = classes or _class_names(val)
        test = _read_tree(val, classes)
    else:
        names = image_files(val)
        classes, labels = _flat_labels(path, names, classes)
        test = files_of([str(val / name) for name in names], labels)
    train = {"train": _read_tree(tree, classes)} if tree.is_dir() else {}
    return opened("imagenet", path, classes, size, {**train, "test": test})


def _flat_labels(path: Path, files: Sequence[str], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], IntArray]:
    """Classes and labels of a flat validation folder; `known` are the classes if they are known already."""
    truth = next((place for name in LISTS for place in (path / name, path / "val" / name) if place.is_file()), None)
    if truth is None:
        raise DataError(
            f"{path / 'val'}: move each image into a folder of its wnid, or give {path} a file with `file class` in "
            f"each line: {', '.join(LISTS)}"
        )
    rows = (re.split(r"[\s,]+", line.strip()) for line in lines_of(truth))
    answers = {Path(row[0]).stem: row[1] for row in rows if len(row) > 1}
    chosen = [answers.get(Path(file).stem, "") for file in files]
    if "" in chosen:
        raise DataError(f"{truth}: has no label for the image {files[chosen.index('')]}")
    if all(answer.isdigit() for answer in chosen):  # labels, not wnids: their names must come from elsewhere
        labels = np.array([int(answer) for answer in chosen], dtype=np.int64)
        names = known or tuple(str(number) for number in range(int(labels.max(initial=0)) + 1))
        return names, checked_labels(labels, len(names), truth)
    names = known or tuple(sorted(set(chosen)))
    numbers = {name: number for number, name in enumerate(names)}
    if strangers := sorted(set(chosen) - set(numbers)):
        raise DataError(f"{truth}: lists classes that the training images do not have: {', '.join(strangers[:8])}")
    return names, np.array([numbers[answer] for answer in chosen], dtype=np.int64)


# Images with several labels, listed in a CSV: a file in each line, and 0 or 1 for each label.

TABLE = "labels.csv"


def has_table(path: Path) -> bool:
    """Whether a path is a CSV, or a folder with one, in parts or not."""
    if path.is_file():
        return path.suffix.lower() in (".csv", ".txt")
    return (path / TABLE).is_file() or (path / "train" / TABLE).is_file()


def read_labelled(path: Path, size: int | None) -> FolderData:
    """PATH is a CSV, or a folder with labels.csv, or with labels.csv in its folders train and test (or val)."""
    if not has_table(path):
        raise DataError(
            f"{path}: for several labels per image, expected {TABLE}, here or in train and in test (or val): "
            "a header `file,label,label,...`, then a file and 0 or 1 for each label in every line"
        )
    whole = path if path.is_file() else path / TABLE
    tables = {"": whole} if whole.is_file() else {part: folder / TABLE for part, folder in folders_of(path).items()}
    read = {part: _read_table(table) for part, table in tables.items()}
    classes = next(iter(read.values()))[0]
    parts = {part: images for part, (_, images) in read.items()}
    if "test" in read:
        check_same("labels", tables["test"], read["test"][0], classes)
        both = set.intersection(*({str(Path(p).resolve()) for p in images.paths} for images in parts.values()))
        if both:
            raise DataError(f"{tables['test']}: {len(both)} images are listed for training too, such as {min(both)}")
    return opened("folder", path, classes, size, parts)


def _read_table(path: Path) -> tuple[tuple[str, ...], FileImages]:
    """The names of the labels, and the images of a CSV. Files are relative to its folder or to images in it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = next(reader, [])
            rows = [(f"{path}, line {reader.line_num}", row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a CSV in UTF-8: {error}") from error
    labels = tuple(name.strip() for name in header[1:])
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise DataError(
            f"{path}, line 1: expected a header with different names, `file,label,label,...`; got {','.join(header)!r}"
        )
    if rows and set(header[1:]) <= {"0", "1"}:
        raise DataError(f"{path}, line 1: the header is missing: `file,label,label,...`")
    if not rows:
        raise DataError(f"{path}: lists no images")
    images: dict[Path, str] = {}  # by the file that is meant: a/../b.png and a link are the same
    values = []
    for where, row in rows:
        name, *cells = (cell.strip() for cell in row)
        places = (path.parent / name, path.parent / "images" / name)
        image = next((place for place in places if name and place.is_file()), None)
        if image is None:
            raise DataError(f"{where}: there is no image {name!r} in {path.parent} or its folder images")
        if image.resolve() in images:
            first = rows[list(images).index(image.resolve())][0]
            raise DataError(f"{where}: {row[0]} is in {first.rpartition(', ')[2]} already; list each image once")
        if len(cells) != len(labels):
            raise DataError(f"{where}: expected a file and {len(labels)} values, got {len(cells)} values")
        for label, cell in zip(labels, cells, strict=True):
            if cell not in ("0", "1"):
                raise DataError(f"{where}: {label} must be 0 or 1, got {cell!r}")
        images[image.resolve()] = str(image)
        values.append([int(cell) for cell in cells])
    return labels, files_of(tuple(images.values()), np.array(values, dtype=np.int64))


# Images and masks: the class of each pixel is a number in a PNG of the same name.

MASKS = "masks"


def read_masks(path: Path, size: int | None) -> FolderData:
    """PATH/images and PATH/masks, or both in PATH/train and PATH/test (or val), or with these folders inside them."""
    if not has_beside(path, MASKS):
        raise DataError(
            f"{path}: for segmentation, expected the folders images and masks, with masks of the same names as the "
            "images, here or in train and in test (or val)"
        )
    parts = {part: _with_masks(*folders) for part, folders in beside(path, MASKS).items()}
    classes = listed_classes(path)
    if classes is None:
        classes = _numbers_in(path, [mask for images in parts.values() for mask in images.masks])
    elif len(classes) < 2 or len(set(classes)) < len(classes):
        raise DataError(f"{path / CLASSES}: expected the names of at least 2 classes, one per line, all different")
    return opened("folder", path, classes, size, parts)


def _with_masks(images: Path, masks: Path) -> FileImages:
    """The images of a folder with their masks, which have the same names up to the suffix."""
    if not masks.is_dir():
        raise DataError(f"{masks}: there is no such folder, and the images in {images} need masks")
    names, by_stem = (
        [(str(PurePosixPath(name).with_suffix("")), name) for name in image_files(folder)] for folder in (images, masks)
    )
    if not names:
        raise DataError(f"{images}: has no images")
    mask_of = dict(by_stem)
    if twice := [name for stem, name in by_stem if mask_of[stem] != name]:
        other = mask_of[str(PurePosixPath(twice[0]).with_suffix(""))]
        raise DataError(f"{masks}: {twice[0]} and {other} are masks of the same image: remove one of them")
    if missing := [name for stem, name in names if stem not in mask_of]:
        raise DataError(
            f"{len(missing)} of {len(names)} images in {images} have no mask of the same name in {masks}: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
    stems = [stem for stem, _ in names]
    if len(set(stems)) < len(stems):
        again = min(stem for stem in stems if stems.count(stem) > 1)
        raise DataError(f"{images}: several images have the name {again}, and share one mask: rename them")
    if unused := len(mask_of) - len(stems):
        logger.warning("%s: %d masks have no image of the same name and are not used", masks, unused)
    paths = [str(images / name) for _, name in names]
    return files_of(paths, masks=tuple(str(masks / mask_of[stem]) for stem in stems))


def _numbers_in(path: Path, masks: Sequence[str]) -> tuple[str, ...]:
    """The numbers up to the largest one in any mask, as names of classes."""
    largest = 0
    with shown(None, steps("masks")) as report:
        for number, mask in enumerate(masks, start=1):
            report(number, len(masks))
            try:
                indices = read_mask(mask)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                continue  # the loader counts files that cannot be decoded
            counted = indices[indices != IGNORED]
            if counted.size and not 0 <= counted.min() <= counted.max() < IGNORED:
                raise DataError(
                    f"{mask}: classes are numbered 0, 1, ... below {IGNORED}, which is ignored; the mask has "
                    f"{int(counted.min())} to {int(counted.max())}"
                )
            largest = max(largest, int(counted.max(initial=0)))
    if largest == 0:
        raise DataError(
            f"{path}: the masks have one class only, 0 (and {IGNORED}, which is ignored). Number the classes 0, 1 and "
            f"so on; in a mask of two colours replace {IGNORED} by 1"
        )
    return tuple(str(number) for number in range(largest + 1))
