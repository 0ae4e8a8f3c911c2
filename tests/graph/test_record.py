"""Code as people write it: it is recorded, its channels can go, and what is pruned equals what is zeroed."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.errors import TraceError
from tests import proof
from tests.graph.checks import FREE, HALVES, IMAGE, KEPT, Widths, is_exact, pruned_exactly, scripted
from tests.graph.dags import randomised
from tests.graph.odd_nets import Function, Through
from tests.nets import Chain, conv, pooled


def swapped(x: Tensor) -> Tensor:
    first, *rest = x.chunk(2, 1)
    return torch.cat([*rest, first], 1)


def grown(x: Tensor) -> Tensor:
    """As the blocks of YOLO do it."""
    parts = list(x.chunk(2, 1))
    parts.extend(F.relu(parts[-1]) for _ in range(2))
    return torch.cat([parts[0], parts[2]], 1)


def checked(x: Tensor) -> Tensor:
    assert x.shape[1] == 8
    return x


def border_cleared(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 0] = 0
    y[..., -1:] = y[..., :1]
    return y


def part_replaced(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :2] = 0
    return y


def filled(x: Tensor) -> Tensor:
    y = torch.zeros(x.shape[0], x.shape[1], 8, 8, dtype=x.dtype)
    y[:] = x
    return y


def replaced_by_another(x: Tensor) -> Tensor:
    """Channel i takes the values of channel 7 - i."""
    y = x.clone()
    y[:, :, 2:5] = x.flip(1)[:, :, 2:5]
    return y


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


SWISH = scripted(swish)


def looped(x: Tensor) -> Tensor:
    for _ in range(x.shape[1]):
        x = x * 0.9
    return x


def only_tensors(x: Any) -> Tensor:
    return x * 2 if isinstance(x, Tensor) and torch.is_tensor(x) else x - x.mean(1, keepdim=True)


def numbers_are_numbers(x: Tensor) -> Tensor:
    size = x.shape[2]
    assert isinstance(size, int) and isinstance(x.shape, tuple) and not hasattr(x, "no_such_thing")
    return F.interpolate(x, (size, size))


WRITTEN: dict[str, tuple[Callable[[Tensor], Tensor], Widths]] = {
    "list of chunks": (lambda x: torch.cat(list(x.chunk(2, 1))[::-1], 1), HALVES),
    "for over chunks": (lambda x: torch.cat([part * 2 for part in x.chunk(2, 1)], 1), HALVES),
    "starred": (swapped, HALVES),
    "grown": (grown, HALVES),
    "for over images": (lambda x: torch.stack([image * 2 for image in x]), FREE),
    "length of a shape": (lambda x: x * 2 if len(x.shape) == 4 else x, FREE),
    "list of a shape": (lambda x: x.reshape(list(x.shape)), FREE),
    "starred shape": (lambda x: x.reshape(*x.shape[:2], -1).view(x.shape), FREE),
    "zeros by batch": (lambda x: x + torch.zeros(x.shape[0], 1, 1, 1), FREE),
    "zeros by shape": (lambda x: x * torch.ones((x.shape[0], 1, *x.shape[2:])), FREE),
    "tensor of a size": (lambda x: x * torch.tensor(x.shape[2]), FREE),
    "tensor of a width": (lambda x: x * torch.tensor(x.shape[1]), KEPT),
    "tensor of widths": (lambda x: x * torch.tensor([x.shape[1], x.shape[2]]).sum(), KEPT),
    "expanded": (lambda x: x * torch.full((1, 1, 1, 1), 0.5).expand(x.shape[0], 1, 8, 8), FREE),
    "new tensor": (lambda x: x + x.new_zeros(x.shape[0], 1, 1, 1), FREE),
    "new tensor of the width": (lambda x: x * x.new_full((x.shape[1], 1, 1), 0.5), KEPT),
    "zeros like": (lambda x: torch.where(x > 0, x, torch.zeros_like(x)), FREE),
    "ones like a part": (lambda x: torch.cat([x, torch.ones_like(x[:, :1])], 1)[:, :8], KEPT),
    "border": (border_cleared, FREE),
    "part replaced": (part_replaced, {"a:out": (6, 1), "b:out": (6, 1)}),
    "replaced by another": (replaced_by_another, {"a:out": (4, 1), "b:out": (6, 1)}),
    "is a tensor": (only_tensors, FREE),
    "numbers": (numbers_are_numbers, FREE),
    "scripted function": (lambda x: SWISH(x), FREE),
    "numpy on sizes": (lambda x: x * float(np.sqrt(x.shape[2])) + torch.from_numpy(np.arange(x.shape[3])), FREE),
    "numpy on the width": (lambda x: x * float(np.sqrt(x.shape[1])), KEPT),
    "layer made in forward": (lambda x: nn.ReLU()(nn.MaxPool2d(3, 1, 1)(x)), FREE),
    "checked width": (checked, KEPT),
    "looped": (looped, KEPT),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written(name: str) -> None:
    torch.manual_seed(0)
    function, widths = WRITTEN[name]
    is_exact(Through(Function(function)), IMAGE, widths)


def test_a_tensor_filled_by_assignment() -> None:
    """The filled tensor has the width of what is assigned, so its readers select, or its channels are kept."""
    torch.manual_seed(0)
    graph = is_exact(Through(Function(filled)), IMAGE, KEPT)
    assert "joins it with channels that must be kept" in graph.frozen["a"]


class Sliced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.ReLU())
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.body[2:](self.body[:2](x))))


def test_a_sliced_sequential() -> None:
    torch.manual_seed(0)
    is_exact(Sliced(), IMAGE, {"body.0:out": (8, 1), "body.2:out": (6, 1)})


class PartlyScripted(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.sub = scripted(nn.Sequential(conv(4, 4), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.relu(self.b(self.sub(self.bn(self.a(x)))))))


def test_a_scripted_submodule_keeps_its_channels() -> None:
    torch.manual_seed(0)
    graph = is_exact(PartlyScripted(), IMAGE, {"b:out": (6, 1)})
    assert "sub has no rule" in graph.frozen["a"]


class Wrapped(Chain):
    """A part of the network under torch.compile, or in DataParallel, and a compiled function."""

    def __init__(self, wrap: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.sub, self.twice = wrap(nn.Sequential(conv(4, 4), nn.ReLU())), torch.compile(doubled, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.relu(self.b(self.twice(self.sub(self.bn(self.a(x))))))))


def doubled(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda part: torch.compile(part, backend="eager"), "sub._orig_mod.0:out"),
        (lambda part: nn.DataParallel(part, []), "sub.module.0:out"),
    ],
)
def test_a_wrapped_part_is_followed(wrap: Callable[[nn.Module], Any], name: str) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_exact(Wrapped(wrap), IMAGE, {"a:out": (4, 1), name: (4, 1), "b:out": (6, 1)})


def test_a_compiled_part_is_scored() -> None:
    """The compiled code has run before, and does not see hooks that come later."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Wrapped(lambda part: torch.compile(part, backend="eager")).double().eval()
        proof.outputs(model, IMAGE)
        graph = pr.trace(model, IMAGE)
        images = [(torch.randn_like(IMAGE), torch.tensor([0, 1])) for _ in range(5)]
        found = pr.score(graph, images, "act_variance").values["a:out"]
    with torch.no_grad():
        wanted = model.bn(model.a(torch.cat([batch for batch, _ in images]))).var((0, 2, 3), correction=0)
    assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-9)


class Stateless(nn.Module):
    """A layer that is called with other weights than its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        weights = {"weight": self.layer.weight * 2, "bias": self.layer.bias}
        return torch.func.functional_call(self.layer, weights, (x,))


def test_a_layer_called_with_other_weights_is_followed() -> None:
    torch.manual_seed(0)
    is_exact(Through(Stateless()), IMAGE, KEPT)


def test_what_is_not_recorded_is_refused() -> None:
    """torch.vmap hides the tensor, so its result would be a constant of the graph. The example does not show it."""
    model = Through(Function(torch.vmap(lambda x: x - x.mean(0, keepdim=True)))).double().eval()
    with pytest.raises(TraceError, match="do not compute what the model computes"):
        pr.trace(model, IMAGE)


class Starred(Chain):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        assert len(args) < 2
        x = x if not args else x + args[0]
        return super().forward(x if "gain" not in kwargs else x * kwargs["gain"])


class Listed(Chain):
    def forward(self, xs: list[Tensor], named: dict[str, Tensor], times: int = 1, *, last: Tensor) -> Tensor:
        return super().forward(sum(xs) * times + named["one"] - named["two"] + last)  # type: ignore[arg-type]


class Shadowed(Chain):
    def forward(self, x: Tensor, h: Any = None, h_add: Any = None) -> Tensor:
        assert h is None
        return super().forward(x + h_add)


CHAIN: Widths = {"a:out": (4, 1), "b:out": (6, 1)}


@pytest.mark.parametrize(
    ("build", "example"),
    [
        (Starred, IMAGE),
        (Starred, (IMAGE, IMAGE + 1)),
        (Starred, {"x": IMAGE, "gain": IMAGE[:, :1]}),
        (Listed, {"xs": [IMAGE, IMAGE], "named": {"one": IMAGE, "two": IMAGE * 2}, "times": 3, "last": IMAGE + 1}),
        (Shadowed, {"x": IMAGE, "h_add": IMAGE + 1}),
    ],
)
def test_arguments(build: type[nn.Module], example: Any) -> None:
    torch.manual_seed(0)
    is_exact(build(), example, CHAIN)


class Remembers(Chain):
    """Keeps what it saw, in an attribute, a list, a buffer and a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.last: Any = None
        self.hooked = False

    def forward(self, x: Tensor) -> Tensor:
        if self.last is not None and self.last[0] != tuple(x.shape):
            raise RuntimeError("another shape")
        self.last, self.calls = (tuple(x.shape), x), self.calls + 1
        if not self.hooked:
            self.a.register_forward_hook(lambda module, inputs, output: None)
            self.hooked = True
        return super().forward(x)


def test_attributes_that_forward_sets() -> None:
    torch.manual_seed(0)
    model = Remembers().double().eval()
    graph = pr.trace(model, IMAGE)
    assert model.last is None and not model.hooked and not model.a._forward_hooks
    assert model.calls.item() == 0
    pruned_exactly(graph, {"a:out": [1, 3]})


class TwoChecks(nn.Module):
    """A check of one width freezes that width only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(3, 8), conv(8, 6), conv(6, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(F.relu(self.a(x)))
        assert x.shape[1] == self.c.in_channels
        return self.fc(pooled(F.relu(self.c(x))))


def test_a_guard_freezes_what_it_looked_at() -> None:
    torch.manual_seed(0)
    graph = is_exact(TwoChecks(), IMAGE, {"a:out": (8, 1), "c:out": (4, 1)})
    assert "another path" in graph.frozen["b"]


class AsTheWeights(Chain):
    """Asks a layer for the type and device of its weights, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.b.weight.dtype).to(self.bn.weight.device))


def test_the_type_of_a_weight_is_no_use_of_it() -> None:
    torch.manual_seed(0)
    is_exact(AsTheWeights(), IMAGE, CHAIN)


def test_reasons_name_operations_as_people_write_them() -> None:
    class Scaled(TwoChecks):
        def forward(self, x: Tensor) -> Tensor:
            x = self.b(F.relu(self.a(x)))
            x = F.interpolate(x, size=(x.size(1), x.size(1)))
            return self.fc(pooled(F.relu(self.c(x))))

    torch.manual_seed(0)
    graph = is_exact(Scaled(), IMAGE, {"a:out": (8, 1), "c:out": (4, 1)})
    assert graph.frozen["b"].startswith("interpolate does not work with fewer channels")


# -- layers that are called several times lose the channels that no call needs; layers that no call needs freeze nothing


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b, self.fc = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6), nn.Linear(12, 5)
        randomised(self.bn)

    def branch(self, x: Tensor) -> Tensor:
        return pooled(self.b(F.relu(self.bn(self.a(x)))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cat([self.branch(x), self.branch(2 * x + 1)], 1))


class SharedHead(nn.Module):
    """One head on every level of a pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q, self.h1, self.h2 = conv(3, 8), conv(8, 8, stride=2), conv(8, 7), conv(7, 4)

    def forward(self, x: Tensor) -> list[Tensor]:
        p = self.p(x)
        return [self.h2(F.relu(self.h1(level))) for level in (p, self.q(p))]


class SharedGate(nn.Module):
    """As CBAM: one gate on the mean and on the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 8), conv(8, 6), nn.Linear(6, 5)
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        gate = sum(self.up(F.relu(self.down(y))) for y in (x.mean((2, 3)), x.amax((2, 3))))
        return self.fc(pooled(self.b(x * torch.sigmoid(gate)[:, :, None, None])))


class FedToItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.again, self.fc = conv(3, 8), conv(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(3):
            x = F.relu(self.again(x))
        return self.fc(pooled(x))


class SharedBlock(nn.Module):
    """A residual block, twice on one stream: its reader selects the same channels in both calls."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.inner, self.outer = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6), conv(6, 8)
        self.single, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 5)
        randomised(self.bn)
        randomised(self.single)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.outer(F.relu(self.inner(F.relu(self.bn(x)))))
        x = x + self.outer(F.relu(self.inner(F.relu(self.single(x)))))
        return self.fc(pooled(x))


class OneNorm(nn.Module):
    """One norm without parameters on two tensors: they lose the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = conv(3, 8), conv(3, 8), nn.BatchNorm2d(8, affine=False)
        self.c, self.d = conv(8, 4), conv(8, 4)
        randomised(self.norm)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.c(self.norm(self.a(x))), self.d(self.norm(self.b(x)))


class OnPixelsToo(nn.Module):
    """The second call of `mix` reads pixels, where the rules cannot follow: `mix` keeps its inputs in both calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.mix, self.b, self.fc = conv(3, 8), nn.Linear(8, 8), conv(8, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.mix(x.movedim(1, -1)).movedim(-1, 1)
        return self.fc(pooled(self.b(self.mix(x))))


REPEATED: dict[str, tuple[type[nn.Module], Widths]] = {
    "siamese": (Siamese, {"a:out": (8, 1), "b:out": (6, 1)}),
    "shared head": (SharedHead, {"p:out": (8, 1), "h1:out": (7, 1)}),
    "shared gate": (SharedGate, {"a:out": (8, 1), "down:out": (4, 1), "b:out": (6, 1)}),
    "fed to itself": (FedToItself, {"a:out": (8, 1)}),
    "shared block": (SharedBlock, {"inner:in": (8, 1), "inner:out": (6, 1), "fc:in": (8, 1)}),
    "one norm": (OneNorm, {"a:out": (8, 1)}),
    "on pixels too": (OnPixelsToo, {"b:out": (6, 1)}),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_layer_called_several_times(name: str) -> None:
    torch.manual_seed(0)
    build, widths = REPEATED[name]
    is_exact(build(), IMAGE, widths)


def test_the_cost_counts_every_call() -> None:
    graph = pr.trace(SharedHead().eval(), IMAGE.float())
    # p and h1, h2 at 8x8 positions, q and h1, h2 again at 4x4
    assert graph.macs == 9 * (3 * 8 * 64 + 8 * 8 * 16 + (8 * 7 + 7 * 4) * 80)


class TwoNamed(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.again, self.listed = self.a, nn.ModuleList([self.a, self.b])


class Unused(Chain):
    """Layers that neither eval nor training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.other = conv(4, 4), nn.Linear(6, 6)


@pytest.mark.parametrize("build", [TwoNamed, Unused])
def test_names_and_unused_layers_freeze_nothing(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    is_exact(build(), IMAGE, {"a:out": (4, 1), "b:out": (6, 1)})


class Hesitant(Chain):
    """Training cannot be followed up to the layer that only training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.late = conv(4, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.bn(self.a(image)))
        if self.training and image.sum() > 0:
            x = self.late(x)
        return self.fc(pooled(self.relu(self.b(x))))


def test_a_layer_that_training_might_call_freezes_what_it_could_read() -> None:
    graph = pr.trace(Hesitant().eval(), IMAGE.float())
    assert list(graph.units) == ["b:out"]
    assert "late" in graph.frozen["a"]


# -- code around the layers


class InAutocast(Chain):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class AsksWhetherCallable(Chain):
    def forward(self, x: Tensor) -> Tensor:
        flag = x.shape[2] > 1
        assert flag() if callable(flag) else flag
        return super().forward(x)


class KeptByText(Chain):
    """A grid for each size, under the text of its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.grids: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if str(x.shape) not in self.grids:
            self.grids[str(x.shape)] = torch.linspace(0, 1, x.shape[3])
        return super().forward(x * self.grids[str(x.shape)])


class GivesDistribution(Chain):
    def forward(self, x: Tensor) -> Any:
        return torch.distributions.Normal(super().forward(x), 1.0)


class GivesObject(Chain):
    def forward(self, x: Tensor) -> Any:
        return types.SimpleNamespace(logits=super().forward(x), kind="logits")


class CaughtByHook(Chain):
    """The output of a layer is used where a hook has put it."""

    def __init__(self) -> None:
        super().__init__()
        self.caught: list[Tensor] = []
        self.b.register_forward_hook(self.catch)

    def catch(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.caught.append(output)

    def forward(self, x: Tensor) -> Any:
        self.caught.clear()
        y = super().forward(x)
        return y, self.caught[0].mean((1, 2, 3))


AROUND = [InAutocast, AsksWhetherCallable, KeptByText, GivesDistribution, GivesObject]


@pytest.mark.parametrize("build", AROUND)
def test_code_around_layers_is_recorded(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    graph = pr.trace(model, IMAGE.float())
    assert {name: (unit.width, unit.granule) for name, unit in graph.units.items()} == CHAIN
    keep = {"a:out": [1, 3]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    with proof.masked(model, graph, keep):
        want = model(IMAGE.float())
    got = small(IMAGE.float())
    for kind in ("logits", "loc"):
        got, want = getattr(got, kind, got), getattr(want, kind, want)
    assert type(want) is Tensor and torch.allclose(got, want, rtol=0.02 if build is InAutocast else 1e-5, atol=1e-2)
    assert model.__dict__.get("grids", {}).keys() <= {str(IMAGE.shape)}


def test_what_a_hook_keeps_is_followed() -> None:
    torch.manual_seed(0)
    model = CaughtByHook().eval().double()
    graph = pr.trace(model, IMAGE)
    assert "a:out" in graph.units and "b:out" not in graph.units  # the mean is over all channels of b
    keep = {"a:out": [1, 3]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    with proof.masked(model, graph, keep):
        assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(model, IMAGE)) < 1e-10


def test_a_network_made_in_inference_mode_is_pruned() -> None:
    with torch.inference_mode():
        graph = pr.trace(Chain().eval(), torch.zeros(1, 3, 8, 8))
        small = pr.prune(graph, pr.Plan.of(graph, {"b:out": [0, 2]}))
    assert not any(parameter.is_inference() for parameter in small.parameters())


class Sequences(Chain):
    """Rows of the image as sequences of different lengths, packed, and unpacked again."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.relu(self.b(self.bn(self.a(x)))).mean(2).transpose(1, 2)
        packed = nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([8, 5]), batch_first=True)
        unpacked, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        return self.fc(unpacked.mean(1))


def test_packed_sequences_are_followed_to_their_end() -> None:
    torch.manual_seed(0)
    is_exact(Sequences(), IMAGE, {"a:out": (4, 1)})
