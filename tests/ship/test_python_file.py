"""A pruned network as a Python file that needs no prunus."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import prunus as pr
from prunus.errors import ModelError
from prunus.zoo.models import create
from tests.processes import python
from tests.ship.nets import pictures, pruned
from tests.zoo_nets import torchvision_models

EXAMPLE = torch.zeros(1, 3, 8, 8)

# A user's own module: a parameter and a buffer of its own, groups, and a convolution that keeps all of its inputs.
NETS = '''
import torch
import torch.nn.functional as F
from torch import nn


class Standard(nn.Conv2d):
    """Its filters depend on the weights for all inputs, so that it keeps them all."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, padding=1)


class Net(nn.Module):
    def __init__(self, width, num_classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(width, 1, 1) + 0.5)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.BatchNorm2d(width)
        self.grouped = nn.Conv2d(width, 2 * width, 3, padding=1, groups=2)
        self.standard = Standard(2 * width, width, 3, padding=1)
        self.up = nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(width, width, 2, stride=2))
        self.slopes = nn.PReLU(width)
        self.fc = nn.Linear(width, num_classes)
        self.register_buffer("offset", torch.linspace(0, 1, width).view(-1, 1, 1), persistent=False)

    def forward(self, x):
        x = F.relu(self.norm(self.depthwise(self.stem(x) * self.scale + self.offset)))
        x = x + self.standard(F.relu(self.grouped(x)))
        return {"logits": self.fc(self.slopes(self.up(x)).mean((2, 3))), "size": x.shape[-1]}


def make(num_classes=4):
    return Net(8, num_classes)
'''


def cut(model: nn.Module, example: Tensor, streams: Any = "select", ratio: float = 0.4) -> nn.Module:
    """A pruned copy whose norms have statistics that are not zeros and ones."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    graph = pr.trace(model.eval(), example, streams)
    return pr.prune(graph, pr.uniform(graph, pr.score(graph, [], metric="l2"), ratio), check=False).eval()


def test_a_file_beside_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of this network is in a module that imports prunus, so its source goes into the file."""
    model, _ = pruned()
    done = pr.export(model, EXAMPLE, tmp_path / "small.py", images=pictures(3))
    weights = tmp_path / "small.safetensors"
    assert sorted(tmp_path.iterdir()) == [done.path, weights]
    assert (done.format, done.num_images, done.error < 1e-6) == ("py", 4, True)
    assert done.bytes == done.path.stat().st_size + weights.stat().st_size
    assert load_file(weights).keys() == model.state_dict().keys()
    text = done.path.read_text()
    assert "import prunus" not in text and "from prunus" not in text
    assert '    "conv1": {"in_channels": 4, "out_channels": 4},\n    "norm1": {"num_features": 4},\n' in text
    assert 'SELECTIONS = {\n    "conv1": (1, [0, 1, 4, 5]),\n}' in text
    assert "class Residual(nn.Module):" in text and "def network" not in text
    monkeypatch.syspath_prepend(tmp_path)
    built = importlib.import_module("small").build()
    assert "(selection): Selection(axis 1, channels [0, 1, 4, 5])" in str(built)
    with torch.no_grad():
        assert torch.allclose(built(pictures(2)), model.eval()(pictures(2)))


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user, in the current folder."""
    (tmp_path / "nets_of_mine.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("nets_of_mine")
    del sys.modules["nets_of_mine"]


def test_own_classes_and_functions(nets: Any, tmp_path: Path) -> None:
    model = cut(nets.make(), EXAMPLE, "coupled")
    how: Any = {"original": partial(nets.Net, 8), "arguments": {"num_classes": 7}}  # data gives the head its width
    done = pr.export(model, EXAMPLE, tmp_path / "small.py", **how)
    text = done.path.read_text()
    assert "from nets_of_mine import Net\n" in text and "model = Net(8, num_classes=7)" in text and done.error < 1e-6
    assert "The channel behind the last one is zero" in text


def test_half_precision_and_several_inputs(nets: Any, tmp_path: Path) -> None:
    model = cut(nets.make(), EXAMPLE).to(torch.bfloat16)
    done = pr.export(model, {"x": EXAMPLE.bfloat16()}, tmp_path / "small.py", original="nets_of_mine:make")
    assert done.error == 0 and "model = make(num_classes=4).to(torch.bfloat16)" in done.path.read_text()


SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
import prunus

WIDTH = 6

def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.up = conv(1, WIDTH), conv(WIDTH, 8), conv(8 + WIDTH, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = F.interpolate(self.down2(F.max_pool2d(a, 2)), scale_factor=2.0)
        return self.head(self.up(torch.cat([b, a], 1)))

x = b = conv(1, 1)  # names that are local in the class
example = torch.zeros(1, 1, 8, 8)
graph = prunus.trace(UNet().eval(), example)
plan = prunus.uniform(graph, prunus.score(graph, [], metric="l2"), 0.4)
print(prunus.export(prunus.prune(graph, plan), example, "small.py").error < 1e-6)
"""


def test_a_unet_of_the_script_that_prunes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prune_it.py").write_text(SCRIPT)
    assert python("prune_it.py") == "True\n"
    text = (tmp_path / "small.py").read_text()
    assert "class UNet" in text and "WIDTH = 6" in text and "def conv" in text
    assert "trace" not in text and "x = b" not in text


def test_a_network_of_the_zoo_without_some_of_its_branches(tmp_path: Path) -> None:
    example = torch.zeros(1, 3, 16, 16)
    graph = pr.trace(create("resnet8", num_classes=7).eval(), example, "coupled")  # its zero-padded shortcuts are cut
    keep = pr.uniform(graph, pr.score(graph, [], metric="l2"), 0.4).keep
    small = pr.prune(graph, pr.Plan.of(graph, {**keep, "layer1.0.conv1:out": ()})).eval()
    done = pr.export(small, example, tmp_path / "small.py", original="resnet8")
    text = done.path.read_text()
    assert done.error < 1e-6 and "model = CifarResNet(num_classes=10, depth=8)" in text
    assert '    "layer1.0.bn2": (True, False),\n' in text and "import prunus" not in text
    assert not [name for name in load_file(tmp_path / "small.safetensors") if name.startswith("layer1.0")]


def test_a_mobilenet_of_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where torchvision is built for another PyTorch, the new process needs its operators too.
    (tmp_path / "sitecustomize.py").write_text("import tests.zoo_nets; tests.zoo_nets.torchvision_models()")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}:{Path(pr.__file__).parents[1]}")
    model, example = torchvision_models().mobilenet_v2(num_classes=10, width_mult=0.35), torch.zeros(1, 3, 32, 32)
    small = cut(model, example)
    done = pr.export(small, example, tmp_path / "small.py", original="torchvision:mobilenet_v2")
    text = done.path.read_text()
    assert done.error < 1e-6 and 'torchvision.models.get_model("mobilenet_v2", num_classes=1000)' in text


def inner() -> type[nn.Module]:
    class Inside(nn.Sequential):
        pass

    return Inside


def test_what_cannot_be_rebuilt(nets: Any, tmp_path: Path) -> None:
    model = cut(nets.make(), EXAMPLE)
    other, hooked = cut(nets.make(), EXAMPLE), cut(nets.make(), EXAMPLE)
    other.fc = nn.Identity()
    hooked.fc.register_forward_hook(lambda *_: None)
    (tmp_path / "with_prunus.py").write_text("from nets_with_prunus import make")
    (tmp_path / "nets_with_prunus.py").write_text("import nets_that_need_it\n" + NETS)
    (tmp_path / "nets_that_need_it.py").write_text("import prunus")
    import nets_with_prunus

    shifted = nn.Conv2d(3, 4, 3)
    shifted.forward = lambda x: nn.Conv2d.forward(shifted, x) + 1  # type: ignore[method-assign]
    convolution: Callable[..., nn.Module] = partial(nn.Conv2d, 3, 4, 3)
    sequence = nn.Sequential(nn.Conv2d(3, 4, 3))
    cases: list[tuple[str, nn.Module, str, dict[str, Any]]] = [
        ("Net cannot be built with no arguments .*'width'.*give original=", model, "a.py", {}),
        ("layer 0 is Conv2d in the pruned network and missing in Sequential", sequence, "a.py", {}),
        ("not a network", model, "a.py", {"original": model}),
        ("could not import a lambda", model, "a.py", {"original": lambda: model}),
        ("it has no name in a module", inner()(), "a.py", {}),
        ("layer fc is Identity in the pruned network and Linear in make", other, "a.py", {"original": nets.make}),
        ("fc has hooks", hooked, "a.py", {"original": nets.make}),
        ("which cannot be written", model, "a.py", {"original": partial(nets.make, torch.ones(2))}),
        ("folded", model, "a.py", {"original": nets.make, "fold_bn": True}),
        ("cannot be imported: give a name", model, "a-b.py", {"original": nets.make}),
        ("would hide the module", model, "sub/nets_of_mine.py", {"original": nets.make}),
        ("format py only", model, "a.pt2", {"original": nets.make}),
        (
            "import prunus; put the class",
            cut(nets_with_prunus.make(), EXAMPLE),
            "a.py",
            {"original": nets_with_prunus.make},
        ),
        ("differs by .* besides widths", shifted, "a.py", {"original": convolution}),
    ]
    for message, net, name, options in cases:
        with pytest.raises(ModelError, match=message):
            pr.export(net, EXAMPLE, tmp_path / name, **options)
    assert not list(tmp_path.glob("a*"))
