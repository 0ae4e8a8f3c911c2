"""Images with several labels, listed in a CSV: a file in each line, and 0 or 1 for each label."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from secateur.errors import DataError
from secateur.zoo.data.folders import folder_of_tests, image_set, in_two_parts
from secateur.zoo.data.images import FileImages, ImageSet

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
