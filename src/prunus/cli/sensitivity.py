"""prunus sensitivity: how much the held-out accuracy drops when each unit loses channels."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prunus.cli import console as early_checks
from prunus.cli.console import console, friendly
from prunus.cli.options import DataOptions, Model, options_from_settings, task_for
from prunus.decide.settings import SPLITS, RankSettings
from prunus.repair.repair import REPAIRS
from prunus.score.metrics import metric_option, suited_metric
from prunus.tasks import task_of
from prunus.tasks.quality import QualityWords
from prunus.util.files import SCORES, SENSITIVITY, refuse_others
from prunus.util.options import check, option


@dataclass(frozen=True)
class SensitivityOptions:
    """Options of this verb alone."""

    weights: Path | None = option(None, "Weight file of the trained network", group="Data", valid=early_checks.weights)
    metric: str | None = metric_option(None, "Metric that scores channels; as in `prunus prune` by default")
    num_images: int | None = option(None, "Score on this number of images", group="Channels", least=1)
    streams: str = option(
        "select",
        "Residual channels: each reader selects its own (select), or all drop them together (coupled)",
        group="Channels",
        choices=("select", "coupled"),
    )
    repair: str = option("none", f"Rank each unit after its own repair: {', '.join(REPAIRS)}", choices=REPAIRS)
    num_repair_images: int = option(250, "Unlabelled training images for that repair", least=1)
    limit: int | None = option(None, "Use at most this number of held-out images", group="Data", least=1)
    out: Path = option(Path("sensitivity"), "Folder for sensitivity.json and sensitivity.png", group="Output")


@friendly
@options_from_settings
def command(model: Model, *, settings: RankSettings, options: SensitivityOptions, data: DataOptions) -> None:
    """Show how sensitive the network is to each unit: which units Algorithm 1 would prune.

    Examples:

        prunus sensitivity resnet56 --weights w.safetensors --data cifar10

        prunus sensitivity resnet56 --weights w.safetensors --split ratio

        prunus sensitivity resnet56 --weights w.safetensors --repair solve

        prunus sensitivity nets:tagger --task multilabel --data folder:photos
    """
    from prunus.decide.settings import check_k
    from prunus.errors import DecideError
    from prunus.plots.charts import draw_sensitivity
    from prunus.util.files import write_atomically
    from prunus.util.typed_json import to_data

    check(options, DecideError)
    check(settings, DecideError)
    refuse_others(options.out, SENSITIVITY, beside=(SCORES,))
    settings = replace(settings, task=task_for(model, settings.task))
    found = _measure(model, settings, options, data)
    chosen, out = found.ranked()[: check_k(settings.k, len(found.tried))], options.out
    write_atomically(out / "sensitivity.json", f"{json.dumps(to_data(found), indent=2)}\n".encode())
    draw_sensitivity(found, chosen, out / "sensitivity.png")
    _say(found, chosen, QualityWords.of(task_of(settings.task)))
    console.print(f"\nwritten: {out / 'sensitivity.json'}, {out / 'sensitivity.png'}", soft_wrap=True)


def _measure(model: str, settings: RankSettings, options: SensitivityOptions, data: DataOptions) -> Any:
    import torch

    from prunus.cli.inputs import note_untrained, open_graph
    from prunus.decide.sensitivity import sensitivity
    from prunus.repair.unit_repair import repair_each
    from prunus.score.score import score
    from prunus.tasks.evaluate import inputs_alone

    seed = settings.seed
    note_untrained(model, options.weights)
    images = data.open(model, seed, settings.task)
    cpu = torch.device("cpu")
    graph = open_graph(model, images, options.weights, seed=seed, device=cpu, streams=options.streams)
    scores = score(
        graph,
        images.loader("train", 256),
        metric=options.metric or suited_metric(SPLITS.find(settings.split or "algorithm1").metric, settings.task),
        num_images=options.num_images,
        seed=seed,
        task=settings.task,
    )
    how: Any = options.repair
    repair = None
    if how != "none":
        few = images.loader("train", 125, limit=options.num_repair_images, seed=seed)
        repair = repair_each(graph, inputs_alone(task_of(settings.task), few), how=how, seed=seed)
    return sensitivity(
        graph,
        scores,
        images.loader("holdout", 256, limit=options.limit),
        settings,
        repair=repair,
    )


def _say(found: Any, chosen: list[str], words: QualityWords) -> None:
    from prunus.cli.console import columns

    titles = ["unit", "width", "removed", words.name, "loss", f"{found.cost} saved", "images", ""]
    rows = []
    for name in found.ranked():
        row = found.tried[name]
        rows.append(
            [
                name,
                str(row.width),
                str(row.channels),
                "-" if row.accuracy is None else words.shown(row.accuracy),
                "-" if row.loss is None else f"{row.loss:.4f}",
                f"{row.saved:,.0f}" if row.saved >= 1 else f"{row.saved:.2e}",
                str(row.num_images),
                "chosen" if name in chosen else "",
            ]
        )
    console.print(columns(titles, rows, numbers=titles[1:-1]))
    if found.base_accuracy is not None:
        console.print(f"\nwhole network: {words.shown(found.base_accuracy)} on {found.num_images} held-out images")
