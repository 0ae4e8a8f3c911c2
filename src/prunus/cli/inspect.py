"""`prunus inspect`: layers and units of a network and what cannot be pruned; its scores, sensitivity or latency."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import Answer, Early, console, friendly, say, table
from prunus.cli.images import DataOptions, task_on
from prunus.cli.network import MODEL_HELP, NamedModel, check_model_name, open_graph, open_network, resolve
from prunus.cli.options import Classes, DeviceOptions, LayerTimeOptions, OnlyWith, Weights, Without, refuse_other_modes
from prunus.deciding.settings import SPLITS, RankSettings, StreamSettings
from prunus.errors import ModelError
from prunus.scoring.metrics import DEFAULT_METRIC, ScoreSettings, check_metric, metric_option, suited_metric
from prunus.tasks import task_of
from prunus.tasks.quality import QualityText
from prunus.timing.engines import ENGINES, default_engine
from prunus.util.files import SCORES, SENSITIVITY, refuse_others, refuse_overwriting
from prunus.util.options import names, option
from prunus.util.text import big_number, bytes_text
from prunus.zoo.names import PARTS, known_models

if TYPE_CHECKING:
    from prunus.timing.latency_table import LayerTimes

SHOWN_NAMES = 3  # of what is frozen for a reason
SHOWN_LAYERS = 12  # layer shapes in the printed table of times
SHARES = {"3/4": 0.75, "1/2": 0.5, "1/4": 0.25}  # of a layer's width


@dataclass(frozen=True)
class OutOptions:
    out: Path | None = option(
        None, "Folder for scores.safetensors or sensitivity.json; file for the table of --latency"
    )


@dataclass(frozen=True)
class ScoreOptions:
    part: str = option("train", "Images to score on: train, holdout or test", choices=PARTS)
    batch_size: int = option(128, "Images per batch", least=1)
    show: int = option(3, "Number of channels shown at each end of a unit", least=0)
    seed: int = option(0, "Seed of samples, order and augmentation", least=0)


@dataclass(frozen=True)
class RankOptions:
    metric: str | None = metric_option(None, "Metric that scores channels; as in `prunus prune` by default")
    num_images: int | None = option(None, "Number of images to score on, a stratified sample; all by default", least=1)
    repair: str = option("none", "Rank each unit after its own repair: none, solve", choices=("none", "solve"))
    num_repair_images: int = option(250, "Unlabelled training images for that repair", least=1)
    num_eval_images: int | None = option(None, "Number of held-out images that rank; all by default", least=1)


@dataclass(frozen=True)
class LatencyOptions(LayerTimeOptions):
    engine: str = option(
        default_engine(),
        f"Engine: {', '.join(ENGINES)}; onnxruntime by default if it is installed",
        valid=ENGINES.check,
    )


@friendly
def command(
    model: Annotated[
        str | None,
        typer.Argument(help=f"{MODEL_HELP}; without it, the built-in networks are listed"),
        Early(check_model_name),
    ] = None,
    *,
    context: typer.Context,
    scores: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Score every channel by a metric, several separated by commas, or all"),
        Early(lambda text: [check_metric(name) for name in names(text) if name != "all"]),
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Rank the units as Algorithm 1 does, on held-out images")
    ] = False,
    latency: Annotated[bool, typer.Option("--latency", help="Time the layers at many widths in an engine")] = False,
    place: Annotated[OutOptions, OnlyWith("scores", "sensitivity", "latency")],
    data: Annotated[DataOptions, OnlyWith("scores", "sensitivity"), Without("size")],
    device: Annotated[DeviceOptions, OnlyWith("scores", "sensitivity")],
    scoring: Annotated[ScoreSettings, OnlyWith("scores")],
    score_options: Annotated[ScoreOptions, OnlyWith("scores")],
    ranking: Annotated[RankSettings, OnlyWith("sensitivity")],
    rank_options: Annotated[RankOptions, OnlyWith("sensitivity")],
    timing: Annotated[LatencyOptions, OnlyWith("latency")],
    units: StreamSettings,
    weights: Weights = None,
    size: Annotated[int | None, typer.Option(help="Height and width of the images in pixels", min=1)] = None,
    classes: Classes = None,
) -> Answer | None:
    """Show a network's layers, its prunable units, and which channels are frozen and why.

    --scores: every channel is scored; pruning removes those with the lowest. Several processes: torchrun
    --nproc-per-node N -m prunus inspect ...

    --sensitivity: each unit loses channels in turn, and held-out images say what that costs.

    --latency: layers are timed in the engine where the network will run, and times are kept. With one thread,
    processor time is measured, which other programs change little. To prune for another machine, run this there with
    --out table.json, and here `prune --latency-table table.json`.

    Examples:

        prunus inspect

        prunus inspect resnet56

        prunus inspect my_package.nets:build --size 64 --json

        prunus inspect resnet56 --scores gsd,l1 --data cifar10 --weights w.pt

        prunus inspect runs/prune-resnet56-cifar10 --scores gsd:ridge=1

        prunus inspect resnet56 --sensitivity --data cifar10 --weights w.pt

        prunus inspect resnet56 --latency --engine openvino --out table.json
    """
    modes = [name for name, on in {"scores": scores, "sensitivity": sensitivity, "latency": latency}.items() if on]
    if len(modes) > 1:
        raise ModelError(f"give only one of --{modes[0]} and --{modes[1]}")
    mode = modes[0] if modes else None
    refuse_other_modes(context, mode)
    if model is None:
        if mode is not None:
            raise ModelError(f"--{mode} needs a network: prunus inspect MODEL --{mode} ...")
        numbers, rows, known = ("classes", "MACs", "weights", "params"), [], known_models()
        for name, each in known.items():
            counts = [big_number(number) for number in (each.macs, each.weights, each.parameters)]
            rows.append([name, "x".join(map(str, each.shape)), str(each.classes), *counts])
        console.print(table(("name", "input", *numbers), rows, numbers))
        for about in dict.fromkeys(each.about for each in known.values() if each.about):
            alike = ", ".join(name for name, each in known.items() if each.about == about)
            say(textwrap.fill(f"{about}: {alike}", 80, subsequent_indent="  "))
        say("MACs: of convolutions, linear layers and products of attention.")
        say("weights: of convolutions and linear layers. params: all parameters.")
        say("Others: torchvision:NAME, timm:NAME, yolo:CONFIG.yaml, module:factory, FILE.onnx")
        return Answer({"models": known})
    if mode in ("scores", "sensitivity") and classes is not None:
        raise ModelError(f"--classes is for a network without a data set: leave it out, or leave out --{mode}")
    asked = Asked(resolve(model, weights), replace(data, size=size), device, units.streams, size, classes, place.out)
    if mode == "scores":
        chosen = [name for text in scores or () for name in names(text)]
        return _score(asked, chosen, scoring, score_options)
    if mode == "sensitivity":
        return _rank(asked, ranking, rank_options)
    return _time(asked, timing) if mode == "latency" else _show(asked)


@dataclass(frozen=True)
class Asked:
    """What every mode may need."""

    named: NamedModel
    data: DataOptions
    device: DeviceOptions
    streams: Any
    size: int | None
    classes: int | None
    out: Path | None


# -- layers, units and what is frozen


def frozen_lines(frozen: Mapping[str, Sequence[str]]) -> list[str]:
    """reason -> names, as lines: the first names and the reason."""
    lines = []
    for reason, layers in frozen.items():
        more = f" and {len(layers) - SHOWN_NAMES} more" if len(layers) > SHOWN_NAMES else ""
        lines.append(f"{', '.join(layers[:SHOWN_NAMES])}{more}: {reason}")
    return lines


def _show(asked: Asked) -> Answer:
    from prunus.graph.channel_graph import trace
    from prunus.graph.memory import peak_of
    from prunus.run.checkup import shapes_of

    network = open_network(asked.named, asked.classes, asked.size)
    example = network.zeros(asked.size)
    graph = trace(network.model, example, asked.streams)
    counts = f"{big_number(graph.macs)} MACs, {big_number(graph.params)} weights, {len(graph.units)} units"
    console.print(f"{asked.named.typed} on {shapes_of(example)}: {counts}", soft_wrap=True, style="bold")
    peak = peak_of(graph)
    if peak is not None:
        say(f"peak of activations: {bytes_text(peak)} for one image, at {graph.memory.where()}")
    layers = [
        [name, f"{layer.inputs} → {layer.outputs}", big_number(layer.params), big_number(layer.macs)]
        for name, layer in graph.layers.items()
    ]
    titles = ["layer", "channels", "weights", "MACs"]
    say(f"Layers ({len(graph.prunable)} of {len(graph.weighted)} can be pruned)")
    drawn = table(titles, layers, titles[1:])
    drawn.add_row("total", "", big_number(graph.params), big_number(graph.macs), style="bold")
    console.print(drawn)
    say()
    rows = []
    for unit in graph.units.values():
        readers = list(dict.fromkeys(r.module for r in unit.readers))
        read_by = readers[0] + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")
        branch = "can be removed" if unit.can_vanish else ""
        rows.append([unit.name, unit.kind, str(unit.width), str(unit.granule), read_by, branch])
    say("Units (channels that are scored and pruned together)")
    titles = ["unit", "kind", "width", "in steps of", "read by", "branch"]
    console.print(table(titles, rows, ("width", "in steps of")))
    say(f"\nFrozen ({len(graph.frozen)}): these channels cannot be removed")
    reasons: dict[str, list[str]] = {}
    for name, reason in graph.frozen.items():
        reasons.setdefault(reason, []).append(name)
    for line in frozen_lines(reasons):
        console.print(f"  {line}")
    kinds = ("inputs", "outputs", "macs", "params", "depthwise")
    record = {name: getattr(graph, name) for name in ("streams", "fingerprint", "macs", "params", "prunable", "frozen")}
    record |= {"model": asked.named.typed, "example": graph.example_shapes, "memory": peak}
    record["layers"] = {n: {kind: getattr(layer, kind) for kind in kinds} for n, layer in graph.layers.items()}
    record["units"] = {
        u.name: {
            **{key: getattr(u, key) for key in ("kind", "width", "granule")},
            "readers": [r.module for r in u.readers],
            "writers": [w.module for w in u.writers],
        }
        for u in graph.units.values()
    }
    return Answer(record)


# -- scores


def _score(asked: Asked, metrics: list[str], settings: ScoreSettings, how: ScoreOptions) -> Answer | None:
    named, out = asked.named, asked.out
    if out is not None:
        refuse_others(out, SCORES, beside=(SENSITIVITY,))
    data, seed, task = asked.data.known_for(named), how.seed, task_of(named.task(settings.task))
    from prunus.scoring.score import score
    from prunus.scoring.scores import rank_correlation, save_scores
    from prunus.util.processes import leave, rank_and_world

    rank, world = rank_and_world(asked.device.device)
    images = data.open(named, seed, task)
    graph = open_graph(named, images, seed=seed, device=asked.device.pick(), streams=asked.streams)
    task = task_on(images, task, lambda: graph.model)
    wanted = settings.num_images
    if world > 1:  # equal shares for all processes
        whole = images.count(how.part)  # type: ignore[arg-type]
        wanted = min(wanted or whole, whole)
        wanted -= wanted % world
    loader = images.loader(how.part, how.batch_size, limit=wanted, seed=seed, rank=rank, world=world)  # type: ignore[arg-type]
    settings = replace(settings, num_images=None, seed=seed, task=task)  # the loader's limit is the sample
    results = score(graph, loader, metrics, **vars(settings))
    leave()
    if rank:
        return None
    name = DEFAULT_METRIC if DEFAULT_METRIC in results else next(iter(results))
    shown, rows = results[name], []
    for unit, values in shown.values.items():
        order = shown.order(unit)
        cells = [" ".join(f"{c}:{values[c]:.3g}" for c in some[: how.show]) for some in (order, order[::-1])]
        rows.append([unit, graph.units[unit].kind, str(graph.units[unit].width), *cells])
    count = f"{shown.num_images:,} images" if shown.num_images else "no images"
    say(f"{len(shown.values)} units scored by {name}, {count}; higher means keep")
    console.print(table(("unit", "kind", "width", "weakest", "strongest"), rows, ("width",)))
    for note in shown.notes:
        say(f"note: {note}")
    alike = {a: {b: rank_correlation(results[a], results[b]) for b in results} for a in results}
    if len(results) > 1:
        say("\nrank correlation (Spearman, mean over units)")
        columns = list(results)
        step = max(1, console.width // (max(map(len, columns)) + 2) - 1)  # many metrics: tables below each other
        for some in (columns[start : start + step] for start in range(0, len(columns), step)):
            console.print(table(("", *some), [[a, *(f"{alike[a][b]:.2f}" for b in some)] for a in results], some))
    if out is not None:
        save_scores(results, out)
        say(f"\nwritten: {out / 'scores.safetensors'}, {out / 'scores.json'}")
    named.note_untrained()
    record = {"scores": {name: scores.values for name, scores in results.items()}, "rank_correlation": alike}
    return Answer({**record, "num_images": max(scores.num_images for scores in results.values())})


# -- sensitivity


def _rank(asked: Asked, settings: RankSettings, how: RankOptions) -> Answer:
    """Measure what the held-out quality loses when each unit loses channels: which units Algorithm 1 would prune."""
    named, out = asked.named, asked.out
    if out is not None:
        refuse_others(out, SENSITIVITY, beside=(SCORES,))
    data, seed, task = asked.data.known_for(named), settings.seed, task_of(named.task(settings.task))
    from prunus.deciding.sensitivity import sensitivity
    from prunus.deciding.settings import check_k
    from prunus.repairing.unit_repair import repair_each
    from prunus.scoring.score import score
    from prunus.tasks.evaluate import inputs_alone
    from prunus.util.files import write_json
    from prunus.util.typed_json import to_data

    named.note_untrained()
    images = data.open(named, seed, task)
    graph = open_graph(named, images, seed=seed, device=asked.device.pick(), streams=asked.streams)
    task = task_on(images, task, lambda: graph.model)
    settings = replace(settings, task=task)
    metric = how.metric or suited_metric(SPLITS.find(settings.split or "algorithm1").metric, settings.task)
    scored = images.loader("train", 256)
    scores = score(graph, scored, metric=metric, num_images=how.num_images, seed=seed, task=settings.task)
    repair = None
    if how.repair != "none":
        few = images.loader("train", 125, limit=how.num_repair_images, seed=seed)
        repair = repair_each(graph, inputs_alone(task, few), seed=seed)
    held_out = images.loader("holdout", 256, limit=how.num_eval_images)
    measured = sensitivity(graph, scores, held_out, settings, repair=repair)
    chosen = measured.ranked()[: check_k(settings.k, len(measured.tried))]
    if out is not None:
        write_json(out / "sensitivity.json", to_data(measured))
    text, rows = QualityText.of(task), []
    for name in measured.ranked():
        unit = measured.tried[name]
        quality = "-" if unit.accuracy is None else text.shown(unit.accuracy)
        loss = "-" if unit.loss is None else f"{unit.loss:.4f}"
        saved = f"{unit.saved:,.0f}" if unit.saved >= 1 else f"{unit.saved:.2e}"
        marked = "chosen" if name in chosen else ""
        rows.append([name, str(unit.width), str(unit.channels), quality, loss, saved, str(unit.num_images), marked])
    titles = ["unit", "width", "removed", text.name, "loss", f"{measured.cost} saved", "images", ""]
    console.print(table(titles, rows, numbers=titles[1:-1]))
    if measured.base_accuracy is not None:
        say(f"\nwhole network: {text.shown(measured.base_accuracy)} on {measured.num_images} held-out images")
    if out is not None:
        say(f"\nwritten: {out / 'sensitivity.json'}")
    return Answer(to_data(measured))


# -- latency


def _time(asked: Asked, how: LatencyOptions) -> Answer:
    """Time the layers at many widths. Times are kept in the user's cache folder."""
    ENGINES.find(how.engine).check_installed()
    if asked.out is not None:
        refuse_overwriting(asked.out)
    from prunus.graph.channel_graph import trace
    from prunus.timing.layer_timing import latency_table
    from prunus.util.typed_json import to_data

    network = open_network(asked.named, asked.classes, asked.size)
    graph = trace(network.model.eval(), network.zeros(asked.size), asked.streams)
    times = latency_table(graph, how.engine, how.batch, how.threads)
    alike: dict[LayerTimes, list[str]] = {}
    for name, layer in times.layers.items():
        alike.setdefault(layer, []).append(name)
    rows = []
    for layer, layers in sorted(alike.items(), key=lambda item: -len(item[1]) * item[0].seconds[-1][-1])[:SHOWN_LAYERS]:
        whole, ends = layer.seconds[-1][-1], (layer.inputs, layer.outputs)
        narrower = [layer.at(*(max(1, int(share * axis[-1])) for axis in ends)) for share in SHARES.values()]
        more = f" (+{len(layers) - 1})" if len(layers) > 1 else ""
        row = [f"{layers[0]}{more}", f"{layer.inputs[-1]} to {layer.outputs[-1]}", f"{1e3 * whole:.3f}"]
        rows.append([*row, f"{100 * len(layers) * whole / times.whole:.0f}%", *(f"{1e3 * s:.3f}" for s in narrower)])
    rest = f"{100 * times.remainder / times.whole:.0f}%"
    rows.append(["what is not a layer", "", f"{1e3 * times.remainder:.3f}", rest])
    rows.append(["whole network", "", f"{1e3 * times.whole:.3f}", "100%"])
    say(str(times.measured_with))
    titles = ["layer (and more alike)", "channels", "ms", "share", *SHARES]
    console.print(table(titles, rows, titles[2:]))
    say("ms: one layer, one batch; share: all alike; 3/4, 1/2, 1/4: ms at these widths")
    if asked.out is not None:
        times.save(asked.out)
        say(f"wrote {asked.out}")
    return Answer(to_data(times))
