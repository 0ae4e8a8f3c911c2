"""`secateur study timing`: seconds to score each layer by each metric (the paper's Fig. 6)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import complaints, console, friendly, names_in, progress
from secateur.cli.options import Data, DataRoot, HeldOut, Mean, Model, Size, Std, Streams

if TYPE_CHECKING:
    from secateur.studies.timing_study.timing import Timed


@friendly
def command(
    model: Model,
    data: Data = "digits",
    weights: Annotated[Path | None, typer.Option(help="Weight file; times hardly depend on it.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Names with commas between; gsd,di by default.")] = None,
    images: Annotated[int, typer.Option(help="Images to score on; the paper took 3,000.")] = 200,
    memory: Annotated[float, typer.Option(help="GiB for maps, and once more for matrices.")] = 2.0,
    inverse: Annotated[int, typer.Option(help="Channels a layer of DI by explicit inverse; 0: none.")] = 1,
    clock: Annotated[str, typer.Option(help="wall, or cpu: of this process, for a busy machine.")] = "wall",
    threads: Annotated[int | None, typer.Option(help="Threads of torch.")] = None,
    streams: Streams = "select",
    batch_size: Annotated[int, typer.Option(help="Images at a time in forward passes.")] = 32,
    holdout: HeldOut = "none",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    device: Annotated[str | None, typer.Option(help="Where maps are made; they are scored on the CPU.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample of images.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Study folder; runs/study-timing-MODEL-DATA by default.")] = None,
) -> None:
    """Measure how long each metric takes to score each layer: maps given, as in the paper, and maps included.

    Examples:

        secateur study timing resnet8

        secateur study timing vgg16_imagenet --data folder:pictures --images 200
    """
    import torch

    from secateur.base.processes import best_device, usable
    from secateur.channels.graph import trace
    from secateur.cli.opening import open_data, open_model
    from secateur.cli.studies.common import say_where, study_folder, typed
    from secateur.studies.folder import StudyFolder
    from secateur.studies.timing_study.picture import draw_timing
    from secateur.studies.timing_study.timing import COLUMNS, timing

    asked = {k: str(v) if isinstance(v, Path) else v for k, v in locals().items() if k in _ASKED}
    found_data = open_data(data, model, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    home = usable(device) if device else best_device()
    network = open_model(model, found_data, weights, seed=seed).to(home)
    graph = trace(network, torch.zeros(1, *found_data.shape, device=home), streams)  # type: ignore[arg-type]
    folder = StudyFolder(study_folder(out, "timing", model, data), "timing", asked, typed())
    folder.start()
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with progress() as bar:
            task = bar.add_task("maps and scores", total=None, note="")
            found = timing(
                graph,
                found_data.loader("train", batch_size, seed=seed),
                names_in(metric or ["gsd,di"]),
                images=images,
                memory=int(memory * (1 << 30)),
                inverse_channels=inverse,
                clock=clock,
                seed=seed,
                folder=folder,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    finally:
        torch.set_num_threads(before)
    shape = "x".join(str(side) for side in found_data.shape[1:])
    pictures = draw_timing(found, model, f"{shape} pixels", folder.path)
    folder.finish(f"Seconds to score each layer of {model}", found.rows, pictures, found.notes, columns=COLUMNS)
    _say(found)
    if weights is None:
        complaints.print("[yellow]note:[/] no --weights were given, so this is the network before any training")
    say_where(folder.path)


_ASKED = (
    *(
        "model",
        "data",
        "weights",
        "metric",
        "images",
        "memory",
        "inverse",
        "clock",
        "threads",
        "streams",
        "size",
        "seed",
    ),
)


def _say(found: Timed) -> None:
    """A line for each layer: its size, then the seconds of every metric."""
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
    console.print(columns(titles, lines, set(titles) - {"layer"}), markup=False, soft_wrap=True)
    console.print("\nseconds to score all channels of a layer, maps given; maps: seconds to make them")
    for note in found.notes:
        console.print(note, markup=False, soft_wrap=True)
