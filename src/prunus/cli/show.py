"""`prunus show`: the paper's pictures of channels, of any layer of any network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import Answer, Early, choice, default_folder, friendly, say
from prunus.cli.images import DataOptions
from prunus.cli.network import DEMO_DATA, DEMO_MODEL, MODEL_HELP, check_model_name, demo_network, open_model, resolve
from prunus.cli.options import DeviceOptions, Weights, typed_options
from prunus.deciding.settings import StreamSettings
from prunus.errors import DataError
from prunus.plots.settings import ChannelsFigureSettings, SeparationSettings
from prunus.util.files import refuse_others
from prunus.util.options import option, options_of
from prunus.zoo.names import PARTS

if TYPE_CHECKING:
    from prunus.plots.channels import ChannelsFigure, Separation

PICTURES = {"separation": SeparationSettings, "channels": ChannelsFigureSettings}


@dataclass(frozen=True)
class ShowOptions(StreamSettings):
    part: str = option("test", "Images to draw: train, holdout or test", group="Images", choices=PARTS)
    classes: int | None = option(
        None, "Number of classes to show, evenly spread; 10, and 5 of the picture `channels`", group="Images", least=1
    )
    out: Path | None = option(None, "Folder for the pictures; runs/show-MODEL-DATA by default", group="Output")


@friendly
def command(
    picture: Annotated[
        str, typer.Argument(help="separation (Fig. 1) or channels (Figs. 3 and 7)"), choice("the picture", *PICTURES)
    ],
    model: Annotated[
        str | None, typer.Argument(help=f"{MODEL_HELP}; the demo's by default"), Early(check_model_name)
    ] = None,
    *,
    context: typer.Context,
    separation: SeparationSettings,
    channels: ChannelsFigureSettings,
    options: ShowOptions,
    data: DataOptions,
    device: DeviceOptions,
    weights: Weights = None,
) -> Answer:
    """Pictures of weak and strong channels on images, as PNG and SVG that fit a paper.

    separation: a weak and a strong channel of a layer: maps of a few images of each class, and PCA and LDA of many.
    It has --metric, --weak, --strong, --each and --points.

    channels: images, the weakest and the strongest channel, and the mean of the strongest by several metrics, one image
    of each class. It has --by, --metrics, --top and --skip.

    Examples:

        prunus show separation

        prunus show separation lenet5 --data mnist --weights w.pt --layer conv2

        prunus show channels resnet56 --data cifar10 --weights w.pt --classes 8
    """
    settings: Any = {"separation": separation, "channels": channels}[picture]
    mine = {field.name for field, _ in options_of(settings)}
    for other in PICTURES.values():
        for name in {field.name for field, _ in options_of(other)} - mine & typed_options(context).keys():
            raise DataError(f"--{name} is not an option of the picture {picture}: leave it out")
    if options.out is not None:
        refuse_others(options.out, "pictures")
    named = resolve(model or DEMO_MODEL, weights)
    data = replace(data, data=DEMO_DATA) if model is None and data.data is None else data.known_for(named)
    from prunus import studies
    from prunus.graph.channel_graph import trace
    from prunus.plots.channels import draw_channels, draw_separation
    from prunus.plots.choices import spread_classes
    from prunus.plots.style import save
    from prunus.util.files import write_json

    images = data.open_classes(named, settings.seed)
    if weights is None and (named.typed, data.name) == (DEMO_MODEL, DEMO_DATA):
        network = demo_network(images, settings.seed)
    else:
        named.note_untrained()
        network = open_model(named, images, seed=settings.seed)
    home = device.pick()
    graph = trace(network.to(home), images.example().to(home), options.streams)
    folder = options.out or default_folder(f"show-{named.label}-{data.name}")
    given: dict[str, Any] = {"normalised": (images.mean, images.std), "settings": settings}
    scored, drawn = (images.loader(part, 128, seed=settings.seed) for part in ("train", options.part))  # type: ignore[arg-type]
    count = options.classes or (10 if picture == "separation" else 5)
    classes = spread_classes(len(images.classes), count)
    shown: Separation | ChannelsFigure
    if picture == "separation":
        shown = pair = studies.separation(graph, scored, drawn, classes, **given)
        figure = draw_separation(pair, images.classes)
        for word, seen in (("weak", pair.weak), ("strong", pair.strong)):
            near = ", ".join(f"{100 * p.own_class:.1f}% in {kind}" for kind, p in seen.projections.items())
            say(
                f"{word}: channel {seen.channel} of {pair.unit}, {pair.metric} {seen.score:.4g}; images nearest to the "
                f"mean of their own class: {near}"
            )
    else:
        shown = found = studies.channels_shown(graph, scored, drawn, classes, **given)
        figure = draw_channels(found, images.classes)
        say(f"{found.unit}: by {found.by}, channel {found.weak} is the weakest and {found.strong} the strongest")
        for name, strongest in found.strongest.items():
            say(f"strongest by {name}: {', '.join(map(str, strongest))}")
        for note in found.notes:
            say(f"note: {note}")
    if shown.silent:
        silent = ", ".join(map(str, shown.silent))
        say(f"not chosen, because they have one value on all images shown: channels {silent}")
    save(figure, folder, picture)
    write_json(folder / f"{picture}.json", shown.numbers())
    files = [folder / f"{picture}.{ending}" for ending in ("png", "svg", "json")]
    say(f"written: {', '.join(map(str, files))}")
    return Answer({"files": files, **shown.numbers()})
