"""The channels on the page: the pixels that a reader sees are the bytes that the run kept."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from prunus.errors import FileError
from prunus.plots.run_pictures import load_pictures
from prunus.report.run_page import write_report
from tests.report.runs import Page


def strips(page: str) -> list[tuple[str, Any]]:
    """Alt text and RGBA pixels of every picture in a page."""
    found = []
    for tag, attributes in Page(page).tags:
        if tag == "img":
            data = base64.b64decode((attributes["src"] or "").removeprefix("data:image/png;base64,"))
            found.append((attributes["alt"] or "", np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))))
    return found


def cells(strip: Any, count: int) -> list[Any]:
    """The cells of a strip: what is between the see-through gaps."""
    solid = strip[0, :, 3] == 255
    edges = np.flatnonzero(np.diff(np.concatenate([[0], solid.astype(int), [0]])))
    assert len(edges) == 2 * count
    return [strip[:, a:b, :3] for a, b in zip(edges[::2], edges[1::2], strict=True)]


def test_pixels_on_the_page(run: Path) -> None:
    found = load_pictures(run / "round-01" / "pictures.safetensors")
    assert found is not None
    shown = strips(write_report(run).read_text(encoding="utf-8"))
    assert len(shown) == sum(1 + len(unit.maps) for unit in found.units)
    viridis = np.rint(255 * colormaps["viridis"](np.linspace(0, 1, 255))[:, :3]).astype(np.uint8)
    for unit in found.units:
        (alt, images), *rows = shown[: 1 + len(unit.maps)]
        shown = shown[1 + len(unit.maps) :]
        assert alt == "Input images: 0, 1, 2."
        for cell, image in zip(cells(images, 3), found.images, strict=True):
            step = len(cell) // len(image)
            assert np.array_equal(cell[::step, ::step], np.broadcast_to(image, (*image.shape[:2], 3)))
        for (alt, strip), maps, channel in zip(rows, unit.maps, unit.shown, strict=True):
            fate = "removed" if channel.removed else "kept"
            assert alt.startswith(f"Responses of channel {channel.channel} of {unit.unit} ({fate}) to images of 0, 1")
            for cell, each in zip(cells(strip, 3), maps, strict=True):
                step = len(cell) // len(each)
                assert np.array_equal(cell[::step, ::step], viridis[np.minimum(each, 254)])


def test_a_run_without_pictures_still_has_a_page(run: Path) -> None:
    (run / "round-01" / "pictures.safetensors").unlink()
    page = write_report(run).read_text(encoding="utf-8")
    assert "<img" not in page and "Responses of removed" not in page and "<h2>Layers</h2>" in page


def test_pictures_that_were_cut_off_are_named(run: Path) -> None:
    path = run / "round-01" / "pictures.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FileError, match=r"round-01.pictures\.safetensors"):
        write_report(run)
