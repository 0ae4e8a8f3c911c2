"""A small anchor-free detector, and scenes of squares (class 0, red) and bars (class 1, blue) on noise, with boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SIDE, STRIDE = 32, 4


class Detector(nn.Module):
    """At every fourth pixel: centre, width and height in pixels, and a probability for each class [N, 4 + C, 64]."""

    def __init__(self, classes: int = 2, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()),
        )
        self.place, self.kind = nn.Conv2d(width, 4, 1), nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images)
        place, kind = self.place(features).flatten(2), self.kind(features).sigmoid().flatten(2)
        side = images.shape[-1] // STRIDE
        cells = torch.arange(side * side, device=images.device)
        middle = torch.stack([cells % side, cells // side]).to(place) * STRIDE + STRIDE / 2
        return torch.cat([middle + STRIDE * place[:, :2], STRIDE * place[:, 2:].exp(), kind], 1)


def loss(outputs: Tensor, labels: Any) -> Tensor:
    """Binary cross-entropy of the cell that holds a centre, and the distance of its box."""
    target, terms = torch.zeros_like(outputs[:, 4:]), []
    side = int(outputs.shape[2] ** 0.5)
    for n, one in enumerate(labels):
        for box, label in zip(one["boxes"], one["labels"].tolist(), strict=True):
            centre, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
            cell = int(centre[1] // STRIDE) * side + int(centre[0] // STRIDE)
            target[n, label, cell] = 1.0
            terms.append((outputs[n, :4, cell] - torch.cat([centre, size])).abs().mean())
    classes = nn.functional.binary_cross_entropy(outputs[:, 4:], target)
    return 20 * classes + torch.stack(terms).mean() / STRIDE


def drawn(count: int, seed: int = 0) -> list[tuple[Any, list[tuple[int, int, int, int, int]]]]:
    """Pictures [32, 32, 3] of bytes, and (class, left, top, right, bottom) of the objects in them."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(count):
        pixels, rows = draw.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8), []
        for label in range(2):
            width, height = (8, 8) if label == 0 else (12, 6)
            left, top = int(draw.integers(0, SIDE - width)), int(draw.integers(16 * label, 16 * label + 16 - height))
            pixels[top : top + height, left : left + width, 2 * label] = 220
            rows.append((label, left, top, left + width, top + height))
        found.append((pixels, rows))
    return found


def batches(count: int, seed: int = 0, size: int = 16) -> list[tuple[Tensor, list[dict[str, Tensor]]]]:
    """Batches of scenes, as a loader gives them."""
    scenes, made = drawn(count, seed), []
    for start in range(0, count, size):
        part = scenes[start : start + size]
        images = torch.stack([torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 for pixels, _ in part])
        labels = [
            {"boxes": torch.tensor([row[1:] for row in rows]).float(), "labels": torch.tensor([row[0] for row in rows])}
            for _, rows in part
        ]
        made.append((images, labels))
    return made


def trained(steps: int = 240) -> Detector:
    """A detector that finds nearly all objects."""
    torch.manual_seed(0)
    model, data = Detector(), batches(96, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        images, labels = data[step % len(data)]
        optimizer.zero_grad()
        loss(model.train()(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.eval()


def write_yolo(folder: Path, parts: dict[str, int], names: bool = True) -> Path:
    """Scenes in YOLO's layout: images/PART, labels/PART and data.yaml."""
    for number, (part, count) in enumerate(parts.items()):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for n, (pixels, rows) in enumerate(drawn(count, seed=number + 1)):
            Image.fromarray(pixels).save(folder / "images" / part / f"{n:03d}.png")
            lines = [
                f"{label} {(x1 + x2) / 2 / SIDE} {(y1 + y2) / 2 / SIDE} {(x2 - x1) / SIDE} {(y2 - y1) / SIDE}\n"
                for label, x1, y1, x2, y2 in rows
            ]
            (folder / "labels" / part / f"{n:03d}.txt").write_text("".join(lines))
    if names:
        listed = "".join(f"{part}: images/{part}\n" for part in parts)
        (folder / "data.yaml").write_text(f"path: {folder.resolve()}\n{listed}names: [square, bar]\n")
    return folder
