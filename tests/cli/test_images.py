"""The images of a verb: data sets by name, what a user-provided factory declares, and user-provided loaders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prunus.cli.images import DataOptions, UndividedData
from prunus.cli.network import NamedModel, resolve
from prunus.errors import DataError, ModelError, RunError
from prunus.run import compress as compress_module
from prunus.zoo.data import ImageData, load
from tests.cli.command_line import prunus


def opened(model: str, seed: int = 0, **given: Any) -> Any:
    return DataOptions("digits", **given).open(resolve(model), seed)


def test_images_have_the_size_that_the_model_takes() -> None:
    """The digits are 8 x 8; CIFAR's ResNets take 32 x 32."""
    assert opened("resnet8").shape == (1, 32, 32)
    assert opened("resnet8", size=16).shape == (1, 16, 16)
    assert opened("tests.nets:Chain").shape == (1, 8, 8)


def test_how_images_are_divided_and_normalised() -> None:
    """1,797 digits: 360 are for testing, and of the others a tenth is held out."""
    images = opened("resnet8", 1, mean="0.25", std="0.5", workers=3)
    assert isinstance(images, ImageData)
    train, held, test = (images.count(part) for part in ("train", "holdout", "test"))  # type: ignore[arg-type]
    assert train + held + test == 1797 and held == pytest.approx(0.1 * (train + held), abs=10)
    assert (images.mean, images.std, images.workers) == ((0.25,), (0.5,), 3)
    assert UndividedData("digits").open(resolve("resnet8")).count("holdout") == 0
    other = opened("resnet8", 2)
    assert (images.parts["holdout"].labels[:50] != other.parts["holdout"].labels[:50]).any()


def test_a_folder_without_the_data_set() -> None:
    with pytest.raises(DataError, match="cifar10 was not found in nowhere"):
        DataOptions("cifar10", data_root=Path("nowhere")).open(resolve("resnet8"))


def test_a_run_has_its_own_data_and_others_must_be_named() -> None:
    run = NamedModel("first", "lenet5", run_options={"data": "digits", "holdout": "train:0.2", "mean": "0.3"})
    known = DataOptions(holdout="train:0.5").known_for(run)
    assert (known.data, known.holdout, known.mean) == ("digits", "train:0.5", "0.3")
    assert DataOptions(data="mnist").known_for(run) == DataOptions(data="mnist")
    with pytest.raises(DataError, match="lenet5 needs images: give --data NAME"):
        DataOptions().known_for(resolve("lenet5"))


FACTORY = """
from torch import nn

def net(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

def plain(num_classes=10):
    return net(num_classes)

net.mean, net.std = {mean}, {std}
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    name = f"user_{tmp_path.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(FACTORY.format(mean="(0.25,)", std="0.5"))
    return name


def test_images_are_normalised_by_what_a_factory_declares(factory: str) -> None:
    images, _ = next(iter(opened(f"{factory}:net").loader("test", 20)))
    raw = load("digits").parts["test"]
    pixels = raw.pixels[torch.from_numpy(raw.rows[:20])].double().numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(images.double().numpy(), (pixels / 255 - 0.25) / 0.5, atol=1e-6)
    images = opened(f"{factory}:net", mean="0.1")  # options win
    assert (images.mean, images.std) == ((0.1,), (0.5,))
    usual = load("digits")  # without attributes the data set counts
    for name in (f"{factory}:plain", "lenet5"):
        images = opened(name)
        assert (images.mean, images.std) == (usual.mean, usual.std)


def test_the_shape_counts_too_and_nonsense_is_named(factory: str) -> None:
    path = Path(f"{factory}.py")
    path.with_name(f"{factory}_b.py").write_text(f"{path.read_text()}\nnet.shape = (1, 12, 12)\n")
    assert opened(f"{factory}_b:net").shape == (1, 12, 12)
    assert opened(f"{factory}_b:net", size=9).shape == (1, 9, 9)
    path.with_name(f"{factory}_c.py").write_text(FACTORY.format(mean="'grey'", std="1"))
    with pytest.raises(ModelError, match="mean and std = one number per channel"):
        opened(f"{factory}_c:net")


SOURCE = """
import torch
from tests.tasks.nets import UNet, squares

def make_unet():
    torch.manual_seed(0)
    return UNet(aux=True)

def make_data():
    return squares(), squares(seed=1), squares(seed=2)

class Stream:
    def __iter__(self):
        return iter(squares())

def make_stream():
    return squares(), Stream()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    name = "user_of_test_images"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    return name


@pytest.mark.parametrize("loaders", ["make_data", "make_stream"])
def test_paper_mode_speaks_of_user_data_too(
    module: str, loaders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise RunError("stopped here")

    monkeypatch.setattr(compress_module, "compress", stop)
    words = ["--task", "segmentation", "--data", f"{module}:{loaders}", "--paper", "--epochs", "1", "--out", "run"]
    text = prunus("prune", f"{module}:make_unet", *words, columns=400).stdout
    assert text.startswith("the paper's settings: G-SD, Algorithm 1 on all held-out images, alpha 3,\n")
    for line in ("epochs 200 -> 1", "task classification -> segmentation"):
        assert f"different from the paper: {line}\n" in text
    assert "left to your loaders: batch size and augmentation\n" in text and "batch_size" not in text
    unknown = "what the run costs is not known: your loaders do not tell how many images they have" in text
    assert unknown == (loaders == "make_stream") != bool(re.search(r"\b1 epoch a round\b", text))
