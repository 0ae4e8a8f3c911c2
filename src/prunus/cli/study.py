"""`prunus study NAME`: the paper's experiments as commands. Each study is a file that defines `command`."""

from __future__ import annotations

import importlib
import os
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, choice, console, friendly, resolve, resumable, run_folder, typed_command
from prunus.cli.inputs import OwnData
from prunus.cli.options import (
    Classes,
    DataOptions,
    DeviceOptions,
    Model,
    Streams,
    UndividedData,
    Weights,
    check_trained,
    options_from_settings,
    task_for,
)
from prunus.errors import DataError
from prunus.studies.settings import EffectivenessSettings, SensitivityStudySettings, TimingSettings
from prunus.tasks import task_of
from prunus.tasks.quality import QualityWords
from prunus.util.options import check, option

if TYPE_CHECKING:
    from prunus.cli.options import AnyData
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.plan import Plan
    from prunus.studies.folder import Provenance
    from prunus.studies.table import ResultsTable
    from prunus.studies.timing import LayerTimes
    from prunus.util.batches import Batches


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.callback()
def root() -> None:
    """The paper's experiments, on any network and data set: a table, pictures and a page in one folder.

    The same command continues a study that was stopped.

    Example:

        prunus study effectiveness resnet56=w.safetensors --data cifar10
    """


# What the commands of the studies share: options, the study's folder, and the last lines of their output.


@dataclass(frozen=True)
class StudyImages:
    """How a study reads images, in addition to `DataOptions`."""

    augment: bool = option(True, "Random crops and flips in retraining", group="Retraining")
    batch_size: int = option(128, "Images per training step", group="Retraining", least=1)
    limit: int | None = option(None, "Largest number of held-out and of test images", group="Data", least=1)

    def provenance(self, data: DataOptions, found: AnyData, **more: Any) -> Provenance:
        """The command line, and everything that is needed to get the same images again."""
        from prunus.studies.folder import Provenance

        check(self, DataError)
        about: dict[str, Any] = {"data": data.data, "limit": self.limit}
        if not isinstance(found, OwnData):
            about |= {"mean": found.mean, "std": found.std, "size": found.shape[-1], "holdout": data.holdout}
            about |= {"augment": self.augment, "batch_size": self.batch_size}
        return Provenance({**about, **more}, typed_command())


@dataclass(frozen=True)
class StudyOutput:
    """Where a study is written."""

    out: Path | None = option(None, "Study folder; runs/study-NAME-MODEL-DATA by default", group="Output")

    def folder(self, study: str, model: str, data: str) -> Path:
        """The folder that was asked for, or runs/study-NAME-MODEL-DATA."""
        return self.out or run_folder(f"study-{study}-{model}-{data}")


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that torchrun started: the one that prints."""
    return os.environ.get("RANK", "0") == "0"


def print_results(folder: Path) -> None:
    """Write the study's page, and print where the results are."""
    from prunus.report.study_page import write_study_report

    console.print(f"\nresults in {folder}: study.json, table.csv, pictures as .png and .svg", soft_wrap=True)
    console.print(f"report: {write_study_report(folder)} (open it in a browser)", soft_wrap=True)


# `prunus study effectiveness`: which metric picks the channels that can be removed.


@friendly
@options_from_settings
def command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Networks: NAME=WEIGHTS, or folders of runs"),
        Early(early_checks.network),
    ],
    settings: EffectivenessSettings,
    data: UndividedData,
    images: StudyImages,
    device: DeviceOptions,
    output: StudyOutput,
    weights: Weights = None,
) -> None:
    """Remove the same fraction of every unit by each metric, and measure accuracy (the paper's Figs. 2 and 4).

    With --task, the quality of the task is measured instead.

    The same command continues a study that was stopped.

    Several processes share the rows: torchrun --nproc-per-node N -m prunus study effectiveness ...

    Examples:

        prunus study effectiveness resnet56=w.safetensors --data cifar10

        prunus study effectiveness vgg16=v.pt --metrics gsd,di --epochs 150
    """
    check_trained(models, weights)
    from prunus.cli.console import columns
    from prunus.cli.options import trained_networks
    from prunus.studies.effectiveness import effectiveness
    from prunus.studies.folder import BATCH
    from prunus.util.batches import device_of, move

    names = [resolve(text).label for text in models]
    data = data.known_for(models[0])
    settings = replace(settings, task=task_for(models[0], settings.task))
    found = data.open(models[0], settings.seed, settings.task)
    networks = trained_networks(models, weights, found, device, settings.seed)
    batch = BATCH if device_of(next(iter(networks.values()))).type == "cpu" else 256
    folder = output.folder("effectiveness", "-".join(names), data.name)

    def retrain_on(seed: int) -> Batches:
        return found.loader("train", images.batch_size, augment=images.augment, shuffle=True, seed=seed)

    with resumable(typed_command()):
        rows = effectiveness(
            networks,
            found.loader("train", 128, seed=settings.seed),
            found.loader("test", batch, limit=images.limit, seed=settings.seed),
            folder,
            settings=replace(settings, metrics=tuple(_own_function(name) for name in settings.metrics)),
            retrain_on=retrain_on,
            example=move(found.example(), device_of(next(iter(networks.values())))),
            provenance=images.provenance(data, found),
        )
    if is_first_process():
        titles, lines = _table(rows, QualityWords.of(task_of(settings.task)))
        console.print(columns(titles, lines, numbers=titles[2:]), soft_wrap=True)
        print_results(folder)


def _own_function(metric: Any) -> Any:
    """`package.module:function` as the user's function; a metric's name, also with options, unchanged."""
    import sys

    from prunus.errors import ScoreError

    home, _, name = metric.partition(":")
    if not name or "=" in name:
        return metric
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # `python -m` does this, but a console script does not
    try:
        return getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise ScoreError(f"{metric!r} must be package.module:function of your own metric: {error}") from error
    finally:
        sys.path[:] = before


def _table(rows: list[dict[str, Any]], words: QualityWords) -> tuple[list[str], list[list[str]]]:
    """One line per network and metric, one column per ratio: the quality after the last stage that was measured."""
    stage = next(name for name in ("retrained", "repaired", "accuracy") if name in rows[0])
    ratios = sorted({row["ratio"] for row in rows})
    lines: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["ratio"]):
        spread = row["spread" if stage == "accuracy" else f"{stage}_spread"]
        numbers = [words.scaled(value).rstrip("%") for value in (row[stage], spread) if value is not None]
        cell = " ±".join(numbers)
        lines.setdefault((row["network"], row["metric"]), []).append(cell)
    return ["network", "metric", *(f"{ratio:.0%}" for ratio in ratios)], [
        [*key, *cells] for key, cells in lines.items()
    ]


# `prunus study sensitivity`: two ways of choosing the units to prune, iteration by iteration.


@friendly
@options_from_settings
def command_sensitivity(
    model: Annotated[
        str, typer.Argument(help="Network: NAME=WEIGHTS, or the folder of a run"), Early(early_checks.network)
    ],
    settings: SensitivityStudySettings,
    data: DataOptions,
    images: StudyImages,
    device: DeviceOptions,
    output: StudyOutput,
    weights: Weights = None,
) -> None:
    """Prune and retrain by Algorithm 1 and by the analysis of Li et al., side by side (the paper's Fig. 5).

    Both start from the same network and remove the same MACs in each iteration.
    The same command continues a study that was stopped.

    Two processes take one arm each: torchrun --nproc-per-node 2 -m prunus study sensitivity ...

    Examples:

        prunus study sensitivity resnet56=w.safetensors --data cifar10

        prunus study sensitivity resnet56=w.safetensors --start runs/prune
    """
    check_trained([model], weights)
    from prunus.cli.console import columns
    from prunus.cli.options import trained_networks
    from prunus.studies.sensitivity import sensitivity
    from prunus.util.batches import device_of, move

    name = resolve(model).label
    data = data.known_for(model)
    settings = replace(settings, task=task_for(model, settings.task))
    found = data.open(model, settings.seed, settings.task)
    network = next(iter(trained_networks([model], weights, found, device, settings.seed).values()))
    folder = output.folder("sensitivity", name, data.name)
    with resumable(typed_command()):
        rows = sensitivity(
            network,
            found.loader("train", images.batch_size, augment=images.augment, shuffle=True, seed=settings.seed),
            found.loader("holdout", 256, limit=images.limit, seed=settings.seed),
            folder,
            test=found.loader("test", 256, limit=images.limit, seed=settings.seed) if found.has("test") else None,
            score_on=found.loader("train", 256, seed=settings.seed),
            example=move(found.example(), device_of(network)),
            provenance=images.provenance(data, found),
            **vars(settings),
        )
    if is_first_process():
        titles = ["method", "iteration", "MACs removed", "as cut", "held-out", "test"]
        lines = [_line(row, settings.quality) for row in rows]
        console.print(columns(titles, lines, numbers=titles[1:]), soft_wrap=True)
        print_results(folder)


def _line(row: dict[str, Any], words: QualityWords) -> list[str]:
    parts = [row[part] for part in ("cut", "holdout", "test")]
    cells = ["-" if value is None else words.scaled(value).rstrip("%") for value in parts]
    return [row["method"], str(row["iteration"]), f"{row['macs_removed']:.1%}", *cells]


# `prunus study structure`: weights and MACs by layer or block, original and pruned.


@friendly
@options_from_settings
def command_structure(
    network: Annotated[
        str,
        typer.Argument(help="Folder of a pruned network, or a model's name with --widths"),
        Early(early_checks.network),
    ],
    output: StudyOutput,
    by: Annotated[str, typer.Option(help="One row per layer or per block"), choice("by", "layer", "block")] = "layer",
    widths: Annotated[
        str | None, typer.Option(help="Channels to keep: 11,39,... in the order of the units, or UNIT=11,UNIT=39")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The original network, if the folder does not record it")] = None,
    classes: Classes = None,
    streams: Streams = "select",
) -> None:
    """Show the cost of each part of a network before and after pruning, as in the paper's supplement.

    With a folder, --streams is what the network was pruned with.

    Examples:

        prunus study structure runs/prune-resnet56-cifar10 --by block

        prunus study structure lenet5 --widths 4,9,60,40
    """
    from prunus.cli.console import columns
    from prunus.cli.options import open_network
    from prunus.errors import PlanError
    from prunus.graph.channel_graph import trace
    from prunus.studies.folder import Provenance, StudyFolder
    from prunus.studies.structure import COLUMNS, structure, write_structure

    opened = open_network(network, model=model, classes=classes)
    plan = opened.plan
    if (plan is None) == (widths is None):
        raise PlanError("give either the folder of a pruned network, or a network's name and --widths")
    whole = opened.model if opened.original is None else opened.original
    graph = trace(whole, opened.example(), streams if plan is None else plan.streams)  # type: ignore[arg-type]
    if plan is None:
        plan = _plan_of_text(graph, str(widths))
    rows = structure(graph, plan, by)  # type: ignore[arg-type]
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows]
    titles = list(COLUMNS.values())
    console.print(columns(titles, cells, set(titles) - {"part"}), soft_wrap=True)
    total = rows[-1]
    console.print(f"\n{total['params_pruned']:,} weights and {total['macs_pruned']:,} MACs remain", soft_wrap=True)
    asked = {"network": network, "by": by, "widths": widths, "model": model, "classes": classes, "streams": streams}
    folder = output.folder("structure", opened.name, by)
    place = StudyFolder(folder, "structure", asked, Provenance(command=typed_command()))
    print_results(write_structure(rows, f"{opened.name}: cost of each {by}", place))


def _cell(key: str, value: Any) -> str:
    from prunus.studies.table import short

    return short(value) if key in ("params", "params_pruned", "macs", "macs_pruned") else str(value)


def _plan_of_text(graph: ChannelGraph, text: str) -> Plan:
    """The plan of --widths."""
    from prunus.errors import PlanError
    from prunus.studies.structure import plan_of_widths

    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        if all("=" in word for word in words):
            pairs = (word.rpartition("=") for word in words)
            return plan_of_widths(graph, {unit: int(width) for unit, _, width in pairs})
        return plan_of_widths(graph, [int(word) for word in words])
    except ValueError as error:
        raise PlanError(f"--widths must be 11,39,... or UNIT=11,UNIT=39; got {text!r}") from error


# `prunus study table`: finished runs among the rows of the paper's Tables 1 and 2.

FORMATS = ("text", "csv", "json", "markdown")
TITLES = {  # short ones, so that a line fits a terminal
    "method": "method",
    "by": "by",
    "base_top1": "before",
    "top1": "top-1",
    "top1_drop": "drop",
    "top5": "top-5",
    "top5_drop": "drop",
    "macs": "MACs",
    "macs_removed": "cut",
    "params": "weights",
    "params_removed": "cut",
    "source": "",
}


@friendly
def command_table(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of finished `prunus prune` runs"), Early(early_checks.folder)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Network, if a folder does not record it; without folders, the rows to print")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set, if a folder does not record it; without folders, the rows to print")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, csv, json or markdown"), choice("format", *FORMATS)
    ] = "text",
    out: Annotated[Path | None, typer.Option(help="Also write a study folder with a picture")] = None,
) -> None:
    """Print runs as rows among the paper's published rows of their network and data set.

    Published figures are marked "as published". Without runs, only published rows are printed.

    Examples:

        prunus study table runs/prune-resnet56-cifar10

        prunus study table --model resnet56 --data cifar10 --format markdown
    """
    from prunus.studies.folder import Provenance, StudyFolder
    from prunus.studies.table import table, write_table

    found = table(runs or (), model=model, data=data)
    _print_table(found, form)
    if out is not None:
        asked = {"runs": [str(run) for run in runs or ()], "model": model, "data": data}
        print_results(write_table(found, StudyFolder(out, "table", asked, Provenance(command=typed_command()))))


def _print_table(found: ResultsTable, form: str) -> None:
    from prunus.studies.table import as_csv, as_json, as_markdown

    if form == "csv":
        console.print(as_csv(found.rows), end="", soft_wrap=True)
    elif form == "json":
        console.print(as_json(found), soft_wrap=True)
    else:
        if form == "markdown":
            console.print(as_markdown(found.rows), soft_wrap=True)
        else:
            _print_text(found)
        console.print()
        for note in found.notes:
            console.print(note if form == "text" else f"- {note}", soft_wrap=True)


def _print_text(found: ResultsTable) -> None:
    from prunus.cli.console import columns
    from prunus.studies.table import OWN, as_cells

    for (network, images), rows in groupby(found.rows, key=lambda row: (row["network"], row["data"])):
        own = [row if row["source"] == OWN else {**row, "source": ""} for row in rows]
        titles, cells = as_cells(own, TITLES)
        console.print(
            f"{network} on {images}, as published unless marked; accuracies and cuts in %",
            soft_wrap=True,
        )
        console.print(columns(titles, cells, set(titles) - {"method", "by", ""}), soft_wrap=True)


# `prunus study timing`: seconds to score each layer by each metric (the paper's Fig. 6).


@friendly
@options_from_settings
def command_timing(
    model: Model,
    settings: TimingSettings,
    data: UndividedData,
    device: DeviceOptions,
    output: StudyOutput,
    weights: Weights = None,
    threads: Annotated[int | None, typer.Option(help="Number of torch threads", min=1, max=os.cpu_count())] = None,
    streams: Streams = "select",
    batch_size: Annotated[int, typer.Option(help="Images per batch in forward passes", min=1)] = 32,
) -> None:
    """Measure how long each metric takes to score each layer, with and without the time for the feature maps.

    Feature maps are computed on the device and scored on the CPU.

    Examples:

        prunus study timing resnet8

        prunus study timing vgg16 --data cifar10 --num-images 500
    """
    import torch

    from prunus.cli.inputs import note_untrained, open_model
    from prunus.graph.channel_graph import trace
    from prunus.studies.folder import Provenance, StudyFolder
    from prunus.studies.timing import COLUMNS, draw_timing, timing

    data = data.known_for(model)
    found_data = data.open_classes(model, settings.seed)
    home = device.pick()
    network = open_model(model, found_data, weights, seed=settings.seed).to(home)
    graph = trace(network, torch.zeros(1, *found_data.shape, device=home), streams)  # type: ignore[arg-type]
    asked = {"model": model, "data": data.data, "size": data.size, "streams": streams, "threads": threads}
    asked |= {"weights": None if weights is None else str(weights), **asdict(settings)}
    place = output.folder("timing", model, data.name)
    folder = StudyFolder(place, "timing", asked, Provenance(command=typed_command()))
    folder.start()
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with resumable(typed_command()):
            loader = found_data.loader("train", batch_size, seed=settings.seed)
            found = timing(graph, loader, settings=settings, folder=folder)
    finally:
        torch.set_num_threads(before)
    shape = "x".join(str(side) for side in found_data.shape[1:])
    pictures = draw_timing(found, model, f"{shape} pixels", folder.path)
    folder.finish(f"Seconds to score each layer of {model}", found.rows, pictures, found.notes, columns=COLUMNS)
    _print_times(found)
    note_untrained(model, weights)
    print_results(folder.path)


def _print_times(found: LayerTimes) -> None:
    """One line per layer: its size, then the seconds of every metric."""
    from prunus.cli.console import columns

    metrics = list(dict.fromkeys(row["metric"] for row in found.rows))
    layers: dict[str, dict[str, Any]] = {}
    for row in found.rows:
        layers.setdefault(row["layer"], {})[row["metric"]] = row
    titles = ["layer", "channels", "pixels", *metrics, "maps"]
    lines = []
    for layer, rows in layers.items():
        any_row = next(iter(rows.values()))
        cells = [f"{rows[name]['seconds']:.2e}" if name in rows else "-" for name in metrics]
        maps = max(row["maps_seconds"] for row in rows.values())
        lines.append([layer, str(any_row["channels"]), str(any_row["pixels"]), *cells, f"{maps:.2e}"])
    console.print(columns(titles, lines, set(titles) - {"layer"}), soft_wrap=True)
    console.print("\nseconds to score all channels of a layer; maps: seconds to compute the feature maps")
    for note in found.notes:
        console.print(note, soft_wrap=True)


STUDIES = {
    "effectiveness": command,
    "sensitivity": command_sensitivity,
    "structure": command_structure,
    "table": command_table,
    "timing": command_timing,
}
for study, verb in STUDIES.items():
    app.command(study)(verb)
