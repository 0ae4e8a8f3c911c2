"""Folders of images and masks: the class of each pixel is a number in a PNG of the same name."""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from secateur.base.progress import shown, steps
from secateur.errors import DataError
from secateur.zoo.data.decoding import IGNORED, read_mask
from secateur.zoo.data.folders import folder_of_tests, image_files, image_set, in_two_parts
from secateur.zoo.data.images import FileImages, ImageSet

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
