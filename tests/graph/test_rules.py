"""Rules one by one: which channels can go, by hand, and what is pruned equals what is zeroed."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.graph.rules import rulebook
from tests.graph.checks import FREE, HALVES, IMAGE, KEPT, Widths, is_exact, pruned_exactly
from tests.graph.dags import randomised
from tests.graph.odd_nets import Filtered, FrozenNorm, Function, Network, Through
from tests.nets import Chain, conv, pooled

aten = torch.ops.aten


def layer(*modules: nn.Module) -> nn.Module:
    return Through(nn.Sequential(*(randomised(module) for module in modules)))


def between(function: Any) -> nn.Module:
    return Through(Function(function))


class OwnNorm(nn.Module):
    """A batch norm on parameters and buffers of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))
        self.register_buffer("mean", torch.randn(channels))
        self.register_buffer("spread", torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.spread, weight=self.scale, bias=self.shift)


class OwnSlopes(nn.Module):
    """A PReLU on a parameter of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.rand(count))

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.slopes)


def halves_swapped(x: Tensor) -> Tensor:
    half = x.size(1) // 2
    return torch.cat([x.narrow(1, half, half), x.narrow(1, 0, half)], 1)


def standardised_maps(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, (2, 3), keepdim=True)
    return (x - mean) / (variance + torch.std_mean(x, dim=(2, 3), keepdim=True)[0] + 0.1)


class Unpooled(nn.Module):
    """As in SegNet: what comes out of the bottleneck is placed where the maxima were."""

    def __init__(self, pool: Any, unpool: Any) -> None:
        super().__init__()
        self.pool, self.inner, self.unpool = pool, conv(8, 8), unpool

    def forward(self, x: Tensor) -> Tensor:
        pooled, indices = self.pool(x)
        unpooled: Tensor = self.unpool(self.inner(pooled), indices, output_size=x.shape)
        return unpooled


class LooksAtBuffers(FrozenNorm):
    """The code asks for the values of a buffer that has one for each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if bool(self.running_var.min() > 0) else x


# A convolution of 8 or 32 filters in front, so that a unit lies between two layers.
GROUPS = {"a:out": (8, 1), "between.0:out": (4, 1), "b:out": (6, 1)}  # four groups of two


RUNS = {"a:out": (8, 1), "between.0:out": (8, 1), "b:out": (6, 1)}  # eight runs of four


CASES: dict[str, tuple[Any, Widths]] = {
    "group norm": (lambda: layer(conv(8, 8), nn.GroupNorm(4, 8), nn.ReLU()), GROUPS),
    "group norm of single channels": (lambda: layer(nn.GroupNorm(8, 8)), FREE),
    "group norm of all channels": (lambda: layer(nn.GroupNorm(1, 8)), KEPT),
    "pixel shuffle": (lambda: layer(conv(8, 32), nn.PixelShuffle(2)), RUNS),
    "pixel unshuffle": (lambda: layer(nn.PixelUnshuffle(2), conv(32, 8)), {**FREE, "between.1:out": (8, 1)}),
    "shuffled and back": (lambda: between(lambda x: F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2)), FREE),
    "channel shuffle": (lambda: layer(nn.ChannelShuffle(2)), HALVES),
    "own norm": (lambda: Through(OwnNorm(8)), FREE),
    "maximum along a row": (lambda: between(lambda x: x * x.max(2, keepdim=True).values), FREE),
    "minimum and its place": (lambda: between(lambda x: x * torch.min(x, dim=-1, keepdim=True)[0]), FREE),
    "maximum of channels": (lambda: between(lambda x: x * x.max(1, keepdim=True)[0]), KEPT),
    "a gate that chooses": (
        lambda: between(lambda x: torch.where(x.amax(1, keepdim=True) == 0, torch.zeros_like(x), x.sin())),
        KEPT,
    ),
    "a choice by pixels": (lambda: between(lambda x: torch.where(torch.ones(2, 1, 8, 8) > 0, x, x * 2)), FREE),
    "maximum of two": (lambda: between(lambda x: torch.max(x, -x)), FREE),
    # The first two channels are counted by the number, so they stay; the other six can go.
    "slices at a number": (lambda: between(lambda x: torch.cat([x[:, 2:], x[:, :2]], 1)), {**FREE, "a:out": (6, 1)}),
    "slices from the end": (
        lambda: between(lambda x: torch.cat([x[:, -3:], x[:, :-3]], 1)),
        {**FREE, "a:out": (5, 1)},
    ),
    "one channel by its number": (lambda: between(lambda x: x * x[:, 2:3]), {**FREE, "a:out": (5, 1)}),
    "every second": (lambda: between(lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1)), KEPT),
    "listed": (lambda: between(lambda x: x[:, [7, 6, 5, 4, 3, 2, 1, 0]]), KEPT),
    "some listed": (
        lambda: between(lambda x: x + x[:, [0, 2]].amax((1, 2, 3), keepdim=True)),
        {**FREE, "a:out": (5, 1)},
    ),
    "masked": (lambda: between(lambda x: x.masked_fill(x > x.mean((2, 3), keepdim=True), 0.0)), FREE),
    "running sums along rows": (lambda: between(lambda x: x.cumsum(2)), FREE),
    "running sums over channels": (lambda: between(lambda x: x.cumsum(1)), KEPT),
    "normalised rows": (lambda: between(lambda x: F.normalize(x, dim=3)), FREE),
    "normalised channels": (lambda: between(lambda x: F.normalize(x)), KEPT),
    "norms of maps": (lambda: between(lambda x: x * torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True)), FREE),
    "norms of rows": (lambda: between(lambda x: x * x.norm(p=2, dim=-1, keepdim=True)), FREE),
    "norms over channels": (lambda: between(lambda x: x * x.norm(2, 1, keepdim=True)), KEPT),
    "the largest in a row": (lambda: between(lambda x: x * x.argmax(3, keepdim=True)), FREE),
    "the largest channel": (lambda: between(lambda x: x * x.argmax(1, keepdim=True)), KEPT),
    "gated linear unit": (lambda: layer(conv(8, 16), nn.GLU(1)), {**FREE, "between.0:out": (8, 1)}),
    "gates in rows": (lambda: between(lambda x: F.glu(torch.cat([x, x], 3), 3)), FREE),
    "own slopes": (lambda: Through(OwnSlopes(8)), FREE),
    "own slope": (lambda: Through(OwnSlopes(1)), FREE),
    "narrow": (lambda: between(lambda x: torch.cat([x.narrow(1, 1, 2), x], 1)[:, 2:]), {**FREE, "a:out": (5, 1)}),
    "narrow by half": (lambda: between(halves_swapped), HALVES),
    "repeated": (
        lambda: layer(Function(lambda x: x.repeat(1, 2, 1, 1)), conv(16, 8)),
        {**FREE, "between.1:out": (8, 1)},
    ),
    "repeated in runs": (
        lambda: layer(Function(lambda x: x.repeat_interleave(2, 1)), conv(16, 8)),
        {**FREE, "between.1:out": (8, 1)},
    ),
    "unflatten": (lambda: between(lambda x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)), HALVES),
    "unflatten to numbers": (lambda: layer(nn.Unflatten(1, (2, 4)), nn.Flatten(1, 2)), KEPT),
    "windows of pixels": (
        lambda: layer(nn.Unfold(2, stride=2), Function(lambda x: x.unflatten(2, (4, 4))), conv(32, 8)),
        {**FREE, "between.2:out": (8, 1)},
    ),
    "windows there and back": (
        lambda: between(lambda x: F.fold(F.unfold(x, (3, 3), padding=1), x.shape[2:], (3, 3), padding=1)),
        FREE,
    ),
    "folded": (
        lambda: layer(conv(8, 32), nn.Flatten(2), nn.Fold((16, 16), 2, stride=2)),
        {**FREE, "between.0:out": (8, 1)},
    ),
    "rows in windows": (lambda: between(lambda x: x.unfold(2, 2, 2).amax(-1)), FREE),
    "channels in windows": (lambda: between(lambda x: x.unfold(1, 1, 1).amax(-1)), KEPT),
    "sampled": (lambda: between(lambda x: F.grid_sample(x, x.new_zeros(2, 4, 4, 2), align_corners=False)), FREE),
    "sampled where it says": (
        lambda: between(lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False)),
        {**FREE, "a:out": (6, 1)},
    ),
    "stacked side by side": (
        lambda: layer(Function(lambda x: torch.hstack([x, x.sin()])), conv(16, 8)),
        {**FREE, "between.1:out": (8, 1)},
    ),
    "stacked in rows": (lambda: between(lambda x: torch.dstack([x, torch.vstack([x, x])[:2]])), FREE),
    "moments together": (lambda: between(standardised_maps), FREE),
    "moments of channels": (lambda: between(lambda x: x - torch.var_mean(x, 1, keepdim=True)[1]), KEPT),
    "quotients added": (lambda: between(lambda x: torch.addcdiv(x, x.tanh(), x.exp() + 1, value=0.5)), FREE),
    "larger of two": (lambda: between(lambda x: torch.fmax(x, x.neg()) - torch.fmin(x, x.atan())), FREE),
    "turned": (lambda: between(lambda x: torch.rot90(x, 1, [2, 3]) + x.rot90(2, (3, 2))), FREE),
    "a row": (lambda: between(lambda x: x + x.select(2, 1).unsqueeze(2)), FREE),
    "a channel": (lambda: between(lambda x: x + x.select(1, 2).unsqueeze(1)), {**FREE, "a:out": (5, 1)}),
    "rows by number": (lambda: between(lambda x: x + x.index_select(2, torch.arange(7, -1, -1))), FREE),
    "channels by number": (lambda: between(lambda x: x.index_select(1, torch.arange(7, -1, -1))), KEPT),
    "the best in rows": (lambda: between(lambda x: x.topk(4, 3).values + x.sort(-1)[0][..., :4]), FREE),
    "the best channels": (lambda: between(lambda x: x.topk(8, 1)[0]), KEPT),
    "aten": (lambda: between(lambda x: aten.mul.Tensor(aten.relu.default(x), aten.mean.dim(x, [2, 3], True))), FREE),
    "aten reshapes": (lambda: between(lambda x: aten.view(x, [2, -1, 16, 4])), FREE),
    "aten of channels": (lambda: between(lambda x: aten.sub.Tensor(x, aten.mean.dim(x, [1], True))), KEPT),
    "aten without a rule": (lambda: between(lambda x: aten.native_dropout(x, 0.0, False)[0]), KEPT),
    "pooled with indices": (
        lambda: Through(Unpooled(nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2))),
        {"a:out": (8, 1), "b:out": (6, 1)},
    ),
    "pooled with indices by functions": (
        lambda: Through(
            Unpooled(
                lambda x: F.max_pool2d(x, 2, return_indices=True), lambda x, at, output_size: F.max_unpool2d(x, at, 2)
            )
        ),
        {"a:out": (8, 1), "b:out": (6, 1)},
    ),
    "a frozen batch norm": (lambda: Through(FrozenNorm(8)), FREE),
    "a frozen batch norm of ones and zeros": (lambda: Through(FrozenNorm(8, varied=False)), FREE),
    "a norm that looks at its buffers": (lambda: Through(LooksAtBuffers(8)), KEPT),
    "blurred": (lambda: Through(Filtered(1)), FREE),
    "blurred by expanded filters": (lambda: Through(Filtered(1, expand=True)), FREE),
    "wavelets": (lambda: layer(Filtered(4), conv(32, 8)), {**FREE, "between.1:out": (8, 1)}),
    "split at numbers": (lambda: between(lambda x: torch.cat(x.split([3, 5], 1)[::-1], 1)), KEPT),
}


@pytest.mark.parametrize("name", CASES)
def test_a_rule(name: str) -> None:
    torch.manual_seed(0)
    build, widths = CASES[name]
    is_exact(build(), IMAGE, widths)


def test_a_pruned_group_norm_has_fewer_groups() -> None:
    torch.manual_seed(0)
    graph = pr.trace(CASES["group norm"][0]().eval(), IMAGE.float())
    small = pr.prune(graph, pr.Plan.of(graph, {"between.0:out": [0, 3]}))
    norm = small.between[1]  # type: ignore[index]
    assert (norm.num_groups, norm.num_channels, len(norm.weight)) == (2, 4, 4)


@pytest.mark.parametrize("dim", [1, 2])
def test_stacked_tensors_keep_equal_widths(dim: int) -> None:
    torch.manual_seed(0)
    model = Network(
        lambda m, x: m.fc(pooled(m.c(torch.stack([m.a(x), m.b(x)], dim).flatten(1, 2)))),
        **{"a": conv(3, 8), "b": conv(3, 8), "c": conv(16, 6), "fc": nn.Linear(6, 5)},
    )
    is_exact(model, IMAGE, {"a:out": (16, 2), "c:out": (6, 1)})


def folded(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """One of the folded channels is an output, by its number: nothing may move in front of it."""
    h = m.b(F.relu(m.a(x)))
    return h.view(h.size(0), 2, -1, 8, 8)[:, :, 1], m.c(h)


def folded_in_parts(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each four channels the first two are an output. One of the others may go: three make parts of two and one."""
    h = m.b(F.relu(m.a(x)))
    return h.view(h.size(0), 2, -1, *h.shape[2:]).chunk(2, 2)[0].sum(1), m.c(h)


@pytest.mark.parametrize(
    ("forward", "widths"),
    [(folded, {"a:out": (8, 1)}), (folded_in_parts, {"a:out": (8, 1), "b:out": (4, 2)})],
)
def test_outputs_are_the_same_channels(forward: Any, widths: Widths) -> None:
    torch.manual_seed(0)
    is_exact(Network(forward, a=conv(3, 8), b=conv(8, 8), c=conv(8, 4)), IMAGE, widths)


class NormedStream(nn.Module):
    """A stream that a norm over channels takes: a, c -> norm -> b -> fc."""

    def __init__(self, norm: nn.Module, last: bool) -> None:
        super().__init__()
        self.a, self.c, self.norm, self.last = conv(3, 8), conv(8, 8), norm, last
        self.b, self.fc = nn.Linear(8, 6) if last else conv(8, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = h + self.c(F.relu(h))
        if not self.last:
            return self.fc(pooled(F.relu(self.b(self.norm(h)))))
        return self.fc(F.relu(self.b(self.norm(h.permute(0, 2, 3, 1)))).mean((1, 2)))


class OwnLayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), self.weight, self.bias)


@pytest.mark.parametrize(
    ("norm", "last"),
    [
        (lambda: nn.LayerNorm(8), True),
        (OwnLayerNorm, True),
        (lambda: nn.GroupNorm(1, 8), False),
        (lambda: nn.LocalResponseNorm(3), False),
    ],
)
def test_readers_select_behind_a_norm_over_channels(norm: Any, last: bool) -> None:
    """The norm needs all channels of the stream, but the layers that read it do not."""
    torch.manual_seed(0)
    graph = is_exact(NormedStream(norm(), last), IMAGE, {"c:in": (8, 1), "b:in": (8, 1), "b:out": (6, 1)})
    plan = pr.Plan.of(graph, {"c:in": [0], "b:in": [1, 2]})
    small = pr.prune(graph, plan)
    assert (small.a.out_channels, small.c.in_channels, small.c.out_channels) == (8, 1, 8)
    assert small.b.weight.shape[:2] == (6, 2)


@pytest.mark.parametrize("batched", [True, False])
def test_a_stream_that_is_read_whole(batched: bool) -> None:
    """By layers that are called by keyword, and without a batch dimension."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if batched:
            h = m.a(input=x)
            return m.d(input=F.relu(m.c(input=h + m.b(input=F.relu(h)))))
        h = m.a(x)
        return m.d(F.relu(m.c(h + m.b(F.relu(h)))))

    torch.manual_seed(0)
    model = Network(forward, a=conv(3, 8), b=conv(8, 8), c=conv(8, 6), d=conv(6, 4))
    is_exact(model, IMAGE if batched else IMAGE[0], {"c:out": (6, 1)})


class Named(NamedTuple):
    scores: Any
    level: Any


@dataclasses.dataclass
class Data:
    scores: Any
    level: Any


@pytest.mark.parametrize("kind", [Named, Data, lambda scores, level: {"all": [scores, (level,)]}])
def test_structured_outputs(kind: Any) -> None:
    class Answers(Chain):
        def forward(self, x: Tensor) -> Any:
            return kind(super().forward(x), x.mean((2, 3)))

    torch.manual_seed(0)
    model = Answers().double().eval()
    graph = pr.trace(model, IMAGE)
    plan = pr.Plan.of(graph, {"a:out": [0, 2], "b:out": [1, 3, 5]})
    small = pr.prune(graph, plan)
    with pr.zeroed(graph, plan):
        want, got = model(IMAGE), small(IMAGE)
    assert type(got) is type(want)
    scores = [y["all"][0] if isinstance(y, dict) else y.scores for y in (got, want)]
    assert torch.allclose(scores[0], scores[1], rtol=0, atol=1e-12)


# -- user-provided rules


class Squash(nn.Module):
    """Element by element, by means that no rule knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.igamma(x.abs() + 1.0, x.abs() + 0.5)


@torch.fx.wrap
def twist(x: Tensor) -> Tensor:
    return torch.special.i0e(x)


class Twisted(Through):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(twist(self.a(x))).mean((2, 3)))


@pytest.fixture
def user_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered rules hold for the process; here they end with the test."""
    monkeypatch.setattr(rulebook, "_USER_RULES", dict(rulebook._USER_RULES))


@pytest.mark.usefixtures("user_rules")
@pytest.mark.parametrize(
    ("build", "target"), [(lambda: Through(Squash()), Squash), (lambda: Twisted(nn.Identity()), twist)]
)
def test_an_own_rule_frees_what_was_frozen(build: type[nn.Module], target: object) -> None:
    torch.manual_seed(0)
    model = build().double().eval()
    before = pr.trace(model, IMAGE)
    assert "a:out" not in before.units and "a" in before.frozen
    pr.register_rule(target, pr.rules.elementwise)  # type: ignore[arg-type]
    graph = pr.trace(model, IMAGE)
    assert graph.units["a:out"].width == 8
    pruned_exactly(graph, {"a:out": [1, 4, 6]})


PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.fixture
def page(user_rules: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The code blocks of the page about rules, run in one module."""
    module = ModuleType("rules_page")
    monkeypatch.setitem(sys.modules, "rules_page", module)
    torch.manual_seed(0)
    printed = io.StringIO()
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        with redirect_stdout(printed):
            exec(compile(block, str(PAGE), "exec"), module.__dict__)
    module.printed = printed.getvalue().splitlines()  # type: ignore[attr-defined]
    return module


def test_it_prints_what_it_says(page: ModuleType) -> None:
    said = re.findall(r"print\(.*\)  # (.*)", PAGE.read_text(encoding="utf-8"))
    assert len(said) == 4
    assert all(line.startswith(words) for words, line in zip(said, page.printed, strict=True)), page.printed


def test_the_pruned_network_equals_the_one_with_zeros(page: ModuleType) -> None:
    zeroed, x = page.model, torch.randn(2, 3, 8, 8)
    gone = [channel for channel in range(8) if channel not in (0, 2, 5)]
    with torch.no_grad():
        zeroed[3].weight[:, gone] = 0  # the reader no longer sees them
        assert torch.allclose(page.small(x), zeroed(x), atol=1e-5)


def test_every_rule_is_on_the_page() -> None:
    table = re.findall(r"^\| `(\w+)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(set(table) - {"prunus"}) == sorted(pr.rules.__all__)
