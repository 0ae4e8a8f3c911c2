"""Images with boxes: COCO's JSON, or YOLO's text files beside the images; and the letterbox that makes them square.

Every reader returns what is known of the data set, and its training and test images. A box is stored as (class, x1, y1,
x2, y2, crowd), in shares of the image's width and height.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from prunus.errors import DataError
from prunus.zoo.folders import (
    FolderData,
    Parts,
    beside,
    check_same,
    image_files,
    in_parts,
    lines_of,
    listed_classes,
    opened,
)
from prunus.zoo.images import FileImages, Pixels, channels_first

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
GREY = 114  # of the bars of a letterbox, as ultralytics paints them
OUTSIDE = 0.01  # the share of an image by which a box may stick out of it; labelling tools round
LEAST_SCALE = 0.6  # of a letterboxed image in training: it is made smaller, and put at a random place
NO_BOXES = np.zeros((0, 6))
YAML = (".yaml", ".yml")


def has_boxes(path: Path) -> bool:
    """Whether a path names images with boxes: a YAML or JSON file, or a folder with labels or annotations."""
    if path.is_file():
        return path.suffix.lower() in (*YAML, ".json")
    listed = _yaml_in(path) or _json_for(path, "train") or _json_for(path, "")
    return bool(listed) or (path / "labels").is_dir() or (path / "train" / "labels").is_dir()


def read_boxes(path: Path, size: int | None) -> FolderData:
    """A YAML file of ultralytics, a COCO JSON file, or a folder with images and either kind of labels."""
    listing = path if path.is_file() else _yaml_in(path)
    if listing is not None and listing.suffix.lower() != ".json":
        return _read_yaml(listing, path, size)
    jsons = {"": whole} if (whole := listing or _json_for(path, "")) else in_parts(lambda part: _json_for(path, part))
    if jsons:
        return _read_coco(path, jsons, size)
    if not has_boxes(path):
        raise DataError(
            f"{path}: for detection, expected a YAML file of ultralytics (train, val, names), COCO's "
            "annotations/instances_train*.json, the folders images and labels with a text file for each image, here or "
            "in train and in test (or val), or a folder of images alone, without labels"
        )
    parts = {}
    for part, (folder, _) in beside(path, "labels").items():
        parts[part] = [folder / file for file in image_files(folder)]
        if not parts[part]:
            raise DataError(f"{folder}: has no images")
    return _read_yolo(path, parts, None, size)


# -- YOLO: a text file for each image; each line is `class x y width height` in shares of the image, or a polygon


def _yaml_in(path: Path) -> Path | None:
    """The only YAML file of a folder."""
    files = [file for file in path.glob("*") if file.suffix.lower() in YAML] if path.is_dir() else []
    return files[0] if len(files) == 1 else None


def _read_yaml(listing: Path, path: Path, size: int | None) -> FolderData:
    """A data set as ultralytics describes it: path, train, val, test and names."""
    import yaml

    try:
        content = yaml.safe_load(listing.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{listing}: cannot be read as YAML: {error}") from error
    if not isinstance(content, dict) or "train" not in content or "names" not in content:
        raise DataError(f"{listing}: expected the keys train and names, and usually path, val or test")
    names = content["names"]
    if isinstance(names, Mapping):
        if sorted(names) != list(range(len(names))):
            raise DataError(f"{listing}: the classes in names must be numbered 0 to {len(names) - 1} without gaps")
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise DataError(f"{listing}: names must list the classes")
    parts = {"train": _yaml_images(listing, content, "train")}
    # Published data sets often keep the labels of `test` to themselves, or its images too; then `val` is reported.
    for key in ("test", "val"):
        if "test" not in parts and content.get(key):
            last = key == "val" or not content.get("val")
            try:
                files = _yaml_images(listing, content, key)
            except DataError as error:
                if last:
                    raise
                logger.warning("%s; val is the test set", error)
                continue
            if last or any(_labels_of(file).is_file() for file in files):
                parts["test"] = files
    return _read_yolo(path, parts, tuple(map(str, names)), size)


def _yaml_images(listing: Path, content: Mapping[str, Any], part: str) -> list[Path]:
    """The images of a part: a folder, a text file with a path in each line, or a list of these."""
    given = content[part] if isinstance(content[part], list) else [content[part]]
    top = listing.parent / str(content.get("path") or ".")
    files: list[Path] = []
    for each in given:
        if not isinstance(each, str) or not each:
            raise DataError(f"{listing}: {part} must be a folder of images, a text file that lists them, or several")
        # Some exporters write ../train/images for what is in train/images beside the YAML file.
        places = [place / name for place in (top, listing.parent) for name in (each, each.removeprefix("../"))]
        place = next((place for place in places if place.exists()), None)
        if place is None:
            raise DataError(f"{listing}: {part}: there is no {each} in {top}")
        if place.is_dir():
            files += [place / file for file in image_files(place)]
        elif place.suffix.lower() == ".txt":
            for number, line in enumerate(map(str.strip, lines_of(place)), 1):
                spots = [folder / line for folder in (place.parent, top) if line and (folder / line).is_file()]
                if line and not spots:
                    raise DataError(f"{place}, line {number}: there is no image {line} in {place.parent} or {top}")
                files += spots[:1]
        else:
            raise DataError(f"{listing}: {part} must be a folder of images, or a text file that lists them; got {each}")
    if not files:
        raise DataError(f"{listing}: {part}: {content[part]} has no images")
    return files


def _read_yolo(
    path: Path, images: Mapping[str, Sequence[Path]], names: tuple[str, ...] | None, size: int | None
) -> FolderData:
    names = listed_classes(path) if names is None else names
    parts = {part: _labelled(files, names) for part, files in images.items()}
    if names is None:
        largest = max(int(rows[:, 0].max()) for part in parts.values() for rows in part.boxes if len(rows))
        names = tuple(str(number) for number in range(largest + 1))
    return _opened(path, names, size, parts)


def _opened(path: Path, names: tuple[str, ...], size: int | None, parts: Parts[FileImages]) -> FolderData:
    """The data set, and a warning if no training image has a box of some class: its precision can only be guessed."""
    there = {int(label) for rows in parts["" if "" in parts else "train"].boxes for label in rows[:, 0]}
    missing = [name for number, name in enumerate(names) if number not in there]
    if missing:
        more = ", ..." if len(missing) > 5 else ""
        logger.warning("%s: no training image has a box of %s%s", path, ", ".join(missing[:5]), more)
    return opened("folder", path, names, size, parts)


def _labels_of(image: Path) -> Path:
    """The text file of an image: of the same name, and the last folder `images` in its path is `labels`."""
    parts = list(image.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts).with_suffix(".txt")


def _labelled(files: Sequence[Path], names: Sequence[str] | None) -> FileImages:
    texts = [_labels_of(file) for file in files]
    there = [text.is_file() for text in texts]
    rows = [_yolo_rows(text, names) if known else NO_BOXES for text, known in zip(texts, there, strict=True)]
    folder = files[0].parent
    if not any(len(each) for each in rows):
        raise DataError(
            f"{folder}: none of the {len(files)} images has a box; expected text files of the same names in "
            f"{texts[0].parent}, with `class x y width height` in each line. To measure a network without labels, give "
            "a folder of images alone"
        )
    if without := len(files) - sum(there):
        logger.warning(
            "%s: %d of %d images have no text file in %s, so no objects", folder, without, len(files), texts[0].parent
        )
    return _file_images([str(file) for file in files], rows)


def _yolo_rows(path: Path, names: Sequence[str] | None) -> Floats:
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            label, *values = (float(word) for word in line.split())
        except ValueError as error:
            raise DataError(f"{where}: expected numbers, `class x y width height`; got {line.strip()!r}") from error
        polygon = len(values) >= 6 and len(values) % 2 == 0
        if not (len(values) == 4 or polygon) or not np.isfinite(values).all():
            raise DataError(f"{where}: expected `class x y width height`, or a polygon; got {line.strip()!r}")
        if label != int(label) or label < 0 or (names is not None and label >= len(names)):
            listed = ", ".join([*names[:3], "..."] if len(names) > 3 else names) if names else ""
            known = f"the classes are 0 to {len(names) - 1} ({listed})" if names else "classes are 0, 1, ..."
            raise DataError(f"{where}: {label:g} is not a class; {known}")
        if polygon:
            corners = np.array(values).reshape(-1, 2)
            box = [*corners.min(0), *corners.max(0)]
        else:
            x, y, width, height = values
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        rows.append([label, *_inside(box, where), 0.0])
    return np.array(rows).reshape(-1, 6)


def _inside(box: Sequence[float], where: str) -> list[float]:
    """A box in shares of its image, cut off at the borders; DataError if it is empty or lies outside."""
    left, top, right, bottom = map(float, box)
    if not (left < right and top < bottom):
        raise DataError(f"{where}: the box is empty: its width and height must be above 0")
    if min(left, top) < -OUTSIDE or max(right, bottom) > 1 + OUTSIDE:
        raise DataError(
            f"{where}: the box is outside its image: it reaches from ({left:.3f}, {top:.3f}) to ({right:.3f}, "
            f"{bottom:.3f}), and the image from 0 to 1 of its width and height"
        )
    return [float(np.clip(value, 0, 1)) for value in (left, top, right, bottom)]


# -- COCO: one JSON for each part, with images, annotations and categories


def _json_for(path: Path, part: str) -> Path | None:
    """The JSON of a part of a folder, in one of the usual places."""
    wanted = [f"{part}/_annotations.coco.json", f"{part}/annotations.json", f"{part}.json"] if part else []
    wanted += [f"annotations/instances_{part}*.json", f"annotations/{part}*.json"] if part else ["annotations.json"]
    return next((file for pattern in wanted for file in sorted(path.glob(pattern)) if file.is_file()), None)


def _read_coco(path: Path, jsons: Parts[Path], size: int | None) -> FolderData:
    top = path.parent if path.is_file() else path
    read = {part: _read_json(listing, top, part) for part, listing in jsons.items()}
    classes = next(iter(read.values()))[0]
    if "test" in read:
        check_same("categories", jsons["test"], read["test"][0], classes)
    return _opened(path, classes, size, {part: images for part, (_, images) in read.items()})


def _read_json(listing: Path, top: Path, part: str) -> tuple[tuple[str, ...], FileImages]:
    """The categories by their numbers, and the images of a COCO JSON. Categories need not be numbered without gaps."""
    try:
        content = json.loads(listing.read_text(encoding="utf-8"))
        images = {entry["id"]: {**entry, "file_name": str(entry["file_name"])} for entry in content["images"]}
        categories = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        annotations = [dict(entry) for entry in content["annotations"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{listing}: expected COCO's JSON with images, annotations and categories ({type(error).__name__}: {error})"
        ) from error
    numbers = {key: number for number, key in enumerate(sorted(categories))}
    rows: dict[Any, list[list[float]]] = {key: [] for key in images}
    empty = 0
    for entry in annotations:
        where = f"{listing}, annotation {entry.get('id')}"
        if entry.get("image_id") not in images:
            raise DataError(f"{where}: there is no image {entry.get('image_id')!r}")
        if entry.get("category_id") not in numbers:
            raise DataError(f"{where}: there is no category {entry.get('category_id')!r}")
        image, box = images[entry["image_id"]], entry.get("bbox")
        if not (isinstance(box, list) and len(box) == 4 and all(_is_number(value) for value in box)):
            raise DataError(f"{where}: bbox must be [x, y, width, height], got {box!r}")
        if min(box[2:]) == 0:
            empty += 1
            continue
        sides: list[Any] = [image.get("width"), image.get("height")]
        if not all(_is_number(side) and side > 0 for side in sides):
            raise DataError(f"{listing}: image {image['id']!r} has no width and height")
        x, y, width, height = box
        shares = np.array([x, y, x + width, y + height]) / np.array(sides * 2)
        inside = _inside(shares.tolist(), where)
        rows[image["id"]].append([numbers[entry["category_id"]], *inside, float(bool(entry.get("iscrowd")))])
    if empty:
        logger.warning("%s: left out %d boxes without width or height", listing, empty)
    if not any(rows.values()):
        raise DataError(f"{listing}: has no boxes")
    names = tuple(categories[key] for key in sorted(categories))
    return names, _file_images(
        [str(_coco_file(image["file_name"], listing, top, part)) for image in images.values()],
        [np.array(each).reshape(-1, 6) for each in rows.values()],
        [(int(image.get("width") or 0), int(image.get("height") or 0)) for image in images.values()],
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _coco_file(name: str, listing: Path, top: Path, part: str) -> Path:
    year = listing.stem.removeprefix("instances_")  # as in train2017
    words = (year, re.split(r"[\d_.]", year)[0], part)
    folders = [folder for word in words for folder in (top / word, top / word / "images", top / "images" / word)]
    for folder in (*folders, listing.parent, top, top / "images"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{listing}: there is no image {name!r} in {top}, {top / 'images'} or {top / year}")


def _file_images(paths: Sequence[str], rows: Iterable[Floats], sizes: Sequence[tuple[int, int]] = ()) -> FileImages:
    return FileImages(tuple(paths), np.zeros(len(paths), dtype=np.int64), (), tuple(rows), tuple(sizes))


# -- square images


def letterboxed(found: FolderData) -> FolderData:
    """Images without labels, to be letterboxed as images with boxes are."""
    train, test = (images and replace(images, boxes=(NO_BOXES,) * len(images.paths)) for images in found[1:])
    return found[0], train, test


def letterbox(
    path: str, rows: Floats, size: int, rng: np.random.Generator | None, declared: tuple[int, int] | None = None
) -> tuple[Pixels, dict[str, Tensor]]:
    """An image [3, size, size] with its sides in their ratio, between grey bars, and its boxes in pixels of it.

    With `rng` it is up to 40% smaller, at a random place, and mirrored with probability 1/2. `frame` of the labels is
    (scale, left, top, width, height) of the image in the square, which leads back from boxes to the file.

    declared: its width and height, as its labels say.
    """
    with Image.open(path) as opened:
        stored = opened.size
        # Labelling tools show a photograph upright; boxes of the pixels as they are stored say so by their size.
        upright = ImageOps.exif_transpose(opened)
        image = (opened if declared == stored else upright).convert("RGB")
    if declared is not None and all(declared) and declared != image.size:
        raise DataError(
            f"{path}: has {image.width} x {image.height} pixels, and its labels say {declared[0]} x {declared[1]}: "
            "the boxes are those of another size"
        )
    shrunk = 1.0 if rng is None else float(rng.uniform(LEAST_SCALE, 1.0))
    scale = size / max(image.size) * shrunk
    width, height = (max(1, round(side * scale)) for side in image.size)
    free = (size - width, size - height)
    left, top = (side // 2 if rng is None else int(rng.integers(side + 1)) for side in free)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    mirrored = rng is not None and rng.random() < 0.5
    if mirrored:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        rows = rows.copy()
        rows[:, [1, 3]] = 1 - rows[:, [3, 1]]
    square = Image.new("RGB", (size, size), (GREY, GREY, GREY))
    square.paste(resized, (left, top))
    corners = rows[:, 1:5] * np.array([width, height, width, height]) + np.array([left, top, left, top])
    labels = {
        "boxes": torch.from_numpy(corners).float(),
        "labels": torch.from_numpy(rows[:, 0].astype(np.int64)),
        "crowd": torch.from_numpy(rows[:, 5] > 0),
        "frame": torch.tensor([scale, left, top, image.width, image.height], dtype=torch.float32),
    }
    return channels_first(square), labels
