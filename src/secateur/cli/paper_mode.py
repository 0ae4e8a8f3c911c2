"""`secateur prune --paper`: the paper's settings, and what they cost, before the run starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from secateur.cli.common import console
from secateur.cli.from_settings import settings_from, values_of
from secateur.cli.model_argument import resolve
from secateur.cli.own_data import OwnData
from secateur.running.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from secateur.channels.graph import ChannelGraph
    from secateur.cli.options import AnyData
    from secateur.studies.recipes.recipe import Recipe


def as_in_the_paper(asked: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The options with the paper's settings, its batch size and the layers that it does not prune among them.

    given: names of the options that were typed.
    """
    from secateur.running.paper import paper_settings
    from secateur.training.presets import preset_of

    name = resolve(asked["model"]).name
    settings = paper_settings(settings_from(Settings, asked), asked["data"], name, given)
    recipe = _recipe(asked)
    if recipe is not None and not {"only", "exclude"} & set(given):
        settings = replace(settings, exclude=_excluded(recipe))
    size = asked["batch_size"] if "batch_size" in given else preset_of(settings.preset).batch_size
    return {**values_of(settings), "batch_size": size}


def say(network: nn.Module, images: AnyData, settings: Settings, asked: dict[str, Any]) -> None:
    """The settings, what differs from the paper, what it leaves open, and what the run will cost on this machine."""
    from secateur.base.batches import device_of, labels_to
    from secateur.channels.graph import trace

    graph = trace(network, labels_to(images.example(), device_of(network)), settings.streams)
    _say_settings(graph, settings, asked, own=isinstance(images, OwnData))
    _say_cost(graph, images, settings)


def _say_settings(graph: ChannelGraph, settings: Settings, asked: dict[str, Any], *, own: bool) -> None:
    """own: batches come from loaders of the user's own."""
    from secateur.running.paper import ridge_of
    from secateur.running.paper_open import left_open

    ridge = " without a ridge, as printed" if ridge_of(settings) == 0 else ""
    console.print(
        f"the paper's settings: G-SD{ridge}, Algorithm 1 on all held-out images, alpha {settings.alpha:g},\n"
        f"schedule {settings.preset}, no repair, no distillation",
        soft_wrap=True,
    )
    recipe = _recipe(asked)
    if recipe is None:
        words = "no recipe has a network of this name: which layers are left alone is your choice (--exclude)"
        console.print(words, soft_wrap=True)
    elif settings.exclude and settings.exclude == _excluded(recipe):
        console.print(f"not pruned, as in the paper: {', '.join(settings.exclude)}", soft_wrap=True)
    for words in _departures(graph, settings, asked, recipe, own=own):
        console.print(f"different from the paper: {words}", soft_wrap=True)
    for words in left_open(settings, asked["data"], None if own else asked["holdout"]):
        console.print(f"left open in the paper: {words}", soft_wrap=True)
    if own:
        console.print("left to your loaders: batch size and augmentation")


def _departures(
    graph: ChannelGraph, settings: Settings, asked: dict[str, Any], recipe: Recipe | None, *, own: bool
) -> list[str]:
    """What differs from the paper, those of the network's recipe and of options of the command line among it."""
    from secateur.deciding.candidates import candidates
    from secateur.running.paper import departures, schedule_for
    from secateur.training.presets import preset_of

    data, name = asked["data"], resolve(asked["model"]).name
    units = len(candidates(graph, settings.exclude, settings.only))
    excluded = None if recipe is None else _excluded(recipe)
    found = departures(settings, data, name, exclude=excluded, units=units)
    if recipe is not None:
        is_its_data = data.partition(":")[0] == recipe.run["data"].partition(":")[0]
        found += recipe.departs if is_its_data else recipe.layers
    if own:
        return found
    size = preset_of(schedule_for(data, name)).batch_size
    found += [f"batch_size {size} -> {asked['batch_size']}"] if asked["batch_size"] != size else []
    return found if asked["augment"] else [*found, "augmentation of the training images -> none"]


def _say_cost(graph: ChannelGraph, images: AnyData, settings: Settings) -> None:
    from secateur.base.batches import device_of, labels_to
    from secateur.measuring.tasks import task_of
    from secateur.running.paper import paper_cost
    from secateur.running.run_estimate import measure_speed

    train, held_out = _images_in(images, "train"), _images_in(images, "holdout")
    if not train or not held_out:
        own = "your loaders do not tell how many images they have"
        why = own if isinstance(images, OwnData) else "there are no held-out images"
        console.print(f"what the run costs is not known: {why}\n", soft_wrap=True)
        return
    some = images.example()
    if not isinstance(images, OwnData):
        some, _ = images.loader("train", 64, limit=64).images_at(range(min(64, train)))
    speed = measure_speed(graph.model, labels_to(some, device_of(graph.model)), task_of(settings.task))
    console.print(str(paper_cost(graph, settings, speed, train, held_out)) + "\n")


def _images_in(images: AnyData, part: str) -> int | None:
    """Number of images of a part; None if a loader of the user's own does not tell it without being read."""
    from secateur.running.data_identity import images_in

    if not isinstance(images, OwnData):
        return images.count(part)  # type: ignore[arg-type]
    loader = images.loaders[part]
    known, size = images_in(loader), getattr(loader, "batch_size", None)
    try:
        return len(loader) * size if known is None and isinstance(size, int) else known
    except TypeError:  # it has no length
        return None


def _recipe(asked: dict[str, Any]) -> Recipe | None:
    from secateur.studies.recipes.recipe import recipe_for

    return recipe_for(resolve(asked["model"]).name)


def _excluded(recipe: Recipe) -> tuple[str, ...]:
    return tuple(recipe.run.get("exclude", ()))
