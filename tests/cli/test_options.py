"""DataOptions and DeviceOptions: what they open, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prunus.cli.options import DataOptions, DeviceOptions, UndividedData
from prunus.errors import DataError, RunError


def test_images_have_the_size_that_the_model_takes() -> None:
    """The digits are 8 x 8; CIFAR's ResNets take 32 x 32."""
    assert DataOptions().load().shape == (1, 8, 8)
    assert DataOptions().open("resnet8").shape == (1, 32, 32)
    assert DataOptions(size=16).open("resnet8").shape == (1, 16, 16)
    assert DataOptions().open("tests.nets:Chain").shape == (1, 8, 8)


def test_how_images_are_divided_and_normalised() -> None:
    """1,797 digits: 360 are for testing, and of the others a tenth is held out."""
    images = DataOptions(mean="0.25", std="0.5", workers=3).open("resnet8", seed=1)
    train, held, test = (images.count(part) for part in ("train", "holdout", "test"))  # type: ignore[arg-type]
    assert train + held + test == 1797 and held == pytest.approx(0.1 * (train + held), abs=10)
    assert (images.mean, images.std, images.workers) == ((0.25,), (0.5,), 3)
    assert UndividedData().open("resnet8").count("holdout") == 0
    other = DataOptions().open("resnet8", seed=2)
    assert (images.parts["holdout"].labels[:50] != other.parts["holdout"].labels[:50]).any()


@pytest.mark.parametrize(
    "options, complaint",
    [
        (DataOptions(mean="a,b"), "--mean must be numbers separated by commas, got 'a,b'"),
        (DataOptions(workers=-1), "workers must be at least 0, got -1"),
        (DataOptions(holdout="half"), "half"),
        (DataOptions("cifar10", data_root=Path("nowhere")), "cifar10 was not found in nowhere"),
    ],
)
def test_mistakes(options: DataOptions, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        options.open("resnet8")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DeviceOptions("cpu").pick() == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert DeviceOptions("cpu").pick() == torch.device("cpu")
    assert DeviceOptions("meta").pick() == torch.device("meta:1")  # each process of torchrun has a device of its own
    assert DeviceOptions("meta:0").pick() == torch.device("meta:0")
    with pytest.raises(RunError, match="'abacus' cannot be used"):
        DeviceOptions("abacus").pick()
