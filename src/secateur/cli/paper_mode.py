"""`secateur prune --paper`: the paper's settings, and what they cost, before the run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secateur.cli.common import console
from secateur.cli.from_settings import settings_from, values_of
from secateur.running.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from secateur.zoo.data import ImageData


def as_in_the_paper(asked: dict[str, Any], usual_batch: int) -> dict[str, Any]:
    """The options with the paper's settings, its batch size among them."""
    from secateur.running.paper import paper_settings
    from secateur.training.presets import preset_of

    settings = paper_settings(settings_from(Settings, asked), asked["data"], asked["model"])
    size = asked["batch_size"] if asked["batch_size"] != usual_batch else preset_of(settings.preset).batch_size
    return {**values_of(settings), "batch_size": size}


def say_cost(network: nn.Module, images: ImageData, settings: Settings, asked: dict[str, Any]) -> None:
    """What differs from the paper, what it leaves open, and what the run will cost on this machine."""
    import torch

    from secateur.channels.graph import trace
    from secateur.running.paper import OPEN, departures, paper_cost
    from secateur.running.run_estimate import measure_speed

    console.print(
        f"the paper's settings: G-SD, Algorithm 1 on all held-out images, alpha {settings.alpha:g},\n"
        f"schedule {settings.preset}, no repair, no distillation"
    )
    for words in departures(settings, asked["data"], asked["model"]):
        console.print(f"different from the paper: {words}", soft_wrap=True)
    for words in OPEN:
        console.print(f"left open in the paper: {words}", soft_wrap=True)
    home = next(network.parameters()).device
    graph = trace(network, torch.zeros(1, *images.shape, device=home), settings.streams)
    some, _ = images.loader("train", 64, limit=64).images_at(range(min(64, images.count("train"))))
    speed = measure_speed(network, some.to(home))
    console.print(str(paper_cost(graph, settings, speed, images.count("train"), images.count("holdout"))) + "\n")
