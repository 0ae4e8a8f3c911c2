"""`prunus check`: what can be pruned, what a run would take, and what looks wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prunus.run import checkup
from prunus.run.checkup import Speed, batch_norm_problems, estimate, label_notes, pixel_problems
from prunus.train.fit import fit
from prunus.zoo.data import ImageData, load
from prunus.zoo.images import MemoryImages
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights
from tests.cli.command_line import lines, prunus
from tests.proof import assert_accuracy
from tests.run.test_speed_check import table

WHOLE = 117_600 + 240_000 + 48_000 + 10_080 + 840  # MACs of LeNet-5, layer by layer
FLOOR = 28 * 28 * 25 * 2 + 10 * 10 * 25 * 2 * 2 + 25 * 2 * 12 + 12 * 84 + 840  # 2, 2, 12 channels; fc1 is left alone


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a LeNet-5 and of a resnet8, trained on the digits for a short time."""
    place = tmp_path_factory.mktemp("weights")
    images = load("digits", size=32)
    for name, more in (("lenet5", {}), ("resnet8", {"in_channels": 1})):
        torch.manual_seed(0)
        train = images.loader("train", 32, shuffle=True)
        model = fit(create(name, num_classes=10, **more), train, preset="cosine", epochs=2, lr=0.02).model
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, place / f"{name}.safetensors")
    return place


def check(*words: str | Path) -> tuple[int, dict[str, Any]]:
    result = prunus("check", *words, "--device", "cpu", "--json")
    return result.exit_code, json.loads(result.stdout)


def test_a_network_and_its_images(place: Path) -> None:
    code, found = check("lenet5", "--weights", place / "lenet5.safetensors", "--data", "digits")
    assert code == 0 and found["problems"] == [] and found["seconds"] < 60
    assert (found["macs"], found["prunable"], found["layers"]) == (WHOLE, 5, 5)
    assert found["units"] == {"private": 4, "stream": 0} and sum(map(len, found["frozen"].values())) == 1
    assert found["reach"]["macs"] == pytest.approx(1 - FLOOR / WHOLE, abs=1e-9)
    images = load("digits", size=32)
    assert found["images"] == {part: images.count(part) for part in images.parts}
    model = create("lenet5", num_classes=10)
    load_weights(model, place / "lenet5.safetensors")
    assert_accuracy(found["accuracy"]["quality"], model, images.loader("holdout", 256))
    speed, run = found["speed"], found["run"]
    assert 2 <= speed["batch_size"] <= 128  # fewer where the machine is busy
    assert 0 < speed["forward"] < speed["train"]
    assert run["epoch"] == pytest.approx(
        (speed["train"] + speed["forward"]) * images.count("train") + speed["forward"] * images.count("holdout")
    )
    assert found["notes"] == ["with 144 held-out images, accuracy moves in steps of 0.69 points"]


def test_a_goal_at_the_reach_is_accepted_and_one_beyond_is_not(place: Path, tmp_path: Path) -> None:
    base = ["prune", "lenet5", "--weights", str(place / "lenet5.safetensors"), "--data", "digits", "--device", "cpu"]
    quick = ["--no-timing", "--metric", "l2", "--split", "uniform"]
    reach = 1 - FLOOR / WHOLE
    assert prunus(*base, *quick, "--target", f"{reach - 0.001}", "--out", tmp_path / "a").exit_code == 0
    beyond = prunus(*base, *quick, "--target", f"{reach + 0.001}", "--out", tmp_path / "b")
    assert beyond.exit_code == 1 and f"{100 * reach:.1f}% can be removed" in beyond.stderr


def test_the_network_alone() -> None:
    result = prunus("check", "resnet8", "--device", "cpu")
    told = lines(result)
    assert max(map(len, told)) <= 80 and told[-1].strip() == "nothing looks wrong"
    assert told[0].startswith("network     resnet8 on 3 x 32 x 32: 12.24 M MACs, ")
    assert any("untrained" in line for line in told) and not any(line.startswith("accuracy") for line in told)
    assert all("so far" in line for line in result.stderr.splitlines())  # on a busy machine


def test_the_fastest_speedup_in_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers take the same time for each pair of an input and an output, so the smallest widths are the fastest."""
    monkeypatch.setattr(checkup, "latency_table", lambda graph, *how: table(graph))
    code, found = check("lenet5", "--engine", "eager", "--batch", "8", "--threads", "1")
    conv1, conv2, conv3, fc1, fc2 = 1 * 6, 6 * 16, 16 * 120, 120 * 84, 84 * 10
    least = 1 * 2 + 2 * 2 + 2 * 12 + 12 * 84 + fc2
    told = found["speedup"]
    assert code == 0 and told["engine"] == "eager" and told["batch"] == 8
    assert told["fastest"] == pytest.approx((conv1 + conv2 + conv3 + fc1 + fc2) / least)
    shown = lines(prunus("check", "lenet5", "--engine", "eager", "--device", "cpu"))
    assert any(f"up to {told['fastest']:.2f}x as fast (eager, batch 8, 1 thread" in line for line in shown)


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunus.timing.engines.find_spec", lambda name: None)
    for verb in (["check", "lenet5"], ["inspect", "lenet5", "--latency"]):
        found = prunus(*verb, "--engine", "openvino")
        assert found.exit_code == 1 and "pip install 'prunus[openvino]'" in found.stderr


def test_wrong_normalisation(place: Path) -> None:
    base = ["resnet8", "--weights", place / "resnet8.safetensors", "--data", "digits"]
    assert check(*base)[1]["problems"] == []
    for words, complaint in {
        ("--mean", "-40"): "after normalisation, and usual ones have about 0 and 1",
        ("--mean", "0.55", "--std", "1.2"): "normalisation of the images does not seem to be that of the training",
    }.items():
        code, found = check(*base, *words)
        assert code == 1 and any(complaint in problem for problem in found["problems"])


def test_accuracy_at_chance_and_too_few_outputs(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    save_file(create("lenet5").state_dict(), tmp_path / "random.safetensors")
    result = prunus("check", f"lenet5={tmp_path / 'random.safetensors'}", "--data", "digits", "--device", "cpu")
    told = result.stdout.splitlines()
    assert result.exit_code == 1 and max(map(len, told)) <= 80
    assert "wrong?" in result.stdout and "about what guessing among 10 classes gives" in " ".join(result.stdout.split())
    code, found = check("tests.cli.test_check:FiveClasses", "--data", "digits")
    assert code == 1 and any("the model has 5 classes" in problem for problem in found["problems"])


class FiveClasses(nn.Module):
    """A network of one's own that knows too few classes."""

    shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)).mean((2, 3)))


def made(train: list[int], holdout: list[int]) -> ImageData:
    """Blank images with these labels."""
    parts = {
        part: MemoryImages.whole(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), np.array(labels))
        for part, labels in (("train", train), ("holdout", holdout))
        if labels
    }
    return replace(load("digits"), parts=parts)  # type: ignore[arg-type]


def test_classes_without_images() -> None:
    everything = list(range(10))
    assert label_notes(made(everything, everything)) == []
    found = label_notes(made([0, 1, 2], everything))
    assert found == ["7 of 10 classes have no training images: 3, 4, 5, 6, 7 and 2 more; retraining would forget them"]
    assert label_notes(made(everything, everything[1:])) == ["1 of 10 classes have no held-out images: 0"]
    assert label_notes(made(everything, [])) == []
    code, told = check("lenet5", "--data", "digits", "--holdout", "none")
    assert code == 1 and told["problems"] == ["there are no held-out images, and a run needs some"]


def test_pixels() -> None:
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert pixel_problems(images) == [] and pixel_problems(images * 0.3 + 0.4) == []
    assert "mean 1" in pixel_problems(images * 60 + 120)[0]
    images[0, 0, 0, 0] = float("nan")
    assert pixel_problems(images) == ["some images have values that are NaN or infinite: check --mean and --std"]


def test_the_first_batch_norm_is_compared_with_what_it_saw() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.BatchNorm2d(8))
    images = torch.randn(16, 3, 12, 12)
    for _ in range(3):
        model(images)  # in training mode
    model.eval()
    assert batch_norm_problems(model, images) == []
    assert "have 16 times the variance" in batch_norm_problems(model, 4 * images)[0]
    assert not model[1]._forward_pre_hooks and not model.training
    assert batch_norm_problems(nn.Sequential(nn.Conv2d(3, 8, 3)), images) == []


def test_estimates_are_products() -> None:
    speed = Speed(0.001, 0.004, 128)
    images = {"train": 12_800, "holdout": 200, "test": 300}
    small, large = (estimate(speed, images, pixels=side * side) for side in (32, 224))
    assert (small.score, small.evaluate) == pytest.approx((3 * 12.8, 2 * 0.5))
    assert (small.repair, large.repair) == pytest.approx((4 * 2.0, 4 * 0.5))  # 2,000 small images, or 500
    assert small.epoch == pytest.approx(12_800 * (0.004 + 0.001) + 0.2)  # with a teacher
    assert small.whole == pytest.approx(3 * 12.8 + 4 * 2 + 1 + 20)  # and nothing is trained


READ: list[int] = []


class Counted:
    """Batches that count how often they are read, and say how many images there are."""

    num_images = 100_000

    def __iter__(self) -> Any:
        draw = torch.Generator().manual_seed(0)
        for _ in range(1000):
            READ.append(1)
            yield torch.randn(100, 3, 8, 8, generator=draw), torch.randint(0, 4, (100,), generator=draw)


def make_data() -> tuple[Counted, Counted]:
    return Counted(), Counted()


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def test_few_batches_are_read() -> None:
    """Of 100,000 images, 300 of train (3 batches, and 1 as the example) and 2,000 of holdout, with 1 for its labels."""
    READ.clear()
    _, found = check("tests.cli.test_check:make_net", "--data", "tests.cli.test_check:make_data")
    assert found["images"] == {"train": 100_000, "holdout": 100_000} and found["accuracy"]["num_images"] == 2000
    assert len(READ) <= 30
