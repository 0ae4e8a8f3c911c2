"""A real finished run, small enough for the tests, and ways to look at pages."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prunus import compress
from prunus.run.folder import RunFolder
from prunus.zoo.models import create

CLASSES, SIDE = 3, 12
# What `prunus prune resnet8 ...` writes into config.json; the values at their defaults are those of the verb.
COMMAND = {
    "model": "resnet8",
    "weights": "some weights.safetensors",
    "data": "folder:pictures",
    "target": 0.4,
    "rounds": 2,
    "epochs": 1,
    "exclude": ["linear*", "layer1*in"],
    "augment": False,
}
COMMAND_LINE = "prunus prune resnet8 --weights 'some weights.safetensors' --data folder:pictures --target 0.4"


def batches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Images with one bright third, which is the class."""
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        labels = torch.arange(15) % CLASSES
        images = 0.3 * torch.randn(15, 1, SIDE, SIDE, generator=draw)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[:, 4 * label : 4 * label + 4] += 1
        pairs.append((images, labels))
    return pairs


def make_run(folder: Path | RunFolder, **changes: Any) -> Any:
    """Prune a resnet8 for one-channel images into `folder`."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = create("resnet8", num_classes=CLASSES, in_channels=1)
    settings: dict[str, Any] = {"target": 0.4, "rounds": 2, "epochs": 1, "preset": "cosine", "metric": "gsd"}
    settings |= {"repair": "none"}
    settings |= {"example": torch.zeros(1, 1, SIDE, SIDE), "test": batches(3, seed=2), **changes}
    return compress(model, batches(4, seed=0), batches(2, seed=1), folder=folder, **settings)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    """Write a JSON file again after a function has changed its content."""
    content = read(path)
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def charts(page: str, kind: str) -> list[str]:
    """The SVG pictures of one kind."""
    return re.findall(rf'<svg class="chart {kind}".*?</svg>', page, flags=re.DOTALL)


def titles(picture: str) -> list[str]:
    """The tooltips of a picture's marks."""
    return [html.unescape(text) for text in re.findall(r"<(?:use|path) [^>]*><title>([^<]*)</title>", picture)]


class BarRow(NamedTuple):
    """A row of a bar chart as the page has it: its bars are (left, width, kind) in per cent."""

    name: str
    title: str
    bars: list[tuple[float, float, str]]
    text: str
    strong: bool


def bar_charts(page: str, kind: str) -> list[list[BarRow]]:
    """The rows of all bar charts of one kind."""
    row = re.compile(
        r'<div title="([^"]*)"><span class="name( strong)?"><bdi>(.*?)</bdi></span><span class="track">(.*?)'
        r'<span style="left:[\d.]+%">(.*?)</span></span></div>',
        flags=re.DOTALL,
    )
    bar = re.compile(r'<i class="([\w ]+)" style="left:([\d.]+)%;width:([\d.]+)%"></i>')
    return [
        [
            BarRow(
                html.unescape(name),
                html.unescape(title),
                [(float(left), float(width), kind) for kind, left, width in bar.findall(bars)],
                html.unescape(text),
                bool(strong),
            )
            for title, strong, name, bars, text in row.findall(chart)
        ]
        for chart in re.findall(rf'<div class="bars {kind}".*?\n</div>', page, flags=re.DOTALL)
    ]


class Page(HTMLParser):
    """Checks that every element is closed where it should be, and gathers tags, attributes and text."""

    ALONE = frozenset({"meta", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-4:], self.getpos())
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
