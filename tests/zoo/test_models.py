"""Networks by name: of torchvision and timm, user-provided ones, and libraries that are missing or broken."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prunus.errors import ModelError
from prunus.zoo import models
from prunus.zoo.models import totals
from prunus.zoo.names import known_models
from prunus.zoo.networks import IMAGENET
from tests import zoo_nets


def test_names_from_torchvision_and_timm() -> None:
    zoo_nets.torchvision_models()
    with torch.device("meta"):
        assert models.create("torchvision:resnet18", 5).get_submodule("fc").out_features == 5
        assert models.create("timm:resnet18", 5).get_submodule("fc").out_features == 5
    assert models.config("torchvision:inception_v3").shape == (3, 299, 299)
    assert models.config("timm:inception_v4").shape == (3, 299, 299)
    assert models.config("timm:inception_v4").mean == (0.5, 0.5, 0.5)
    assert totals("torchvision:resnet50").macs == known_models()["resnet50"].macs
    for library, what in (("torchvision", "torchvision classifier"), ("timm", "timm model")):
        with pytest.raises(ModelError, match=f"there is no {what} called 'resnet19': did you mean .*resnet18"):
            models.create(f"{library}:resnet19")


@pytest.mark.parametrize(("library", "flag"), [("timm", {"pretrained": True}), ("torchvision", {"weights": "DEFAULT"})])
def test_pretrained_networks_are_loaded_by_their_library(
    library: str, flag: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo_nets.torchvision_models()
    import timm
    import torchvision

    module, function = (timm, "create_model") if library == "timm" else (torchvision.models, "get_model")
    calls: list[tuple[str, dict[str, Any]]] = []

    def no_network(name: str, **arguments: Any) -> nn.Module:
        calls.append((name, arguments))
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(module, function, no_network)
    with pytest.raises(ModelError, match=f"{library} did not load its pretrained weights: ConnectionError: Name or"):
        models.create(f"{library}:resnet18", pretrained=True)
    assert calls == [("resnet18", {"num_classes": 1000, **flag})]


MISFIT = f"torchvision does not fit torch {re.escape(torch.__version__)}: .* Install torch and torchvision together"


@pytest.mark.parametrize(
    ("library", "torchvision", "timm", "said"),
    [
        ("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')", "", MISFIT),
        ("timm", "raise ImportError('undefined symbol')", "import torchvision", MISFIT),
        ("timm", "", "import nothing_here", "No module named 'nothing_here'.*install a version of timm that fits"),
    ],
)
def test_a_broken_library_is_named_also_where_another_imports_it(
    library: str, torchvision: str, timm: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, code in {"torchvision": torchvision, "timm": timm}.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModelError, match=rf"^{library} cannot be imported \(.*{said}"):
        models.create(f"{library}:resnet18")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=rf"{library} cannot be imported .*; install it: pip install {library}"):
        models.create(f"{library}:resnet18")


USER = """
from torch import nn

def head(num_classes=4, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, num_classes))

head.shape = (1, 1, 3)

def fixed():
    return nn.Linear(2, 6)

def liar():
    return "a model"

def needy(width):
    return nn.Linear(width, 6)

def odd():
    return nn.Linear(2, 6)

odd.shape = (3, 4)
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gardeners.py").write_text(USER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "gardeners", raising=False)


@pytest.mark.usefixtures("user_module")
def test_a_user_provided_factory() -> None:
    assert models.create("gardeners:head", num_classes=9, width=5).get_submodule("1").weight.shape == (9, 5)
    assert models.create("gardeners:head").get_submodule("1").weight.shape == (4, 3)
    config = models.config("gardeners:head")
    assert (config.shape, config.num_classes, config.declared) == ((1, 1, 3), 4, ("shape",))
    fixed = models.create("gardeners:fixed", num_classes=9)
    assert isinstance(fixed, nn.Linear) and fixed.out_features == 6
    assert models.config("gardeners:fixed").shape == IMAGENET.shape


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("gardeners:nothing", {}, "has no callable 'nothing'"),
        ("gardeners:liar", {}, "must return a torch.nn.Module, but returned str"),
        ("gardeners:needy", {}, "is called without arguments, .* but: missing a required argument: 'width'"),
        ("gardeners:fixed", {"in_channels": 1}, "is for images of 3 channels, and these have 1: set fixed.shape"),
        ("gardeners:head", {"in_channels": 3}, "of 1 channel, and these have 3: .* folders are read in colour"),
        ("gardeners:odd", {}, r"the attributes of a factory are shape = \(channels, height, width\)"),
    ],
)
def test_factories_that_cannot_be_used(name: str, arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        models.create(name, **arguments)
