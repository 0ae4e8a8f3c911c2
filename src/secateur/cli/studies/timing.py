"""`secateur study timing`: seconds to score each layer by each metric (the paper's Fig. 6)."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import console, friendly, resumable, typed_command
from secateur.cli.from_settings import options_from_settings
from secateur.cli.options import DeviceOptions, Model, Streams, UndividedData, Weights
from secateur.cli.studies.common import StudyOutput, print_results
from secateur.studies.timing_study.settings import TimingSettings

if TYPE_CHECKING:
    from secateur.studies.timing_study.timing import LayerTimes


@friendly
@options_from_settings
def command(
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

        secateur study timing resnet8

        secateur study timing vgg16 --data cifar10 --num-images 500
    """
    import torch

    from secateur.channels.graph import trace
    from secateur.cli.opening import note_untrained, open_model
    from secateur.studies.folder import Provenance, StudyFolder
    from secateur.studies.timing_study.picture import draw_timing
    from secateur.studies.timing_study.timing import COLUMNS, timing

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
    from secateur.cli.columns import columns

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
