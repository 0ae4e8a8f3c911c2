"""secateur sensitivity: what each unit's loss of channels does to the held-out accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.cli.common import console, friendly, progress
from secateur.cli.options import Data, DataRoot, DecidingImages, Exact, Mean, Model, Size, Std, Streams, Weights


@friendly
def command(
    model: Model,
    weights: Weights = None,
    data: Data = "digits",
    metric: Annotated[
        str | None, typer.Option(help="What a channel is worth by; as in `secateur prune` by default.")
    ] = None,
    method: Annotated[str, typer.Option(help="flops (Algorithm 1) or ratio (Li et al.).")] = "flops",
    alpha: Annotated[float, typer.Option(help="Pruning rate of Eqn. 3.")] = 3.0,
    k: Annotated[int | None, typer.Option(help="Units to choose; a third of them by default.")] = None,
    measure: Annotated[str, typer.Option(help="accuracy or loss.")] = "accuracy",
    cost: Annotated[str, typer.Option(help="Equal macs, params or latency are compared.")] = "macs",
    repair: Annotated[str, typer.Option(help="Judge each unit as cut (none), or after bn or solve.")] = "none",
    repair_images: Annotated[int, typer.Option(help="Unlabelled training images for that.")] = 250,
    exact: Exact = False,
    streams: Streams = "select",
    exclude: Annotated[list[str] | None, typer.Option(help="Leave units or layers of this pattern alone.")] = None,
    images: Annotated[int | None, typer.Option(help="Score on so many images.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many held-out images.")] = None,
    holdout: DecidingImages = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    seed: Annotated[int, typer.Option(help="Of samples.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for sensitivity.json and sensitivity.png.")] = Path("sensitivity"),
) -> None:
    """Show how sensitive the network is to each unit: which units Algorithm 1 would prune.

    Examples:

        secateur sensitivity resnet56 --weights w.safetensors --data cifar10

        secateur sensitivity resnet56 --weights w.safetensors --method ratio

        secateur sensitivity resnet56 --weights w.safetensors --repair solve
    """
    import torch

    from secateur.base.atomic_files import write_atomically
    from secateur.channels.graph import trace
    from secateur.cli.opening import open_data, open_model
    from secateur.deciding.sensitivity import check_k, sensitivity
    from secateur.errors import DecideError
    from secateur.repairing.unit_repair import repair_each
    from secateur.report.sensitivity_picture import draw_sensitivity
    from secateur.scoring.metrics import DEFAULT_METRIC
    from secateur.scoring.score import score

    if repair not in ("none", "bn", "solve"):
        raise DecideError(f"repair must be one of none, bn, solve; got {repair!r}")
    found_data = open_data(data, model, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    network = open_model(model, found_data, weights, seed=seed)
    graph = trace(network, torch.zeros(1, *found_data.shape), streams)  # type: ignore[arg-type]
    with progress() as bar:
        scoring = bar.add_task("score", total=None, note="")
        scores = score(
            graph,
            found_data.loader("train", 256),
            metric=metric or DEFAULT_METRIC,
            num_images=images,
            seed=seed,
            progress=lambda done, total: bar.update(scoring, completed=done, total=total),
        )
        few = found_data.loader("train", 125, limit=repair_images, seed=seed)
        mend = None if repair == "none" else repair_each(graph, few, how=repair, seed=seed)
        trying = bar.add_task("sensitivity", total=None, note="")
        found = sensitivity(
            graph,
            scores,
            found_data.loader("holdout", 256, limit=limit),
            method,  # type: ignore[arg-type]
            alpha=alpha,
            k=k,
            measure=measure,  # type: ignore[arg-type]
            cost=cost,  # type: ignore[arg-type]
            repair=mend,
            exact=exact,
            exclude=tuple(exclude or ()),
            seed=seed,
            progress=lambda done, total: bar.update(trying, completed=done, total=total),
        )
    chosen = found.ranked()[: check_k(k, len(found.tried))]
    write_atomically(out / "sensitivity.json", f"{json.dumps(found.to_dict(), indent=2)}\n".encode())
    draw_sensitivity(found, chosen, out / "sensitivity.png")
    _say(found, chosen)
    console.print(f"\nwritten: {out / 'sensitivity.json'}, {out / 'sensitivity.png'}", soft_wrap=True)


def _say(found: Any, chosen: list[str]) -> None:
    from secateur.cli.columns import columns

    titles = ["unit", "width", "lost", "accuracy", "loss", f"{found.cost} saved", "images", ""]
    rows = []
    for name in found.ranked():
        row = found.tried[name]
        rows.append(
            [
                name,
                str(row.width),
                str(row.channels),
                "-" if row.accuracy is None else f"{100 * row.accuracy:.2f}%",
                "-" if row.loss is None else f"{row.loss:.4f}",
                f"{row.saved:,.0f}" if row.saved >= 1 else f"{row.saved:.2e}",
                str(row.images),
                "chosen" if name in chosen else "",
            ]
        )
    console.print(columns(titles, rows, numbers=titles[1:-1]), markup=False)
    if found.base_accuracy is not None:
        console.print(f"\nwhole network: {100 * found.base_accuracy:.2f}% on {found.images} held-out images")
