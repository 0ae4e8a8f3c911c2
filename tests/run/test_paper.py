"""The paper's settings, what a run with them costs, and what the paper leaves open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from prunus import Settings, compress, trace
from prunus.deciding.widths import candidates
from prunus.errors import DecideError
from prunus.run import checkup
from prunus.run.checkup import Speed
from prunus.run.paper import departures, left_open, paper_cost
from prunus.zoo.models import create
from tests.deciding.toys import Mixed, algorithm_1, mixed


def test_the_papers_settings_for_each_data_set() -> None:
    """Section 4 of the paper."""
    cifar = Settings.paper(target=0.5)
    assert (cifar.metric, cifar.split, cifar.exact, cifar.measure) == ("gsd", "algorithm1", True, "accuracy")
    assert (cifar.repair, cifar.distill, cifar.alpha, cifar.k, cifar.rounds) == ("none", False, 3.0, None, None)
    assert (cifar.preset, cifar.epochs, cifar.lr, cifar.num_images) == ("cifar", 200, 0.01, None)
    vgg = Settings.paper("imagenet:ILSVRC", "vgg16_imagenet", target=0.5, alpha=4.0, k=4)
    assert (vgg.epochs, vgg.lr, vgg.num_images, vgg.alpha, vgg.k) == (30, 0.0003, 10_000, 4.0, 4)
    assert Settings.paper("imagenet:ILSVRC", "resnet50").epochs == 120
    assert departures(cifar, "cifar10") == []
    shorter = Settings.paper(epochs=2, lr=0.05)
    assert departures(shorter, "cifar10") == ["epochs 200 -> 2", "lr 0.01 -> 0.05"]


def own(*_: Any) -> Any:
    """A function of the user's own."""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "l1"}, "the paper has the metric gsd: leave out --metric l1, or leave out --paper"),
        ({"metric": own}, "the metric gsd: leave out metric, or"),
        ({"metric_options": {"power": 2}}, "no option of G-SD but its ridge and its tap: leave out metric_options, or"),
        ({"split": "uniform"}, "the split algorithm1: leave out --split uniform, or"),
        ({"exact": False}, "a ranking on all held-out images: leave out --set exact=false, or"),
        ({"measure": "loss"}, "a ranking by accuracy: leave out --set measure=loss, or"),
        ({"repair": "solve"}, "no repair: leave out --repair solve, or"),
        ({"trials": "repaired"}, "no repair before the ranking: leave out --set trials=repaired, or"),
        ({"distill": True}, "no distillation: leave out --distill, or"),
        ({"temperature": 2.0}, "no distillation: leave out --set temperature=2.0, or"),
        ({"rounds": 3}, "no given number of rounds: leave out --rounds 3, or"),
        ({"speedup": 1.5}, "no latency target: leave out --speedup 1.5, or"),
        ({"params": 1e6}, r"no goal in weights \(Algorithm 1 counts MACs\): leave out --params 1000000, or"),
        ({"round_to": 8}, "no multiples that widths are rounded to: leave out --round-to 8, or"),
        ({"fit": own}, "a retraining of its own: leave out fit, or"),
        ({"evaluate": own}, "no evaluation but accuracy: leave out evaluate, or"),
        ({"alpha": 5.9}, r"the paper has an alpha in \[2, 4\]: leave out --set alpha=5.9, or"),
        (
            {"whole_steps": False},
            "all n_l channels of the chosen layers in every round, the last one too: leave out",
        ),
    ],
)
def test_what_is_not_the_papers_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DecideError, match=words):
        Settings.paper(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trials": "cut", "exact": True, "metric": "gsd", "repair": "none", "task": "classification"}, []),
        ({"preset": "cosine"}, ["preset cifar -> cosine", "epochs 200 -> 30", "lr 0.01 -> 0.05"]),
        ({"target": 0.5, "last_epochs": 3}, ["last_epochs as before -> 3"]),
        ({"metric": "gsd:tap=before_activation"}, []),  # which the paper leaves open
        ({"target": 0.5, "max_drop": 0.0}, ["max_drop no limit -> 0.0"]),
        ({"k": 4}, []),  # of 13 units
        ({"k": 9}, ["k a third of the units -> 9"]),
        ({"only": ("a", "b")}, ["only all units -> a, b"]),
        ({"exclude": "c"}, ["exclude conv1:out -> c"]),
        ({"task": "multilabel"}, ["task classification -> multilabel"]),
    ],
)
def test_what_may_differ_is_named(changes: dict[str, Any], words: list[str]) -> None:
    settings = Settings.paper(**{"exclude": ("conv1:out",), **changes})
    assert departures(settings, "cifar10", exclude=("conv1:out",), units=13) == words
    unknown = departures(settings, "cifar10")  # a network that is not in the paper
    assert unknown == ([f"k a third of the units -> {settings.k}"] if settings.k == 4 else []) + [
        line for line in words if not line.startswith("exclude")
    ]


def test_the_cost_of_a_run_on_vgg16() -> None:
    """At alpha 3, k = 4 layers lose what 3 channels of the dearest save: 3.4% of the MACs, so over 20 rounds.

    If all widths shrink alike, channels cost sqrt(MACs left) of what they did: more rounds, 2 (1 - sqrt(left)) / 3.4%.
    """
    model = create("vgg16", 10)
    graph = trace(model, torch.zeros(1, 3, 32, 32))
    # The dearest channel is one of the first layer (64 filters of 3 x 9 weights, read by 64 of 9, on 32 x 32 pixels)
    # or of a later one; all pairs of 3x3 layers by hand.
    widths = [(3, 32), (64, 32), (64, 16), (128, 16), (128, 8), (256, 8), (256, 8), (256, 4), (512, 4), (512, 4)]
    outs = [(64, 32), (128, 16), (128, 16), (256, 8), (256, 8), (256, 8), (512, 4), (512, 4), (512, 4), (512, 2)]
    dearest = max(9 * (i * s * s + o * t * t) for (i, s), (o, t) in zip(widths, outs, strict=True))
    settings = Settings.paper(target=0.801, k=4)
    speed = Speed(forward=0.001, train=0.004, batch_size=128)
    found = paper_cost(graph, settings, speed, train_images=45_000, held_out=5_000)
    share = 4 * 3 * dearest / graph.macs
    assert share == pytest.approx(0.034, abs=0.0005) and f"a round removes {share:.1%} of the network" in found
    left = 1 - 0.801 + 0.005  # a goal counts as met within 0.5% of the network
    rounds = math.ceil((1 - left) / share), math.ceil(2 * (1 - math.sqrt(left)) / share)
    assert rounds == (24, 33)
    units = 13  # of which the last is read by the classifier
    ranking, epoch = 0.001 * 45_000 + 0.5 * 0.001 * 5_000 * units, 0.004 * 45_000 + 0.001 * 5_000

    def hours(seconds: float) -> str:
        minutes = round(seconds) // 60
        return f"{minutes // 60} h {minutes % 60} min"

    assert "24 to 33 rounds of 200 epochs, at most 6,600 epochs in all" in found
    assert f"\nat most {hours(33 * (ranking + 200 * epoch))} on this machine if nothing else runs" in found
    assert "(measured now: 1,000 images/s forward, 250 in training)" in found
    shorter = paper_cost(graph, replace(settings, last_epochs=50), speed, 45_000, 5_000)
    assert "rounds of 200 epochs (the last of 50), at most 6,450 epochs in all" in shorter
    assert hours(33 * ranking + 6450 * epoch) in shorter
    open_end = paper_cost(graph, Settings.paper(max_drop=1.0), speed, 45_000, 5_000)
    assert f"200 epochs a round, about {hours(ranking + 200 * epoch)} on this machine" in open_end


# -- what the paper leaves open


def test_every_open_point_is_named_once() -> None:
    """Section 4 of the paper leaves seven points open; an eighth is the schedule of a data set that it has not."""
    starts = ["G-SD divides by variances", "Whether G-SD sees activations", "The paper gives one number", "Which epoch"]
    starts += ["How far a layer may shrink", "k is 'around one-third'", "The layers are chosen by validation accuracy"]

    def said(data: str = "cifar10", **changes: Any) -> list[str]:
        return [sentence[:9] for sentence in left_open(Settings.paper(data, **changes), data)]

    starts = [start[:9] for start in starts]
    for data in ("cifar10", "cifar100", "imagenet:ILSVRC"):
        assert said(data) == starts
    for changes in ({"metric": "gsd:ridge=0"}, {"metric_options": {"ridge": 0}}):  # the paper prints no ridge
        assert said(**changes) == starts[1:]
    assert said(epochs=0) == [*starts[:2], *starts[4:]]
    assert said("digits") == [*starts, "The paper"]
    assert said("digits", preset="cosine") == starts  # which is named as different from the paper


def test_speed_is_told_for_a_machine_on_which_nothing_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the clock every call takes 100 times its processor time, as if others had the cores; two threads share it."""
    clock, used = [0.0], [0.0]

    def work(*_: Any, **__: Any) -> torch.Tensor:
        used[0] += 0.4
        clock[0] += 40.0
        return torch.zeros(8, 10)

    monkeypatch.setattr(checkup, "call", work)
    monkeypatch.setattr(checkup, "_training_step", lambda *_: work)
    monkeypatch.setattr("prunus.timing.latency.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("prunus.timing.latency.time.process_time", lambda: used[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model, images = create("lenet5"), torch.zeros(8, 1, 32, 32)
    quiet = checkup.measure_speed(model, images)
    assert quiet.batch_size * quiet.forward == pytest.approx(0.2) == pytest.approx(quiet.batch_size * quiet.train)


def test_the_last_round_removes_all_n_l_channels() -> None:
    """A goal of half a step: the chosen units lose n_l of Eqn. 3, with FLOSS counted on networks without a channel."""
    model, graph, scores, images = mixed()
    literal = algorithm_1(model, graph, scores, candidates(graph), [], Mixed.example, alpha=2.0)
    step = 2 * 2.0 * max(literal.floss.values()) / graph.macs  # of two units
    settings = Settings.paper(target=step / 2, alpha=2.0, k=2, epochs=0, timing=False)
    result = compress(model, images, images, example=Mixed.example, settings=settings, progress=False)
    (only,) = result.rounds
    assert only.chosen == {name: literal.removed[name] for name in only.chosen} and len(only.chosen) == 2
    assert result.summary["removed"]["macs"] > 0.75 * step  # and not half of it
