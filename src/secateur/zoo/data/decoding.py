"""Image files, and masks with the class of each pixel, decoded and cropped to squares of equal size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from secateur.errors import DataError

Pixels = npt.NDArray[np.uint8]
RESIZE_SHARE = 256 / 224  # the shorter side before the centre crop, relative to the crop
CROP_AREA = (0.08, 1.0)  # fraction of the image that a random crop covers
LABELLED_AREA = 0.5  # the least fraction where several labels or a mask must still be true of the crop
CROP_RATIO = (3 / 4, 4 / 3)  # its width over its height
CROP_TRIES = 10
IGNORED = 255  # in a mask: the pixel does not count
INDEX_MODES = ("1", "L", "P", "I", "I;16")  # of images that hold one number for each pixel


def decode(path: str, size: int, rng: np.random.Generator | None, least: float = CROP_AREA[0]) -> Pixels:
    """One RGB image [3, size, size]: a random crop, resized and possibly mirrored; the centre crop without `rng`.

    least: the smallest fraction of the image that a random crop covers.
    """
    image = _rgb(path)
    if rng is None:
        return _channels_first(centre_crop(image, size))
    box, mirrored = random_view(image.size, rng, least)
    return _channels_first(_viewed(image, size, box, mirrored, Image.Resampling.BILINEAR))


def decode_with_mask(
    path: str, mask: str, size: int, rng: np.random.Generator | None, num_classes: int
) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """An image [3, size, size] and the class of each of its pixels [size, size].

    Both are resized as a whole, or cropped and mirrored alike with `rng`: the image bilinearly, the mask to the nearest
    pixel, so that no class is mixed from two others.
    """
    image, indices = _rgb(path), read_mask(mask)
    if indices.shape != (image.height, image.width):
        height, width = indices.shape
        raise DataError(
            f"{mask}: the mask has {width} x {height} pixels, and its image {path} has {image.width} x {image.height}; "
            "both must have the same size"
        )
    check_classes(indices, num_classes, mask)
    whole = ((0, 0, image.width, image.height), False)
    box, mirrored = whole if rng is None else random_view(image.size, rng, LABELLED_AREA)
    pixels = _viewed(image, size, box, mirrored, Image.Resampling.BILINEAR)
    classes = _viewed(Image.fromarray(indices), size, box, mirrored, Image.Resampling.NEAREST)
    return _channels_first(pixels), np.asarray(classes).astype(np.int64)


def read_mask(path: str) -> npt.NDArray[np.int32]:
    """The class indices of a mask [H, W]. A palette is not looked up: its indices are the classes."""
    with Image.open(path) as opened:
        if opened.mode not in INDEX_MODES:
            raise DataError(
                f"{path}: expected a mask with one class index per pixel (a grey or palette PNG), got the mode "
                f"{opened.mode}, which holds colours: replace each colour by the number of its class"
            )
        if opened.format == "JPEG":
            raise DataError(f"{path}: JPEG changes the numbers of pixels, so it cannot hold a mask: save it as PNG")
        return np.asarray(opened).astype(np.int32)


def check_classes(indices: npt.NDArray[np.int32], num_classes: int, path: str) -> None:
    """DataError unless all pixels of a mask are classes or ignored."""
    wrong = np.unique(indices[((indices < 0) | (indices >= num_classes)) & (indices != IGNORED)])
    if len(wrong):
        raise DataError(
            f"{path}: there are {num_classes} classes, 0 to {num_classes - 1}, and only {IGNORED} is ignored; the mask "
            f"has {', '.join(map(str, wrong[:5]))}{', ...' if len(wrong) > 5 else ''}"
        )


def random_view(
    image_size: tuple[int, int], rng: np.random.Generator, least: float
) -> tuple[tuple[int, int, int, int], bool]:
    """What a training step sees of an image: (left, top, right, bottom), and whether it is mirrored."""
    left, top, width, height = crop_box(image_size, rng, least)
    return (left, top, left + width, top + height), bool(rng.random() < 0.5)


def _viewed(
    image: Image.Image, size: int, box: tuple[int, int, int, int], mirrored: bool, how: Image.Resampling
) -> Image.Image:
    image = image.crop(box).resize((size, size), how)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image


def _rgb(path: str) -> Image.Image:
    with Image.open(path) as opened:
        return opened.convert("RGB")


def _channels_first(image: Image.Image) -> Pixels:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to size * 256 / 224 and crop the central size x size pixels."""
    scale = round(size * RESIZE_SHARE) / min(image.size)
    width, height = (max(size, int(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def crop_box(
    image_size: tuple[int, int], rng: np.random.Generator, least: float = CROP_AREA[0]
) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a random crop; the largest central crop of an allowed shape if none fits."""
    full_width, full_height = image_size
    for _ in range(CROP_TRIES):
        area = full_width * full_height * rng.uniform(least, CROP_AREA[1])
        ratio = math.exp(rng.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= full_width and 0 < height <= full_height:
            left = int(rng.integers(0, full_width - width + 1))
            return left, int(rng.integers(0, full_height - height + 1)), width, height
    ratio = min(max(full_width / full_height, CROP_RATIO[0]), CROP_RATIO[1])
    width, height = min(full_width, round(full_height * ratio)), min(full_height, round(full_width / ratio))
    return (full_width - width) // 2, (full_height - height) // 2, width, height
