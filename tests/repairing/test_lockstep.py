"""A repair within a bound on memory gives what a repair without one gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan
from prunus.repairing import lockstep
from prunus.repairing import solve as layer_solve
from prunus.repairing.repair import repair
from prunus.repairing.value_store import Stops
from prunus.util.options import parse_memory
from tests.repairing.toys import KEEP, Residual, pictures


@pytest.mark.parametrize(
    ("how", "inplace", "enough"), [("solve", False, 10**6), ("solve", True, 20), ("bn", True, 10**6)]
)
def test_values_that_do_not_fit_are_kept_elsewhere_or_computed_again(
    how: str, inplace: bool, enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, where nothing is halved, all ways give the same network, also if early layers need fewer images."""
    torch.manual_seed(0)
    monkeypatch.setattr(layer_solve, "MOST_ROWS_PER_WEIGHT", enough)
    monkeypatch.setattr(layer_solve, "FEWEST_IMAGES", 10)
    monkeypatch.setattr(lockstep, "AT_ONCE", 2**14)  # a few images at once
    model = Residual(inplace).double().eval()
    graph = trace(model, pictures(1, 6))
    plan = Plan.of(graph, {"a1:out": KEEP, "b1:out": KEEP})
    batches = list(pictures(50, 6).split(20))
    want = repair(graph, plan, batches, how=how).state_dict()
    taken: list[list[bool]] = []

    def chosen(every: int, stops: Stops, capacity: float, disk: float) -> list[bool]:
        assert capacity == 0 and disk > 0
        taken.append([number % every == 0 for number in range(len(stops.sizes) - 1)] + [False])
        return taken[-1]

    monkeypatch.setattr(lockstep, "used_memory", lambda: 2**50)  # nothing fits
    for every in (2, 100):
        monkeypatch.setattr(lockstep, "checkpoints", partial(chosen, every))
        got = repair(graph, plan, iter(batches), how=how, memory="100M").state_dict()
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)
    assert len(taken) == 2


def test_half_precision_of_kept_values_hardly_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Residual().eval()
    images = pictures(90, 6).float()
    graph = trace(model, images[:1])
    plan = Plan.of(graph, {"a1:out": KEEP, "b1:out": KEEP})
    whole = repair(graph, plan, images)
    monkeypatch.setattr(lockstep, "used_memory", lambda: 2**50)
    monkeypatch.setattr(lockstep, "checkpoints", lambda stops, *_: [True] * len(stops.sizes))
    bounded = repair(graph, plan, images, memory="100M")
    fresh = pictures(20, 6, seed=1).float()
    with torch.no_grad():
        want, got, cut = whole(fresh), bounded(fresh), prune(graph, plan)(fresh)
    assert 0 < (got - want).norm() < 0.003 * (cut - want).norm()


def test_sizes_of_memory() -> None:
    assert parse_memory("4G") == parse_memory("4 GiB") == parse_memory("4096mb") == 4 * 2**30
    assert parse_memory("1.5g") == 3 * 2**29 and parse_memory(10**9) == 10**9
