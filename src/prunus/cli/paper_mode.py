"""`prunus prune --paper`: the paper's settings, what differs from it, and what the run costs, before it starts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prunus.cli.console import say
from prunus.cli.images import UserData
from prunus.cli.network import NamedModel

if TYPE_CHECKING:
    from torch import nn

    from prunus.cli.images import AnyData
    from prunus.cli.prune import Request
    from prunus.graph.channel_graph import ChannelGraph


def as_in_the_paper(request: Request, named: NamedModel, typed: Collection[str]) -> Request:
    """The request with the paper's settings, batch size and excluded layers, but for the options that were `typed`."""
    from prunus.run.paper import paper_settings
    from prunus.studies.recipes import recipe_for
    from prunus.train.settings import preset_of

    settings = paper_settings(request.settings, request.data.name, named.name, typed)
    recipe = recipe_for(named.name)
    if recipe is not None and not {"only", "exclude"} & set(typed):
        settings = replace(settings, exclude=tuple(recipe.run.get("exclude", ())))
    options = request.options
    if "batch_size" not in typed:
        options = replace(options, batch_size=preset_of(settings.preset).batch_size)
    return replace(request, settings=settings, options=options)


def print_paper(
    network: nn.Module, images: AnyData, request: Request, named: NamedModel
) -> tuple[list[str], list[str]]:
    """Print the settings, what differs from the paper, what it leaves open, and the cost. Returns the middle two."""
    from prunus.graph.channel_graph import trace
    from prunus.util.batches import device_of, to_device

    graph = trace(network, to_device(images.example(), device_of(network)), request.settings.streams or "select")
    followed, differs, left = beside_the_paper(graph, request, named, user_data=isinstance(images, UserData))
    lines = [*followed, *(f"different from the paper: {text}" for text in differs)]
    lines += [f"left open in the paper: {text}" for text in left]
    say("\n".join([*lines, _cost(graph, images, request), ""]))
    return differs, left


def beside_the_paper(
    graph: ChannelGraph, request: Request, named: NamedModel, *, user_data: bool = False
) -> tuple[list[str], list[str], list[str]]:
    """The settings that follow the paper, what differs from it, and what it leaves open, in words."""
    from prunus.deciding.widths import candidates
    from prunus.run.paper import departures, left_open, option_of, schedule_for
    from prunus.studies.recipes import recipe_for
    from prunus.train.settings import preset_of

    settings, options, data, recipe = request.settings, request.options, request.data.name, recipe_for(named.name)
    excluded = None if recipe is None else tuple(recipe.run.get("exclude", ()))
    ridge = " without a ridge, as printed" if option_of(settings, "ridge") == 0 else ""
    followed = [
        f"the paper's settings: G-SD{ridge}, Algorithm 1 on all held-out images, alpha {settings.alpha:g},",
        f"schedule {settings.preset}, no repair, no distillation",
    ]
    if recipe is None:
        followed.append("no recipe has a network of this name: which layers are left alone is your choice (--exclude)")
    elif settings.exclude and settings.exclude == excluded:
        followed.append(f"not pruned, as in the paper: {', '.join(settings.exclude)}")
    units = len(candidates(graph, settings.exclude, settings.only))
    differs = departures(settings, data, named.name, exclude=excluded, units=units)
    if recipe is not None:  # what it says of its data set is true only there
        is_its_data = data.partition(":")[0] == recipe.run["data"].partition(":")[0]
        differs += recipe.departs if is_its_data else recipe.layers
    if user_data:
        followed.append("left to your loaders: batch size and augmentation")
        return followed, differs, [*left_open(settings, data)]
    size = preset_of(schedule_for(data, named.name)).batch_size
    if options.batch_size != size:
        differs.append(f"batch_size {size} -> {options.batch_size}")
    if not options.augment:
        differs.append("augmentation of the training images -> none")
    return followed, differs, [*left_open(settings, data)]


def _cost(graph: ChannelGraph, images: AnyData, request: Request) -> str:
    """What the run will cost on this machine, as far as the number of images is known without reading them."""
    from prunus.run.checkup import measure_speed
    from prunus.run.paper import paper_cost
    from prunus.util.batches import device_of, to_device

    train, held_out = _images_in(images, "train"), _images_in(images, "holdout")
    if not train or not held_out:
        silent = "your loaders do not tell how many images they have"
        return f"what the run costs is not known: {silent if isinstance(images, UserData) else 'nothing is held out'}"
    some = images.example()
    if not isinstance(images, UserData):
        some, *_ = images.loader("train", 64, limit=64).images_at(range(min(64, train)))
    speed = measure_speed(graph.model, to_device(some, device_of(graph.model)), quiet=True)
    return paper_cost(graph, request.settings, speed, train, held_out)


def _images_in(images: AnyData, part: Any) -> int | None:
    """Number of images of a part; None if a user-provided loader does not tell it without being read."""
    from prunus.run.identity import images_in

    if not isinstance(images, UserData):
        return images.count(part)
    loader = images.loaders[part]
    known, size = images_in(loader), getattr(loader, "batch_size", None)
    try:
        return len(loader) * size if known is None and isinstance(size, int) else known
    except TypeError:  # it has no length
        return None
