"""A factory's own `mean`, `std` and `shape` count, unless the user gives others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prunus.cli.options import DataOptions
from prunus.errors import ModelError
from prunus.zoo.data import load

SOURCE = """
from torch import nn

def net(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

def plain(num_classes=10):
    return net(num_classes)

net.mean, net.std = {mean}, {std}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    name = f"own_{tmp_path.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(SOURCE.format(mean="(0.25,)", std="0.5"))
    return name


def test_they_are_what_images_are_normalised_by(module: str) -> None:
    images, _ = next(iter(DataOptions().open(f"{module}:net").loader("test", 20)))
    raw = load("digits").parts["test"]
    pixels = raw.pixels[torch.from_numpy(raw.rows[:20])].double().numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(images.double().numpy(), (pixels / 255 - 0.25) / 0.5, atol=1e-6)


def test_options_win_and_without_attributes_the_data_set_counts(module: str) -> None:
    found = DataOptions(mean="0.1").open(f"{module}:net")
    assert (found.mean, found.std) == ((0.1,), (0.5,))
    usual = load("digits")
    for name in (f"{module}:plain", "lenet5"):
        found = DataOptions().open(name)
        assert (found.mean, found.std) == (usual.mean, usual.std)


def test_the_shape_counts_too_and_nonsense_is_named(module: str) -> None:
    path = Path(f"{module}.py")
    path.with_name(f"{module}_b.py").write_text(f"{path.read_text()}\nnet.shape = (1, 12, 12)\n")
    assert DataOptions().open(f"{module}_b:net").shape == (1, 12, 12)
    assert DataOptions(size=9).open(f"{module}_b:net").shape == (1, 9, 9)
    path.with_name(f"{module}_c.py").write_text(SOURCE.format(mean="'grey'", std="1"))
    with pytest.raises(ModelError, match="mean and std = one number per channel"):
        DataOptions().open(f"{module}_c:net")
