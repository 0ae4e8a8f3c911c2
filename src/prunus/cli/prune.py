"""prunus prune: the main job, from a trained network and labelled images to a smaller network in a folder."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import MODEL_HELP, Early, ModelArgument, console, friendly, resolve, resumable, run_folder
from prunus.cli.inputs import DEMO_DATA, DEMO_MODEL, OwnData, demo_network
from prunus.cli.options import (
    DEFAULT_DATA,
    DeviceOptions,
    EverydayData,
    command_line,
    options_from_settings,
    settings_from,
    task_for,
    values_of,
)
from prunus.cli.watch import showing
from prunus.errors import DataError, ModelError, RunError
from prunus.run.settings import Settings, check_settings
from prunus.util.files import PRUNING, read_object, refuse_others
from prunus.util.options import check, option

if TYPE_CHECKING:
    from torch import nn

    from prunus.cli.options import AnyData
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.run.compress import Compressed
    from prunus.studies.recipes import Recipe


# `prunus prune --paper`: the paper's settings, and what they cost, before the run starts.


def as_in_the_paper(asked: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The options with the paper's settings, its batch size and the layers that it does not prune among them.

    given: names of the options that were typed.
    """
    from prunus.run.paper import paper_settings
    from prunus.train.settings import preset_of

    name = resolve(asked["model"]).name
    settings = paper_settings(settings_from(Settings, asked), asked["data"], name, given)
    recipe = _recipe(asked)
    if recipe is not None and not {"only", "exclude"} & set(given):
        settings = replace(settings, exclude=_excluded(recipe))
    size = asked["batch_size"] if "batch_size" in given else preset_of(settings.preset).batch_size
    return {**values_of(settings), "batch_size": size}


def say_paper_mode(network: nn.Module, images: AnyData, settings: Settings, asked: dict[str, Any]) -> None:
    """The settings, what differs from the paper, what it leaves open, and what the run will cost on this machine."""
    from prunus.graph.channel_graph import trace
    from prunus.util.batches import device_of, labels_to

    graph = trace(network, labels_to(images.example(), device_of(network)), settings.streams)
    _say_settings(graph, settings, asked, own=isinstance(images, OwnData))
    _say_cost(graph, images, settings)


def _say_settings(graph: ChannelGraph, settings: Settings, asked: dict[str, Any], *, own: bool) -> None:
    """own: batches come from loaders of the user's own."""
    from prunus.run.paper import left_open, ridge_of

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
    from prunus.decide.candidates import candidates
    from prunus.run.paper import departures, schedule_for
    from prunus.train.settings import preset_of

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
    from prunus.run.checkup import measure_speed
    from prunus.run.paper import paper_cost
    from prunus.tasks import task_of
    from prunus.util.batches import device_of, labels_to

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
    from prunus.run.identity import images_in

    if not isinstance(images, OwnData):
        return images.count(part)  # type: ignore[arg-type]
    loader = images.loaders[part]
    known, size = images_in(loader), getattr(loader, "batch_size", None)
    try:
        return len(loader) * size if known is None and isinstance(size, int) else known
    except TypeError:  # it has no length
        return None


def _recipe(asked: dict[str, Any]) -> Recipe | None:
    from prunus.studies.recipes import recipe_for

    return recipe_for(resolve(asked["model"]).name)


def _excluded(recipe: Recipe) -> tuple[str, ...]:
    return tuple(recipe.run.get("exclude", ()))


DEFAULT_TARGET = 0.5
DEMO = {"target": 0.5, "rounds": 2, "k": 4, "epochs": 24, "lr": 0.02, "augment": False, "distill": True}


@dataclass(frozen=True)
class PruneOptions:
    """Options of the command line alone."""

    weights: Path | None = option(
        None, "Weight file of the trained network", group="Data", everyday=True, valid=early_checks.weights
    )
    augment: bool = option(True, "Random crops and flips in retraining", group="Retraining")
    batch_size: int = option(128, "Images per training step", group="Retraining", least=1)
    paper: bool = option(False, "The paper's method to the letter; its cost is printed first", group="Goal")


@dataclass(frozen=True)
class FolderOptions:
    """Where the run is written."""

    out: Path | None = option(None, "Run folder; runs/prune-MODEL-DATA by default", group="Output", everyday=True)
    resume: Path | None = option(
        None, "Continue the run in this folder", group="Output", everyday=True, valid=early_checks.folder
    )
    watch: bool = option(False, "Show the run in the browser while it is at work", group="Output", everyday=True)


@friendly
@options_from_settings
def command(
    model: Annotated[
        str | None,
        typer.Argument(help=f"{MODEL_HELP}; a run goes on from its network. The demo's by default."),
        Early(early_checks.network),
    ] = None,
    *,
    context: typer.Context,
    options: PruneOptions,
    data: EverydayData,
    device: DeviceOptions,
    settings: Settings,
    folder: FolderOptions,
) -> None:
    """Prune a trained network and repair it; with --epochs, retrain it as well.

    Without arguments: trains a small residual network on scikit-learn's digits, and removes half of its MACs.

    Examples:

        prunus prune

        prunus prune resnet56 --weights w.safetensors --data cifar10 --epochs 3

        prunus prune resnet56 --weights w.safetensors --max-drop 0.5 --repair bn

        prunus prune resnet56 --weights w.safetensors --target 0.5

        prunus prune resnet56 --weights w.safetensors --speedup 1.5

        prunus prune runs/prune-resnet56-cifar10 --target 0.3

        prunus prune nets:unet --task segmentation --data nets:loaders

        prunus prune --resume runs/prune-resnet56-cifar10 --watch

        prunus prune vgg16 --weights w.safetensors --paper --target 0.8
    """
    asked = {"model": model, **values_of(options, data, device, settings)}
    out = folder.out
    if folder.resume is not None:
        before = _asked_before(folder.resume)
        _refuse_changes(context, before, {**asked, "out": None if out is None else str(out)}, folder.resume)
        asked, out = before, folder.resume
    elif model is None:
        asked = _demo(asked, settings)
    _check(asked)
    check_has_weights(asked)
    asked |= values_of(settings_from(EverydayData, asked).known_for(asked["model"]))
    asked["task"] = task_for(asked["model"], asked["task"])
    if asked.get("paper") and folder.resume is None:
        asked |= as_in_the_paper(asked, _given(context))
        _check(asked)
    _prune(asked, replace(folder, out=out or _new_folder(resolve(asked["model"]), asked["data"])))


def _check(asked: dict[str, Any]) -> None:
    """Refuse wrong options at once, before torch is imported."""
    check(settings_from(PruneOptions, asked), RunError)
    check(settings_from(EverydayData, asked), DataError)
    settings = settings_from(Settings, asked)
    check_settings(settings if settings.given else replace(settings, target=DEFAULT_TARGET))


def check_has_weights(asked: dict[str, Any]) -> None:
    """ModelError for a network without weights, unless it is the demo's or its own factory may load some."""
    name, data = asked["model"], asked["data"] or DEFAULT_DATA
    if asked["weights"] is None and not resolve(name).has_weights and not _is_demo(asked):
        raise ModelError(
            f"pruning starts from a trained network: pass --weights FILE with the weights of {name}. "
            f"To train one first: prunus train {name} --data {data}"
        )


def _demo(asked: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The built-in network and data, and settings that suit them unless the user or the paper gives others."""
    if asked["data"] not in (None, DEMO_DATA):
        raise ModelError(f"name the network to prune: prunus prune MODEL --weights FILE --data {asked['data']}")
    asked = {**asked, "model": DEMO_MODEL, "data": DEMO_DATA}
    if settings.given or asked["paper"]:
        return asked
    return asked | {key: value for key, value in DEMO.items() if asked[key] is None or isinstance(value, bool)}


def _asked_before(folder: Path) -> dict[str, Any]:
    config = folder / "config.json"
    asked = read_object(config, f"; {folder} holds no run that could continue").get("command")
    if not isinstance(asked, dict) or not isinstance(asked.get("model"), str):
        raise RunError(f"{config} was not written by `prunus prune`; use prunus.compress to continue")
    return asked


def _given(context: typer.Context) -> set[str]:
    """The names of the options and arguments that were typed."""
    names = [parameter.name or "" for parameter in context.command.params]
    sources = {name: context.get_parameter_source(name) for name in names}
    return {name for name, source in sources.items() if source is not None and not source.name.startswith("DEFAULT")}


def _refuse_changes(context: typer.Context, before: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    """RunError for options next to --resume that differ from those of the run."""
    before = {**before, "out": str(folder)}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name == "resume" or name not in _given(context):
            continue
        was, now = (json.loads(json.dumps(words.get(name))) for words in (before, asked))
        if was != now:
            word = "MODEL" if parameter.param_type_name == "argument" else f"--{name.replace('_', '-')}"
            there = "was started without it" if was is None else f"has {was}"
            raise RunError(
                f"{word} {now} differs from the run in {folder}, which {there}: --resume continues a run with its "
                "own options. Leave the option out, or start another run with --out"
            )


def _prune(asked: dict[str, Any], place: FolderOptions) -> None:
    from prunus.report.run_page import write_report
    from prunus.run.compress import compress
    from prunus.run.folder import RunFolder
    from prunus.util.batches import device_of, labels_to
    from prunus.util.processes import leave, rank_and_world

    folder = place.out
    assert folder is not None  # the caller has named one
    refuse_others(folder, PRUNING)
    options, device = settings_from(PruneOptions, asked), settings_from(DeviceOptions, asked)
    settings, data = settings_from(Settings, asked), settings_from(EverydayData, asked)
    again = command_line("prune", asked["model"], options, data, device, settings, always=("data",))
    if not settings.given:
        settings = replace(settings, target=DEFAULT_TARGET)
    rank, world = rank_and_world(device.device)
    images = data.open(asked["model"], settings.seed, settings.task)
    network = _network(asked, options.weights, images, settings.seed, rank)
    if world == 1:
        network = network.to(device.pick())
    if asked.get("paper") and rank == 0:
        say_paper_mode(network, images, settings, asked)
    parts = _parts(images, options, settings.seed, rank, world)
    parts["example"] = labels_to(parts["example"], device_of(network))
    watched = showing(folder) if place.watch and rank == 0 else nullcontext()
    with resumable(f"prunus prune --resume {folder}"), watched:
        result = compress(
            network,
            **parts,
            settings=settings,
            folder=RunFolder(folder, about={"command": asked, "command_line": again, **_start(asked["model"])}),
        )
    if rank == 0:
        say(result, folder, write_report(folder), resolve(asked["model"]).folders)
        if asked["epochs"] is None and result.summary["settings"]["epochs"] == 0:
            quality = result.summary["quality"]["name"]
            console.print(f"to retrain as well, which may add {quality}: {again} --epochs 3 --out NEW", soft_wrap=True)
    leave()


def _parts(images: AnyData, options: PruneOptions, seed: int, rank: int, world: int) -> dict[str, Any]:
    """The parts of a data set as arguments of `compress`."""
    if isinstance(images, OwnData):
        return images.as_arguments()
    batch = max(1, options.batch_size // world)
    mine: dict[str, Any] = {"rank": rank, "world": world, "seed": seed}
    return {
        "train": images.loader("train", batch, augment=options.augment, shuffle=True, **mine),
        "holdout": images.loader("holdout", 256, seed=seed),
        "score_on": images.loader("train", 256, **mine),
        "test": images.loader("test", 256, seed=seed) if images.has("test") else None,
        "example": images.example(),
    }


def _start(model: str) -> dict[str, Any]:
    """The network that a run started from, for its config.json, unless it is just named by the command."""
    found = resolve(model)
    if found.name == model:
        return {}
    return {"start": {"network": found.name, "earlier": [str(folder) for folder in found.folders]}}


def _network(asked: dict[str, Any], weights: Path | None, images: AnyData, seed: int, rank: int) -> nn.Module:
    """The trained network: from a weight file, from its own factory, or (the demo) trained here once and saved."""
    from prunus.cli.inputs import open_model

    if weights is None and _is_demo(asked) and not isinstance(images, OwnData):
        return demo_network(images, seed, rank)
    return open_model(asked["model"], images, weights, seed=seed)


def _is_demo(asked: dict[str, Any]) -> bool:
    return (asked["model"], asked["data"] or DEFAULT_DATA) == (DEMO_MODEL, DEMO_DATA)


def _new_folder(model: ModelArgument, data: str) -> Path:
    """Where a run is written by default. One that goes on from runs/NAME is runs/NAME-2, then runs/NAME-3."""
    if not model.folders:
        return run_folder(f"prune-{model.label}-{data}")
    name, _, number = model.label.rpartition("-")
    counted = bool(name) and number.isdigit()
    return run_folder(f"{name}-{int(number) + 1}" if counted else f"{model.label}-2")


def say(result: Compressed, folder: Path, report: Path, before: tuple[Path, ...] = ()) -> None:
    """The run's summary on the screen.

    before: pruned networks that the run goes on from.
    """
    from prunus.cli.console import columns
    from prunus.run.summary import headline

    titles = ["", "before", "after", ""]
    console.print(columns(titles, headline(result.summary), numbers=("before", "after", "")), highlight=False)
    for note in result.summary["notes"]:
        console.print(f"note: {note}")
    seconds = dict(result.summary["seconds"])
    whole = seconds.pop("this_call")
    seconds["evaluation, timing and the rest"] = whole - sum(seconds.values())  # below 0 after an interruption
    spent = ", ".join(f"{phase} {taken:.0f} s" for phase, taken in seconds.items() if taken >= 0.5)
    rounds = f"{len(result.rounds)} round{'s' if len(result.rounds) != 1 else ''}"
    console.print(f"\n{rounds} in {whole:.0f} s" + (f": {spent}" if spent else ""))
    console.print(f"results in {folder}: model.safetensors, plan.json, summary.json", soft_wrap=True)
    console.print(f"report: {report} (open it in a browser)", soft_wrap=True)
    original = "original_model"
    for earlier in before:
        original = f'prunus.load("{earlier}", {original})'
    console.print(f'load it with: prunus.load("{folder}", {original}).eval()', soft_wrap=True)
