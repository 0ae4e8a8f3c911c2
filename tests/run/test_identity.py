"""A run continues only with the data that it was started with, however these are shuffled, augmented and divided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from prunus.errors import RunError
from prunus.graph.channel_graph import trace
from prunus.run import identity
from prunus.run.compress import compress
from prunus.run.identity import data_facts, loader_facts, network_digest, refuse_other
from prunus.util.batches import Batches
from prunus.zoo.data import load
from tests.run.toys import HOLDOUT, QUICK, TEST, TRAIN, Small, batches, contents, trained
from tests.zoo.formats import random_images, write_picture

IMAGES, LABELS = (torch.cat(parts) for parts in zip(*TRAIN, strict=True))
WHOLE = TensorDataset(IMAGES, LABELS)
WHOLE_LOADER = DataLoader(WHOLE, batch_size=16)
OTHER = batches(12, 16, seed=1)
GOAL = {**QUICK, "target": 0.3, "rounds": 1, "epochs": 0, "metric": "l2"}


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """The images, mirrored and noisy at random, by torch's generator or one of their own."""

    def __init__(self, own: bool = False, noise: float = 1.0) -> None:
        self.own = np.random.default_rng() if own else None
        self.noise = noise

    def __len__(self) -> int:
        return len(WHOLE)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        image, label = WHOLE[position]
        drawn = torch.rand(1).item() if self.own is None else self.own.random()
        return image + self.noise * drawn, label


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        return iter(TRAIN)


def continues(tmp_path: Path, first: Batches, then: Batches) -> None:
    """Start a run with one loader and continue it with another, without the run itself."""
    before, now = ({"data": json.loads(json.dumps(data_facts({"train": loader})))} for loader in (first, then))
    refuse_other(tmp_path, "run", before, now, {"train": then})


def test_other_data_and_another_forward_are_refused(tmp_path: Path) -> None:
    loaders: dict[str, Any] = {"train": TRAIN, "holdout": HOLDOUT}
    first = compress(trained(), **loaders, folder=tmp_path, **GOAL)
    before = contents(tmp_path)
    changes: list[tuple[str, Any, str]] = [
        ("holdout", HOLDOUT[:2], "there were 120 held-out images, and now there are 60"),
        ("train", OTHER, r"the labels of the training images were \[.*\], and now are|the pixels of the training"),
        ("holdout", [(x * 2, y) for x, y in HOLDOUT], "the pixels of the held-out images had the means"),
        ("holdout", [(x, (y + 1) % 4) for x, y in HOLDOUT], r"the labels of the held-out images were \["),
        ("test", TEST, "it was started without test images, and now there are some"),
    ]
    for part, other, complaint in changes:
        with pytest.raises(RunError, match=f"holds a run on other data: {complaint}.*another folder, or the same data"):
            compress(trained(), **{**loaders, part: other}, folder=tmp_path, **GOAL)
    forward = OtherForward().eval()
    forward.load_state_dict(trained().state_dict())
    with pytest.raises(RunError, match="holds another run: original was"):
        compress(forward, **loaders, folder=tmp_path, **GOAL)
    assert contents(tmp_path) == before
    assert compress(trained(), **loaders, folder=tmp_path, **GOAL).plan == first.plan


def test_a_network_is_told_by_its_calls_however_its_streams_are_treated() -> None:
    example = torch.zeros(1, 3, 6, 6)
    one, same = (network_digest(trace(trained(), example, streams)) for streams in ("select", "coupled"))
    assert one == same != network_digest(trace(OtherForward().eval(), example))


class OtherForward(Small):
    """The same layers and weights, other activations."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.bn1(self.stem(x)))
        x = torch.tanh(x + self.conv2(torch.relu(self.conv1(x))))
        return self.fc(torch.relu(self.bn2(self.wide(x))).flatten(1))


LOADERS = {
    "shuffled": lambda: DataLoader(WHOLE, batch_size=16, shuffle=True),
    "another batch size": lambda: DataLoader(WHOLE, batch_size=50, drop_last=True),
    "a worker": lambda: DataLoader(WHOLE, batch_size=16, num_workers=1),
    "a list": lambda: TRAIN,
    "longer batches": lambda: list(zip(IMAGES.split(70), LABELS.split(70), strict=True)),
    "a subset": lambda: DataLoader(Subset(WHOLE, range(192)), batch_size=16, shuffle=True),
    "all by a sampler": lambda: DataLoader(WHOLE, sampler=SubsetRandomSampler(range(192)), batch_size=8),
    "a dict": lambda: [{"image": x, "label": y} for x, y in TRAIN],
    "a stream": lambda: DataLoader(Stream(), batch_size=None),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_same_images_in_another_loader_have_the_same_facts_and_continue(tmp_path: Path, name: str) -> None:
    continues(tmp_path, TRAIN, LOADERS[name]())
    continues(tmp_path, LOADERS[name](), DataLoader(WHOLE, batch_size=16, shuffle=True))
    positions = [0, 27, 55, 82, 109, 136, 164, 191]  # eight of 192, evenly spread
    if name != "a stream":
        facts = loader_facts(LOADERS[name]())
        assert facts["images"] == 192 and facts["shape"] == [3, 6, 6]
        assert facts["labels"] == [int(LABELS[p]) for p in positions]
        assert facts["pixels"] == [
            pytest.approx([float(IMAGES[p].mean()), float(IMAGES[p].var(correction=0).sqrt())], rel=1e-5)
            for p in positions
        ]


@pytest.mark.parametrize("own", [False, True])
def test_augmented_images_continue(tmp_path: Path, own: bool) -> None:
    """Random images of torch's generator can be compared, those of a generator of their own cannot."""
    for workers in (0, 1):
        first = DataLoader(Augmented(own), batch_size=16, shuffle=True)
        continues(tmp_path, first, DataLoader(Augmented(own), batch_size=16, num_workers=workers))
    brighter = DataLoader(Augmented(own, noise=9.0), batch_size=16)
    if own:
        continues(tmp_path, DataLoader(Augmented(own), batch_size=16), brighter)
    else:
        with pytest.raises(RunError, match="the pixels of the training images"):
            continues(tmp_path, DataLoader(Augmented(own), batch_size=16), brighter)


def test_rare_changes_and_rounding_are_no_other_data(tmp_path: Path) -> None:
    changed = IMAGES.clone()
    changed[[0, 27, 55]] += 3  # three of the eight that are looked at
    for images in (changed, IMAGES * (1 + 1e-6)):
        continues(tmp_path, WHOLE_LOADER, DataLoader(TensorDataset(images, LABELS), batch_size=16))


def test_another_sample_of_the_same_data_set_is_refused(tmp_path: Path) -> None:
    halves = [DataLoader(WHOLE, sampler=SubsetRandomSampler(range(i, 192, 2)), batch_size=8) for i in (0, 1)]
    continues(tmp_path, halves[0], halves[0])
    with pytest.raises(RunError, match="of the training images"):
        continues(tmp_path, halves[0], halves[1])


def test_shares_of_another_number_of_processes_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that holds one process's share has other images when there are more processes."""
    before = {"data": data_facts({"train": TRAIN})}
    monkeypatch.setattr(identity, "processes", lambda: 2)
    refuse_other(tmp_path, "run", before, {"data": data_facts({"train": TRAIN[::2]})}, {"train": TRAIN[::2]})


@pytest.mark.parametrize("files", [False, True])
def test_loaders_of_the_zoo_continue(tmp_path: Path, files: bool) -> None:
    if files:
        for number, pixels in enumerate(random_images(60, seed=0, shape=(32, 32, 3))):
            write_picture(tmp_path / "images" / str(number % 3) / f"{number}.png", pixels)
    images = load(f"folder:{tmp_path / 'images'}" if files else "digits", size=12, holdout="train:0.2")
    one = images.loader("train", 16, shuffle=True, augment=True, seed=3)
    for two in (images.loader("train", 5), images.loader("train", 8, shuffle=True, augment=True, rank=1, world=2)):
        assert loader_facts(one) == loader_facts(two) and len(loader_facts(one)) == 4
        continues(tmp_path, one, two)
    with pytest.raises(RunError, match="training images"):
        continues(tmp_path, one, images.loader("holdout", 16))
    brighter = load(f"folder:{tmp_path / 'images'}" if files else "digits", size=12, holdout="train:0.2", mean=(0.9,))
    with pytest.raises(RunError, match="pixels of the training images"):
        continues(tmp_path, one, brighter.loader("train", 16))


def test_a_data_set_that_cannot_be_probed_is_not_in_the_way() -> None:
    class Odd(Dataset[Any]):
        def __getitem__(self, position: int) -> Any:
            raise OSError("no such image")

        def __len__(self) -> int:
            return 7

    assert loader_facts(DataLoader(Odd(), batch_size=2)) == {"images": 7}
    assert loader_facts(object()) == {}  # type: ignore[arg-type]
