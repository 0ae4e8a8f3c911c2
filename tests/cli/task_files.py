"""Networks, tasks and data of other tasks than classification, as a user has them: files and a module of one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

MODULE = "own_of_task_files"
SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F
import prunus as pr
from tests.tasks.nets import Tagger, UNet, Wrapped, squares, sums

def unet(num_classes=3):
    torch.manual_seed(0)
    model = UNet(num_classes)
    model.down[0] = nn.Conv2d(3, 8, 3, padding=1)
    return model

unet.shape = (3, 12, 12)

def tagger(num_classes=2):
    torch.manual_seed(0)
    return Tagger(num_classes, inputs=3)

tagger.shape = (3, 12, 12)

def adder():
    torch.manual_seed(0)
    return Wrapped()

def pairs():
    return {"train": sums(images=64), "holdout": sums(seed=1), "test": sums(seed=2)}

def error():
    def close(outputs, labels):
        return -(outputs.logits.squeeze(1) - labels).abs()
    loss = lambda outputs, labels: F.l1_loss(outputs.logits.squeeze(1), labels)
    return pr.Task(name="sums", loss=loss, quality=pr.Quality(close, "minus error", "metres"))
"""


def own_module(folder: Path) -> str:
    """The module of the user's own in `folder`, which must be the current one; its name."""
    (folder / f"{MODULE}.py").write_text(SOURCE)
    return MODULE


def street(folder: Path, count: int = 30, side: int = 12) -> Path:
    """Images of a red and a blue square on noise, and masks with their classes, 1 and 2."""
    draw = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = draw.integers(0, 60, (side, side, 3)).astype(np.uint8)
        mask = np.zeros((side, side), np.uint8)
        for label, colour in ((1, 0), (2, 2)):
            top, left = draw.integers(0, side - 5, 2)
            pixels[top : top + 5, left : left + 5] = np.eye(3, dtype=np.uint8)[colour] * 255
            mask[top : top + 5, left : left + 5] = label
        Image.fromarray(pixels).save(folder / "images" / f"{number:02d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number:02d}.png")
    return folder


def photos(folder: Path, count: int = 30, side: int = 12) -> Path:
    """Images that are red or not, bright at the top or not, and their table of labels."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["file,red,bright"]
    for number in range(count):
        red, bright = draw.integers(0, 2, 2)
        pixels = draw.integers(0, 60, (side, side, 3))
        pixels[:, :, 0] += 150 * red
        pixels[: side // 2, :, 1:] += 150 * bright
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02d}.png")
        lines.append(f"{number:02d}.png,{red},{bright}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder
