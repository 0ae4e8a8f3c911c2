"""`prunus show`: the paper's pictures of channels, of any layer of any network."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import MODEL_HELP, Early, console, friendly, resolve, run_folder
from prunus.cli.inputs import DEMO_DATA, DEMO_MODEL, demo_network
from prunus.cli.options import DataOptions, DeviceOptions, options_from_settings
from prunus.errors import DataError
from prunus.plots.settings import ChannelsFigureSettings, SeparationSettings
from prunus.util.files import refuse_others
from prunus.util.options import check, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from prunus.graph.channel_graph import ChannelGraph
    from prunus.plots.choices import Normalisation
    from prunus.zoo.data import ImageData, Loader

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Model = Annotated[
    str | None,
    typer.Argument(help=f"{MODEL_HELP}; the demo's by default"),
    Early(early_checks.network),
]


@dataclass(frozen=True)
class ShowOptions:
    """Options of both pictures that only the command line has."""

    weights: Path | None = option(None, "Weight file of the trained network", group="Data", valid=early_checks.weights)
    part: str = option(
        "test", "Images to draw: train, holdout or test", group="Images", choices=("train", "holdout", "test")
    )
    streams: str = option(
        "select",
        "Residual channels: each reader selects its own (select), or all drop them together (coupled)",
        group="Channels",
        choices=("select", "coupled"),
    )
    out: Path | None = option(None, "Folder for the pictures; runs/show-MODEL-DATA by default", group="Output")


@app.callback()
def root() -> None:
    """Pictures of weak and strong channels on images, as PNG and SVG that fit a paper.

    Example:

        prunus show channels resnet56 --weights w.safetensors --data cifar10 --layer layer1.0.conv1:out
    """


@app.command()
@friendly
@options_from_settings
def separation(
    model: Model = None,
    *,
    settings: SeparationSettings,
    options: ShowOptions,
    data: DataOptions,
    device: DeviceOptions,
    classes: Annotated[int, typer.Option(help="Number of classes to show, evenly spread", min=1)] = 10,
) -> None:
    """A weak and a strong channel of a layer: maps of a few images of each class, and PCA and LDA of many (Fig. 1).

    Examples:

        prunus show separation

        prunus show separation lenet5 --weights w.pt --data mnist --layer conv2
    """
    from prunus import studies
    from prunus.plots.choices import spread_classes
    from prunus.plots.separation import draw_separation

    opened = _open(model, options, data, device, settings.seed)
    found = studies.separation(
        opened.graph,
        opened.loader("train"),
        opened.loader(options.part),
        spread_classes(len(opened.data.classes), classes),
        normalised=opened.normalised(),
        settings=settings,
    )
    for word, seen in (("weak", found.weak), ("strong", found.strong)):
        own_class = ", ".join(f"{100 * p.own_class:.1f}% in {kind}" for kind, p in seen.projections.items())
        console.print(
            f"{word}: channel {seen.channel} of {found.unit}, {found.metric} {seen.score:.4g}; images nearest to the "
            f"mean of their own class: {own_class}",
            soft_wrap=True,
        )
    _print_silent(found.silent)
    _write(draw_separation(found, opened.data.classes), found.numbers(), opened.folder, "separation")


@app.command()
@friendly
@options_from_settings
def channels(
    model: Model = None,
    *,
    settings: ChannelsFigureSettings,
    options: ShowOptions,
    data: DataOptions,
    device: DeviceOptions,
    rows: Annotated[int, typer.Option(help="Number of images, each of another class", min=1)] = 5,
) -> None:
    """Images, the weakest and the strongest channel, and the mean of the strongest by several metrics (Figs. 3 and 7).

    Examples:

        prunus show channels

        prunus show channels resnet56 --weights w.pt --data cifar10 --rows 8
    """
    from prunus import studies
    from prunus.plots.channels import draw_channels
    from prunus.plots.choices import spread_classes

    opened = _open(model, options, data, device, settings.seed)
    found = studies.channels_shown(
        opened.graph,
        opened.loader("train"),
        opened.loader(options.part),
        spread_classes(len(opened.data.classes), rows),
        normalised=opened.normalised(),
        settings=settings,
    )
    console.print(
        f"{found.unit}: by {found.by}, channel {found.weak} is the weakest and {found.strong} the strongest",
        soft_wrap=True,
    )
    _print_silent(found.silent)
    for name, strongest in found.strongest.items():
        console.print(f"strongest by {name}: {', '.join(map(str, strongest))}", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    _write(draw_channels(found, opened.data.classes), found.numbers(), opened.folder, "channels")


@dataclass(frozen=True)
class _Opened:
    """A traced network, its images, and the folder for the pictures."""

    graph: ChannelGraph
    data: ImageData
    folder: Path
    seed: int

    def loader(self, part: Any) -> Loader:
        """Batches of a part of the data set."""
        return self.data.loader(part, 128, seed=self.seed)

    def normalised(self) -> Normalisation:
        """How the images were normalised."""
        from prunus.plots.choices import Normalisation

        return Normalisation(self.data.mean, self.data.std)


def _open(model: str | None, options: ShowOptions, data: DataOptions, device: DeviceOptions, seed: int) -> _Opened:
    import torch

    from prunus.graph.channel_graph import trace

    check(options, DataError)
    if options.out is not None:
        refuse_others(options.out, "pictures")
    name = DEMO_MODEL if model is None else model
    data = replace(data, data=DEMO_DATA) if model is None and data.data is None else data.known_for(name)
    images = data.open_classes(name, seed)
    network = _network(name, options.weights, data.name, images, seed)
    home = device.pick()
    graph = trace(network.to(home), torch.zeros(1, *images.shape, device=home), options.streams)  # type: ignore[arg-type]
    return _Opened(graph, images, options.out or run_folder(f"show-{resolve(name).label}-{data.name}"), seed)


def _network(name: str, weights: Path | None, data: str, images: ImageData, seed: int) -> nn.Module:
    from prunus.cli.inputs import note_untrained, open_model

    if weights is None and (name, data) == (DEMO_MODEL, DEMO_DATA):
        return demo_network(images, seed)
    note_untrained(name, weights)
    return open_model(name, images, weights, seed=seed)


def _print_silent(silent: tuple[int, ...]) -> None:
    if silent:
        console.print(
            f"not chosen, because they have one value on all images shown: channels {', '.join(map(str, silent))}",
            soft_wrap=True,
        )


def _write(picture: Figure, numbers: dict[str, Any], folder: Path, name: str) -> None:
    from prunus.plots.style import save
    from prunus.util.files import write_atomically

    save(picture, folder, name)
    write_atomically(folder / f"{name}.json", f"{json.dumps(numbers, indent=2)}\n".encode())
    written = ", ".join(str(folder / f"{name}.{ending}") for ending in ("png", "svg", "json"))
    console.print(f"written: {written}", soft_wrap=True)
