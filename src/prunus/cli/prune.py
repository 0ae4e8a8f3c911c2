"""`prunus prune`: the main job, from a trained network and images to a smaller network in a folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import Answer, Early, console, default_folder, existing_folder, friendly, resumable, say, table
from prunus.cli.images import DataOptions, UserData
from prunus.cli.network import (
    DEMO_DATA,
    DEMO_MODEL,
    LIBRARIES,
    MODEL_HELP,
    ORIGINAL_FILE,
    PRETRAINED,
    YOLO,
    NamedModel,
    check_model_name,
    demo_network,
    factory_arguments,
    open_model,
    resolve,
)
from prunus.cli.options import (
    BySet,
    DeviceOptions,
    TrainingImages,
    command_line,
    settings_from,
    typed_options,
    values_of,
)
from prunus.errors import ModelError, RunError
from prunus.run.settings import RARE, Settings, check_settings, with_goal
from prunus.util.files import PRUNING, read_object, refuse_others, write_atomically
from prunus.util.options import as_typed, option
from prunus.util.text import count
from prunus.util.user_code import import_user_function
from prunus.zoo.names import check_weight_file

if TYPE_CHECKING:
    from torch import nn

    from prunus.cli.images import AnyData
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.run.compress import Compressed

DEMO_SPEEDUP = 1.5  # of the demo, which has no augmentation either


@dataclass(frozen=True)
class PruneOptions(TrainingImages):
    weights: Path | None = option(
        None, "Weight file of the trained network", group="Data", everyday=True, valid=check_weight_file
    )
    classes: str | None = option(None, "Keep these classes only, as numbers or names: 3,17,42 or cat,dog", group="Data")
    paper: bool = option(False, "The paper's method to the letter; its cost is printed first", group="Goal")


@dataclass(frozen=True)
class FolderOptions:
    out: Path | None = option(None, "Run folder; runs/prune-MODEL-DATA by default", group="Output", everyday=True)
    resume: Path | None = option(
        None, "Continue the run in this folder", group="Output", everyday=True, valid=existing_folder
    )
    watch: bool = option(False, "Write a page that shows the run at work", group="Output")


@dataclass(frozen=True)
class Request:
    """What a `prunus prune` asks for. The run's config.json keeps it: --resume and other verbs read it there."""

    model: str
    data: DataOptions
    options: PruneOptions
    settings: Settings
    device: DeviceOptions

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Request:
        """The inverse of `record`, also after a round trip through JSON."""
        kinds = (DataOptions, PruneOptions, Settings, DeviceOptions)
        return cls(record["model"], *(settings_from(kind, record) for kind in kinds))  # type: ignore[arg-type]

    def record(self) -> dict[str, Any]:
        """All options by name, as plain values."""
        return {"model": self.model, **values_of(self.data, self.options, self.settings, self.device)}

    def command_line(self) -> str:
        return command_line("prune", self.model, self.data, self.options, self.settings, self.device, by_set=RARE)

    def about(self, named: NamedModel, images: AnyData) -> dict[str, Any]:
        """What the run's config.json says of the command."""
        about: dict[str, Any] = {"command": self.record(), "command_line": self.command_line()}
        about["built"] = factory_arguments(named, images)
        if named.is_file and self.options.classes and not isinstance(images, UserData):  # a file has all of its classes
            whole = self.data.open(replace(named, run_options={}), self.settings.seed, self.settings.task)
            assert not isinstance(whole, UserData)
            about["built"] |= {"classes": whole.class_numbers(self.options.classes)}
        if named.name != self.model:  # a run's folder or NAME=WEIGHTS: what it starts from
            from prunus.run.summary import Beginning
            from prunus.util.typed_json import to_data

            about["start"] = {
                "network": named.name,
                "earlier": [str(named.folder)] if named.folder else [],
                "seed": self.data.seed_for(named, self.settings.seed),
                "original": to_data(Beginning.of_run(named.folder)) if named.folder else None,
            }
            if named.folder and (config := named.folder / "config.json").exists():
                about["original"] = read_object(config).get("original")
        return about

    def resolved(self) -> tuple[Request, NamedModel]:
        """The request with the data and task of its network, and the network."""
        named = resolve(self.model, self.options.weights)
        data, classes = self.data.known_for(named), self.options.classes
        kept = named.run_options.get("classes") if named.run_options.get("data") == data.data else None
        if kept and classes not in (None, kept):
            raise ModelError(f"{named.typed} knows only the classes {kept}: leave out --classes")
        streams = self.settings.streams
        if named.name.startswith(YOLO) and streams is None:  # ultralytics would lose selections, see docs
            streams = "coupled"
        settings = replace(self.settings, task=named.task(self.settings.task), streams=streams)
        request = replace(self, data=data, options=replace(self.options, classes=classes or kept), settings=settings)
        if not named.has_weights and not request.is_demo:
            raise ModelError(
                f"pruning starts from a trained network: pass --weights FILE with the weights of {named.name}"
                f"{f', or name {named.name}={PRETRAINED}' if named.name.startswith(LIBRARIES) else ''}. "
                f"To train one first: prunus train {named.name} --data {data.name}"
            )
        return request, named

    @property
    def is_demo(self) -> bool:
        return (self.model, self.data.data) == (DEMO_MODEL, DEMO_DATA)


@friendly
def command(
    model: Annotated[
        str | None,
        typer.Argument(help=f"{MODEL_HELP}; a run goes on from its network. The demo's by default."),
        Early(check_model_name),
    ] = None,
    *,
    context: typer.Context,
    data: DataOptions,
    options: PruneOptions,
    settings: Annotated[Settings, BySet(*RARE)],
    device: DeviceOptions,
    folder: FolderOptions,
) -> Answer | None:
    """Make a trained network faster: prune it and repair it; with --epochs, retrain it as well.

    Without a goal: as fast as it can be while it loses at most one point of held-out accuracy.

    Without arguments: trains a small residual network on scikit-learn's digits, and makes it 1.5 times as fast.

    Exit code 3: the goal was not reached.

    Examples:

        prunus prune

        prunus prune resnet56 --data cifar10 --weights w.safetensors --speedup 1.5

        prunus prune resnet56 --data cifar10 --weights w.safetensors --max-drop 1

        prunus prune resnet56 --data cifar10 --weights w.safetensors --epochs 3

        prunus prune runs/prune-resnet56-cifar10 --target 0.3

        prunus prune model.onnx --data folder:images --speedup 1.5

        prunus prune resnet56 --data cifar10 --weights w.safetensors --classes 3,5

        prunus prune nets:unet --data nets:loaders --task segmentation

        prunus prune yolo:yolov8n.yaml --weights best.pt --data folder:yolo

        prunus prune --resume runs/prune-resnet56-cifar10 --watch

        prunus prune vgg16 --data cifar10 --weights w.safetensors --paper
    """
    typed = typed_options(context)
    data = demo_data("prune", model, data) if folder.resume is None else data
    if model is None and folder.resume is None and not settings.given and not options.paper:
        settings = replace(settings, speedup=DEMO_SPEEDUP)
        options = replace(options, augment="augment" in typed and options.augment)
    request = Request(model or DEMO_MODEL, data, options, settings, device)
    if folder.resume is not None:
        request, named = _resumed(request, folder, typed).resolved()
    else:
        request, named = request.resolved()
        request = replace(request, settings=with_goal(request.settings))
        if options.paper:
            request = as_in_the_paper(request, named, typed)
    check_settings(request.settings)  # before torch is imported
    out = folder.resume or folder.out or _new_folder(named, request.data.name)
    refuse_others(out, PRUNING)
    return _prune(request, named, out, watch=folder.watch)


def demo_data(verb: str, model: str | None, data: DataOptions) -> DataOptions:
    """The demo's data set if no network is named; ModelError for another one."""
    if model is None and data.data not in (None, DEMO_DATA):
        raise ModelError(f"name the network to prune: prunus {verb} MODEL --weights FILE --data {data.data}")
    return data if model is not None else replace(data, data=DEMO_DATA)


def _resumed(request: Request, folder: FolderOptions, typed: dict[str, Any]) -> Request:
    """What the run in a folder was asked for. RunError if an option was typed that differs from it."""
    assert folder.resume is not None
    config = folder.resume / "config.json"
    before = read_object(config, f"; {folder.resume} holds no run that could continue").get("command")
    if not isinstance(before, dict) or not isinstance(before.get("model"), str):
        raise RunError(f"{config} was not written by `prunus prune`; use prunus.compress to continue")
    given = {**request.record(), "out": None if folder.out is None else str(folder.out)}
    for name, parameter in typed.items():
        was = str(folder.resume) if name == "out" else before.get(name)
        now = json.loads(json.dumps(given.get(name)))
        if name not in ("resume", "watch") and was != now:
            is_model = parameter.param_type_name == "argument"
            typed_as = f"MODEL {now}" if is_model else " ".join(as_typed(name, now, RARE))
            there = "was started without it" if was is None else f"has {was}"
            raise RunError(
                f"{typed_as} differs from the run in {folder.resume}, which {there}: --resume continues a run with "
                "its own options. Leave the option out, or start another run with --out"
            )
    return Request.from_record(before)


def _new_folder(named: NamedModel, data: str) -> Path:
    """Where a run is written by default. One that goes on from runs/NAME is runs/NAME-2, then runs/NAME-3."""
    if named.folder is None:
        return default_folder(f"prune-{named.label}-{data}")
    name, _, number = named.label.rpartition("-")
    return default_folder(f"{name}-{int(number) + 1}" if name and number.isdigit() else f"{named.label}-2")


def _prune(request: Request, named: NamedModel, folder: Path, *, watch: bool) -> Answer | None:
    from prunus.report.live import watching
    from prunus.report.run_page import write_report
    from prunus.run.compress import compress
    from prunus.run.folder import RunFolder
    from prunus.util.processes import leave

    settings = request.settings
    network, images, parts, rank = open_request(request, named)
    by_paper: tuple[list[str], list[str]] | None = None
    if request.options.paper and rank == 0:
        by_paper = print_paper(network, images, request, named)
    about = request.about(named, images)
    watched: AbstractContextManager[Path | None] = watching(folder) if watch and rank == 0 else nullcontext()
    with resumable(f"prunus prune --resume {folder}"), watched as live:
        if live is not None:
            say(f"watch it: {live.resolve().as_uri()} (open it in a browser)")
        result = compress(network, **parts, settings=settings, folder=RunFolder(folder, about=about))
    leave()
    if rank:
        return None
    if by_paper is not None:  # in the place of what the settings alone tell
        from prunus.run.paper import DIFFERENCES, as_markdown

        write_atomically(folder / DIFFERENCES, as_markdown(*by_paper).encode())
    small = None
    if named.is_file:  # an .onnx file, beside the file that it was pruned from
        from prunus.zoo.onnx.file import read_onnx

        if not (original := folder / ORIGINAL_FILE).exists():
            write_atomically(original, read_onnx(named.name).content())
        stem = Path(named.name).stem
        small = folder / (f"{stem}-small.onnx" if stem != original.stem else "small.onnx")
        if not small.exists():
            result.export(small)
    page = write_report(folder)
    print_result(result, folder, page)
    if small is not None:
        say(f"the pruned network as a file: {small}")
    if not settings.retrains_at_all:
        quality, again = result.summary["quality"]["name"], request.command_line()
        say(f"to retrain as well, which may add {quality}: {again} --epochs 3 --out NEW")
    answer = {**result.summary, "reached": result.reached, "folder": folder, "report": page}
    return Answer(answer if small is None else {**answer, "file": small}, result.reached)


def open_request(request: Request, named: NamedModel) -> tuple[nn.Module, AnyData, dict[str, Any], int]:
    """The network, the images, the arguments of `compress` that they make, and the number of this process."""
    from prunus.util.batches import device_of, to_device
    from prunus.util.processes import rank_and_world

    settings = request.settings
    rank, world = rank_and_world(request.device.device)
    images = request.data.open(named, settings.seed, settings.task)
    if request.options.weights is None and request.is_demo and not isinstance(images, UserData):
        network = demo_network(images, settings.seed, rank)
    else:
        network = open_model(named, images, seed=settings.seed)
    if request.options.classes and not named.run_options.get("classes"):
        from prunus.graph.outputs import keep_classes
        from prunus.zoo.models import accepts

        if isinstance(images, UserData):
            raise ModelError(f"--classes is for data sets by name; {images.name} gives its own labels")
        if named.is_user_provided and not accepts(import_user_function(named.name, ModelError), "num_classes"):
            raise ModelError(f"--classes needs a factory that takes num_classes, which {named.name} does not")
        numbers = images.class_numbers(request.options.classes)
        network, images = keep_classes(network, images.example(), numbers), images.only(numbers)
    if world == 1:
        network = network.to(request.device.pick())
    example = images.given if isinstance(images, UserData) else images.example()
    parts: dict[str, Any] = {"example": to_device(example, device_of(network))}
    if isinstance(images, UserData):
        return network, images, {**images.loaders, **parts}, rank
    seed, batch = settings.seed, max(1, request.options.batch_size // world)
    mine: dict[str, Any] = {"rank": rank, "world": world, "seed": seed}
    parts["train"] = images.loader("train", batch, augment=request.options.augment, shuffle=True, **mine)
    parts["holdout"] = images.loader("holdout", 256, seed=seed)
    parts["score_on"] = images.loader("train", 256, **mine)
    parts["test"] = images.loader("test", 256, seed=seed) if images.has("test") else None
    return network, images, parts, rank


def print_result(result: Compressed, folder: Path, report: Path) -> None:
    from prunus.run.final_timing import how_timed
    from prunus.run.summary import first_line, headline, read_summary

    summary = read_summary(result.summary)
    console.print(first_line(summary), style="bold", soft_wrap=True)
    say(summary.goal.text)
    console.print(table(("", "before", "after", " "), headline(summary), numbers=("before", "after", " ")))
    if summary.speeds:
        say(how_timed(summary.speeds))
    for note in summary.notes:
        say(f"note: {note}")
    seconds = dict(result.summary["seconds"])
    whole = seconds.pop("this_call")
    rest = whole - sum(seconds.values())
    if rest < 0:  # phases of a run that was interrupted or finished before count as well
        whole = sum(seconds.values())
    seconds["evaluation, timing and the rest"] = rest
    spent = ", ".join(f"{phase} {taken:.0f} s" for phase, taken in seconds.items() if taken >= 0.5)
    say(f"\n{count(len(result.rounds), 'round')} in {whole:.0f} s" + (f": {spent}" if spent else ""))
    say(f"results in {folder}: model.safetensors, plan.json, summary.json")
    say(f"report: {report} (open it in a browser)")
    original = folder / ORIGINAL_FILE
    model = f'prunus.from_onnx("{original}")' if original.exists() else "original_model"
    say(f'load it with: prunus.load("{folder}", {model}).eval()')


# -- `--paper`: the paper's settings, what differs from it, and what the run costs, before it starts


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
    from prunus.run.checkup import measure_speed
    from prunus.run.identity import images_in
    from prunus.run.paper import paper_cost
    from prunus.util.batches import device_of, to_device

    home, own = device_of(network), isinstance(images, UserData)
    graph = trace(network, to_device(images.example(), home), request.settings.streams or "select")
    followed, differs, left = beside_the_paper(graph, request, named, user_data=own)
    lines = [*followed, *(f"different from the paper: {text}" for text in differs)]
    lines += [f"left open in the paper: {text}" for text in left]
    train, held_out = (
        images_in(images.loaders[part]) if isinstance(images, UserData) else images.count(part)
        for part in ("train", "holdout")
    )
    if train and held_out:
        some = images.example()
        if not isinstance(images, UserData):
            some, *_ = images.loader("train", 64, limit=64).images_at(range(min(64, train)))
        speed = measure_speed(graph.model, to_device(some, home))
        lines.append(paper_cost(graph, request.settings, speed, train, held_out))
    else:
        unknown = "your loaders do not tell how many images they have" if own else "nothing is held out"
        lines.append(f"what the run costs is not known: {unknown}")
    say("\n".join([*lines, ""]))
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
