"""`secateur score`: what every channel of a network is worth, by one metric, several or all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import complaints, console, friendly, names_in, progress
from secateur.cli.options import Data, DataRoot, Device, HeldOut, Mean, Model, Size, Std, Streams, Workers

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph
    from secateur.scoring.scores import Scores


@friendly
def command(
    model: Model,
    data: Data,
    weights: Annotated[Path | None, typer.Option(help="Weight file (.safetensors, .pt, .pth, .th).")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A name, several with commas between, or all; gsd by default.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="So many images, the same share of each class.")] = None,
    tap: Annotated[str, typer.Option(help="Where: reader or before_activation.")] = "reader",
    option: Annotated[list[str] | None, typer.Option(help="The metric's own, as in ridge=0.5. Repeat it.")] = None,
    sample: Annotated[int, typer.Option(help="Images for di and mmd, as many of each class.")] = 2000,
    memory: Annotated[float, typer.Option(help="GiB that di and mmd may take.")] = 2.0,
    streams: Streams = "select",
    part: Annotated[str, typer.Option(help="Which images: train, holdout or test.")] = "train",
    holdout: HeldOut = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 128,
    workers: Workers = 0,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of samples, held-out images and the metric random.")] = 0,
    show: Annotated[int, typer.Option(help="Channels shown at each end of a unit.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder for scores.safetensors and scores.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Score every channel of every unit: the weakest are the ones that pruning would take.

    Several processes: torchrun --nproc-per-node N -m secateur score ...

    Examples:

        secateur score resnet56 --weights resnet56.safetensors --data cifar10

        secateur score resnet56 --weights w.pt --data cifar10 --metric gsd,l1,di
    """
    import torch

    from secateur.base.processes import best_device, leave, rank_and_world
    from secateur.channels.graph import trace
    from secateur.cli.opening import open_data, open_model
    from secateur.errors import DataError
    from secateur.scoring.scores import save_scores

    if part not in ("test", "holdout", "train"):
        raise DataError(f"--part should be train, holdout or test, not {part!r}")
    rank, world = rank_and_world(device)
    found = open_data(data, model, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    home = torch.device(device) if device else best_device()
    network = open_model(model, found, weights, seed=seed).to(home)
    graph = trace(network, torch.zeros(1, *found.shape, device=home), streams)  # type: ignore[arg-type]
    wanted = min(images or found.count(part), found.count(part))  # type: ignore[arg-type]
    loader = found.loader(
        part,  # type: ignore[arg-type]
        batch_size,
        limit=wanted - wanted % world,  # equal shares for all processes
        seed=seed,
        workers=workers,
        rank=rank,
        world=world,
    )
    extra = {"tap": tap, "sample": sample, "memory": int(memory * (1 << 30)), "seed": seed, **_options(option or [])}
    results = _scored(graph, loader, names_in(metric or ["gsd"]), extra, visible=rank == 0)
    if rank == 0:
        if out is not None:
            save_scores(results, out)
        _say(graph, results, show, as_json, out)
        if weights is None:
            complaints.print("[yellow]note:[/] no --weights were given, so this is the network before any training")
    leave()


def _scored(
    graph: ChannelGraph, loader: Any, asked: list[str], extra: dict[str, Any], visible: bool
) -> dict[str, Scores]:
    from secateur.scoring.score import all_metrics, score_by

    names = all_metrics() if asked == ["all"] else asked
    with progress() as bar:
        task = bar.add_task("images", total=None, note="", visible=visible)

        def advance(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        return score_by(graph, loader, names, progress=advance, **extra)


def _options(given: list[str]) -> dict[str, Any]:
    """['ridge=0.5', 'sigma=median'] as numbers where they are numbers."""
    from secateur.errors import ScoreError

    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ScoreError(f"--option should be NAME=VALUE, as in ridge=0.5, not {text!r}")
        try:
            options[name] = float(value)
        except ValueError:
            options[name] = value
    return options


def _say(graph: ChannelGraph, results: Mapping[str, Scores], show: int, as_json: bool, out: Path | None) -> None:
    """The table of the first metric, and how alike the metrics are."""
    names = list(results)
    if as_json:
        values = {name: {unit: v.tolist() for unit, v in s.values.items()} for name, s in results.items()}
        alike = {a: {b: _alike(results, a, b) for b in names} for a in names}
        console.print_json(
            json.dumps({"scores": values, "rank_correlation": alike, "images": results[names[0]].images})
        )
        return
    first = results[names[0]]
    taken = f"{first.images:,} images" if first.images else "no images"
    console.print(f"{len(graph.units)} units scored by {names[0]}, {taken}; higher means keep")
    console.print(_table(graph, first, show), markup=False, soft_wrap=True)
    for note in first.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if len(names) > 1:
        console.print("\nrank correlation (Spearman, mean over units)")
        console.print(_correlations(results), markup=False, soft_wrap=True)
    if out is not None:
        console.print(f"\nwritten: {out / 'scores.safetensors'}, {out / 'scores.json'}", soft_wrap=True)


def _table(graph: ChannelGraph, scores: Scores, show: int) -> str:
    from secateur.cli.columns import columns

    rows = []
    for unit, values in scores.values.items():
        order = scores.order(unit)
        weak, strong = order[:show], order[::-1][:show]
        cells = [" ".join(f"{c}:{values[c]:.3g}" for c in some) for some in (weak, strong)]
        rows.append([unit, graph.units[unit].kind, str(graph.units[unit].width), *cells])
    return columns(["unit", "kind", "width", "weakest", "strongest"], rows, numbers=["width"])


def _correlations(results: Mapping[str, Scores]) -> str:
    from secateur.cli.columns import columns

    names = list(results)
    rows = [[a, *(f"{_alike(results, a, b):.2f}" for b in names)] for a in names]
    return columns(["", *names], rows, numbers=names)


def _alike(results: Mapping[str, Scores], a: str, b: str) -> float:
    from secateur.scoring.scores import rank_correlation

    return rank_correlation(results[a], results[b])
