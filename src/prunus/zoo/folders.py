"""Images in folders: one folder per class, and ILSVRC-2012 in its usual layouts."""

from __future__ import annotations

import csv
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from prunus.errors import DataError
from prunus.util.progress import shown, steps
from prunus.zoo.images import IGNORED, FileImages, ImageSet, IntArray, checked_labels, divide, read_mask

# The labels of a flat ILSVRC-2012 validation folder, from any of the files that list them.

DEVKIT = "ILSVRC2012_devkit_t12/data"
SOLUTION = "LOC_val_solution.csv"  # Kaggle: ImageId,PredictionString with the wnid first
DEVKIT_TRUTH = "ILSVRC2012_validation_ground_truth.txt"  # the devkit: one ILSVRC2012_ID per line, see meta.mat
LISTS = ("val.txt", "val_map.txt", "ground_truth.txt", "imagenet_2012_validation_synset_labels.txt")
WNID = re.compile(r"n\d{8}")


def read_flat(path: Path, files: Sequence[str], known: tuple[str, ...] | None) -> tuple[tuple[str, ...], IntArray]:
    """Classes and labels of a flat validation folder; `known` are the classes if they are known already."""
    truth = _find(path)
    if truth.name == SOLUTION:
        answers = _read_solution(truth)
    elif truth.name == DEVKIT_TRUTH:
        answers = _in_order(_read_devkit(truth), files, truth)
    else:
        answers = _read_list(truth, files)
    chosen = [_answer(answers, file, truth) for file in files]
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


def _find(path: Path) -> Path:
    places = (path, path / "val", path / DEVKIT)
    for place in places:
        for name in (SOLUTION, *LISTS, DEVKIT_TRUTH):
            if (place / name).is_file():
                return place / name
    raise DataError(
        f"{path / 'val'}: a flat validation folder needs a file with its labels in {path}: "
        f"{SOLUTION}, {', '.join(LISTS)}, or {DEVKIT}/{DEVKIT_TRUTH} with its meta.mat"
    )


def _read_solution(truth: Path) -> dict[str, str]:
    with truth.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2 and row[1].split()]
    return {image: prediction.split()[0] for image, prediction in rows if WNID.fullmatch(prediction.split()[0])}


def _read_list(truth: Path, files: Sequence[str]) -> dict[str, str]:
    """Lines of `file class`, or only `class` in the order of the file names; a class is a wnid or a number."""
    lines = [line.split() for line in truth.read_text(encoding="utf-8").splitlines() if line.strip()]
    if all(len(words) == 1 for words in lines):
        return _in_order([words[0] for words in lines], files, truth)
    wrong = next((number for number, words in enumerate(lines, 1) if len(words) != 2), None)
    if wrong is not None:
        raise DataError(f"{truth}: line {wrong} should be `file class`, got {' '.join(lines[wrong - 1])!r}")
    return {Path(words[0]).stem: words[1] for words in lines}


def _read_devkit(truth: Path) -> list[str]:
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


def _in_order(answers: Sequence[str], files: Sequence[str], truth: Path) -> dict[str, str]:
    if len(answers) != len(files):
        raise DataError(f"{truth}: has {len(answers)} lines for {len(files)} images; expected one for each")
    return {Path(file).stem: answer for file, answer in zip(files, answers, strict=True)}


def _answer(answers: dict[str, str], file: str, truth: Path) -> str:
    answer = answers.get(Path(file).stem)
    if answer is None:
        raise DataError(f"{truth}: has no label for the image {file}")
    return answer


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


# Images with several labels, listed in a CSV: a file in each line, and 0 or 1 for each label.

TABLE = "labels.csv"


def has_table(path: Path) -> bool:
    """Whether a path is a CSV, or a folder with one, in parts or not."""
    return path.is_file() or (path / TABLE).is_file() or (path / "train" / TABLE).is_file()


def read_labelled(path: Path, size: int | None) -> ImageSet:
    """PATH is a CSV, or a folder with labels.csv, or with labels.csv in its folders train and test (or val).

    Without parts, a fixed fifth of the images is the test set.
    """
    if not has_table(path):
        raise DataError(
            f"{path}: for several labels per image, expected {TABLE}, here or in train and in test (or val): "
            "a header `file,label,label,...`, then a file and 0 or 1 for each label in every line"
        )
    if path.is_dir() and not (path / TABLE).is_file():
        classes, train = read_table(path / "train" / TABLE)
        tests, test = folder_of_tests(path), None
        if tests:
            others, test = read_table(tests / TABLE)
            _check_apart(classes, train, others, test, tests / TABLE)
    else:
        classes, images = read_table(path if path.is_file() else path / TABLE)
        train, test = in_two_parts(images)
    return image_set(f"folder:{path}", classes, train, test, size)


def read_table(path: Path) -> tuple[tuple[str, ...], FileImages]:
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
        image = _file(path, line, row[0].strip())
        real = image.resolve()  # so that a/../b.png and a link are the image that they mean
        if real in seen:
            raise DataError(f"{path}, line {line}: {row[0]} is in line {seen[real]} already; list each image once")
        seen[real] = line
        images.append(str(image))
        values.append(_values(path, line, row, labels))
    return labels, FileImages(tuple(images), np.array(values, dtype=np.int64))


def _file(path: Path, line: int, name: str) -> Path:
    places = [path.parent / name, path.parent / "images" / name]
    for place in places:
        if name and place.is_file():
            return place
    raise DataError(f"{path}, line {line}: there is no image {name!r} in {path.parent} or its folder images")


def _values(path: Path, line: int, row: Sequence[str], labels: tuple[str, ...]) -> list[int]:
    if len(row) != len(labels) + 1:
        raise DataError(f"{path}, line {line}: expected a file and {len(labels)} values, got {len(row) - 1} values")
    cells = [cell.strip() for cell in row[1:]]
    for label, cell in zip(labels, cells, strict=True):
        if cell not in ("0", "1"):
            raise DataError(f"{path}, line {line}: {label} must be 0 or 1, got {cell!r}")
    return [int(cell) for cell in cells]


def _check_apart(
    labels: tuple[str, ...], train: FileImages, others: tuple[str, ...], test: FileImages, path: Path
) -> None:
    """DataError unless training and test images have the same labels, and no image is in both."""
    if labels != others:
        raise DataError(f"{path}: has the labels {', '.join(others)}, and the training images {', '.join(labels)}")
    both = {str(Path(name).resolve()) for name in train.paths} & {str(Path(name).resolve()) for name in test.paths}
    if both:
        raise DataError(f"{path}: {len(both)} images are listed for training too, such as {min(both)}")


# Folders of images and masks: the class of each pixel is a number in a PNG of the same name.

logger = logging.getLogger(__name__)

NAMES = "classes.txt"  # names of the classes, one per line
SHOWN = 3  # files named in an error


def has_masks(path: Path) -> bool:
    """Whether a folder holds images and masks, in parts or not."""
    return any((path / images).is_dir() and (path / masks).is_dir() for images, masks in _layouts("train", ""))


def read_masks(path: Path, size: int | None) -> ImageSet:
    """PATH/images and PATH/masks, or both in PATH/train and PATH/test (or val), or with these folders inside them.

    Without parts, a fixed fifth of the images is the test set.
    """
    if not has_masks(path):
        raise DataError(
            f"{path}: for segmentation, expected the folders images and masks, with masks of the same names as the "
            "images, here or in train and in test (or val)"
        )
    divided = any((path / images).is_dir() for images, _ in _layouts("train"))
    if divided:
        tests = folder_of_tests(path) or folder_of_tests(path / "images")
        train, test = _pairs(path, "train"), _pairs(path, tests.name) if tests else None
    else:
        train, test = in_two_parts(_pairs(path, ""))
    return image_set(f"folder:{path}", _classes(path, train, test), train, test, size)


def _layouts(*parts: str) -> list[tuple[str, str]]:
    """Where images and masks of a part may be, relative to the data set's folder."""
    both = ("images", "masks")
    inside = [tuple(str(PurePosixPath(part, kind)) for kind in both) for part in parts]
    outside = [tuple(str(PurePosixPath(kind, part)) for kind in both) for part in parts]
    return [(images, masks) for images, masks in (*inside, *outside)]


def _pairs(path: Path, part: str) -> FileImages:
    """The images of a part with their masks."""
    places = [(path / images, path / masks) for images, masks in _layouts(part)]
    images, masks = next(pair for pair in places if pair[0].is_dir())
    if not masks.is_dir():
        raise DataError(f"{masks}: there is no such folder, and the images in {images} need masks")
    names = image_files(images)
    if not names:
        raise DataError(f"{images}: has no images")
    by_stem: dict[str, str] = {}
    for name in image_files(masks):
        other = by_stem.setdefault(str(PurePosixPath(name).with_suffix("")), name)
        if other != name:
            raise DataError(f"{masks}: {other} and {name} are masks of the same image: remove one of them")
    stems = [str(PurePosixPath(name).with_suffix("")) for name in names]
    _check_names(names, stems, by_stem, images, masks)
    return FileImages(
        tuple(str(images / name) for name in names),
        np.zeros(len(names), dtype=np.int64),
        tuple(str(masks / by_stem[stem]) for stem in stems),
    )


def _check_names(names: list[str], stems: list[str], by_stem: dict[str, str], images: Path, masks: Path) -> None:
    missing = [name for name, stem in zip(names, stems, strict=True) if stem not in by_stem]
    if missing:
        more = ", ..." if len(missing) > SHOWN else ""
        raise DataError(
            f"{len(missing)} of {len(names)} images in {images} have no mask of the same name in {masks}: "
            f"{', '.join(missing[:SHOWN])}{more}"
        )
    twice = sorted({stem for stem in stems if stems.count(stem) > 1}) if len(set(stems)) < len(stems) else []
    if twice:
        raise DataError(f"{images}: several images have the name {twice[0]}, and share one mask: rename them")
    unused = len(by_stem) - len(stems)
    if unused:
        logger.warning("%s: %d masks have no image of the same name and are not used", masks, unused)


def _classes(path: Path, *parts: FileImages | None) -> tuple[str, ...]:
    """The names in classes.txt; without it, the numbers up to the largest one in any mask."""
    if (path / NAMES).is_file():
        return _names(path / NAMES)
    files = [mask for part in parts if part is not None for mask in part.masks]
    largest = 0
    with shown(None, steps("masks")) as report:
        for number, file in enumerate(files, start=1):
            largest = max(largest, _largest(file))
            report(number, len(files))
    if largest == 0:
        raise DataError(
            f"{path}: the masks have one class only, 0 (and {IGNORED}, which is ignored). Number the classes 0, 1 and "
            f"so on; in a mask of two colours replace {IGNORED} by 1"
        )
    return tuple(str(number) for number in range(largest + 1))


def _names(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text in UTF-8: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(f"{path}: expected the names of at least 2 classes, one per line, all different")
    return tuple(names)


def _largest(mask: str) -> int:
    """The largest class in a mask. A file that cannot be decoded is left to the loader, which counts such files."""
    try:
        indices = read_mask(mask)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return 0
    classes = indices[indices != IGNORED]
    if classes.size and not 0 <= classes.min() <= classes.max() < IGNORED:
        raise DataError(
            f"{mask}: classes are numbered 0, 1, ... below {IGNORED}, which is ignored; the mask has "
            f"{int(classes.min())} to {int(classes.max())}"
        )
    return int(classes.max(initial=0))
