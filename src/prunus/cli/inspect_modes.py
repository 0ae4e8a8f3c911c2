"""`prunus inspect --scores | --sensitivity | --latency`: what each measures, prints and writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prunus.cli.console import console, say, table
from prunus.cli.images import DataOptions
from prunus.cli.network import NamedModel, open_graph, open_network
from prunus.cli.options import PARTS, DeviceOptions, LayerTimeOptions
from prunus.deciding.settings import SPLITS, RankSettings
from prunus.errors import DecideError, RunError
from prunus.repairing.repair import REPAIRS
from prunus.scoring.metrics import DEFAULT_METRIC, METRICS, metric_option, suited_metric
from prunus.scoring.settings import ScoreSettings
from prunus.tasks import task_of
from prunus.tasks.quality import QualityText
from prunus.timing.engines import ENGINES
from prunus.util.files import SCORES, SENSITIVITY, refuse_others, refuse_overwriting
from prunus.util.options import check, names, option
from prunus.zoo.names import check_weight_file

if TYPE_CHECKING:
    from prunus.deciding.sensitivity import Sensitivity
    from prunus.scoring.scores import Scores
    from prunus.timing.latency_table import LatencyTable

OUT_HELP = (
    "Folder for scores or sensitivity as files; file for the table of --latency, whose picture is written beside it"
)
SHOWN_LAYERS = 12  # layer shapes in the printed table of times
SHARES = {"3/4": 0.75, "1/2": 0.5, "1/4": 0.25}  # of a layer's width


@dataclass(frozen=True)
class InspectOptions:
    """Options of scores and sensitivity."""

    weights: Path | None = option(None, "Weight file of the trained network", valid=check_weight_file)
    out: Path | None = option(None, OUT_HELP)


@dataclass(frozen=True)
class ScoreOptions:
    """Which images are scored on, and what is printed."""

    part: str = option("train", "Images to score on: train, holdout or test", choices=PARTS)
    batch_size: int = option(128, "Images per batch", least=1)
    show: int = option(3, "Number of channels shown at each end of a unit", least=0)
    seed: int = option(0, "Seed of samples, order and augmentation", least=0)
    option: tuple[str, ...] = option((), "Option of the metric, as in ridge=0.5. Can be repeated")


@dataclass(frozen=True)
class RankOptions:
    """How channels are scored and repaired before units are ranked."""

    metric: str | None = metric_option(None, "Metric that scores channels; as in `prunus prune` by default")
    num_images: int | None = option(None, "Number of images to score on, a stratified sample; all by default", least=1)
    repair: str = option("none", f"Rank each unit after its own repair: {', '.join(REPAIRS)}", choices=REPAIRS)
    num_repair_images: int = option(250, "Unlabelled training images for that repair", least=1)
    limit: int | None = option(None, "Use at most this number of held-out images", least=1)


@dataclass(frozen=True)
class LatencyOptions(LayerTimeOptions):
    """Where layers are timed."""

    engine: str = option("eager", f"Engine: {', '.join(ENGINES)}", valid=ENGINES.check)
    out: Path | None = option(None, OUT_HELP)


def check_metrics(text: str) -> None:
    """Early check of names of metrics, separated by commas, each with options as in gsd:ridge=1; or all."""
    for name in names(text):
        if name != "all":
            METRICS.check(name.partition(":")[0])


# -- scores


def print_scores(
    named: NamedModel,
    metrics: list[str],
    data: DataOptions,
    device: DeviceOptions,
    settings: ScoreSettings,
    how: ScoreOptions,
    streams: str,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Score every channel of every unit by some metrics, print one of them, and how alike they rank channels."""
    if out is not None:
        refuse_others(out, SCORES, beside=(SENSITIVITY,))
    task = named.task(settings.task)
    data = data.known_for(named)
    from prunus.scoring.choice import parse_options
    from prunus.scoring.score import score
    from prunus.scoring.scores import save_scores
    from prunus.util.processes import leave, rank_and_world

    rank, world = rank_and_world(device.device)
    images = data.open(named, how.seed, task)
    graph = open_graph(named, images, seed=how.seed, device=device.pick(), streams=streams)
    wanted = settings.num_images
    if world > 1:  # equal shares for all processes
        whole = images.count(how.part)  # type: ignore[arg-type]
        wanted = min(wanted or whole, whole)
        wanted -= wanted % world
    loader = images.loader(how.part, how.batch_size, limit=wanted, seed=how.seed, rank=rank, world=world)  # type: ignore[arg-type]
    settings = replace(settings, num_images=None, seed=how.seed, task=task)  # the loader's limit is the sample
    chosen = [name for text in metrics for name in names(text)]
    results = score(graph, loader, chosen, **vars(settings), **parse_options(how.option))
    if rank == 0:
        if out is not None:
            save_scores(results, out)
        if as_json:
            _print_scores_as_json(results)
        else:
            name = DEFAULT_METRIC if DEFAULT_METRIC in results else next(iter(results))
            shown, rows = results[name], []
            for unit, values in shown.values.items():
                order = shown.order(unit)
                ends = order[: how.show], order[::-1][: how.show]
                cells = [" ".join(f"{channel}:{values[channel]:.3g}" for channel in some) for some in ends]
                rows.append([unit, graph.units[unit].kind, str(graph.units[unit].width), *cells])
            count = f"{shown.num_images:,} images" if shown.num_images else "no images"
            say(f"{len(shown.values)} units scored by {name}, {count}; higher means keep")
            console.print(table(("unit", "kind", "width", "weakest", "strongest"), rows, ("width",)))
            for note in shown.notes:
                say(f"note: {note}")
            _print_correlations(results)
            if out is not None:
                say(f"\nwritten: {out / 'scores.safetensors'}, {out / 'scores.json'}")
        named.note_untrained()
    leave()


def _correlations(results: dict[str, Scores]) -> dict[str, dict[str, float]]:
    from prunus.scoring.scores import rank_correlation

    return {a: {b: rank_correlation(results[a], results[b]) for b in results} for a in results}


def _print_scores_as_json(results: dict[str, Scores]) -> None:
    record = {
        "scores": {name: {unit: v.tolist() for unit, v in s.values.items()} for name, s in results.items()},
        "rank_correlation": _correlations(results),
        "num_images": max(scores.num_images for scores in results.values()),
    }
    console.print_json(json.dumps(record))


def _print_correlations(results: dict[str, Scores]) -> None:
    """A table of all pairs of metrics; one with many columns becomes several tables below each other."""
    if len(results) < 2:
        return
    say("\nrank correlation (Spearman, mean over units)")
    alike, columns = _correlations(results), list(results)
    step = max(1, console.width // (max(map(len, columns)) + 2) - 1)
    for start in range(0, len(columns), step):
        some = columns[start : start + step]
        console.print(table(("", *some), [[a, *(f"{alike[a][b]:.2f}" for b in some)] for a in results], some))


# -- sensitivity


def print_sensitivity(
    named: NamedModel,
    data: DataOptions,
    device: DeviceOptions,
    settings: RankSettings,
    how: RankOptions,
    streams: str,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure what the held-out quality loses when each unit loses channels: which units Algorithm 1 would prune."""
    check(how, DecideError)
    check(settings, DecideError)
    if out is not None:
        refuse_others(out, SENSITIVITY, beside=(SCORES,))
    data, seed = data.known_for(named), settings.seed
    settings = replace(settings, task=named.task(settings.task))
    from prunus.deciding.sensitivity import sensitivity
    from prunus.deciding.settings import check_k
    from prunus.plots.charts import draw_sensitivity
    from prunus.repairing.unit_repair import repair_each
    from prunus.scoring.score import score
    from prunus.tasks.evaluate import inputs_alone
    from prunus.util.files import write_atomically
    from prunus.util.typed_json import to_data

    named.note_untrained()
    task = task_of(settings.task)
    images = data.open(named, seed, task)
    graph = open_graph(named, images, seed=seed, device=device.pick(), streams=streams)
    metric = how.metric or suited_metric(SPLITS.find(settings.split or "algorithm1").metric, settings.task)
    scores = score(
        graph, images.loader("train", 256), metric=metric, num_images=how.num_images, seed=seed, task=settings.task
    )
    repair = None
    if how.repair != "none":
        few = images.loader("train", 125, limit=how.num_repair_images, seed=seed)
        repair = repair_each(graph, inputs_alone(task, few), how=how.repair, seed=seed)
    held_out = images.loader("holdout", 256, limit=how.limit)
    measured = sensitivity(graph, scores, held_out, settings, repair=repair)
    chosen = measured.ranked()[: check_k(settings.k, len(measured.tried))]
    record = json.dumps(to_data(measured), indent=2)
    if out is not None:
        write_atomically(out / "sensitivity.json", f"{record}\n".encode())
        draw_sensitivity(measured, chosen, out / "sensitivity.png")
    if as_json:
        console.print_json(record)
        return
    _print_units(measured, chosen, QualityText.of(task))
    if out is not None:
        say(f"\nwritten: {out / 'sensitivity.json'}, {out / 'sensitivity.png'}")


def _print_units(measured: Sensitivity, chosen: list[str], text: QualityText) -> None:
    titles = ["unit", "width", "removed", text.name, "loss", f"{measured.cost} saved", "images", ""]
    rows = []
    for name in measured.ranked():
        unit = measured.tried[name]
        quality = "-" if unit.accuracy is None else text.shown(unit.accuracy)
        loss = "-" if unit.loss is None else f"{unit.loss:.4f}"
        saved = f"{unit.saved:,.0f}" if unit.saved >= 1 else f"{unit.saved:.2e}"
        marked = "chosen" if name in chosen else ""
        rows.append([name, str(unit.width), str(unit.channels), quality, loss, saved, str(unit.num_images), marked])
    console.print(table(titles, rows, numbers=titles[1:-1]))
    if measured.base_accuracy is not None:
        say(f"\nwhole network: {text.shown(measured.base_accuracy)} on {measured.num_images} held-out images")


# -- latency


def print_latency(
    named: NamedModel, how: LatencyOptions, streams: str, size: int | None, classes: int | None, *, as_json: bool
) -> None:
    """Time the layers at many widths. Times are kept in the user's cache folder."""
    check(how, RunError)
    ENGINES.find(how.engine).check_installed()
    if how.out is not None:
        refuse_overwriting(how.out)
    from prunus.graph.channel_graph import trace
    from prunus.plots.charts import draw_latency
    from prunus.plots.style import save
    from prunus.run.checkup import shapes_of
    from prunus.timing.layer_timing import latency_table
    from prunus.util.typed_json import to_data

    network = open_network(named, classes)
    example = network.zeros(size)
    graph = trace(network.model.eval(), example, streams)  # type: ignore[arg-type]
    times = latency_table(graph, how.engine, how.batch, how.threads)
    if how.out is not None:
        times.save(how.out)
        save(draw_latency(times, f"{network.name} on {shapes_of(example)}"), how.out.parent, how.out.stem)
    if as_json:
        console.print_json(json.dumps(to_data(times)))
        return
    _print_times(times)
    if how.out is not None:
        say(f"wrote {how.out}, {how.out.with_suffix('.png')} and .svg")


def _print_times(times: LatencyTable) -> None:
    from prunus.plots.charts import longest_shapes

    rows = []
    for layers, layer in longest_shapes(times, SHOWN_LAYERS).items():
        whole = layer.seconds[-1][-1]
        more = f" (+{len(layers) - 1})" if len(layers) > 1 else ""
        narrower = [
            layer.at(*(max(1, int(share * axis[-1])) for axis in (layer.inputs, layer.outputs)))
            for share in SHARES.values()
        ]
        row = [f"{layers[0]}{more}", f"{layer.inputs[-1]} to {layer.outputs[-1]}", f"{1e3 * whole:.3f}"]
        rows.append([*row, f"{100 * len(layers) * whole / times.whole:.0f}%", *(f"{1e3 * s:.3f}" for s in narrower)])
    rest = f"{100 * times.remainder / times.whole:.0f}%"
    rows.append(["what is not a layer", "", f"{1e3 * times.remainder:.3f}", rest])
    rows.append(["whole network", "", f"{1e3 * times.whole:.3f}", "100%"])
    say(str(times.measured_with))
    titles = ["layer (and more alike)", "channels", "ms", "share", *SHARES]
    console.print(table(titles, rows, titles[2:]))
    say("ms: one layer, one batch; share: all alike; 3/4, 1/2, 1/4: ms at these widths")
