"""The paper's settings, and what a run with them costs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from secateur import Settings, trace
from secateur.errors import DecideError
from secateur.running.paper import departures, paper_cost
from secateur.running.run_estimate import Speed
from secateur.zoo.models import create


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "l1"}, "the paper has metric gsd, not l1"),
        ({"split": "uniform"}, "the paper has split algorithm1, not uniform"),
        ({"repair": "solve"}, "the paper has repair none, not solve"),
        ({"repair": "bn"}, "the paper has repair none, not bn"),
        ({"distill": True}, "the paper has distill False, not True"),
        ({"rounds": 3}, "the paper has rounds None, not 3"),
        ({"mixup": 0.2}, "the paper has mixup 0.0, not 0.2"),
        ({"alpha": 5.9}, r"the paper's alpha is in \[2, 4\], got 5.9"),
    ],
)
def test_what_is_not_the_papers_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DecideError, match=words):
        Settings.paper(**changes)


def test_the_cost_of_a_run_on_vgg16() -> None:
    """At alpha 3, k = 4 layers lose what 3 channels of the dearest save: 3.4% of the MACs, so over 20 rounds."""
    model = create("vgg16", 10)
    graph = trace(model, torch.zeros(1, 3, 32, 32))
    # The dearest channel is one of the first layer (64 filters of 3 x 9 weights, read by 64 of 9, on 32 x 32 pixels)
    # or of a later one; all pairs of 3x3 layers by hand.
    widths = [(3, 32), (64, 32), (64, 16), (128, 16), (128, 8), (256, 8), (256, 8), (256, 4), (512, 4), (512, 4)]
    outs = [(64, 32), (128, 16), (128, 16), (256, 8), (256, 8), (256, 8), (512, 4), (512, 4), (512, 4), (512, 2)]
    dearest = max(9 * (i * s * s + o * t * t) for (i, s), (o, t) in zip(widths, outs, strict=True))
    settings = Settings.paper(target=0.801, k=4)
    speed = Speed(forward=0.001, train=0.004, batch_size=128, memory=None)
    found = paper_cost(graph, settings, speed, train_images=45_000, held_out=5_000)
    assert found.share == pytest.approx(4 * 3 * dearest / graph.macs) == pytest.approx(0.034, abs=0.0005)
    assert found.rounds == math.ceil(0.801 * graph.macs / (4 * 3 * dearest)) and found.rounds > 20
    units = 13  # of which the last is read by the classifier
    per_round = 0.001 * 45_000 + 0.5 * 0.001 * 5_000 * units + 200 * (0.004 * 45_000 + 0.001 * 5_000)
    assert found.round_seconds == pytest.approx(per_round)
    assert f"at least {found.rounds} rounds of 200 epochs" in str(found)
    assert f"about {found.rounds * per_round / 3600:,.1f} hours" in str(found)
    open_end = paper_cost(graph, Settings.paper(max_drop=1.0), speed, 45_000, 5_000)
    assert open_end.rounds is None and "a round" in str(open_end)
