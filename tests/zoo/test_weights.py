"""Weight files: what is understood, and that nothing in them runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from prunus.errors import FileError, ModelError
from prunus.zoo import models
from prunus.zoo.weights import load_weights

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def trained() -> Tensors:
    torch.manual_seed(3)
    return models.create("lenet5").state_dict()


def loaded(path: Path) -> Tensors:
    model = models.create("lenet5")
    load_weights(model, path)
    return model.state_dict()


def same_tensors(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def prefixed(tensors: Tensors) -> Tensors:
    return {f"module.{name}": value for name, value in tensors.items()}


def test_files_with_their_wrappers(tmp_path: Path, trained: Tensors) -> None:
    contents: list[Any] = [
        trained,
        {"state_dict": trained, "epoch": 3, "best_prec1": 0.9},
        {"model": trained},
        {"state_dict": prefixed(trained)},
        prefixed(prefixed(trained)),
    ]
    for content, suffix in zip(contents, (".pt", ".th", ".pth", ".pt", ".pt"), strict=True):
        torch.save(content, tmp_path / f"weights{suffix}")
        assert same_tensors(loaded(tmp_path / f"weights{suffix}"), trained)
    save_file(trained, tmp_path / "weights.safetensors")
    assert same_tensors(loaded(tmp_path / "weights.safetensors"), trained)


def test_files_from_before_batch_norm_counted_batches(tmp_path: Path) -> None:
    whole = models.create("resnet20").state_dict()
    old = {name: value for name, value in whole.items() if not name.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.th")
    model = models.create("resnet20")
    load_weights(model, tmp_path / "old.th")
    assert torch.equal(model.get_parameter("layer3.2.conv2.weight"), old["layer3.2.conv2.weight"])


def test_a_mismatch_lists_everything_and_loads_nothing(tmp_path: Path, trained: Tensors) -> None:
    trained["conv1.weight"] = torch.zeros(6, 3, 5, 5)
    trained["stranger"] = torch.zeros(1)
    del trained["fc1.bias"]
    save_file(trained, tmp_path / "other.safetensors")
    model = models.create("lenet5")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError) as raised:
        load_weights(model, tmp_path / "other.safetensors")
    assert str(raised.value).splitlines() == [
        f"{tmp_path / 'other.safetensors'} does not fit LeNet5:",
        "  missing in the file (1): fc1.bias",
        "  extra in the file (1): stranger",
        "  with another shape (1): conv1.weight ((6, 3, 5, 5) in the file, (6, 1, 5, 5) in the model)",
    ]
    assert same_tensors(model.state_dict(), before)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_other_contents_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    for content, said in (
        ({"state_dict": Bomb(tmp_path / "was_here")}, r"a\.pt: has more than plain tensors"),
        ([1, 2], "expected tensors by name, got list"),
        ({"weight": torch.zeros(1), "epoch": 4}, "expected only tensors; these are something else: epoch"),
    ):
        torch.save(content, tmp_path / "a.pt")
        with pytest.raises(FileError, match=said):
            loaded(tmp_path / "a.pt")
    assert not (tmp_path / "was_here").exists()
    (tmp_path / "weights.onnx").write_bytes(b"")
    with pytest.raises(FileError, match=r"expected a weight file \.safetensors, .*, got '\.onnx'"):
        loaded(tmp_path / "weights.onnx")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_truncated_and_missing_files(tmp_path: Path, trained: Tensors, suffix: str) -> None:
    path = tmp_path / f"cut{suffix}"
    (torch.save if suffix == ".pt" else save_file)(trained, path)
    whole = path.read_bytes()
    for length in (0, 7, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=str(path)):
            loaded(path)
    path.unlink()
    with pytest.raises(FileError, match="this weight file does not exist"):
        loaded(path)
