"""Code as people write it: it is recorded, its channels can go, and what is pruned equals what is zeroed."""

from __future__ import annotations

import copy
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
from tests.graph.odd_nets import Function, Network, Through
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
    "scripted function held": (SWISH, FREE),
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


def test_a_sliced_sequential() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.ReLU())
    model = Network(lambda m, x: m.fc(pooled(m.body[2:](m.body[:2](x)))), body=body, fc=nn.Linear(6, 5))
    is_exact(model, IMAGE, {"body.0:out": (8, 1), "body.2:out": (6, 1)})


def test_a_scripted_submodule_keeps_its_channels() -> None:
    torch.manual_seed(0)
    graph = is_exact(Through(scripted(nn.Sequential(conv(8, 8), nn.ReLU()))), IMAGE, KEPT)
    assert "between has no rule" in graph.frozen["a"]


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


def with_doubled_weights(m: Any, x: Tensor) -> Tensor:
    weights = {"weight": m.layer.weight * 2, "bias": m.layer.bias}
    return torch.func.functional_call(m.layer, weights, (x,))


def test_a_layer_called_with_other_weights_is_followed() -> None:
    torch.manual_seed(0)
    is_exact(Through(Network(with_doubled_weights, layer=conv(8, 8))), IMAGE, KEPT)


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


def checks_a_width(m: Any, x: Tensor) -> Tensor:
    x = m.b(F.relu(m.a(x)))
    assert x.shape[1] == m.c.in_channels
    return m.fc(pooled(F.relu(m.c(x))))


def resizes_by_width(m: Any, x: Tensor) -> Tensor:
    x = m.b(F.relu(m.a(x)))
    x = F.interpolate(x, size=(x.size(1), x.size(1)))
    return m.fc(pooled(F.relu(m.c(x))))


@pytest.mark.parametrize(
    ("forward", "reason"),
    [(checks_a_width, "another path"), (resizes_by_width, "interpolate does not work with fewer channels")],
)
def test_only_the_width_that_was_looked_at_is_frozen(forward: Any, reason: str) -> None:
    """The reason names the operation as people write it."""
    torch.manual_seed(0)
    model = Network(forward, a=conv(3, 8), b=conv(8, 6), c=conv(6, 4), fc=nn.Linear(4, 5))
    graph = is_exact(model, IMAGE, {"a:out": (8, 1), "c:out": (4, 1)})
    assert reason in graph.frozen["b"]


def test_the_type_of_a_weight_is_no_use_of_it() -> None:
    class AsTheWeights(Chain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.b.weight.dtype).to(self.bn.weight.device))

    torch.manual_seed(0)
    is_exact(AsTheWeights(), IMAGE, CHAIN)


# -- layers that are called several times lose the channels that no call needs; layers that no call needs freeze nothing


def siamese(m: Any, x: Tensor) -> Tensor:
    return m.fc(torch.cat([pooled(m.b(F.relu(m.bn(m.a(image))))) for image in (x, 2 * x + 1)], 1))


def shared_head(m: Any, x: Tensor) -> list[Tensor]:
    """One head on every level of a pyramid."""
    p = m.p(x)
    return [m.h2(F.relu(m.h1(level))) for level in (p, m.q(p))]


def shared_gate(m: Any, x: Tensor) -> Tensor:
    """As CBAM: one gate on the mean and on the maximum."""
    x = m.a(x)
    gate = sum(m.up(F.relu(m.down(y))) for y in (x.mean((2, 3)), x.amax((2, 3))))
    return m.fc(pooled(m.b(x * torch.sigmoid(gate)[:, :, None, None])))


def shared_block(m: Any, x: Tensor) -> Tensor:
    """A residual block, twice on one stream: its reader selects the same channels in both calls."""
    x = m.stem(x)
    x = x + m.outer(F.relu(m.inner(F.relu(m.bn(x)))))
    x = x + m.outer(F.relu(m.inner(F.relu(m.single(x)))))
    return m.fc(pooled(x))


def on_pixels_too(m: Any, x: Tensor) -> Tensor:
    """The second call of `mix` reads pixels, where the rules cannot follow: `mix` keeps its inputs in both calls."""
    x = m.mix(m.a(x).movedim(1, -1)).movedim(-1, 1)
    return m.fc(pooled(m.b(m.mix(x))))


def bn(width: int, **options: bool) -> nn.Module:
    return randomised(nn.BatchNorm2d(width, **options))


HEAD = {"p": conv(3, 8), "q": conv(8, 8, stride=2), "h1": conv(8, 7), "h2": conv(7, 4)}
REPEATED: dict[str, tuple[nn.Module, Widths]] = {
    "siamese": (
        Network(siamese, a=conv(3, 8), bn=bn(8), b=conv(8, 6), fc=nn.Linear(12, 5)),
        {"a:out": (8, 1), "b:out": (6, 1)},
    ),
    "shared head": (Network(shared_head, **HEAD), {"p:out": (8, 1), "h1:out": (7, 1)}),
    "shared gate": (
        Network(shared_gate, a=conv(3, 8), b=conv(8, 6), fc=nn.Linear(6, 5), down=nn.Linear(8, 4), up=nn.Linear(4, 8)),
        {"a:out": (8, 1), "down:out": (4, 1), "b:out": (6, 1)},
    ),
    "shared block": (
        Network(
            shared_block,
            **{"stem": conv(3, 8), "bn": bn(8), "inner": conv(8, 6), "outer": conv(6, 8)},
            **{"single": bn(8), "fc": nn.Linear(8, 5)},
        ),
        {"inner:in": (8, 1), "inner:out": (6, 1), "fc:in": (8, 1)},
    ),
    "one norm": (  # without parameters, on two tensors: they lose the same channels
        Network(
            lambda m, x: (m.c(m.norm(m.a(x))), m.d(m.norm(m.b(x)))),
            **{"a": conv(3, 8), "b": conv(3, 8), "norm": bn(8, affine=False), "c": conv(8, 4), "d": conv(8, 4)},
        ),
        {"a:out": (8, 1)},
    ),
    "on pixels too": (
        Network(on_pixels_too, a=conv(3, 8), mix=nn.Linear(8, 8), b=conv(8, 6), fc=nn.Linear(6, 5)),
        {"b:out": (6, 1)},
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_layer_called_several_times(name: str) -> None:
    is_exact(copy.deepcopy(REPEATED[name][0]), IMAGE, REPEATED[name][1])


def test_the_cost_counts_every_call() -> None:
    graph = pr.trace(Network(shared_head, **HEAD).float().eval(), IMAGE.float())
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

    def forward(self, x: Tensor) -> Tensor:
        grids = self.__dict__.setdefault("grids", {})
        if str(x.shape) not in grids:
            grids[str(x.shape)] = torch.linspace(0, 1, x.shape[3])
        return super().forward(x * grids[str(x.shape)])


class KeptBySize(Chain):
    """The same, under a size that is asked for again each time."""

    def forward(self, x: Tensor) -> Tensor:
        grids = self.__dict__.setdefault("grids", {})
        if x.shape[3] not in grids:
            grids[x.shape[3]] = torch.linspace(0, 1, x.shape[3])
        return super().forward(x * grids[x.shape[3]])


class KeptByShape(Chain):
    """A grid for each shape, which is asked for again each time."""

    def forward(self, x: Tensor) -> Tensor:
        grids = self.__dict__.setdefault("grids", {})
        if x.shape not in grids:
            grids[x.shape] = torch.linspace(0, 1, x.shape[3])
        return super().forward(x * grids[x.shape])


class GivesDistribution(Chain):
    def forward(self, x: Tensor) -> Any:
        return torch.distributions.Normal(super().forward(x), 1.0)


class GivesNestedDistribution(Chain):
    """Its tensors are in a distribution inside the one that is given, as a policy gives it."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return torch.distributions.Independent(torch.distributions.Normal(y, torch.ones_like(y)), 1)


class ChecksSizes(Chain):
    """torch._check, as code that is exported calls it."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check(x.shape[2] > 1)
        torch._check_value(x.shape[0] * 2 == 2 * len(IMAGE), lambda: "another number of images")
        return super().forward(x)


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


AROUND = [
    InAutocast,
    AsksWhetherCallable,
    ChecksSizes,
    KeptByText,
    KeptBySize,
    KeptByShape,
    GivesDistribution,
    GivesNestedDistribution,
    GivesObject,
]


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
    for kind in ("logits", "base_dist", "loc"):
        got, want = getattr(got, kind, got), getattr(want, kind, want)
    assert type(want) is Tensor and torch.allclose(got, want, rtol=0.02 if build is InAutocast else 1e-5, atol=1e-2)
    assert model.__dict__.get("grids", {}).keys() <= {str(IMAGE.shape), IMAGE.shape, IMAGE.shape[3]}


def test_nested_tensors_are_compared_part_by_part() -> None:
    """They have no shape of their own."""

    class GivesNested(Chain):
        def forward(self, x: Tensor) -> Tensor:
            one, other = super().forward(x)
            return torch.nested.as_nested_tensor([one[:3].contiguous(), other.contiguous()])

    torch.manual_seed(0)
    model = GivesNested().double().eval()
    graph = pr.trace(model, IMAGE)
    assert set(graph.units) == {"a:out", "b:out"}
    keep = {"a:out": [1, 3], "b:out": [0, 5]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    with proof.masked(model, graph, keep):
        assert proof.relative_error([*small(IMAGE).unbind()], [*model(IMAGE).unbind()]) < 1e-12


def test_what_a_hook_keeps_is_followed() -> None:
    torch.manual_seed(0)
    model = CaughtByHook().eval().double()
    model(IMAGE)  # the hook keeps a tensor with a gradient function, which deepcopy refuses
    graph = pr.trace(model, IMAGE)
    assert "a:out" in graph.units and "b:out" not in graph.units  # the mean is over all channels of b
    pruned_exactly(graph, {"a:out": [1, 3]}, tolerance=1e-10)


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


@torch.fx.wrap
def window_for(size: list[int], window: list[int]) -> list[int]:
    """As in Swin3D: it changes the list that it is given."""
    for i in range(2):
        window[i] = min(window[i], size[i])
    return window


class Windows(Chain):
    """Pooling over windows that are no larger than the image."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn(self.a(x)))
        rows, columns = window_for([h.shape[2], h.shape[3]], [99, 2])
        return self.fc(self.relu(self.b(F.avg_pool2d(h, (rows, columns)))).mean((2, 3)))


def test_functions_may_change_the_lists_that_they_are_given() -> None:
    torch.manual_seed(0)
    is_exact(Windows(), IMAGE, {"a:out": (4, 1), "b:out": (6, 1)})
