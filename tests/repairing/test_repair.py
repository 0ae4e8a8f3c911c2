"""What all repairs share: the original is left alone, images come in any form, methods have names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan
from prunus.graph.surgery import zeroed
from prunus.graph.units import Streams
from prunus.repairing.repair import REPAIRS, Repair, repair
from prunus.repairing.unit_repair import repair_each
from prunus.scoring.score import score
from prunus.util.batches import call
from tests.nets import NETS
from tests.repairing.toys import READERS, half_of, part_of_each_block, pictures, seeded, traced
from tests.train.toys import same_tensors, state_of


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
        assert same_tensors(state_of(repair(graph, plan, iter(form))), want)


def test_a_plan_that_keeps_everything_gives_the_original_and_none_only_prunes() -> None:
    model = seeded(READERS["two readers in a row"])
    graph = traced(model)
    for how in ("solve", "bn"):
        assert same_tensors(state_of(repair(graph, Plan.of(graph, {}), pictures(), how=how)), state_of(model))
    plan = half_of(graph, "0:out")
    assert same_tensors(state_of(repair(graph, plan, None, how="none")), state_of(prune(graph, plan)))


def test_a_registered_method_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(seeded(READERS["plain"]))
    monkeypatch.setattr(REPAIRS, "_registered", {})
    REPAIRS.register(Repair(name="twice", help="Prune and double the last bias.", run=_doubled, needs_images=False))
    found = repair(graph, half_of(graph, "0:out"), None, how="twice", times=3.0)
    assert found == ("0:out", 3.0) and list(REPAIRS) == ["bn", "none", "solve", "twice"]


def _doubled(graph: Any, plan: Plan, images: Any, *, seed: int, progress: Any, times: float = 2.0) -> Any:
    return next(iter(plan.keep)), times


@pytest.mark.parametrize(
    ("name", "streams"), [*((name, "select") for name in NETS), ("residual", "coupled"), ("pre_activation", "coupled")]
)
@torch.no_grad()
def test_every_kind_of_network_comes_closer_to_the_original(name: str, streams: Streams) -> None:
    """Squared error of all outputs with random weights: half of every unit removed, and half of each unit alone."""
    model = seeded(NETS[name].build)
    example = tree_map(lambda v: v.double() if v.is_floating_point() else v, NETS[name].example())
    graph = trace(model, example, streams)
    half = {
        unit.name: part_of_each_block(unit, slice(max(1, unit.width // unit.granule // 2)))
        for unit in graph.units.values()
    }
    plan = Plan.of(graph, graph.balance(half))
    draw = torch.Generator().manual_seed(0)
    images = tree_map(lambda v: torch.randn(100, *v.shape[1:], dtype=v.dtype, generator=draw), example)
    want = call(model, images)

    def error(network: torch.nn.Module) -> float:
        return float((call(network, images) - want).square().mean())

    solved, normed = (repair(graph, plan, [(images, None)], how=how) for how in ("solve", "bn"))
    assert error(solved) < 0.9 * error(prune(graph, plan))
    assert call(normed, images).shape == want.shape
    units, errors = repair_each(graph, [(images, None)]), []
    for unit, kept in half.items():
        with zeroed(graph, {unit: kept}):
            cut = error(model)
        with units(unit, kept):
            errors.append((cut, error(model)))
    before, after = np.mean(errors, axis=0)
    assert after < 0.9 * before
    scores = score(graph, units, "rebuilt").values
    for unit, values in scores.items():
        assert len(values) == graph.units[unit].width and np.isfinite(values).all() and (values >= 0).all()
    assert len(scores) > len(graph.units) / 2  # not those whose readers are called twice
