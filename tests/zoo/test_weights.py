"""Weight files: what is understood, and that nothing in them runs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from prunus.errors import FileError, ModelError
from prunus.zoo import models
from prunus.zoo.weights import classes_of, load_weights, read_tensors, tensors_for
from tests.zoo.formats import Bomb

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


def prefixed(tensors: Tensors, prefix: str = "module.") -> Tensors:
    return {f"{prefix}{name}": value for name, value in tensors.items()}


class Hyperparameters(dict[str, Any]):
    """A class of a training script, as Lightning's checkpoints have some."""


def test_files_with_their_wrappers(tmp_path: Path, trained: Tensors) -> None:
    lightning = {
        "state_dict": {**prefixed(trained, "model."), "criterion.weight": torch.ones(10)},
        "epoch": 3,
        "hyper_parameters": Hyperparameters(lr=0.1, path=tmp_path),
        "callbacks": {"best": torch.tensor(1.0)},
    }
    inside = {name.replace("conv1.", "conv1._orig_mod."): value for name, value in trained.items()}
    contents: list[Any] = [
        (".pt", trained),
        (".th", {"state_dict": trained, "epoch": 3, "best_prec1": 0.9}),
        (".pth", {"model": trained}),
        (".pt", {"state_dict": prefixed(trained)}),
        (".pt", prefixed(prefixed(trained))),
        (".pt", prefixed(trained, "_orig_mod.")),
        (".pt", prefixed(trained, "module._orig_mod.")),
        (".pt", inside),
        (".ckpt", lightning),
        (".ckpt", {"state_dict": prefixed(trained, "backbone.net.")}),
        (".ckpt", {"state_dict": {**prefixed(trained, "model."), **prefixed(trained, "ema.")}}),
    ]
    for suffix, content in contents:
        torch.save(content, tmp_path / f"weights{suffix}")
        assert same_tensors(loaded(tmp_path / f"weights{suffix}"), trained)
    save_file(trained, tmp_path / "weights.safetensors")
    assert same_tensors(loaded(tmp_path / "weights.safetensors"), trained)


def test_whose_tensors_they_are(tmp_path: Path, trained: Tensors) -> None:
    torch.save({**prefixed(trained, "student."), **prefixed(trained, "teacher.")}, tmp_path / "w.ckpt")
    with pytest.raises(ModelError, match=r"LeNet5 more than once, under student\., teacher\.: save those of one"):
        loaded(tmp_path / "w.ckpt")
    model = nn.ModuleDict({"model": nn.Linear(2, 2)})  # a layer called `model` keeps the names of its tensors
    torch.save(model.state_dict(), tmp_path / "w.pt")
    assert set(tensors_for(model, tmp_path / "w.pt")) == {"model.weight", "model.bias"}


def test_the_number_of_classes(tmp_path: Path) -> None:
    for classes in (7, 10):
        torch.save(prefixed(models.create("resnet8", classes).state_dict()), tmp_path / "w.pt")
        assert classes_of(models.create("resnet8"), tmp_path / "w.pt", 10) == classes
    torch.save(models.create("resnet8", in_channels=1).state_dict(), tmp_path / "w.pt")
    assert classes_of(models.create("resnet8"), tmp_path / "w.pt", 10) == 10  # something else does not fit


def test_files_from_before_batch_norm_counted_batches(tmp_path: Path) -> None:
    whole = models.create("resnet8").state_dict()
    torch.save({n: value for n, value in whole.items() if not n.endswith("num_batches_tracked")}, tmp_path / "old.th")
    model = models.create("resnet8")
    load_weights(model, tmp_path / "old.th")
    assert same_tensors(model.state_dict(), whole)


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


def test_other_contents_are_refused_and_nothing_runs(tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "was_here")
    for content, said in (
        ({"state_dict": bomb}, r"a\.pt: has more than plain tensors"),
        ({"model": nn.Sequential(nn.Linear(2, 2)), "more": bomb}, r"torch\.save\(YOLO"),  # how to convert it
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


def test_a_network_that_was_pickled_whole_gives_its_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(2, 2)))
    model.register_buffer("fleeting", torch.zeros(1), persistent=False)
    averaged = copy.deepcopy(model).half()
    for number, content in enumerate(
        [model, {"model": model, "ema": None, "epoch": 3}, {"ema": averaged, "model": None}]
    ):
        torch.save(content, path := tmp_path / f"{number}.pt")
        tensors = read_tensors(path)
        want = (averaged if number == 2 else model).state_dict()
        assert set(tensors) == set(want)
        assert all(torch.equal(tensors[name], want[name]) for name in want)
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        fresh[0].weight.zero_()  # type: ignore[operator]
    load_weights(fresh, path)  # in half precision, as ultralytics stores it
    assert torch.equal(fresh[0].weight, averaged[0].weight.float())
