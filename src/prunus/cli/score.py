"""`prunus score`: scores of every channel of a network, by one metric, several or all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, console, friendly, names_in
from prunus.cli.options import (
    DataOptions,
    DeviceOptions,
    Model,
    Part,
    Streams,
    Weights,
    options_from_settings,
    task_for,
)
from prunus.score.metrics import DEFAULT_METRIC, suited_metric
from prunus.score.scores import ScoreSettings
from prunus.util.files import SCORES, SENSITIVITY, refuse_others

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.score.scores import Scores


@friendly
@options_from_settings
def command(
    model: Model,
    settings: ScoreSettings,
    data: DataOptions,
    device: DeviceOptions,
    weights: Weights = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help=f"A name, several separated by commas, or all; {DEFAULT_METRIC} by default"),
        Early(early_checks.metrics),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the metric, as in ridge=0.5. Can be repeated")
    ] = None,
    streams: Streams = "select",
    part: Part = "train",
    batch_size: Annotated[int, typer.Option(help="Images per batch", min=1)] = 128,
    seed: Annotated[int, typer.Option(help="Seed of samples, held-out images and the metric random", min=0)] = 0,
    show: Annotated[int, typer.Option(help="Number of channels shown at each end of a unit", min=0)] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for scores.safetensors and scores.json")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables")] = False,
) -> None:
    """Score every channel of every unit. Pruning removes the channels with the lowest scores.

    Several processes: torchrun --nproc-per-node N -m prunus score ...

    Examples:

        prunus score resnet56 --weights resnet56.safetensors --data cifar10

        prunus score resnet56 --weights w.pt --data cifar10 --metric gsd,l1,di

        prunus score resnet56 --weights w.pt --data cifar10 --metric gsd:ridge=1

        prunus score runs/prune-resnet56-cifar10

        prunus score nets:unet --task segmentation --data folder:street
    """
    from prunus.cli.inputs import checked_part, note_untrained, open_graph
    from prunus.score.choice import parse_options
    from prunus.score.score import score as score_channels
    from prunus.score.scores import save_scores
    from prunus.util.processes import leave, rank_and_world

    part = checked_part(part)
    if out is not None:
        refuse_others(out, SCORES, beside=(SENSITIVITY,))
    rank, world = rank_and_world(device.device)
    task = task_for(model, settings.task)
    found = data.open(model, seed, task)
    graph = open_graph(model, found, weights, seed=seed, device=device.pick(), streams=streams)
    wanted = settings.num_images
    if world > 1:  # equal shares for all processes
        wanted = min(wanted or found.count(part), found.count(part))
        wanted -= wanted % world
    loader = found.loader(part, batch_size, limit=wanted, seed=seed, rank=rank, world=world)
    settings = replace(settings, num_images=None, seed=seed, task=task)  # the loader's limit is the sample
    names = names_in(metric or [suited_metric(DEFAULT_METRIC, task)])
    results = score_channels(graph, loader, names, **vars(settings), **parse_options(option or []))
    if rank == 0:
        if out is not None:
            save_scores(results, out)
        _print(graph, results, show, as_json, out)
        note_untrained(model, weights)
    leave()


def _print(graph: ChannelGraph, results: Mapping[str, Scores], show: int, as_json: bool, out: Path | None) -> None:
    """The table of one metric (the default one if it is there), and the rank correlation of the metrics."""
    names = list(results)
    if as_json:
        values = {name: {unit: v.tolist() for unit, v in s.values.items()} for name, s in results.items()}
        alike = {a: {b: _alike(results, a, b) for b in names} for a in names}
        num_images = max(scores.num_images for scores in results.values())
        console.print_json(json.dumps({"scores": values, "rank_correlation": alike, "num_images": num_images}))
        return
    name = DEFAULT_METRIC if DEFAULT_METRIC in results else names[0]
    shown = results[name]
    images = f"{shown.num_images:,} images" if shown.num_images else "no images"
    console.print(f"{len(shown.values)} units scored by {name}, {images}; higher means keep")
    console.print(_table(graph, shown, show), soft_wrap=True)
    for note in shown.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if len(names) > 1:
        console.print("\nrank correlation (Spearman, mean over units)")
        console.print(_correlations(results), soft_wrap=True)
    if out is not None:
        console.print(f"\nwritten: {out / 'scores.safetensors'}, {out / 'scores.json'}", soft_wrap=True)


def _table(graph: ChannelGraph, scores: Scores, show: int) -> str:
    from prunus.cli.console import columns

    rows = []
    for unit, values in scores.values.items():
        order = scores.order(unit)
        weakest, strongest = order[:show], order[::-1][:show]
        cells = [" ".join(f"{c}:{values[c]:.3g}" for c in some) for some in (weakest, strongest)]
        rows.append([unit, graph.units[unit].kind, str(graph.units[unit].width), *cells])
    titles = ["unit", "kind", "width", "weakest", "strongest"]
    return columns(titles, rows, numbers=["width"], width=console.width)


def _correlations(results: Mapping[str, Scores]) -> str:
    from prunus.cli.console import blocks

    names = list(results)
    rows = [[a, *(f"{_alike(results, a, b):.2f}" for b in names)] for a in names]
    return blocks(["", *names], rows, numbers=names, width=console.width)


def _alike(results: Mapping[str, Scores], a: str, b: str) -> float:
    from prunus.score.scores import rank_correlation

    return rank_correlation(results[a], results[b])
