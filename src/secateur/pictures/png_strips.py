"""Small PNGs for a page: maps and images side by side, as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
CELL = 64  # smallest size of a cell in pixels, so that browsers do not enlarge it much
GAP = 16  # a cell is this many times as wide as a gap
CLEAR = 255  # index of the transparent colour


@cache
def ramp() -> Bytes:
    """[256, 3] the colours of a map's bytes, from dark blue to yellow (viridis): brightness grows evenly."""
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0, 1, CLEAR))[:, :3]
    return np.concatenate([np.rint(255 * colours), [[0, 0, 0]]]).astype(np.uint8)


def map_strip(maps: Bytes) -> str:
    """Maps [N, height, width] side by side as a data URI. A byte is an index of `ramp`; 254 and 255 are one colour."""
    from PIL import Image

    cells = [np.minimum(_enlarged(each), CLEAR - 1) for each in maps]
    picture = Image.fromarray(_side_by_side(cells, CLEAR), "P")
    picture.putpalette(ramp().tobytes())
    return _uri(picture, transparency=CLEAR)


def image_strip(images: Bytes) -> str:
    """Images [N, height, width, 1 or 3] side by side as a data URI."""
    from PIL import Image

    cells = []
    for image in images:
        colours = np.broadcast_to(image, (*image.shape[:2], 3))
        opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
        cells.append(_enlarged(np.concatenate([colours, opaque], 2)))
    return _uri(Image.fromarray(_side_by_side(cells, 0), "RGBA"))


def _enlarged(cell: Bytes) -> Bytes:
    """The cell with each pixel repeated, so that it is at least CELL pixels high or wide."""
    times = -(-CELL // max(cell.shape[:2]))
    return cell.repeat(times, 0).repeat(times, 1)


def _side_by_side(cells: Sequence[Bytes], between: int) -> Bytes:
    gap = max(1, round(cells[0].shape[1] / GAP))
    space = np.full((cells[0].shape[0], gap, *cells[0].shape[2:]), between, np.uint8)
    parts = [part for cell in cells for part in (cell, space)][:-1]
    return np.concatenate(parts, 1)


def _uri(picture: Any, **options: Any) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True, **options)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
