"""Repair gives back what can be given back exactly, leaves everything else alone, and says what it cannot use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from prunus.errors import DataError, PlanError, RunError
from prunus.graph.channel_graph import ChannelGraph, prune, trace
from prunus.graph.plan import Plan
from prunus.graph.units import Streams, Unit
from prunus.repair.repair import REPAIRS, Repair
from prunus.repair.repair import repair
from prunus.repair.unit_repair import repair_each
from prunus.util.batches import call
from tests.nets import NETS
from tests.train.toys import same_tensors, state_of


def conv(inputs: int, outputs: int, **options: object) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, **options)  # type: ignore[arg-type]


def twins(layer: nn.Conv2d) -> nn.Conv2d:
    """The second half of the filters is 0.5 times the first half: after a ReLU it says nothing new."""
    half = layer.out_channels // 2
    with torch.no_grad():
        layer.weight[half:] = 0.5 * layer.weight[:half]
        if layer.bias is not None:
            layer.bias[half:] = 0.5 * layer.bias[:half]
    return layer


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build().double().eval()


def pictures(count: int = 40, side: int = 8, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=draw, dtype=torch.float64)


def half_of(graph: ChannelGraph, name: str) -> Plan:
    return Plan.of(graph, {name: range(graph.units[name].width // 2)})


def traced(model: nn.Module) -> ChannelGraph:
    return trace(model, pictures(1))


class Changer(nn.Module):
    """Its forward looks at the number of images, which a trace then holds as a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = twins(conv(3, 8)), conv(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x))).view(int(x.shape[0]), -1)


READERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), conv(8, 5)),
    "strided, padded, dilated": lambda: nn.Sequential(
        twins(conv(3, 8)), nn.ReLU(), conv(8, 5, stride=2, padding=2, dilation=2)
    ),
    "reflected": lambda: nn.Sequential(
        twins(conv(3, 8)), nn.ReLU(), conv(8, 5, padding=1, padding_mode="reflect", bias=False)
    ),
    "same": lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), conv(8, 5, padding="same")),
    "oblong": lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), nn.Conv2d(8, 5, (1, 3), padding=(0, 1))),
    "linear": lambda: nn.Sequential(twins(conv(3, 8, stride=3)), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)),
    "two readers in a row": lambda: nn.Sequential(
        twins(conv(3, 8)),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        conv(8, 6, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        conv(6, 4),
    ),
    "depthwise": lambda: nn.Sequential(
        twins(conv(3, 8)), nn.ReLU(), nn.Conv2d(8, 8, 1, groups=8, bias=False), conv(8, 4)
    ),
    "sizes looked at": Changer,
}


@pytest.mark.parametrize("name", READERS)
def test_channels_that_say_nothing_new_are_given_back_exactly(name: str) -> None:
    model = seeded(READERS[name])
    if name == "depthwise":  # the filters of twins must be twins for the next layer to see nothing new
        with torch.no_grad():
            model[2].weight[4:] = model[2].weight[:4]  # type: ignore[index]
    graph = traced(model)
    plan = half_of(graph, next(iter(graph.units)))
    fresh = pictures(seed=1)
    with torch.no_grad():
        want, cut = model(fresh), prune(graph, plan)(fresh)
        got = repair(graph, plan, pictures(70), ridge=1e-12)(fresh)
    assert (cut - want).abs().max() > 0.05  # there was something to repair
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


def test_groups_are_solved_one_by_one() -> None:
    """Each group loses the second half of its own inputs, twins of its first half."""

    def build() -> nn.Module:
        first = conv(3, 8)
        with torch.no_grad():
            for group in (0, 4):
                first.weight[group + 2 : group + 4] = 3 * first.weight[group : group + 2]
                first.bias[group + 2 : group + 4] = 3 * first.bias[group : group + 2]  # type: ignore[index]
        return nn.Sequential(first, nn.ReLU(), conv(8, 6, groups=2))

    model = seeded(build)
    graph = traced(model)
    plan = Plan.of(graph, {next(iter(graph.units)): [0, 1, 4, 5]})
    got = repair(graph, plan, pictures(), ridge=1e-12)
    with torch.no_grad():
        assert torch.allclose(got(pictures(seed=1)), model(pictures(seed=1)), rtol=1e-6, atol=1e-6)


def test_a_constant_channel_goes_into_the_norm_behind() -> None:
    """A removed channel that is 2 everywhere adds 2 x the sum of its kernel; the norm behind takes that."""

    def build() -> nn.Module:
        first = conv(3, 4)
        with torch.no_grad():
            first.weight[3] = 0
            first.bias[3] = 2  # type: ignore[index]
        return nn.Sequential(first, nn.ReLU(), conv(4, 5, bias=False), nn.BatchNorm2d(5))

    model = seeded(build)
    graph = traced(model)
    plan = Plan.of(graph, {next(iter(graph.units)): [0, 1, 2]})
    got = repair(graph, plan, pictures())
    added = 2 * model[2].weight[:, 3].sum((1, 2))  # type: ignore[index]
    assert torch.allclose(got[3].running_mean, -added, atol=1e-8)  # type: ignore[index]
    assert torch.allclose(got[2].weight, model[2].weight[:, :3], atol=1e-8)  # type: ignore[index]


def test_nothing_of_the_original_changes_and_the_result_is_reproducible() -> None:
    model = seeded(READERS["two readers in a row"])
    model.train()
    model[1].eval()  # type: ignore[index]
    before, state = state_of(model), torch.random.get_rng_state()
    graph = traced(model)
    plan = half_of(graph, "0:out")
    images = pictures()
    kept = images.clone()
    results = [repair(graph, plan, images, positions=9, seed=seed) for seed in (0, 0, 1)]
    assert same_tensors(state_of(model), before)
    assert torch.equal(images, kept)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [m.training for m in model] == [True, False, True, True, True, True, True]  # type: ignore[union-attr]
    assert [m.training for m in results[0]] == [m.training for m in model]  # type: ignore[union-attr]
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert same_tensors(state_of(results[0]), state_of(results[1]))
    assert not same_tensors(state_of(results[0]), state_of(results[2]))  # other positions


def test_batches_of_any_form_give_what_the_tensor_gives() -> None:
    model = seeded(READERS["plain"])
    graph = traced(model)
    plan, images = half_of(graph, "0:out"), pictures(20)
    labels = torch.zeros(10)
    want = state_of(repair(graph, plan, images))
    forms: list[list[object]] = [
        [images[:10], images[10:]],
        [(images[:10], labels), (images[10:], labels)],
        [[images[:10], labels, "more"], [images[10:], labels, "more"]],
        [{"image": images[:10], "label": labels}, {"pixel_values": images[10:]}],
    ]
    for form in forms:
        assert same_tensors(state_of(repair(graph, plan, form)), want)
        assert same_tensors(state_of(repair(graph, plan, iter(form))), want)


def test_only_what_was_cut_is_solved_if_asked() -> None:
    model = seeded(READERS["two readers in a row"])
    graph = traced(model)
    plan = Plan.of(graph, {"0:out": range(3)})
    seen: list[tuple[int, int]] = []
    cut = repair(graph, plan, pictures(), layers="cut", progress=lambda *step: seen.append(step))
    assert seen == [(1, 1)]
    assert torch.equal(cut[6].weight, model[6].weight)  # type: ignore[index]
    seen.clear()
    everything = repair(graph, plan, pictures(), progress=lambda *step: seen.append(step))
    assert seen == [(1, 2), (2, 2)]
    assert not torch.equal(everything[6].weight, model[6].weight)  # type: ignore[index]
    with torch.no_grad():
        errors = [
            float((m(pictures()) - model(pictures())).square().mean()) for m in (prune(graph, plan), cut, everything)
        ]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.9 * errors[1]


def test_a_plan_that_keeps_everything_gives_the_original() -> None:
    model = seeded(READERS["two readers in a row"])
    graph = traced(model)
    for how in ("solve", "bn"):
        assert same_tensors(state_of(repair(graph, Plan.of(graph, {}), pictures(), how=how)), state_of(model))  # type: ignore[arg-type]


class Doubling(nn.Conv2d):
    """Acts like a convolution as far as channels go, but is not weight times patches."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_layer_that_computes_something_else_stays_as_cut(caplog: pytest.LogCaptureFixture) -> None:
    model = seeded(lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), Doubling(8, 5, 3)))
    graph = traced(model)
    plan = half_of(graph, "0:out")
    with caplog.at_level(logging.WARNING):
        got = repair(graph, plan, pictures())
    assert "2 (Doubling) is not a linear map" in caplog.text
    assert same_tensors(state_of(got), state_of(prune(graph, plan)))


def test_too_few_images_are_said_and_met_with_a_larger_ridge(caplog: pytest.LogCaptureFixture) -> None:
    """4 of 8 channels x 9 taps = 36 weights per filter; 2 rows for each are 72, and an image gives 16."""
    model = seeded(lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 5)))
    graph = traced(model)
    plan = half_of(graph, "0:out")
    cut = prune(graph, plan)
    with caplog.at_level(logging.WARNING):
        few = repair(graph, plan, pictures(2))
    assert (
        "2 images are too few for 1 of the layers: 2 has 36 weights per filter, an image gives it 16 rows, and it "
        "needs at least 5 images. A larger ridge is used there."
    ) in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        repair(graph, plan, pictures(5))
    assert caplog.text == ""
    small = repair(graph, plan, pictures(2), ridge=1e-6)  # as asked, though it fits noise
    moved = [float((m[2].weight - cut[2].weight).detach().norm()) for m in (few, small)]  # type: ignore[index]
    assert moved[0] < 0.5 * moved[1]
    with torch.no_grad():
        fresh = pictures(100, seed=5)
        errors = [float((m(fresh) - model(fresh)).square().mean()) for m in (few, cut)]
    assert errors[0] < errors[1]  # even two images help


def test_bad_input_is_refused_in_words() -> None:
    model = seeded(READERS["plain"])
    graph = traced(model)
    plan, images = half_of(graph, "0:out"), pictures(4)
    broken = images.clone()
    broken[1, 2, 3, 4] = float("nan")
    for bad, words in (
        (pictures(4, side=9), r"traced with images of \[3, 8, 8\] \(float64\), got images of \[3, 9, 9\]"),
        (images.float(), "float32"),
        (broken, "NaN"),
        (images[:0], "no images"),
        ([], "no batch"),
        ([{"picture": images}], "picture"),
        (["images"], "str"),
    ):
        with pytest.raises(DataError, match=words):
            repair(graph, plan, bad)
    for options, words in (
        ({"how": "solv"}, "no repair called 'solv': did you mean solve"),
        ({"layers": "some"}, "layers must be one of changed, cut"),
        ({"ridge": 0.0}, "ridge must be above 0"),
        ({"ridge": float("nan")}, "ridge must be above 0"),
        ({"how": "bn", "ridge": 1.0}, "'bn' has no option 'ridge'; it has: memory"),
        ({"rigde": 1.0}, r"no option 'rigde' \(did you mean ridge\?\); it has: layers, ridge, positions"),
        ({"positions": 0}, "at least 1"),
    ):
        with pytest.raises(RunError, match=words):
            repair(graph, plan, images, **options)  # type: ignore[arg-type]
    other = traced(seeded(READERS["linear"]))
    with pytest.raises(PlanError, match="another network"):
        repair(graph, half_of(other, "0:out"), images)


def test_none_only_prunes_and_needs_no_images() -> None:
    graph = traced(seeded(READERS["plain"]))
    plan = half_of(graph, "0:out")
    assert same_tensors(state_of(repair(graph, plan, None, how="none")), state_of(prune(graph, plan)))
    with pytest.raises(RunError, match="'solve' needs images"):
        repair(graph, plan, None)
    with pytest.raises(RunError, match="cannot be used for units"):
        repair_each(graph, pictures(4), how="none")


def test_an_own_method_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(seeded(READERS["plain"]))
    monkeypatch.setattr(REPAIRS, "_registered", {})
    REPAIRS.register(Repair(name="twice", help="Prune and double the last bias.", run=_doubled, needs_images=False))
    found = repair(graph, half_of(graph, "0:out"), None, how="twice", times=3.0)
    assert found == ("0:out", 3.0) and list(REPAIRS) == ["bn", "none", "solve", "twice"]


def _doubled(graph: Any, plan: Plan, images: Any, *, seed: int, progress: Any, times: float = 2.0) -> Any:
    return next(iter(plan.keep)), times


@pytest.mark.parametrize("streams", ["select", "coupled"])
@pytest.mark.parametrize("name", NETS)
def test_every_kind_of_network_comes_closer_to_the_original(name: str, streams: Streams) -> None:
    """Squared error of all outputs, half of every unit removed, random weights: less than what the cut left."""
    model = seeded(NETS[name].build)
    example = tree_map(lambda v: v.double() if v.is_floating_point() else v, NETS[name].example())
    graph = trace(model, example, streams)
    keep = {unit.name: first_half_of_each_block(unit) for unit in graph.units.values()}
    plan = Plan.of(graph, graph.balance(keep))
    draw = torch.Generator().manual_seed(0)
    images = tree_map(lambda v: torch.randn(100, *v.shape[1:], dtype=v.dtype, generator=draw), example)
    solved, normed = (repair(graph, plan, [(images, None)], how=how) for how in ("solve", "bn"))  # type: ignore[arg-type]
    with torch.no_grad():
        want, cut, got, calmed = (call(m, images) for m in (model, prune(graph, plan), solved, normed))
    assert (got - want).square().mean() < 0.9 * (cut - want).square().mean()
    assert calmed.shape == want.shape


def first_half_of_each_block(unit: Unit) -> list[int]:
    blocks = [np.flatnonzero(unit.blocks == block) for block in range(unit.granule)]
    return sorted(int(i) for block in blocks for i in block[: max(1, len(block) // 2)])
