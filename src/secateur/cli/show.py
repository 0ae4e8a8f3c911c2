"""`secateur show`: the paper's pictures of channels, of any layer of any network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import complaints, console, friendly, names_in, progress
from secateur.cli.options import Data, DataRoot, Device, HeldOut, Mean, Size, Std, Streams, Weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from secateur.channels.graph import ChannelGraph
    from secateur.zoo.data import ImageData

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Model = Annotated[
    str | None,
    typer.Argument(help="Built-in name, torchvision:NAME, timm:NAME, package.module:factory; the demo's by default."),
]
Layer = Annotated[
    str | None, typer.Option(help="Unit or layer, as `secateur inspect` names them; the second one by default.")
]
Images = Annotated[int, typer.Option(help="Training images to score on.")]
Part = Annotated[str, typer.Option(help="Images to draw: train, holdout or test.")]
Seed = Annotated[int, typer.Option(help="Of the sample that is scored on, and of held-out images.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the pictures; runs/show-MODEL-DATA by default.")]


@app.callback()
def root() -> None:
    """Pictures of channels, as PNG and SVG that fit a paper: what the weak ones see, and what the strong ones see.

    Example:

        secateur show channels resnet56 --weights w.safetensors --data cifar10 --layer layer1.0.conv1:out
    """


@app.command()
@friendly
def separation(
    model: Model = None,
    weights: Weights = None,
    data: Data = "digits",
    layer: Layer = None,
    metric: Annotated[str, typer.Option(help="What makes a channel weak or strong.")] = "gsd",
    weak: Annotated[int | None, typer.Option(help="This channel as the weak one.")] = None,
    strong: Annotated[int | None, typer.Option(help="This channel as the strong one.")] = None,
    classes: Annotated[int, typer.Option(help="Classes shown, evenly spread.")] = 10,
    each: Annotated[int, typer.Option(help="Images of each class that are shown with their maps.")] = 4,
    points: Annotated[
        int, typer.Option(help="Images of each class for the projections; half of them are drawn.")
    ] = 100,
    images: Images = 2000,
    part: Part = "test",
    holdout: HeldOut = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    streams: Streams = "select",
    device: Device = None,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Two channels of a layer, a weak and a strong one: maps of a few images a class, and PCA and LDA of many (Fig. 1).

    Examples:

        secateur show separation

        secateur show separation lenet5 --weights w.pt --data mnist --layer conv2
    """
    from secateur import studies
    from secateur.pictures.separation_picture import draw_separation
    from secateur.pictures.unit_and_images import spread_classes

    opened = _open(model, weights, data, part, holdout, data_root, mean, std, size, streams, device, seed)
    with progress() as bar:
        bar.add_task("score and look", total=None, note="")
        found = studies.separation(
            opened.graph,
            opened.data.loader("train", 128, seed=seed),
            opened.data.loader(opened.part, 128, seed=seed),
            spread_classes(len(opened.data.classes), classes),
            unit=layer,
            metric=metric,
            weak=weak,
            strong=strong,
            each=each,
            points=points,
            images=images,
            mean=opened.data.mean,
            std=opened.data.std,
            seed=seed,
        )
    for word, seen in (("weak", found.weak), ("strong", found.strong)):
        told = ", ".join(f"{100 * p.told_apart:.1f}% in {kind}" for kind, p in seen.projections.items())
        console.print(
            f"{word}: channel {seen.channel} of {found.unit}, {metric} {seen.score:.4g}; nearest to the mean of their "
            f"own class: {told}",
            soft_wrap=True,
            markup=False,
        )
    _say_silent(found.silent)
    _write(draw_separation(found, opened.data.classes), found.numbers(), _folder(out, opened), "separation")


@app.command()
@friendly
def channels(
    model: Model = None,
    weights: Weights = None,
    data: Data = "digits",
    layer: Layer = None,
    by: Annotated[str, typer.Option(help="The metric that says which channel is weakest.")] = "gsd",
    metric: Annotated[
        str, typer.Option(help="Averages by these, with commas between them.")
    ] = "l1,bn_scale,fpgm,di,gsd",
    top: Annotated[int, typer.Option(help="Channels in an average.")] = 10,
    rows: Annotated[int, typer.Option(help="Images, each of another class.")] = 5,
    skip: Annotated[int, typer.Option(help="Pass over so many images of each class.")] = 0,
    images: Images = 2000,
    part: Part = "test",
    holdout: HeldOut = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    streams: Streams = "select",
    device: Device = None,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Images, the weakest and the strongest channel, and the mean of the strongest by several metrics (Figs. 3 and 7).

    Examples:

        secateur show channels

        secateur show channels resnet56 --weights w.pt --data cifar10 --rows 8
    """
    from secateur import studies
    from secateur.pictures.channels_picture import draw_channels
    from secateur.pictures.unit_and_images import spread_classes

    opened = _open(model, weights, data, part, holdout, data_root, mean, std, size, streams, device, seed)
    with progress() as bar:
        bar.add_task("score and look", total=None, note="")
        found = studies.channels_shown(
            opened.graph,
            opened.data.loader("train", 128, seed=seed),
            opened.data.loader(opened.part, 128, seed=seed),
            spread_classes(len(opened.data.classes), rows),
            unit=layer,
            by=by,
            metrics=names_in([metric]),
            top=top,
            skip=skip,
            images=images,
            mean=opened.data.mean,
            std=opened.data.std,
            seed=seed,
        )
    console.print(f"{found.unit}: weakest by {by} is channel {found.weak}, strongest {found.strong}", soft_wrap=True)
    _say_silent(found.silent)
    for name, strongest in found.strongest.items():
        console.print(f"strongest by {name}: {', '.join(map(str, strongest))}", soft_wrap=True, markup=False)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)
    _write(draw_channels(found, opened.data.classes), found.numbers(), _folder(out, opened), "channels")


# -- what both share


@dataclass(frozen=True)
class _Opened:
    """A traced network and its images."""

    name: str
    graph: ChannelGraph
    data: ImageData
    part: Any  # train, holdout or test


def _open(
    model: str | None,
    weights: Path | None,
    data: str,
    part: str,
    holdout: str,
    data_root: Path | None,
    mean: str | None,
    std: str | None,
    size: int | None,
    streams: str,
    device: str | None,
    seed: int,
) -> _Opened:
    import torch

    from secateur.base.processes import best_device, usable
    from secateur.channels.graph import trace
    from secateur.cli.demo import DEMO_DATA, DEMO_MODEL, demo_network
    from secateur.cli.opening import open_data, open_model
    from secateur.errors import DataError

    if part not in ("train", "holdout", "test"):
        raise DataError(f"--part should be train, holdout or test, not {part!r}")
    name = DEMO_MODEL if model is None else model
    images = open_data(data, name, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    if weights is None and (name, data) == (DEMO_MODEL, DEMO_DATA):
        network = demo_network(images, seed)
    else:
        network = open_model(name, images, weights, seed=seed)
        if weights is None and (":" not in name or name.startswith(("torchvision:", "timm:"))):
            complaints.print("[yellow]note:[/] no --weights were given, so this is the network before any training")
    home = usable(device) if device else best_device()
    graph = trace(network.to(home), torch.zeros(1, *images.shape, device=home), streams)  # type: ignore[arg-type]
    return _Opened(f"{name}-{data}", graph, images, part)


def _folder(out: Path | None, opened: _Opened) -> Path:
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"show-{opened.name}")
    return out or Path("runs") / plain


def _say_silent(silent: tuple[int, ...]) -> None:
    if silent:
        console.print(
            f"passed over, one value on all images shown: channel {', '.join(map(str, silent))}", soft_wrap=True
        )


def _write(picture: Figure, numbers: dict[str, Any], folder: Path, name: str) -> None:
    from secateur.base.atomic_files import write_atomically
    from secateur.pictures.drawing import save

    save(picture, folder, name)
    write_atomically(folder / f"{name}.json", f"{json.dumps(numbers, indent=2)}\n".encode())
    written = ", ".join(str(folder / f"{name}.{ending}") for ending in ("png", "svg", "json"))
    console.print(f"written: {written}", soft_wrap=True, markup=False)
