"""The built-in networks: what they cost, what they are called inside, and that they are torchvision's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.zoo import models
from prunus.zoo.models import totals
from prunus.zoo.names import known_models
from tests import zoo_nets


def test_the_stored_table_of_networks_is_right() -> None:
    """MACs of the other networks follow from the formulas below."""
    table = known_models()
    assert tuple(table) == models.names()
    for name, known in table.items():
        with torch.device("meta"):
            assert known.parameters == sum(parameter.numel() for parameter in models.create(name).parameters())
    for name in ("lenet5", "resnet8", "resnet14", "preresnet20_averaged", "preresnet164", "vgg16", "resnet50"):
        assert table[name] == totals(name)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 18])
def test_cifar_resnets_cost_what_the_table_of_he_et_al_gives(n: int) -> None:
    """Widths 16, 32, 64 on sides 32, 16, 8; 2n convolutions in each stage."""
    macs, weights, before = 27 * 16 * 32 * 32, 27 * 16, 16
    for width, side in ((16, 32), (32, 16), (64, 8)):
        stage = 9 * before * width + (2 * n - 1) * 9 * width * width
        macs, weights, before = macs + stage * side * side, weights + stage, width
    depth = 6 * n + 2
    for name in (f"resnet{depth}", f"preresnet{depth}", f"preresnet{depth}_averaged"):
        if known := known_models().get(name):
            assert (known.macs, known.weights) == (macs + 64 * 10, weights + 64 * 10)


@pytest.mark.parametrize(
    ("name", "repeats", "side", "linear"),
    [
        ("vgg16", (2, 2, 3, 3, 3), 32, 512 * 512 + 512 * 10),
        ("vgg19", (2, 2, 4, 4, 4), 32, 512 * 10),
        ("vgg16_imagenet", (2, 2, 3, 3, 3), 224, 25088 * 4096 + 4096 * 4096 + 4096 * 1000),
    ],
)
def test_vggs_cost_what_their_layers_add_up_to(name: str, repeats: tuple[int, ...], side: int, linear: int) -> None:
    macs, weights, before = linear, linear, 3
    for count, width in zip(repeats, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            weights += 9 * before * width
            macs += 9 * before * width * side * side
            before = width
        side //= 2
    assert (known_models()[name].macs, known_models()[name].weights) == (macs, weights)


def test_lenet_by_hand() -> None:
    # 5x5 convolutions on 28x28, 10x10 and 1x1 outputs; biases only in `parameters`
    known = known_models()["lenet5"]
    assert known.macs == 25 * 6 * 784 + 25 * 6 * 16 * 100 + 25 * 16 * 120 + 120 * 84 + 84 * 10
    assert known.parameters == known.weights + 6 + 16 + 120 + 84 + 10


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
    known = known_models()[name]
    assert (known.macs, known.weights) == pytest.approx((macs, weights), rel=share)


def test_averaged_pre_activation_blocks_layer_by_layer() -> None:
    """Norm and ReLU behind the stem; then x + conv(relu(bn(conv(relu(bn(x)))))), in the first block without bn1."""
    torch.manual_seed(0)
    model = models.create("preresnet20_averaged").eval()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    state, images = model.state_dict(), torch.randn(2, 3, 32, 32)

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        return F.conv2d(x, state[f"{name}.weight"], stride=stride, padding=1)

    def norm_relu(x: Tensor, name: str) -> Tensor:
        mean, var, gain, bias = (state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        shaped = [value[:, None, None] for value in (mean, var, gain, bias)]
        return ((x - shaped[0]) / (shaped[1] + 1e-5).sqrt() * shaped[2] + shaped[3]).clamp(min=0)

    with torch.no_grad():
        x = norm_relu(conv(images, "conv1"), "bn1")
        for stage in (1, 2, 3):
            for block in (0, 1, 2):
                name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                inner = conv(x if (stage, block) == (1, 0) else norm_relu(x, f"{name}.bn1"), f"{name}.conv1", stride)
                if stride == 2:
                    n, c, h, w = x.shape
                    x = x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))
                    zeros = torch.zeros(n, c // 2, h // 2, w // 2)
                    x = torch.cat([zeros, x, zeros], 1)
                x = x + conv(norm_relu(inner, f"{name}.bn2"), f"{name}.conv2")
        logits = norm_relu(x, "bn").mean((2, 3)) @ state["linear.weight"].T + state["linear.bias"]
        torch.testing.assert_close(model(images), logits, rtol=1e-4, atol=1e-4)


def test_cifar_resnets_are_those_of_public_weight_files() -> None:
    expected = {"conv1.weight", "linear.weight", "linear.bias"}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected |= {f"bn1.{field}" for field in norm}
    for block in (f"layer{stage}.{number}" for stage in (1, 2, 3) for number in (0, 1, 2)):
        expected |= {f"{block}.conv{number}.weight" for number in (1, 2)}
        expected |= {f"{block}.bn{number}.{field}" for number in (1, 2) for field in norm}
    model = models.create("resnet20")
    assert set(model.state_dict()) == expected
    image = torch.randn(1, 16, 8, 8)
    shortcut = model.get_submodule("layer2.0.shortcut")(image)  # every second pixel, padded by zeros on both sides
    assert torch.equal(shortcut[:, 8:24], image[:, :, ::2, ::2])
    assert shortcut.shape == (1, 32, 4, 4) and not shortcut[:, :8].any() and not shortcut[:, 24:].any()


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
