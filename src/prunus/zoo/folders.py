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

import numpy as np
from PIL import Image

from prunus.errors import DataError
from prunus.util.progress import shown, steps
from prunus.zoo.images import IGNORED, FileImages, IntArray, checked_labels, read_mask, split_off_test
from prunus.zoo.names import DATA_SETS, DataSet

logger = logging.getLogger(__name__)

FolderData = tuple[DataSet, FileImages | None, FileImages | None]  # what is known, training and test images
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
CLASSES = "classes.txt"  # names of the classes, one per line
NAMED = 3  # files named in an error
TESTS = ("test", "val")  # folders of test images


def image_files(folder: Path) -> list[str]:
    """Sorted paths, relative to `folder`, of the images in it and its subfolders."""
    names: list[str] = []
    for where, _, files in os.walk(folder):
        inside = os.path.relpath(where, folder)
        prefix = "" if inside == "." else f"{inside}/"
        names += [prefix + file for file in files if file.lower().endswith(SUFFIXES) and not file.startswith(".")]
    return sorted(names)


def known_folder(kind: str, path: Path, classes: tuple[str, ...], size: int | None) -> DataSet:
    """A data set of files, with ImageNet's normalisation, and its size unless told otherwise."""
    known = DATA_SETS[kind]
    shape = known.shape if size is None else (3, size, size)
    return replace(known, name=f"{kind}:{path}", classes=classes, shape=shape)


def in_parts(path: Path, read: Callable[[Path], FileImages]) -> tuple[FileImages, FileImages | None]:
    """Training images from PATH/train and test images from PATH/test (or val), or PATH divided into both."""
    if not (path / "train").is_dir():
        return split_off_test(read(path))
    tests = next((path / name for name in TESTS if (path / name).is_dir()), None)
    return read(path / "train"), read(tests) if tests else None


def has_beside(path: Path, kind: str) -> bool:
    """Whether there are folders `images` and `kind` beside each other, in parts or not."""
    return any((top / "images").is_dir() and (top / kind).is_dir() for top in (path / "train", path))


def beside(path: Path, kind: str) -> dict[str, tuple[Path, Path]]:
    """Part -> its folders of images and of `kind`, masks or labels; the only part is "" if images are not divided.

    They are train/images and train/masks, or images/train and masks/train.
    """

    def folders(part: str) -> tuple[Path, Path] | None:
        places = (path / part / "images", path / part / kind), (path / "images" / part, path / kind / part)
        return next((place for place in places if place[0].is_dir()), None)

    if (train := folders("train")) is None:
        return {"": (path / "images", path / kind)}
    test = next((place for part in TESTS if (place := folders(part))), None)
    return {"train": train, "test": test} if test else {"train": train}


def listed_classes(path: Path) -> tuple[str, ...] | None:
    """The names in classes.txt of a folder; None without it."""
    listing = path / CLASSES
    if not listing.is_file():
        return None
    return tuple(line.strip() for line in lines_of(listing) if line.strip())


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
    top = path / "train" if (path / "train").is_dir() else path
    classes = _class_names(top)
    parts = in_parts(path, lambda tree: _read_tree(tree, classes))
    if len(classes) == 1:
        only = top / classes[0]
        raise DataError(f"{path}: one folder is one class, and classes are told apart. Without labels: folder:{only}")
    return known_folder("folder", path, classes, size), *parts


def _folders_in(tree: Path) -> list[str]:
    return sorted(child.name for child in tree.iterdir() if child.is_dir() and not child.name.startswith("."))


def _class_names(tree: Path) -> tuple[str, ...]:
    """The sorted names of the folders; their positions are the labels."""
    names = _folders_in(tree)
    if not names:
        raise DataError(f"{tree}: expected one folder per class, or images without labels; found neither")
    return tuple(names)


def _read_tree(tree: Path, classes: tuple[str, ...]) -> FileImages:
    """The images in the folder of each class. Every folder must be a class, and none may be empty."""
    strangers = sorted(set(_class_names(tree)) - set(classes))
    if strangers:
        raise DataError(f"{tree}: these folders are not classes of the training images: {', '.join(strangers[:8])}")
    paths: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(tree / name for name in classes):
        if folder.is_dir():
            names = image_files(folder)
            if not names:
                raise DataError(f"{folder}: has no images ({' '.join(SUFFIXES)}); add some or remove the folder")
            paths += [str(folder / name) for name in names]
            labels += [label] * len(names)
    return FileImages(tuple(paths), np.array(labels, dtype=np.int64))


# Images alone.


def has_no_labels(path: Path) -> bool:
    """Whether a folder holds images and no folders, in parts or not."""
    if has_beside(path, MASKS) or has_table(path):
        return False
    top = path / "train" if (path / "train").is_dir() else path
    return top.is_dir() and not _folders_in(top) and bool(image_files(top))


def read_unlabelled(path: Path, size: int | None) -> FolderData:
    """PATH with images; or PATH/train and PATH/test (or val), each with images. There are no classes."""
    return known_folder("folder", path, (), size), *in_parts(path, _images_in)


def _images_in(folder: Path) -> FileImages:
    names = image_files(folder)
    if not names or _folders_in(folder):
        raise DataError(f"{folder}: expected images and no folders, as in the folder train beside it")
    return FileImages(tuple(str(folder / name) for name in names), np.zeros(len(names), dtype=np.int64))


# ILSVRC-2012. Its validation folder may be flat; then one of several files lists the labels.

CLASS_LISTS = ("LOC_synset_mapping.txt", "synset_words.txt", "synsets.txt", CLASSES)
DEVKIT = "ILSVRC2012_devkit_t12/data"
SOLUTION = "LOC_val_solution.csv"  # Kaggle: ImageId,PredictionString with the wnid first
DEVKIT_TRUTH = "ILSVRC2012_validation_ground_truth.txt"  # the devkit: one ILSVRC2012_ID per line, see meta.mat
LISTS = ("val.txt", "val_map.txt", "ground_truth.txt", "imagenet_2012_validation_synset_labels.txt")
WNID = re.compile(r"n\d{8}")


def read_imagenet(path: Path, size: int | None) -> FolderData:
    """PATH/train by wnid (optional), and PATH/val by wnid, or flat with a file that lists the labels."""
    tree, val = path / "train", path / "val"
    if not val.is_dir():
        raise DataError(f"{path}: expected a folder val of ILSVRC-2012 (and train, for training); there is none")
    classes = None
    # A list of the wnids in label order wins, so that a subset of the classes keeps its labels.
    if listing := next((path / name for name in CLASS_LISTS if (path / name).is_file()), None):
        lines = listing.read_text(encoding="utf-8").splitlines()
        classes = tuple(line.split()[0] for line in lines if line.strip())
    elif tree.is_dir():
        classes = _class_names(tree)
    if any(child.is_dir() for child in val.iterdir()):
        classes = classes or _class_names(val)
        test = _read_tree(val, classes)
    else:
        names = image_files(val)
        classes, labels = _flat_labels(path, names, classes)
        test = FileImages(tuple(str(val / name) for name in names), labels)
    train = _read_tree(tree, classes) if tree.is_dir() else None
    return known_folder("imagenet", path, classes, size), train, test


def _flat_labels(path: Path, files: Sequence[str], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], IntArray]:
    """Classes and labels of a flat validation folder; `known` are the classes if they are known already."""
    places = [
        place / name for place in (path, path / "val", path / DEVKIT) for name in (SOLUTION, *LISTS, DEVKIT_TRUTH)
    ]
    truth = next((place for place in places if place.is_file()), None)
    if truth is None:
        raise DataError(
            f"{path / 'val'}: a flat validation folder needs a file with its labels in {path}: "
            f"{SOLUTION}, {', '.join(LISTS)}, or {DEVKIT}/{DEVKIT_TRUTH} with its meta.mat"
        )
    answers = _answers(truth, files)
    unlabelled = next((file for file in files if Path(file).stem not in answers), None)
    if unlabelled is not None:
        raise DataError(f"{truth}: has no label for the image {unlabelled}")
    chosen = [answers[Path(file).stem] for file in files]
    if all(answer.isdigit() for answer in chosen):  # labels, not wnids: their names must come from elsewhere
        labels = np.array([int(answer) for answer in chosen], dtype=np.int64)
        names = known or tuple(str(number) for number in range(int(labels.max(initial=0)) + 1))
        return names, checked_labels(labels, len(names), truth)
    names = known or tuple(sorted(set(chosen)))
    numbers = {name: number for number, name in enumerate(names)}
    strangers = sorted(set(chosen) - set(numbers))
    if strangers:
        raise DataError(f"{truth}: lists classes that the training images do not have: {', '.join(strangers[:8])}")
    return names, np.array([numbers[answer] for answer in chosen], dtype=np.int64)


def _answers(truth: Path, files: Sequence[str]) -> dict[str, str]:
    """File name without suffix -> class, a wnid or a number, from any of the files that list them."""
    if truth.name == SOLUTION:
        with truth.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == 2 and row[1].split()]
        return {image: prediction.split()[0] for image, prediction in rows if WNID.fullmatch(prediction.split()[0])}
    if truth.name == DEVKIT_TRUTH:
        in_order = _devkit_wnids(truth)
    else:
        lines = [line.split() for line in truth.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not all(len(line) == 1 for line in lines):
            wrong = next((number for number, line in enumerate(lines, 1) if len(line) != 2), None)
            if wrong is not None:
                raise DataError(f"{truth}: line {wrong} should be `file class`, got {' '.join(lines[wrong - 1])!r}")
            return {Path(image).stem: answer for image, answer in lines}
        in_order = [line[0] for line in lines]
    if len(in_order) != len(files):
        raise DataError(f"{truth}: has {len(in_order)} lines for {len(files)} images; expected one for each")
    return {Path(image).stem: answer for image, answer in zip(files, in_order, strict=True)}


def _devkit_wnids(truth: Path) -> list[str]:
    """The devkit numbers the classes from 1 in its own order; meta.mat gives the wnid of each number."""
    from scipy.io import loadmat

    meta = truth.parent / "meta.mat"
    if not meta.is_file():
        raise DataError(f"{truth}: its numbers refer to meta.mat of the devkit, which should be in the same folder")
    try:
        synsets = loadmat(str(meta), squeeze_me=True)["synsets"]
        wnids = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
        return [wnids[int(line)] for line in truth.read_text(encoding="utf-8").split()]
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise DataError(f"{meta}: cannot give the classes of {truth} ({type(error).__name__}: {error})") from error


# Images with several labels, listed in a CSV: a file in each line, and 0 or 1 for each label.

TABLE = "labels.csv"


def has_table(path: Path) -> bool:
    """Whether a path is a CSV, or a folder with one, in parts or not."""
    return (
        (path.is_file() and path.suffix.lower() in (".csv", ".txt"))
        or (path / TABLE).is_file()
        or (path / "train" / TABLE).is_file()
    )


def read_labelled(path: Path, size: int | None) -> FolderData:
    """PATH is a CSV, or a folder with labels.csv, or with labels.csv in its folders train and test (or val)."""
    if not has_table(path):
        raise DataError(
            f"{path}: for several labels per image, expected {TABLE}, here or in train and in test (or val): "
            "a header `file,label,label,...`, then a file and 0 or 1 for each label in every line"
        )
    if path.is_file() or (path / TABLE).is_file():
        classes, images = _read_table(path if path.is_file() else path / TABLE)
        return known_folder("folder", path, classes, size), *split_off_test(images)
    classes, train = _read_table(path / "train" / TABLE)
    known = known_folder("folder", path, classes, size)
    tests = next((path / name / TABLE for name in TESTS if (path / name).is_dir()), None)
    if tests is None:
        return known, train, None
    others, test = _read_table(tests)
    if classes != others:
        raise DataError(f"{tests}: has the labels {', '.join(others)}, and the training images {', '.join(classes)}")
    both = set.intersection(*({str(Path(p).resolve()) for p in part.paths} for part in (train, test)))
    if both:
        raise DataError(f"{tests}: {len(both)} images are listed for training too, such as {min(both)}")
    return known, train, test


def _read_table(path: Path) -> tuple[tuple[str, ...], FileImages]:
    """The names of the labels, and the images of a CSV. Files are relative to its folder or to images in it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
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
    seen: dict[Path, int] = {}
    images, values = [], []
    for line, row in rows:
        name, *cells = (cell.strip() for cell in row)
        places = (path.parent / name, path.parent / "images" / name)
        image = next((place for place in places if name and place.is_file()), None)
        if image is None:
            raise DataError(f"{path}, line {line}: there is no image {name!r} in {path.parent} or its folder images")
        real = image.resolve()  # so that a/../b.png and a link are the image that they mean
        if real in seen:
            raise DataError(f"{path}, line {line}: {row[0]} is in line {seen[real]} already; list each image once")
        if len(cells) != len(labels):
            raise DataError(f"{path}, line {line}: expected a file and {len(labels)} values, got {len(cells)} values")
        for label, cell in zip(labels, cells, strict=True):
            if cell not in ("0", "1"):
                raise DataError(f"{path}, line {line}: {label} must be 0 or 1, got {cell!r}")
        seen[real] = line
        images.append(str(image))
        values.append([int(cell) for cell in cells])
    return labels, FileImages(tuple(images), np.array(values, dtype=np.int64))


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
    train, test = split_off_test(parts[""]) if "" in parts else (parts["train"], parts.get("test"))
    classes = listed_classes(path)
    if classes is None:
        classes = _numbers_in(path, [*train.masks, *(test.masks if test else ())])
    elif len(classes) < 2 or len(set(classes)) < len(classes):
        raise DataError(f"{path / CLASSES}: expected the names of at least 2 classes, one per line, all different")
    return known_folder("folder", path, classes, size), train, test


def _with_masks(images: Path, masks: Path) -> FileImages:
    """The images of a folder with their masks."""
    if not masks.is_dir():
        raise DataError(f"{masks}: there is no such folder, and the images in {images} need masks")
    by_stem: dict[str, str] = {}
    for name in image_files(masks):
        other = by_stem.setdefault(str(PurePosixPath(name).with_suffix("")), name)
        if other != name:
            raise DataError(f"{masks}: {other} and {name} are masks of the same image: remove one of them")
    names = image_files(images)
    if not names:
        raise DataError(f"{images}: has no images")
    stems = [str(PurePosixPath(name).with_suffix("")) for name in names]
    missing = [name for name, stem in zip(names, stems, strict=True) if stem not in by_stem]
    if missing:
        more = ", ..." if len(missing) > NAMED else ""
        raise DataError(
            f"{len(missing)} of {len(names)} images in {images} have no mask of the same name in {masks}: "
            f"{', '.join(missing[:NAMED])}{more}"
        )
    if len(set(stems)) < len(stems):
        twice = min(stem for stem in stems if stems.count(stem) > 1)
        raise DataError(f"{images}: several images have the name {twice}, and share one mask: rename them")
    if len(by_stem) > len(stems):
        unused = len(by_stem) - len(stems)
        logger.warning("%s: %d masks have no image of the same name and are not used", masks, unused)
    return FileImages(
        tuple(str(images / name) for name in names),
        np.zeros(len(names), dtype=np.int64),
        tuple(str(masks / by_stem[stem]) for stem in stems),
    )


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
