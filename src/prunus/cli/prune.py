"""`prunus prune`: the main job, from a trained network and images to a smaller network in a folder."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import Early, console, existing_folder, friendly, resumable, run_folder, say, table
from prunus.cli.images import EverydayData, UserData
from prunus.cli.network import (
    DEMO_DATA,
    DEMO_MODEL,
    MODEL_HELP,
    NamedModel,
    check_network,
    demo_network,
    open_model,
    resolve,
)
from prunus.cli.options import (
    DeviceOptions,
    Without,
    command_line,
    options_from_settings,
    settings_from,
    typed_options,
    values_of,
)
from prunus.cli.paper_mode import as_in_the_paper, paper_cost_line, paper_lines
from prunus.cli.report import live_page
from prunus.errors import DataError, ModelError, RunError
from prunus.run.settings import Settings, check_settings
from prunus.util.files import PRUNING, read_object, refuse_others
from prunus.util.options import check, option
from prunus.util.text import count
from prunus.zoo.names import check_weight_file

if TYPE_CHECKING:
    from prunus.cli.images import AnyData
    from prunus.run.compress import Compressed

DEFAULT_TARGET = 0.5
DEMO = {"target": 0.5, "rounds": 2, "k": 4, "epochs": 24, "lr": 0.02, "augment": False, "distill": True}
# Settings that are rarely worth changing in a run; Python has them, and `train` and `inspect --sensitivity` do.
PYTHON_ONLY = Without("measure", "trial_ratio", "trials", "ema", "distill_weight", "views")


@dataclass(frozen=True)
class PruneOptions:
    """Options of the command line alone."""

    weights: Path | None = option(
        None, "Weight file of the trained network", group="Data", everyday=True, valid=check_weight_file
    )
    augment: bool = option(True, "Random crops and flips in retraining", group="Retraining")
    batch_size: int = option(128, "Images per training step", group="Retraining", least=1)
    paper: bool = option(False, "The paper's method to the letter; its cost is printed first", group="Goal")


@dataclass(frozen=True)
class FolderOptions:
    """Where the run is written."""

    out: Path | None = option(None, "Run folder; runs/prune-MODEL-DATA by default", group="Output", everyday=True)
    resume: Path | None = option(
        None, "Continue the run in this folder", group="Output", everyday=True, valid=existing_folder
    )
    watch: bool = option(False, "Write a page that shows the run at work", group="Output", everyday=True)


@friendly
@options_from_settings
def command(
    model: Annotated[
        str | None,
        typer.Argument(help=f"{MODEL_HELP}; a run goes on from its network. The demo's by default."),
        Early(check_network),
    ] = None,
    *,
    context: typer.Context,
    data: EverydayData,
    options: PruneOptions,
    settings: Annotated[Settings, PYTHON_ONLY],
    device: DeviceOptions,
    folder: FolderOptions,
) -> None:
    """Prune a trained network and repair it; with --epochs, retrain it as well.

    Without arguments: trains a small residual network on scikit-learn's digits, and removes half of its MACs.

    Examples:

        prunus prune

        prunus prune resnet56 --data cifar10 --weights w.safetensors

        prunus prune resnet56 --data cifar10 --weights w.safetensors --epochs 3

        prunus prune resnet56 --data cifar10 --weights w.safetensors --speedup 1.5

        prunus prune resnet56 --data cifar10 --weights w.safetensors --max-drop 1

        prunus prune runs/prune-resnet56-cifar10 --target 0.3

        prunus prune nets:unet --data nets:loaders --task segmentation

        prunus prune --resume runs/prune-resnet56-cifar10 --watch

        prunus prune vgg16 --data cifar10 --weights w.safetensors --paper
    """
    typed = typed_options(context)
    asked = {"model": model, **values_of(data, options, settings, device)}
    if folder.resume is not None:
        before = _asked_before(folder.resume)
        now = {**asked, "out": None if folder.out is None else str(folder.out)}
        _refuse_changes(typed, {**before, "out": str(folder.resume)}, now, folder.resume)
        asked, folder = before, replace(folder, out=folder.resume)
    elif model is None:
        if asked["data"] not in (None, DEMO_DATA):
            raise ModelError(f"name the network to prune: prunus prune MODEL --weights FILE --data {asked['data']}")
        asked |= {"model": DEMO_MODEL, "data": DEMO_DATA}
        if not settings.given and not options.paper:
            asked |= {name: value for name, value in DEMO.items() if name not in typed}
    _check(asked)
    named = resolve(asked["model"], settings_from(PruneOptions, asked).weights)
    asked |= values_of(settings_from(EverydayData, asked).known_for(named))
    if not named.has_weights and not _is_demo(asked):
        raise ModelError(
            f"pruning starts from a trained network: pass --weights FILE with the weights of {named.name}. "
            f"To train one first: prunus train {named.name} --data {asked['data']}"
        )
    asked["task"] = named.task(asked["task"])
    if asked["paper"] and folder.resume is None:
        asked |= as_in_the_paper(asked, named, typed)
        _check(asked)
    _prune(asked, named, replace(folder, out=folder.out or _new_folder(named, asked["data"])))


def _check(asked: dict[str, Any]) -> None:
    """Refuse wrong options at once, before torch is imported."""
    check(settings_from(PruneOptions, asked), RunError)
    check(settings_from(EverydayData, asked), DataError)
    check_settings(_with_goal(settings_from(Settings, asked)))


def _with_goal(settings: Settings) -> Settings:
    return settings if settings.given else replace(settings, target=DEFAULT_TARGET)


def _is_demo(asked: dict[str, Any]) -> bool:
    return (asked["model"], asked["data"]) == (DEMO_MODEL, DEMO_DATA)


def _asked_before(folder: Path) -> dict[str, Any]:
    """The options of the run in a folder."""
    config = folder / "config.json"
    asked = read_object(config, f"; {folder} holds no run that could continue").get("command")
    if not isinstance(asked, dict) or not isinstance(asked.get("model"), str):
        raise RunError(f"{config} was not written by `prunus prune`; use prunus.compress to continue")
    return asked


def _refuse_changes(typed: dict[str, Any], before: dict[str, Any], asked: dict[str, Any], folder: Path) -> None:
    """RunError for options next to --resume that differ from those of the run."""
    for name, parameter in typed.items():
        if name in ("resume", "watch"):
            continue
        was, now = (json.loads(json.dumps(options.get(name))) for options in (before, asked))
        if was != now:
            word = "MODEL" if parameter.param_type_name == "argument" else f"--{name.replace('_', '-')}"
            there = "was started without it" if was is None else f"has {was}"
            raise RunError(
                f"{word} {now} differs from the run in {folder}, which {there}: --resume continues a run with its "
                "own options. Leave the option out, or start another run with --out"
            )


def _new_folder(named: NamedModel, data: str) -> Path:
    """Where a run is written by default. One that goes on from runs/NAME is runs/NAME-2, then runs/NAME-3."""
    if not named.folders:
        return run_folder(f"prune-{named.label}-{data}")
    name, _, number = named.label.rpartition("-")
    return run_folder(f"{name}-{int(number) + 1}" if name and number.isdigit() else f"{named.label}-2")


def _prune(asked: dict[str, Any], named: NamedModel, place: FolderOptions) -> None:
    from prunus.graph.channel_graph import trace
    from prunus.report.run_page import write_report
    from prunus.run.compress import compress
    from prunus.run.folder import RunFolder
    from prunus.util.batches import device_of, to_device
    from prunus.util.processes import leave, rank_and_world

    folder = place.out
    assert folder is not None  # the caller has named one
    refuse_others(folder, PRUNING)
    options, device = settings_from(PruneOptions, asked), settings_from(DeviceOptions, asked)
    settings, data = settings_from(Settings, asked), settings_from(EverydayData, asked)
    again = command_line(
        "prune", asked["model"], data, options, settings, device, always=("data",), never=PYTHON_ONLY.names
    )
    settings = _with_goal(settings)
    rank, world = rank_and_world(device.device)
    images = data.open(named, settings.seed, settings.task)
    if options.weights is None and _is_demo(asked) and not isinstance(images, UserData):
        network = demo_network(images, settings.seed, rank)
    else:
        network = open_model(named, images, seed=settings.seed)
    if world == 1:
        network = network.to(device.pick())
    if asked["paper"] and rank == 0:
        graph = trace(network, to_device(images.example(), device_of(network)), settings.streams)
        lines = paper_lines(graph, settings, asked, named, user_data=isinstance(images, UserData))
        say("\n".join([*lines, paper_cost_line(graph, images, settings), ""]))
    parts = _parts(images, options, settings.seed, rank, world)
    parts["example"] = to_device(parts["example"], device_of(network))
    about: dict[str, Any] = {"command": asked, "command_line": again}
    if named.name != asked["model"]:  # a run's folder or NAME=WEIGHTS: what it starts from
        about["start"] = {"network": named.name, "earlier": [str(earlier) for earlier in named.folders]}
    with (
        resumable(f"prunus prune --resume {folder}"),
        live_page(folder) if place.watch and rank == 0 else nullcontext(),
    ):
        result = compress(network, **parts, settings=settings, folder=RunFolder(folder, about=about))
    if rank == 0:
        print_result(result, folder, write_report(folder), named.folders)
        if not settings.retrains_at_all:
            quality = result.summary["quality"]["name"]
            say(f"to retrain as well, which may add {quality}: {again} --epochs 3 --out NEW")
    leave()


def _parts(images: AnyData, options: PruneOptions, seed: int, rank: int, world: int) -> dict[str, Any]:
    """The parts of a data set as arguments of `compress`."""
    if isinstance(images, UserData):
        return {**images.loaders, "example": images.given}
    batch = max(1, options.batch_size // world)
    mine: dict[str, Any] = {"rank": rank, "world": world, "seed": seed}
    return {
        "train": images.loader("train", batch, augment=options.augment, shuffle=True, **mine),
        "holdout": images.loader("holdout", 256, seed=seed),
        "score_on": images.loader("train", 256, **mine),
        "test": images.loader("test", 256, seed=seed) if images.has("test") else None,
        "example": images.example(),
    }


def print_result(result: Compressed, folder: Path, report: Path, before: tuple[Path, ...] = ()) -> None:
    """Print the run's summary.

    Args:
        result: The finished run.
        folder: Where it is written.
        report: Its page.
        before: Pruned networks that the run goes on from.
    """
    from prunus.run.summary import headline

    console.print(table(("", "before", "after", " "), headline(result.summary), numbers=("before", "after", " ")))
    for note in result.summary["notes"]:
        say(f"note: {note}")
    seconds = dict(result.summary["seconds"])
    whole = seconds.pop("this_call")
    seconds["evaluation, timing and the rest"] = whole - sum(seconds.values())  # below 0 after an interruption
    spent = ", ".join(f"{phase} {taken:.0f} s" for phase, taken in seconds.items() if taken >= 0.5)
    say(f"\n{count(len(result.rounds), 'round')} in {whole:.0f} s" + (f": {spent}" if spent else ""))
    say(f"results in {folder}: model.safetensors, plan.json, summary.json")
    say(f"report: {report} (open it in a browser)")
    original = "original_model"
    for earlier in before:
        original = f'prunus.load("{earlier}", {original})'
    say(f'load it with: prunus.load("{folder}", {original}).eval()')
