"""Networks by name: what they cost, what they are called inside, and what is said of a bad name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import fx, nn

from prunus.errors import ModelError
from prunus.zoo import models
from prunus.zoo.models import totals
from prunus.zoo.networks import IMAGENET, register
from tests import zoo_nets

SMALL = [name for name in models.names() if models.config(name).shape[1] == 32]


def resnet_by_hand(n: int) -> tuple[int, int]:
    """(MACs, weights) of a 6n + 2 ResNet, from the table in He et al.: widths 16, 32, 64 on sides 32, 16, 8."""
    macs = 27 * 16 * 32 * 32
    weights = 27 * 16
    before = 16
    for width, side in ((16, 32), (32, 16), (64, 8)):
        stage = 9 * before * width + (2 * n - 1) * 9 * width * width
        macs += stage * side * side
        weights += stage
        before = width
    return macs + 64 * 10, weights + 64 * 10


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 18])
@pytest.mark.parametrize("family", ["resnet", "preresnet"])
def test_cifar_resnets_cost_what_the_table_of_he_et_al_gives(family: str, n: int) -> None:
    found = totals(f"{family}{6 * n + 2}")
    assert (found.macs, found.weights) == resnet_by_hand(n)


def vgg_by_hand(repeats: tuple[int, ...], side: int) -> tuple[int, int]:
    macs, weights, before = 0, 0, 3
    for count, width in zip(repeats, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            weights += 9 * before * width
            macs += 9 * before * width * side * side
            before = width
        side //= 2
    return macs, weights


@pytest.mark.parametrize(
    ("name", "repeats", "side", "linear"),
    [
        ("vgg16", (2, 2, 3, 3, 3), 32, 512 * 512 + 512 * 10),
        ("vgg19", (2, 2, 4, 4, 4), 32, 512 * 10),
        ("vgg16_imagenet", (2, 2, 3, 3, 3), 224, 25088 * 4096 + 4096 * 4096 + 4096 * 1000),
    ],
)
def test_vggs_cost_what_their_layers_add_up_to(name: str, repeats: tuple[int, ...], side: int, linear: int) -> None:
    macs, weights = vgg_by_hand(repeats, side)
    found = totals(name)
    assert (found.macs, found.weights) == (macs + linear, weights + linear)


@pytest.mark.parametrize(
    ("name", "macs", "weights", "share"),
    [
        ("resnet56", 125e6, 0.85e6, 0.005),
        ("resnet110", 253e6, 1.73e6, 0.006),
        ("vgg16", 313e6, 15.0e6, 0.003),
        ("vgg19", 398e6, 20.0e6, 0.002),
        ("preresnet164", 250e6, 1.7e6, 0.013),
        ("vgg16_imagenet", 15.47e9, 138.34e6, 0.001),
        ("resnet50", 4.09e9, 25.50e6, 0.001),
    ],
)
def test_totals_are_the_papers(name: str, macs: float, weights: float, share: float) -> None:
    found = totals(name)
    assert found.macs == pytest.approx(macs, rel=share)
    assert found.weights == pytest.approx(weights, rel=share)


def test_lenet_by_hand() -> None:
    # 5x5 convolutions on 28x28, 10x10 and 1x1 outputs; biases only in `parameters`
    found = totals("lenet5")
    assert found.macs == 25 * 6 * 784 + 25 * 6 * 16 * 100 + 25 * 16 * 120 + 120 * 84 + 84 * 10
    assert found.parameters == found.weights + 6 + 16 + 120 + 84 + 10


@pytest.mark.parametrize("name", SMALL)
def test_each_small_network_traces_and_gives_a_score_for_each_class(name: str) -> None:
    model = models.create(name, num_classes=7).eval()
    with torch.no_grad():
        expected = model(models.example(name, 2))
        traced = fx.symbolic_trace(model)(models.example(name, 2))
    assert expected.shape == (2, 7)
    assert torch.equal(expected, traced)


def test_cifar_resnet_parameters_are_named_as_in_public_weight_files() -> None:
    expected = {"conv1.weight", "linear.weight", "linear.bias"}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected |= {f"bn1.{field}" for field in norm}
    for stage in (1, 2, 3):
        for block in (0, 1, 2):
            prefix = f"layer{stage}.{block}"
            expected |= {f"{prefix}.conv{number}.weight" for number in (1, 2)}
            expected |= {f"{prefix}.bn{number}.{field}" for number in (1, 2) for field in norm}
    assert set(models.create("resnet20").state_dict()) == expected


def test_zero_padded_shortcut_takes_every_second_pixel_and_pads_both_sides() -> None:
    block = models.create("resnet20").get_submodule("layer2.0.shortcut")
    image = torch.arange(16 * 8 * 8, dtype=torch.float32).view(1, 16, 8, 8)
    naive = np.zeros((1, 32, 4, 4), dtype=np.float32)
    for channel in range(16):
        for row in range(4):
            for column in range(4):
                naive[0, channel + 8, row, column] = channel * 64 + 2 * row * 8 + 2 * column
    assert np.array_equal(block(image).numpy(), naive)


@pytest.mark.parametrize(("ours", "theirs"), [("resnet50", "resnet50"), ("vgg16_imagenet", "vgg16")])
def test_imagenet_networks_are_torchvisions_name_for_name_and_number_for_number(ours: str, theirs: str) -> None:
    official = zoo_nets.torchvision_models().get_model(theirs, num_classes=3).eval()
    with torch.device("meta"):
        model = models.create(ours, num_classes=3).eval()
    model.load_state_dict(official.state_dict(), assign=True)  # one copy of VGG's half gigabyte, not two
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(model(image), official(image), rtol=1e-4, atol=1e-6)


def test_vgg16_with_batch_norm_has_the_shapes_of_torchvisions() -> None:
    with torch.device("meta"):
        ours = models.create("vgg16_imagenet", batch_norm=True).state_dict()
        theirs = zoo_nets.torchvision_models().vgg16_bn().state_dict()
    assert {name: value.shape for name, value in ours.items()} == {name: value.shape for name, value in theirs.items()}


def test_names_from_torchvision_and_timm() -> None:
    zoo_nets.torchvision_models()
    with torch.device("meta"):
        assert models.create("torchvision:resnet18", 5).get_submodule("fc").out_features == 5
        assert models.create("timm:resnet18", 5).get_submodule("fc").out_features == 5
    assert models.config("torchvision:inception_v3").shape == (3, 299, 299)
    assert models.config("timm:inception_v4").shape == (3, 299, 299)
    assert models.config("timm:inception_v4").mean == (0.5, 0.5, 0.5)
    assert totals("torchvision:resnet50").macs == totals("resnet50").macs
    with pytest.raises(ModelError, match="there is no torchvision classifier called 'resnet19': did you mean resnet18"):
        models.create("torchvision:resnet19")
    with pytest.raises(ModelError, match="there is no timm model called 'resnet19': did you mean"):
        models.create("timm:resnet19")


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"timm cannot be imported .*; install it: pip install timm"):
        models.create("timm:resnet18")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(
    "fault", ["raise RuntimeError('operator torchvision::nms does not exist')", "raise ImportError('undefined symbol')"]
)
def test_a_broken_torchvision_is_named_also_where_timm_imports_it(
    library: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, text in {"torchvision": fault, "timm": "import torchvision"}.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModelError) as caught:
        models.create(f"{library}:resnet18")
    words = str(caught.value)
    assert words.startswith(f"{library} cannot be imported (")
    assert f"the installed torchvision does not fit torch {torch.__version__}" in words
    assert "Install torch and torchvision together" in words


def test_a_library_with_another_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ModelError, match=r"No module named 'nothing_of_this_name'.*install a version of timm that fits"
    ):
        models.create("timm:resnet18")


OWN = """
from torch import nn

def head(num_classes=4, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, num_classes))

def fixed():
    return nn.Linear(2, 6)

head.shape = (1, 1, 3)
head.num_classes = 4

def liar():
    return "a model"
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "gardeners_own.py").write_text(OWN)
    (tmp_path / "broken_own.py").write_text("raise OSError('no disk')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "gardeners_own", raising=False)
    monkeypatch.delitem(sys.modules, "broken_own", raising=False)
    return "gardeners_own"


def test_a_users_own_factory_from_the_current_folder(own_module: str) -> None:
    path = list(sys.path)
    assert models.create(f"{own_module}:head", num_classes=9, width=5).get_submodule("1").weight.shape == (9, 5)
    assert models.create(f"{own_module}:head").get_submodule("1").weight.shape == (4, 3)
    assert models.config(f"{own_module}:head").shape == (1, 1, 3)
    fixed = models.create(f"{own_module}:fixed", num_classes=9)
    assert isinstance(fixed, nn.Linear)
    assert fixed.out_features == 6
    assert models.config(f"{own_module}:fixed").shape == IMAGENET.shape
    assert sys.path == path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet55", r"there is no model called 'resnet55': did you mean resnet56"),
        ("gardeners_own:nothing", "has no callable 'nothing'"),
        ("gardeners_own:liar", "must return a torch.nn.Module, but returned str"),
        ("no_such_package:net", "no module named 'no_such_package'"),
        ("broken_own:net", "importing broken_own failed with OSError: no disk"),
        (":net", "one side of the colon is empty"),
    ],
)
def test_bad_names(own_module: str, name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        models.create(name)


def test_bad_arguments() -> None:
    with pytest.raises(ModelError, match="num_classes must be at least 1, got 0"):
        models.create("lenet5", 0)
    with pytest.raises(ModelError, match=r"lenet5: cannot be built with \{'depth': 3\}"):
        models.create("lenet5", depth=3)
    with pytest.raises(ModelError, match=r"depth must be 6n \+ 2 with an integer n >= 1, got 21"):
        models.create("resnet20", depth=21)
    with pytest.raises(ModelError, match="'lenet5' is registered twice"):
        register("lenet5", IMAGENET, "")(lambda: nn.Identity())


def test_names_are_in_the_order_of_their_depths() -> None:
    names = models.names()
    assert len(names) == 20
    assert names.index("resnet56") + 1 == names.index("resnet110")
